#include "serve/keys.h"

#include <errno.h>
#include <fcntl.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/num.h"

#define HASH_BYTES  32
#define NS_PER_S    1000000000ull
#define NS_PER_MS   1000000ull
#define S_PER_MIN   60
#define NUMBER_SAID "a whole number from 1 to 1000000"

// What a line says of its key.
struct rule {
    uint8_t hash[HASH_BYTES];
    char name[KEYS_NAME_BYTES_MAX + 1];
    bool may_admin;
    uint32_t line;
    uint32_t rate, period_s; // requests in so many seconds; rate 0: any number
    uint32_t concurrency;    // 0: any number
};

struct slot {
    struct rule rule;
    bool used; // the file has it, or requests of it ran when the file was last read
    bool live; // the file has it
    uint32_t running;
    // The token bucket at at_ns. A request costs a period in nanoseconds and each nanosecond brings `rate`: no fractions. Full it
    // holds the cost of `rate` requests, at most 6e16.
    uint64_t level, at_ns;
};

struct keys {
    struct slot slots[KEYS_SLOTS_MAX];
    uint32_t n_slots; // all from there on are unused
    uint32_t n_live;
    bool readable_by_others;
};

// A file being read. All of it is wiped afterwards.
struct reading {
    char bytes[KEYS_FILE_BYTES_MAX + 1];
    size_t len;
    bool readable_by_others;
    struct rule rules[KEYS_MAX];
    uint32_t n;
    uint32_t line;
    struct iso_errinfo *err;
};

// ---- reading

static enum iso_err read_all(struct reading *r, int fd)
{
    while (r->len < sizeof r->bytes) {
        ssize_t got = read(fd, r->bytes + r->len, sizeof r->bytes - r->len);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return iso_fail(r->err, ISO_E_IO, r->len, NULL, "reading failed: %s", strerror(errno));
        if (got == 0)
            return ISO_OK;
        r->len += (size_t)got;
    }
    return iso_fail(r->err, ISO_E_LIMIT, 0, NULL, "the file has more than %zu bytes", KEYS_FILE_BYTES_MAX);
}

static enum iso_err read_file(struct reading *r, const char *path)
{
    // O_NONBLOCK: opening a FIFO would wait for its writer.
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0)
        return iso_fail(r->err, ISO_E_IO, 0, NULL, "opening failed: %s", strerror(errno));
    enum iso_err err;
    struct stat st;
    if (fstat(fd, &st))
        err = iso_fail(r->err, ISO_E_IO, 0, NULL, "reading its mode failed: %s", strerror(errno));
    else if (!S_ISREG(st.st_mode))
        err = iso_fail(r->err, ISO_E_IO, 0, NULL, "it is no regular file");
    else
        err = read_all(r, fd);
    r->readable_by_others = !err && (st.st_mode & S_IROTH);
    close(fd);
    return err;
}

static enum iso_err bad_line(const struct reading *r, const char *sentence)
{
    char field[ISO_ERR_FIELD_MAX];
    snprintf(field, sizeof field, "line %u", r->line);
    return iso_fail(r->err, ISO_E_FORMAT, 0, field, "line %u: %s", r->line, sentence);
}

// Takes what comes before `end` off the rest, which then begins behind it.
static struct strv take_until(struct strv *rest, const char *end)
{
    size_t n = 0;
    while (n < rest->len && !memchr(end, rest->ptr[n], strlen(end)))
        n++;
    struct strv taken = {rest->ptr, n};
    n += n < rest->len;
    *rest = (struct strv){rest->ptr + n, rest->len - n};
    return taken;
}

static struct strv next_word(struct strv *line)
{
    struct strv word;
    do
        word = take_until(line, " \t");
    while (word.len == 0 && line->len > 0);
    return word;
}

static bool is_visible(struct strv s)
{
    for (size_t i = 0; i < s.len; i++)
        if (s.ptr[i] <= ' ' || s.ptr[i] > '~')
            return false;
    return true;
}

// A whole number from 1 to `max`.
static bool number_read(struct strv s, uint32_t max, uint32_t *ret)
{
    uint64_t n = 0;
    for (size_t i = 0; i < s.len && n <= max; i++) {
        if (s.ptr[i] < '0' || s.ptr[i] > '9')
            return false;
        n = n * 10 + (uint64_t)(s.ptr[i] - '0');
    }
    if (n < 1 || n > max)
        return false;
    *ret = (uint32_t)n;
    return true;
}

static enum iso_err read_rate(const struct reading *r, struct strv value, struct rule *rule)
{
    struct strv number = take_until(&value, "/");
    bool second = strv_is(value, "s"), minute = strv_is(value, "min");
    if (!(second || minute) || !number_read(number, KEYS_RATE_MAX, &rule->rate))
        return bad_line(r, "rate must be " NUMBER_SAID " and /s or /min, as in rate=10/s");
    rule->period_s = second ? 1 : S_PER_MIN;
    return ISO_OK;
}

static enum iso_err read_name(const struct reading *r, struct strv value, struct rule *rule)
{
    if (value.len < 1 || value.len > KEYS_NAME_BYTES_MAX || !is_visible(value))
        return bad_line(r, "name must be 1 to 64 visible ASCII characters");
    memcpy(rule->name, value.ptr, value.len);
    rule->name[value.len] = '\0';
    return ISO_OK;
}

static enum iso_err read_concurrency(const struct reading *r, struct strv value, struct rule *rule)
{
    if (!number_read(value, KEYS_CONCURRENCY_MAX, &rule->concurrency))
        return bad_line(r, "concurrency must be " NUMBER_SAID);
    return ISO_OK;
}

static enum iso_err read_admin(const struct reading *r, struct strv value, struct rule *rule)
{
    rule->may_admin = strv_is(value, "yes");
    if (!rule->may_admin && !strv_is(value, "no"))
        return bad_line(r, "admin must be yes or no");
    return ISO_OK;
}

struct option {
    const char *name;
    enum iso_err (*read)(const struct reading *r, struct strv value, struct rule *rule);
};
static const struct option OPTIONS[] = {
    {"rate", read_rate}, {"concurrency", read_concurrency}, {"name", read_name}, {"admin", read_admin}};

// ARRAY_LEN(OPTIONS) where there is none of that name.
static size_t option_of(struct strv name)
{
    size_t i = 0;
    while (i < ARRAY_LEN(OPTIONS) && !strv_is(name, OPTIONS[i].name))
        i++;
    return i;
}

static enum iso_err read_options(const struct reading *r, struct strv line, struct rule *rule)
{
    uint32_t seen = 0; // a bit for each option; so the loop ends
    for (struct strv word = next_word(&line); word.len > 0; word = next_word(&line)) {
        size_t i = option_of(take_until(&word, "="));
        if (i == ARRAY_LEN(OPTIONS))
            return bad_line(r,
                            "unknown option; after the key may stand rate=, concurrency=, name= and admin=");
        if (seen & 1u << i)
            return bad_line(r, "an option is given twice");
        seen |= 1u << i;
        enum iso_err err = OPTIONS[i].read(r, word, rule);
        if (err)
            return err;
    }
    return ISO_OK;
}

static enum iso_err read_line(struct reading *r, struct strv line)
{
    if (line.len > 0 && line.ptr[line.len - 1] == '\r')
        line.len--;
    struct strv key = next_word(&line), left = key;
    if (key.len == 0 || key.ptr[0] == '#')
        return ISO_OK;
    // Else a forgotten key would make everyone a user who knows the options.
    if (option_of(take_until(&left, "=")) < ARRAY_LEN(OPTIONS) && left.ptr[-1] == '=')
        return bad_line(r, "an option stands where the key must be; the key comes first");
    if (!is_visible(key))
        return bad_line(r, "a key has only visible ASCII characters");
    if (key.len < KEYS_KEY_BYTES_MIN || key.len > KEYS_KEY_BYTES_MAX)
        return bad_line(r, "a key has 8 to 256 characters");
    if (r->n == KEYS_MAX)
        return iso_fail(r->err, ISO_E_LIMIT, 0, NULL, "line %u: more than %d keys", r->line, KEYS_MAX);
    struct rule *rule = &r->rules[r->n];
    rule->line = r->line;
    rule->may_admin = true;
    snprintf(rule->name, sizeof rule->name, "key%u", r->line);
    crypto_generichash(rule->hash, sizeof rule->hash, (const uint8_t *)key.ptr, key.len, NULL, 0);
    for (uint32_t i = 0; i < r->n; i++)
        if (memcmp(r->rules[i].hash, rule->hash, HASH_BYTES) == 0) {
            char sentence[64];
            snprintf(sentence, sizeof sentence, "the same key as in line %u", r->rules[i].line);
            return bad_line(r, sentence);
        }
    r->n++;
    return read_options(r, line, rule);
}

static enum iso_err read_rules(struct reading *r, const char *path)
{
    enum iso_err err = read_file(r, path);
    struct strv rest = {r->bytes, r->len};
    while (!err && rest.len > 0) {
        r->line++;
        err = read_line(r, take_until(&rest, "\n"));
    }
    if (!err && r->n == 0)
        return iso_fail(r->err, ISO_E_FORMAT, 0, NULL, "no key; one a line is wanted");
    return err;
}

// ---- the table

static uint64_t request_cost(const struct rule *rule)
{
    return rule->period_s * NS_PER_S;
}

static uint64_t level_full(const struct rule *rule)
{
    return rule->rate * request_cost(rule);
}

static void slot_clear_unneeded(struct slot *s)
{
    if (s->used && !s->live && s->running == 0)
        sodium_memzero(s, sizeof *s);
}

// Whether a rule is of the slot's key. Both come from files, so the time it takes tells nothing to those who ask.
static bool slot_is_of(const struct slot *s, const struct rule *rule)
{
    return s->used && memcmp(s->rule.hash, rule->hash, HASH_BYTES) == 0;
}

static void slot_fill(struct slot *s, const struct rule *rule)
{
    uint64_t full = level_full(rule);
    // What is left of the old limit counts, in requests, for the new one.
    uint64_t kept = s->rule.rate ? s->level * rule->period_s / s->rule.period_s : full;
    s->level = num_min(kept, full);
    s->rule = *rule;
    s->used = s->live = true;
}

// How many slots are needed beside those of the rules.
static uint32_t slots_leaving(const struct keys *k, const struct reading *r)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < k->n_slots; i++) {
        bool stays = k->slots[i].running == 0; // no: such a one is given back
        for (uint32_t j = 0; j < r->n && !stays; j++)
            stays = slot_is_of(&k->slots[i], &r->rules[j]);
        n += !stays;
    }
    return n;
}

static void apply(struct keys *k, const struct reading *r)
{
    bool placed[KEYS_MAX] = {false};
    for (uint32_t i = 0; i < k->n_slots; i++) {
        struct slot *s = &k->slots[i];
        s->live = false;
        for (uint32_t j = 0; j < r->n && !s->live; j++)
            if (slot_is_of(s, &r->rules[j])) {
                slot_fill(s, &r->rules[j]);
                placed[j] = true;
            }
        slot_clear_unneeded(s);
    }
    uint32_t free_slot = 0;
    for (uint32_t j = 0; j < r->n; j++) {
        if (placed[j])
            continue;
        while (k->slots[free_slot].used)
            free_slot++;
        ASSERT(free_slot < KEYS_SLOTS_MAX);
        slot_fill(&k->slots[free_slot], &r->rules[j]);
    }
    k->n_slots = KEYS_SLOTS_MAX;
    while (!k->slots[k->n_slots - 1].used) // one at least is, as there is a rule
        k->n_slots--;
    k->n_live = r->n;
    k->readable_by_others = r->readable_by_others;
}

enum iso_err keys_reload(struct keys *k, const char *path, struct iso_errinfo *reterr)
{
    struct reading *r = calloc(1, sizeof *r);
    if (!r)
        return iso_fail(reterr, ISO_E_NOMEM, 0, NULL, "no memory to read the keys");
    r->err = reterr;
    enum iso_err err = read_rules(r, path);
    if (!err && r->n + slots_leaving(k, r) > KEYS_SLOTS_MAX)
        err = iso_fail(reterr, ISO_E_LIMIT, 0, NULL,
                       "requests of too many removed keys still run; %d keys with them are possible",
                       KEYS_SLOTS_MAX);
    if (!err)
        apply(k, r);
    else if (reterr)
        iso_fail_prefix(reterr, path);
    sodium_memzero(r, sizeof *r);
    free(r);
    return err;
}

enum iso_err keys_open(const char *path, struct keys **ret, struct iso_errinfo *reterr)
{
    if (sodium_init() < 0)
        return iso_fail(reterr, ISO_E_IO, 0, NULL, "libsodium could not be started");
    struct keys *k = calloc(1, sizeof *k);
    if (!k)
        return iso_fail(reterr, ISO_E_NOMEM, 0, NULL, "no memory for the keys");
    enum iso_err err = keys_reload(k, path, reterr);
    if (err)
        keys_close(k);
    else
        *ret = k;
    return err;
}

void keys_close(struct keys *k)
{
    if (!k)
        return;
    sodium_memzero(k, sizeof *k);
    free(k);
}

bool keys_is_readable_by_others(const struct keys *k)
{
    return k->readable_by_others;
}

uint32_t keys_count(const struct keys *k)
{
    return k->n_live;
}

uint32_t keys_find(const struct keys *k, struct strv key)
{
    uint8_t hash[HASH_BYTES];
    crypto_generichash(hash, sizeof hash, (const uint8_t *)key.ptr, key.len, NULL, 0);
    uint32_t found = KEYS_NONE;
    for (uint32_t i = 0; i < k->n_slots; i++) {
        // No branch on what is equal: the time tells neither which key nor whether one.
        uint32_t equal = (uint32_t)(sodium_memcmp(hash, k->slots[i].rule.hash, HASH_BYTES) == 0);
        uint32_t mask = 0u - (equal & (uint32_t)k->slots[i].live);
        found = (found & ~mask) | (i & mask);
    }
    sodium_memzero(hash, sizeof hash);
    return found;
}

static const struct slot *slot_used(const struct keys *k, uint32_t key)
{
    ASSERT(key < k->n_slots && k->slots[key].used);
    return &k->slots[key];
}

const char *keys_name(const struct keys *k, uint32_t key)
{
    return slot_used(k, key)->rule.name;
}

bool keys_may_admin(const struct keys *k, uint32_t key)
{
    return slot_used(k, key)->rule.may_admin;
}

enum keys_verdict keys_begin(struct keys *k, uint32_t key, uint64_t now_ns, uint64_t *ret_retry_ms)
{
    ASSERT(key < k->n_slots && k->slots[key].live);
    struct slot *s = &k->slots[key];
    const struct rule *rule = &s->rule;
    if (rule->concurrency > 0 && s->running >= rule->concurrency)
        return KEYS_TOO_MANY;
    if (rule->rate > 0) {
        uint64_t cost = request_cost(rule);
        // After a whole period it is full whatever it held, so more time can't overflow the product.
        uint64_t passed = now_ns > s->at_ns ? num_min(now_ns - s->at_ns, cost) : 0;
        s->level = num_min(s->level + passed * rule->rate, level_full(rule));
        s->at_ns = num_max(s->at_ns, now_ns);
        if (s->level < cost) {
            *ret_retry_ms = num_div_up(num_div_up(cost - s->level, rule->rate), NS_PER_MS);
            return KEYS_TOO_OFTEN;
        }
        s->level -= cost;
    }
    ASSERT(s->running < UINT32_MAX);
    s->running++;
    return KEYS_ADMITTED;
}

void keys_end(struct keys *k, uint32_t key)
{
    ASSERT(key < k->n_slots && k->slots[key].running > 0);
    k->slots[key].running--; // a removed key's slot is given away by the next keys_reload
}
