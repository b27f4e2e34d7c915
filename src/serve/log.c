#include "serve/log.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#include "base/num.h"
#include "base/utf8.h"

#define NUMBER_BYTES_MAX  400 // of the longest double with 3 digits after the point: 314
#define ESCAPED_BYTES_MAX 6   // \u0000
#define TIME_BYTES_MAX    64
#define WRITE_TRIES_MAX   100 // of a write that signals interrupt

static const struct level_row {
    const char *name, *shown;
} LEVELS[] = {{"error", "ERROR"}, {"warn", "WARN"}, {"info", "INFO"}, {"debug", "DEBUG"}};

// A line being written: what is over LOG_LINE_MAX is counted, not kept.
struct line {
    char bytes[LOG_LINE_MAX];
    size_t len;
    size_t value_max; // bytes a text value may take, escaped
    bool json;
};

bool log_level_from_name(const char *name, enum log_level *ret)
{
    for (size_t i = 0; i < ARRAY_LEN(LEVELS); i++)
        if (strcmp(name, LEVELS[i].name) == 0) {
            *ret = (enum log_level)i;
            return true;
        }
    return false;
}

static void put(struct line *l, const void *bytes, size_t n)
{
    if (l->len + n <= sizeof l->bytes)
        memcpy(l->bytes + l->len, bytes, n);
    l->len += n;
}

static void put_text(struct line *l, const char *c_string)
{
    put(l, c_string, strlen(c_string));
}

// Those that end a line or steer a terminal: control characters of ASCII and Latin-1, and Unicode's line separators.
static bool is_control(uint32_t cp)
{
    return cp < 0x20 || (cp >= 0x7f && cp < 0xa0) || cp == 0x2028 || cp == 0x2029;
}

// The next character of s, from *at on, as it stands in quotes: out[0..n), n returned. *ret_plain: the same without quotes.
static size_t escape_next(struct strv s, size_t *at, char out[ESCAPED_BYTES_MAX + 1], bool *ret_plain)
{
    const uint8_t *p = (const uint8_t *)s.ptr + *at;
    uint32_t cp = 0;
    size_t n = utf8_decode(p, s.len - *at, &cp);
    *ret_plain = n > 0 && !is_control(cp) && cp != ' ' && cp != '"' && cp != '=' && cp != '\\';
    *at += n > 0 ? n : utf8_invalid_length(p, s.len - *at);
    if (n == 0)
        return utf8_encode(UTF8_REPLACEMENT, (uint8_t *)out);
    const char *named = "\"\"\\\\\nn\rr\tt"; // pairs: the character, what stands behind the backslash
    for (const char *pair = named; *pair; pair += 2)
        if (cp == (uint8_t)*pair) {
            out[0] = '\\';
            out[1] = pair[1];
            return 2;
        }
    if (is_control(cp))
        return (size_t)snprintf(out, ESCAPED_BYTES_MAX + 1, "\\u%04x", (unsigned)cp & 0xffffu);
    memcpy(out, p, n);
    return n;
}

// Appends the characters of s that fit in `max` bytes, escaped. Returns the bytes that all of them take, or a number over `max`.
static size_t put_escaped(struct line *l, struct strv s, size_t max, bool *ret_plain)
{
    char c[ESCAPED_BYTES_MAX + 1];
    size_t used = 0;
    for (size_t at = 0; at < s.len;) {
        bool plain;
        size_t n = escape_next(s, &at, c, &plain);
        *ret_plain = *ret_plain && plain;
        used += n;
        if (used > max)
            break;
        if (l)
            put(l, c, n);
    }
    return used;
}

static void put_value(struct line *l, struct strv s)
{
    static const struct strv DOTS = {"...", 3};
    // An escaped character is at least as long, so what is over this is cut in any case.
    s.len = num_min(s.len, LOG_LINE_MAX + 1);
    bool plain = s.len > 0;
    bool cut = put_escaped(NULL, s, l->value_max, &plain) > l->value_max;
    bool quoted = l->json || !plain;
    put(l, "\"", quoted);
    if (!cut)
        put_escaped(l, s, l->value_max, &plain);
    else if (l->value_max >= DOTS.len) {
        put_escaped(l, s, l->value_max - DOTS.len, &plain);
        put(l, DOTS.ptr, DOTS.len);
    }
    put(l, "\"", quoted);
}

static void put_time(struct line *l)
{
    struct timespec now;
    struct tm utc;
    char text[TIME_BYTES_MAX];
    clock_gettime(CLOCK_REALTIME, &now);
    if (!gmtime_r(&now.tv_sec, &utc))
        return;
    size_t n = strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &utc);
    put(l, text, n);
    snprintf(text, sizeof text, ".%03dZ", (int)(now.tv_nsec / 1000000));
    put_text(l, text);
}

static void put_head(struct line *l, enum log_level level, const char *event)
{
    put_text(l, l->json ? "{\"time\":\"" : "");
    put_time(l);
    put_text(l, l->json ? "\",\"level\":\"" : " ");
    put_text(l, l->json ? LEVELS[level].name : LEVELS[level].shown);
    put_text(l, l->json ? "\",\"event\":" : " ");
    put_value(l, strv_from(event));
}

static void put_field(struct line *l, const struct log_field *f)
{
    char number[NUMBER_BYTES_MAX];
    put_text(l, l->json ? ",\"" : " ");
    put_text(l, f->name);
    put_text(l, l->json ? "\":" : "=");
    if (f->kind == LOG_TEXT) {
        put_value(l, f->text);
        return;
    }
    if (f->kind == LOG_WHOLE)
        snprintf(number, sizeof number, "%" PRIu64, f->whole);
    else if (__builtin_isfinite(f->real))
        snprintf(number, sizeof number, "%.3f", f->real);
    else
        snprintf(number, sizeof number, "null");
    put_text(l, number);
}

// The whole line with text values of at most value_max bytes; true where it fits.
static bool make_line(struct line *l, enum log_level level, const char *event, const struct log_field *fields,
                      size_t value_max)
{
    l->len = 0;
    l->value_max = value_max;
    put_head(l, level, event);
    for (const struct log_field *f = fields; f->kind != LOG_END; f++)
        put_field(l, f);
    put_text(l, l->json ? "}\n" : "\n");
    return l->len <= sizeof l->bytes;
}

// The most that values may have each, so that the line fits; 0 where it fits with none.
static size_t value_max_of(struct line *l, enum log_level level, const char *event,
                           const struct log_field *fields)
{
    size_t low = 0, high = LOG_LINE_MAX;
    while (low < high) { // halves, so 14 times at most
        size_t middle = (low + high + 1) / 2;
        if (make_line(l, level, event, fields, middle))
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

static ssize_t write_once(int fd, const void *bytes, size_t n)
{
    ssize_t put = -1;
    for (int i = 0; i < WRITE_TRIES_MAX; i++) {
        put = write(fd, bytes, n);
        if (put >= 0 || errno != EINTR)
            break;
    }
    return put;
}

void log_write_fields(struct log *log, enum log_level level, const char *event,
                      const struct log_field *fields)
{
    if (level > log->level)
        return;
    struct line l = {.json = log->json};
    // A line of its own, even after one that lost its end.
    if (log->torn && write_once(log->fd, "\n", 1) == 1)
        log->torn = false;
    if (!make_line(&l, level, event, fields, LOG_LINE_MAX) &&
        !make_line(&l, level, event, fields, value_max_of(&l, level, event, fields))) {
        log->lost++; // there are too many fields
        return;
    }
    ssize_t put = log->torn ? 0 : write_once(log->fd, l.bytes, l.len);
    if (put == (ssize_t)l.len)
        return;
    log->lost++;
    log->torn = log->torn || put > 0;
}
