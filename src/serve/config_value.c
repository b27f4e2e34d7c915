// Values: from text into their field, and back.
#include <arpa/inet.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/num.h"
#include "base/size.h"
#include "base/utf8.h"
#include "plan/plan_format.h"
#include "serve/config_internal.h"

#define MINUTE_MS   (60 * CONFIG_SECOND_MS)
#define REAL_DIGITS 6 // after the point
#define REAL_SCALE  UINT64_C(1000000)
#define WORDS_MAX   8

enum { OF_serve_config, OF_config_unit };

const struct config_spec CONFIG_SPECS[SETTING_COUNT] = {
#define X(id, path, flag, value, owner, field, kind, min, max, words, help)                           \
    {KIND_##kind, OF_##owner, offsetof(struct owner, field), sizeof(((struct owner *)0)->field), min, \
     max,         words},
    CONFIG_SETTINGS(X)
#undef X
};

void config_unit_init(struct config_unit *u, uint32_t index)
{
    memset(u, 0, sizeof *u);
    snprintf(u->name, sizeof u->name, "unit%" PRIu32, index);
}

// ---- Texts ----

// What YAML can't have is no use in a value: it couldn't be written into a file again. U+2028 and U+2029 would begin a line
// there, and in no editor.
bool config_char_ok(uint32_t cp)
{
    bool control = cp < 0x20 || (cp >= 0x7f && cp < 0xa0) || cp == 0x2028 || cp == 0x2029;
    return !control && cp != 0xfeff && cp != 0xfffe && cp != 0xffff;
}

bool config_text_ok(struct strv text, size_t max)
{
    if (text.len == 0 || text.len > max)
        return false;
    for (size_t i = 0; i < text.len;) {
        uint32_t cp = 0;
        size_t n = utf8_decode((const uint8_t *)text.ptr + i, text.len - i, &cp);
        if (n == 0 || !config_char_ok(cp))
            return false;
        i += n;
    }
    return true;
}

// The rest is zero, so that equal settings are equal bytes.
static void store_text(char *to, size_t size, struct strv text)
{
    ASSERT(text.len < size);
    memset(to, 0, size);
    memcpy(to, text.ptr, text.len);
}

struct strv config_word(const char *words, uint32_t i)
{
    const char *at = words;
    for (; i > 0 && *at; i--) {
        at += strcspn(at, " ");
        at += strspn(at, " ");
    }
    return (struct strv){at, strcspn(at, " ")};
}

// WORDS_MAX where the text is none of them.
static uint32_t find_word(const char *words, struct strv text)
{
    for (uint32_t i = 0; i < WORDS_MAX && config_word(words, i).len > 0; i++)
        if (strv_equal(config_word(words, i), text))
            return i;
    return WORDS_MAX;
}

// ---- Numbers ----

// To anyone who knows C or YAML 1.1 a number that begins with 0 is an octal one.
static bool looks_octal(struct strv text)
{
    return text.len > 1 && text.ptr[0] == '0' && text.ptr[1] >= '0' && text.ptr[1] <= '9';
}

static bool parse_time(struct strv text, uint64_t *ret_ms)
{
    static const struct {
        const char *unit;
        uint64_t ms;
    } UNITS[] = {{"ms", 1}, {"s", CONFIG_SECOND_MS}, {"min", MINUTE_MS}};
    uint64_t value = 0;
    size_t n = size_digits(text, &value);
    struct strv unit = {text.ptr + n, text.len - n};
    for (size_t i = 0; n > 0 && i < ARRAY_LEN(UNITS); i++)
        if (strv_is(unit, UNITS[i].unit))
            return num_mul(value, UNITS[i].ms, ret_ms);
    return false;
}

// In units of 1 / REAL_SCALE: exact, so that its quotient is the nearest double, as strtod's would be, in any locale.
static bool parse_real(struct strv text, uint64_t *ret)
{
    uint64_t whole = 0, fraction = 0;
    size_t n = size_digits(text, &whole);
    if (n == 0 || whole > UINT32_MAX)
        return false;
    if (n < text.len) {
        struct strv digits = {text.ptr + n + 1, text.len - n - 1};
        if (text.ptr[n] != '.' || digits.len > REAL_DIGITS || !size_parse_whole(digits, &fraction))
            return false;
        for (size_t i = digits.len; i < REAL_DIGITS; i++)
            fraction *= 10;
    }
    *ret = whole * REAL_SCALE + fraction;
    return true;
}

static bool put_number(const struct config_spec *s, void *to, struct strv text)
{
    uint64_t value = 0, scale = 1;
    bool parsed = false;
    if (s->kind == KIND_WHOLE)
        parsed = size_parse_whole(text, &value);
    else if (s->kind == KIND_SIZE)
        parsed = size_parse(text, &value);
    else if (s->kind == KIND_TIME)
        parsed = parse_time(text, &value);
    else
        parsed = parse_real(text, &value);
    if (s->kind == KIND_REAL)
        scale = REAL_SCALE / 100;
    if (!parsed || looks_octal(text) || value < s->min * scale || value > s->max * scale)
        return false;
    if (s->kind == KIND_REAL)
        *(double *)to = (double)value / (double)REAL_SCALE;
    else if (s->kind == KIND_SIZE)
        *(uint64_t *)to = value;
    else
        *(uint32_t *)to = (uint32_t)value;
    return true;
}

// ---- The others ----

static bool put_address(struct serve_config *c, struct strv text, uint64_t port_max)
{
    char address[INET6_ADDRSTRLEN] = "", canonical[INET6_ADDRSTRLEN];
    uint8_t bytes[sizeof(struct in6_addr)];
    uint64_t port = 0;
    bool six = strv_starts(text, "[");
    const char *end = text.ptr ? memrchr(text.ptr, ':', text.len) : NULL;
    if (!end)
        return false;
    struct strv host = {text.ptr, (size_t)(end - text.ptr)}, digits = {end + 1, text.len - host.len - 1};
    if (six && (host.len < 2 || host.ptr[host.len - 1] != ']'))
        return false;
    if (six)
        host = (struct strv){host.ptr + 1, host.len - 2};
    if (strv_is(host, "localhost"))
        host = STRV_LIT("127.0.0.1");
    // A zero inside would end the address early.
    if (host.len >= sizeof address || !config_text_ok(host, host.len) || looks_octal(digits) ||
        !size_parse_whole(digits, &port) || port > port_max)
        return false;
    memcpy(address, host.ptr, host.len);
    if (inet_pton(six ? AF_INET6 : AF_INET, address, bytes) != 1)
        return false;
    if (!inet_ntop(six ? AF_INET6 : AF_INET, bytes, canonical, sizeof canonical))
        return false;
    store_text(c->address, sizeof c->address, strv_from(canonical));
    c->port = (uint16_t)port;
    return true;
}

static bool add_cpus(struct config_unit *u, uint64_t first, uint64_t last)
{
    if (first > last || last > CONFIG_CPU_MAX || last - first >= TEAM_THREADS_MAX - u->n_cpus)
        return false;
    for (uint64_t cpu = first; cpu <= last; cpu++)
        u->cpus[u->n_cpus++] = (uint32_t)cpu;
    return true;
}

bool config_put_cpu(struct config_unit *u, struct strv text)
{
    uint64_t cpu = 0;
    return !looks_octal(text) && size_parse_whole(text, &cpu) && add_cpus(u, cpu, cpu);
}

// Numbers and ranges, as in 0-3,6.
static bool put_cpus(struct config_unit *u, struct strv text)
{
    struct config_unit read;
    memset(&read, 0, sizeof read);
    for (uint32_t i = 0; i < TEAM_THREADS_MAX; i++) { // each part is one CPU or more
        const char *comma = text.len ? memchr(text.ptr, ',', text.len) : NULL;
        struct strv part = {text.ptr, comma ? (size_t)(comma - text.ptr) : text.len};
        const char *dash = part.len ? memchr(part.ptr, '-', part.len) : NULL;
        struct strv from = {part.ptr, dash ? (size_t)(dash - part.ptr) : part.len};
        struct strv to = dash ? (struct strv){dash + 1, part.len - from.len - 1} : from;
        uint64_t first = 0, last = 0;
        if (looks_octal(from) || looks_octal(to) || !size_parse_whole(from, &first) ||
            !size_parse_whole(to, &last) || !add_cpus(&read, first, last))
            return false;
        if (!comma) {
            memcpy(u->cpus, read.cpus, sizeof u->cpus);
            u->n_cpus = read.n_cpus;
            return true;
        }
        text = (struct strv){comma + 1, text.len - part.len - 1};
    }
    return false;
}

static bool put_path(char *to, struct strv folder, struct strv text)
{
    struct strv before = folder.len == 0 || strv_starts(text, "/") ? (struct strv){"", 0} : folder;
    if (!config_text_ok(text, FILE_PATH_MAX - 1 - before.len))
        return false;
    memset(to, 0, FILE_PATH_MAX);
    memcpy(to, before.ptr, before.len);
    memcpy(to + before.len, text.ptr, text.len);
    return true;
}

static bool put_word(const struct config_spec *s, void *to, struct strv text)
{
    uint32_t index = find_word(s->words, text);
    if (index == WORDS_MAX)
        return false;
    if (s->kind == KIND_WORD)
        store_text(to, s->size, text);
    else if (s->size == sizeof(bool))
        *(bool *)to = index == 1;
    else
        *(uint32_t *)to = index;
    return true;
}

static bool put(const struct config_target *t, const struct config_spec *s, struct strv text)
{
    void *to = (uint8_t *)(s->of_unit ? (void *)t->unit : (void *)t->c) + s->at;
    switch (s->kind) {
    case KIND_NAME:
        if (!config_text_ok(text, s->size - 1))
            return false;
        store_text(to, s->size, text);
        return true;
    case KIND_PATH:
        return put_path(to, t->folder, text);
    case KIND_ADDRESS:
        return put_address(t->c, text, s->max);
    case KIND_BOOL:
        if (!strv_is(text, "true") && !strv_is(text, "false"))
            return false;
        *(bool *)to = text.len == strlen("true");
        return true;
    case KIND_WORD:
    case KIND_INDEX:
        return put_word(s, to, text);
    case KIND_CPUS:
        return put_cpus(t->unit, text);
    default:
        return put_number(s, to, text);
    }
}

enum iso_err config_put(const struct config_target *t, enum config_id id, const char *called,
                        struct strv text, struct iso_errinfo *reterr)
{
    char allowed[CONFIG_ALLOWED_BYTES];
    if (CONFIG_SPECS[id].kind == KIND_MODEL)
        return config_put_model(t, (struct strv){"", 0}, text, reterr);
    if (!put(t, &CONFIG_SPECS[id], text)) {
        config_allowed(id, allowed);
        return iso_fail(reterr, ISO_E_USAGE, 0, called, "%s is \"%.*s\"; allowed is %s", called,
                        STRV_ARG(text), allowed);
    }
    t->c->lines[id] = t->line;
    return ISO_OK;
}

enum iso_err config_put_model(const struct config_target *t, struct strv name, struct strv path,
                              struct iso_errinfo *reterr)
{
    struct serve_config *c = t->c;
    if (c->n_models == CONFIG_MODELS_MAX)
        return iso_fail(reterr, ISO_E_USAGE, 0, "model", "model: there are more than %d models",
                        CONFIG_MODELS_MAX);
    struct config_model *m = &c->models[c->n_models];
    if (name.len > 0 && !config_text_ok(name, sizeof m->name - 1))
        return iso_fail(reterr, ISO_E_USAGE, 0, "model",
                        "model: a name is \"%.*s\"; allowed are 1 to %zu bytes without control characters",
                        STRV_ARG(name), sizeof m->name - 1);
    if (!put_path(m->path, t->folder, path)) {
        char allowed[CONFIG_ALLOWED_BYTES];
        config_allowed(SETTING_KEYS, allowed); // a path, too
        return iso_fail(reterr, ISO_E_USAGE, 0, "model", "model: a path is \"%.*s\"; allowed is %s",
                        STRV_ARG(path), allowed);
    }
    store_text(m->name, sizeof m->name, name);
    m->line = c->lines[SETTING_MODEL] = t->line;
    c->n_models++;
    return ISO_OK;
}

// ---- Back to text ----

void config_show_size(uint64_t bytes, char out[CONFIG_SHOWN_BYTES])
{
    if (bytes > 0 && bytes % GIB == 0)
        snprintf(out, CONFIG_SHOWN_BYTES, "%" PRIu64 "GiB", bytes / GIB);
    else if (bytes > 0 && bytes % MIB == 0)
        snprintf(out, CONFIG_SHOWN_BYTES, "%" PRIu64 "MiB", bytes / MIB);
    else if (bytes > 0 && bytes % KIB == 0)
        snprintf(out, CONFIG_SHOWN_BYTES, "%" PRIu64 "KiB", bytes / KIB);
    else
        snprintf(out, CONFIG_SHOWN_BYTES, "%" PRIu64, bytes);
}

void config_show_time(uint32_t ms, char out[CONFIG_SHOWN_BYTES])
{
    if (ms % MINUTE_MS == 0)
        snprintf(out, CONFIG_SHOWN_BYTES, "%" PRIu32 "min", ms / MINUTE_MS);
    else if (ms % CONFIG_SECOND_MS == 0)
        snprintf(out, CONFIG_SHOWN_BYTES, "%" PRIu32 "s", ms / CONFIG_SECOND_MS);
    else
        snprintf(out, CONFIG_SHOWN_BYTES, "%" PRIu32 "ms", ms);
}

void config_show_real(double value, char out[CONFIG_SHOWN_BYTES])
{
    uint64_t scaled = (uint64_t)(value * (double)REAL_SCALE + 0.5);
    int n = snprintf(out, CONFIG_SHOWN_BYTES, "%" PRIu64 ".%0*" PRIu64, scaled / REAL_SCALE, REAL_DIGITS,
                     scaled % REAL_SCALE);
    while (n > 1 && out[n - 1] == '0' && out[n - 2] != '.')
        out[--n] = '\0';
}

static void allowed_words(const char *words, char out[CONFIG_ALLOWED_BYTES])
{
    size_t n = 0;
    out[0] = '\0';
    for (uint32_t i = 0; config_word(words, i).len > 0; i++) { // all fit: the table is fixed
        const char *between = i == 0 ? "" : config_word(words, i + 1).len > 0 ? ", " : " or ";
        n += (size_t)snprintf(out + n, CONFIG_ALLOWED_BYTES - n, "%s%.*s", between,
                              STRV_ARG(config_word(words, i)));
        ASSERT(n < CONFIG_ALLOWED_BYTES);
    }
}

void config_allowed(enum config_id id, char out[CONFIG_ALLOWED_BYTES])
{
    const struct config_spec *s = &CONFIG_SPECS[id];
    char least[CONFIG_SHOWN_BYTES], most[CONFIG_SHOWN_BYTES];
    const size_t n = CONFIG_ALLOWED_BYTES;
    switch (s->kind) {
    case KIND_MODEL:
        snprintf(out, n, "a path, or a mapping of names to paths");
        break;
    case KIND_NAME:
        snprintf(out, n, "a name of 1 to %zu bytes without control characters", s->size - 1);
        break;
    case KIND_PATH:
        snprintf(out, n, "a path of 1 to %d bytes without control characters", FILE_PATH_MAX - 1);
        break;
    case KIND_ADDRESS:
        snprintf(out, n,
                 "a numeric address and a port up to %" PRIu64 ", as in 127.0.0.1:8000 or \"[::1]:8000\"",
                 s->max);
        break;
    case KIND_BOOL:
        snprintf(out, n, "true or false");
        break;
    case KIND_WHOLE:
        snprintf(out, n, "a whole number from %" PRIu64 " to %" PRIu64, s->min, s->max);
        break;
    case KIND_SIZE:
        config_show_size(s->min, least);
        config_show_size(s->max, most);
        snprintf(out, n, "a size from %s to %s, as in 512MiB or 8GiB", least, most);
        break;
    case KIND_TIME:
        config_show_time((uint32_t)s->min, least);
        config_show_time((uint32_t)s->max, most);
        snprintf(out, n, "a time from %s to %s, as in 500ms, 10s or 1min", least, most);
        break;
    case KIND_REAL:
        config_show_real((double)s->min / 100, least);
        config_show_real((double)s->max / 100, most);
        snprintf(out, n, "a number from %s to %s with at most %d digits after the point", least, most,
                 REAL_DIGITS);
        break;
    case KIND_WORD:
    case KIND_INDEX:
        allowed_words(s->words, out);
        break;
    case KIND_CPUS:
        snprintf(out, n, "a list of 1 to %d CPUs, each up to %" PRIu64 ", as in [0, 1] or \"0-3,6\"",
                 TEAM_THREADS_MAX, s->max);
        break;
    }
}
