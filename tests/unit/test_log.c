// log: exact lines in both forms, whatever the values hold; JSON read back by jansson; levels; and what can't be written.
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/num.h"
#include "base/utf8.h"
#include "serve/log.h"

#define TEXT_HEAD "2026-12-03T07:35:19.123Z "
#define JSON_HEAD "{\"time\":\"2026-12-03T07:35:19.123Z\","

// ---- calls that are made to do otherwise (the linker's --wrap)

static struct {
    int interruptions, error; // EINTR so many times; then this error, where it is one
    int errors;               // how often; 0: always
    size_t part;              // of a write, where it is not 0
    int writes;               // calls
} fault;
static struct timespec now;

int __real_clock_gettime(clockid_t id, struct timespec *t);
ssize_t __real_write(int fd, const void *p, size_t n);
int __wrap_clock_gettime(clockid_t id, struct timespec *t);
ssize_t __wrap_write(int fd, const void *p, size_t n);

int __wrap_clock_gettime(clockid_t id, struct timespec *t)
{
    if (id != CLOCK_REALTIME)
        return __real_clock_gettime(id, t);
    *t = now;
    return 0;
}

ssize_t __wrap_write(int fd, const void *p, size_t n)
{
    fault.writes++;
    if (fault.interruptions > 0) {
        fault.interruptions--;
        errno = EINTR;
        return -1;
    }
    if (fault.error) {
        errno = fault.error;
        if (fault.errors > 0 && --fault.errors == 0)
            fault.error = 0;
        return -1;
    }
    return __real_write(fd, p, fault.part && fault.part < n ? fault.part : n);
}

// ---- a log into a pipe that can be read

struct fixture {
    struct log log;
    int from;
    char got[1 << 17];
};

static int set_up(void **state)
{
    static struct fixture f;
    int ends[2];
    memset(&fault, 0, sizeof fault);
    now = (struct timespec){1796283319, 123999999}; // 2026-12-03T07:35:19.123999999Z
    if (pipe2(ends, O_NONBLOCK | O_CLOEXEC) || fcntl(ends[1], F_SETPIPE_SZ, 1 << 16) < 0)
        return -1;
    f.log = (struct log){.fd = ends[1], .level = LOG_INFO};
    f.from = ends[0];
    *state = &f;
    return 0;
}

static int tear_down(void **state)
{
    struct fixture *f = *state;
    close(f->log.fd);
    close(f->from);
    return 0;
}

// All that was written since the last time.
static const char *take(struct fixture *f)
{
    size_t n = 0;
    ssize_t got;
    while ((got = read(f->from, f->got + n, sizeof f->got - 1 - n)) > 0)
        n += (size_t)got;
    assert_true(n < sizeof f->got - 1);
    f->got[n] = '\0';
    assert_int_equal(strlen(f->got), n);
    return f->got;
}

// A line's JSON; its text has no line end but its last byte.
static json_t *take_json(struct fixture *f)
{
    json_error_t e;
    const char *line = take(f);
    size_t n = strlen(line);
    assert_true(n > 0 && strchr(line, '\n') == line + n - 1);
    json_t *json = json_loads(line, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &e);
    if (!json)
        fail_msg("%s: %s", e.text, line);
    return json;
}

// ---- lines

static void test_text(void **state)
{
    struct fixture *f = *state;
    struct log *log = &f->log;
    log_write(log, LOG_INFO, "request", LOG_S("id", "r1"), LOG_U("tokens", 12), LOG_F("ttft_ms", 3.2),
              LOG_S("error", "no such model"));
    assert_string_equal(take(f),
                        TEXT_HEAD "INFO request id=r1 tokens=12 ttft_ms=3.200 error=\"no such model\"\n");
    log_write(log, LOG_ERROR, "start");
    log_write(log, LOG_WARN, "two words", LOG_V("v", ((struct strv){"abcdef", 3})), LOG_S("empty", ""),
              LOG_V("none", ((struct strv){NULL, 0})));
    assert_string_equal(take(f), TEXT_HEAD "ERROR start\n" TEXT_HEAD
                                           "WARN \"two words\" v=abc empty=\"\" none=\"\"\n");
    assert_int_equal(log->lost, 0);
    assert_int_equal(fault.writes, 3);
}

static void test_json(void **state)
{
    struct fixture *f = *state;
    struct log *log = &f->log;
    log->json = true;
    log_write(log, LOG_INFO, "request", LOG_S("id", "r1"), LOG_U("tokens", 12), LOG_F("ttft_ms", 3.2),
              LOG_S("error", "no such \"model\""));
    assert_string_equal(take(f),
                        JSON_HEAD "\"level\":\"info\",\"event\":\"request\",\"id\":\"r1\",\"tokens\":12,"
                                  "\"ttft_ms\":3.200,\"error\":\"no such \\\"model\\\"\"}\n");
    log_write(log, LOG_ERROR, "start");
    assert_string_equal(take(f), JSON_HEAD "\"level\":\"error\",\"event\":\"start\"}\n");
    log_write(log, LOG_WARN, "two words", LOG_V("none", ((struct strv){NULL, 0})));
    assert_string_equal(take(f), JSON_HEAD "\"level\":\"warn\",\"event\":\"two words\",\"none\":\"\"}\n");
}

static void test_numbers(void **state)
{
    struct fixture *f = *state;
    struct log *log = &f->log;
    static const struct {
        double value;
        const char *want;
    } REALS[] = {{0, "0.000"},
                 {-1.5, "-1.500"},
                 {0.0004, "0.000"},
                 {0.0006, "0.001"},
                 {1e15, "1000000000000000.000"},
                 {NAN, "null"},
                 {INFINITY, "null"},
                 {-INFINITY, "null"},
                 {123.4567, "123.457"}};
    char want[400];
    for (int json = 0; json < 2; json++) {
        log->json = json;
        for (size_t i = 0; i < ARRAY_LEN(REALS); i++) {
            log_write(log, LOG_INFO, "e", LOG_F("x", REALS[i].value));
            snprintf(want, sizeof want,
                     json ? JSON_HEAD "\"level\":\"info\",\"event\":\"e\",\"x\":%s}\n"
                          : TEXT_HEAD "INFO e x=%s\n",
                     REALS[i].want);
            assert_string_equal(take(f), want);
        }
        log_write(log, LOG_INFO, "e", LOG_U("a", 0), LOG_U("b", UINT64_MAX));
        assert_non_null(
            strstr(take(f), json ? "\"a\":0,\"b\":18446744073709551615}" : " a=0 b=18446744073709551615\n"));
    }
    // The longest there are, which a reader of doubles takes back.
    log_write(log, LOG_INFO, "e", LOG_F("x", -1.7976931348623157e308), LOG_F("y", 1.7976931348623157e308));
    json_t *j = take_json(f);
    assert_true(json_real_value(json_object_get(j, "x")) == -1.7976931348623157e308);
    assert_true(json_real_value(json_object_get(j, "y")) == 1.7976931348623157e308);
    json_decref(j);
}

// Every ASCII character alone: what must be escaped how.
static void test_ascii(void **state)
{
    struct fixture *f = *state;
    struct log *log = &f->log;
    for (int json = 0; json < 2; json++)
        for (int c = 0; c < 128; c++) {
            char value[3] = {'a', (char)c, 'b'}, shown[16], want[128];
            log->json = json;
            const char *quote = json || c <= ' ' || c == '"' || c == '\\' || c == '=' || c == 127 ? "\"" : "";
            if (c == '\n' || c == '\r' || c == '\t')
                snprintf(shown, sizeof shown, "a\\%cb", c == '\n' ? 'n' : c == '\r' ? 'r' : 't');
            else if (c < ' ' || c == 127)
                snprintf(shown, sizeof shown, "a\\u00%02xb", c);
            else
                snprintf(shown, sizeof shown, c == '"' || c == '\\' ? "a\\%cb" : "a%cb", c);
            log_write(log, LOG_INFO, "e", LOG_V("v", ((struct strv){value, 3})));
            snprintf(want, sizeof want,
                     json ? JSON_HEAD "\"level\":\"info\",\"event\":\"e\",\"v\":%s%s%s}\n"
                          : TEXT_HEAD "INFO e v=%s%s%s\n",
                     quote, shown, quote);
            assert_string_equal(take(f), want);
        }
}

static void test_unicode(void **state)
{
    struct fixture *f = *state;
    static const struct {
        const char *value, *want; // with quotes where text has some
    } CASES[] = {
        {"M\xc3\xbcller", "M\xc3\xbcller"},
        {"\xf0\x9f\x98\x80", "\xf0\x9f\x98\x80"},
        {"a\xc2\x80z", "\"a\\u0080z\""},
        {"a\xc2\x85z", "\"a\\u0085z\""},
        {"a\xc2\x9bz", "\"a\\u009bz\""}, // a terminal's CSI
        {"a\xc2\xa0z", "a\xc2\xa0z"},
        {"a\xe2\x80\xa8z", "\"a\\u2028z\""},
        {"a\xe2\x80\xa9z", "\"a\\u2029z\""},
        {"a\xff\xfez", "\"a\xef\xbf\xbd\xef\xbf\xbdz\""},
        {"a\xc3", "\"a\xef\xbf\xbd\""},
        {"\xf0\x9f\x98z", "\"\xef\xbf\xbdz\""},
        {"\xc0\xaf", "\"\xef\xbf\xbd\xef\xbf\xbd\""},
        {"\xed\xa0\x80", "\"\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\""},
    };
    for (size_t i = 0; i < ARRAY_LEN(CASES); i++) {
        char want[128];
        log_write(&f->log, LOG_INFO, "e", LOG_S("v", CASES[i].value));
        snprintf(want, sizeof want, TEXT_HEAD "INFO e v=%s\n", CASES[i].want);
        assert_string_equal(take(f), want);
    }
}

// The same characters with U+FFFD for what is no UTF-8, found by asking utf8_is_valid of ever longer pieces.
static size_t repair(const char *s, size_t n, char *out)
{
    size_t len = 0;
    for (size_t i = 0; i < n;) {
        size_t k = 1;
        while (k <= UTF8_MAX_BYTES && (k > n - i || !utf8_is_valid((const uint8_t *)s + i, k)))
            k++;
        if (k > UTF8_MAX_BYTES) {
            memcpy(out + len, "\xef\xbf\xbd", 3);
            len += 3;
            i += utf8_invalid_length((const uint8_t *)s + i, n - i);
            continue;
        }
        memcpy(out + len, s + i, k);
        len += k;
        i += k;
    }
    return len;
}

static void test_any_bytes(void **state)
{
    struct fixture *f = *state;
    uint64_t seed = 88172645463325252u;
    f->log.json = true;
    for (int round = 0; round < 3000; round++) {
        char value[64], want[200];
        size_t n = (size_t)round % sizeof value;
        for (size_t i = 0; i < n; i++) {
            seed ^= seed << 13, seed ^= seed >> 7, seed ^= seed << 17;
            // Leading and following bytes of UTF-8 more often than they come by themselves.
            uint8_t byte = (uint8_t)(seed >> 20),
                    frequent = (uint8_t)(i % 4 ? 0x80 + byte % 0x40 : 0xc0 + byte % 0x38);
            value[i] = (char)(round % 3 ? byte : frequent);
        }
        log_write(&f->log, LOG_INFO, "e", LOG_V("v", ((struct strv){value, n})));
        json_t *j = take_json(f), *v = json_object_get(j, "v");
        size_t want_len = repair(value, n, want);
        assert_int_equal(json_string_length(v), want_len);
        assert_memory_equal(json_string_value(v), want, want_len);
        json_decref(j);
    }
}

// ---- over-long lines

static char big[3 * LOG_LINE_MAX];

// The longest value that a line with the event e and the field v holds whole, in text without quotes.
#define ROOM (LOG_LINE_MAX - strlen(TEXT_HEAD "INFO e v=\n"))

static void test_long_value(void **state)
{
    struct fixture *f = *state;
    struct log *log = &f->log;
    memset(big, 'x', sizeof big);
    for (size_t n = ROOM - 2; n < ROOM + 4; n++) {
        log_write(log, LOG_INFO, "e", LOG_V("v", ((struct strv){big, n})));
        const char *line = take(f), *value = line + strlen(TEXT_HEAD "INFO e v=");
        assert_int_equal(strlen(line), n <= ROOM ? LOG_LINE_MAX - ROOM + n : LOG_LINE_MAX);
        size_t whole = n <= ROOM ? n : ROOM - 3;
        assert_memory_equal(value, big, whole);
        assert_string_equal(value + whole, n <= ROOM ? "\n" : "...\n");
    }
    // The longest value is cut, not the others; what follows it stays.
    log_write(log, LOG_INFO, "e", LOG_S("a", "short"), LOG_V("v", ((struct strv){big, sizeof big})),
              LOG_U("n", 7), LOG_V("w", ((struct strv){big, 3000})));
    const char *line = take(f);
    assert_int_equal(strlen(line), LOG_LINE_MAX);
    assert_non_null(strstr(line, " a=short v=xxx"));
    const char *after = strstr(line, "... n=7 w=");
    assert_non_null(after);
    assert_int_equal(strspn(after + 10, "x"), 3000);
    // Two that are too long share.
    log_write(log, LOG_INFO, "e", LOG_V("v", ((struct strv){big, 9000})),
              LOG_V("w", ((struct strv){big, sizeof big})));
    line = take(f);
    size_t v = strcspn(strstr(line, "v=") + 2, " \n"), w = strcspn(strstr(line, "w=") + 2, " \n");
    assert_true(v == w && LOG_LINE_MAX - strlen(line) < 2);
    // So is an event.
    static char event[2 * LOG_LINE_MAX];
    memset(event, 'e', sizeof event - 1);
    log_write(log, LOG_INFO, event, LOG_U("n", 7));
    line = take(f);
    assert_int_equal(strlen(line), LOG_LINE_MAX);
    assert_non_null(strstr(line, "eee... n=7\n"));
    assert_int_equal(log->lost, 0);
}

// Cut between characters, escaped or not: every line is whole JSON.
static void test_long_values_json(void **state)
{
    struct fixture *f = *state;
    static const char *const PATTERNS[] = {
        "x", "\x01", "\"", "\xc3\xbc", "\xe2\x82\xac", "\xf0\x9f\x98\x80", "\xff", "ab\n\xe2\x82"};
    f->log.json = true;
    for (size_t p = 0; p < ARRAY_LEN(PATTERNS); p++)
        for (size_t n = 1300; n < sizeof big; n += n < 1400 ? 1 : 611) {
            for (size_t i = 0; i < n; i++)
                big[i] = PATTERNS[p][i % strlen(PATTERNS[p])];
            log_write(&f->log, LOG_INFO, "e", LOG_V("v", ((struct strv){big, n})), LOG_U("n", n));
            json_t *j = take_json(f);
            assert_true(strlen(f->got) <= LOG_LINE_MAX);
            assert_int_equal(json_integer_value(json_object_get(j, "n")), n);
            const char *v = json_string_value(json_object_get(j, "v"));
            static char repaired[3 * sizeof big + 1];
            size_t want = repair(big, n, repaired), got = strlen(v);
            if (got != want || memcmp(v, repaired, got) != 0) { // no more is cut than must be
                assert_string_equal(v + got - 3, "...");
                assert_true(strlen(f->got) > LOG_LINE_MAX - 6);
                got -= 3;
            }
            assert_memory_equal(v, repaired, got);
            json_decref(j);
        }
}

static void test_too_many_fields(void **state)
{
    struct fixture *f = *state;
    static char name[LOG_LINE_MAX];
    memset(name, 'n', sizeof name - 1);
    log_write(&f->log, LOG_INFO, "e", LOG_S(name, "value"));
    assert_string_equal(take(f), "");
    assert_int_equal(f->log.lost, 1);
    // With none of the value's bytes it fits just so.
    name[LOG_LINE_MAX - strlen(TEXT_HEAD "INFO e =\"\"\n") - 1] = '\0';
    log_write(&f->log, LOG_INFO, "", LOG_S(name, " "));
    assert_int_equal(strlen(take(f)), LOG_LINE_MAX);
    assert_int_equal(f->log.lost, 1);
}

// ---- levels and failures

static void test_levels(void **state)
{
    struct fixture *f = *state;
    static const char *const NAMES[] = {"error", "warn", "info", "debug"};
    enum log_level level = LOG_WARN;
    for (size_t i = 0; i < ARRAY_LEN(NAMES); i++) {
        assert_true(log_level_from_name(NAMES[i], &level));
        assert_int_equal(level, i);
    }
    static const char *const NONE[] = {"", "ERROR", "err", "information", "warning"};
    for (size_t i = 0; i < ARRAY_LEN(NONE); i++)
        assert_false(log_level_from_name(NONE[i], &level));
    assert_int_equal(level, LOG_DEBUG);
    for (int set = LOG_ERROR; set <= LOG_DEBUG; set++)
        for (int of = LOG_ERROR; of <= LOG_DEBUG; of++) {
            f->log.level = (enum log_level)set;
            // A field that can't be read shows that nothing is formatted.
            const struct log_field bad = LOG_V("v", ((struct strv){NULL, 1000}));
            if (of > set)
                log_write(&f->log, (enum log_level)of, "e", bad);
            else
                log_write(&f->log, (enum log_level)of, "e");
            assert_int_equal(strlen(take(f)) > 0, of <= set);
        }
    assert_int_equal(f->log.lost, 0);
}

static void test_time(void **state)
{
    struct fixture *f = *state;
    static const struct {
        struct timespec at;
        const char *want;
    } CASES[] = {{{0, 0}, "1970-01-01T00:00:00.000Z INFO e\n"},
                 {{951782400, 999999999}, "2000-02-29T00:00:00.999Z INFO e\n"},
                 {{4102444799, 1000000}, "2099-12-31T23:59:59.001Z INFO e\n"}};
    for (size_t i = 0; i < ARRAY_LEN(CASES); i++) {
        now = CASES[i].at;
        log_write(&f->log, LOG_INFO, "e");
        assert_string_equal(take(f), CASES[i].want);
    }
    now.tv_sec = INT64_MAX; // a year that no calendar has
    log_write(&f->log, LOG_INFO, "e");
    assert_string_equal(take(f), " INFO e\n");
}

static void test_interrupted(void **state)
{
    struct fixture *f = *state;
    fault.interruptions = 3;
    log_write(&f->log, LOG_INFO, "e");
    assert_string_equal(take(f), TEXT_HEAD "INFO e\n");
    assert_int_equal(f->log.lost, 0);
    assert_int_equal(fault.writes, 4);
    fault.interruptions = 1000000; // not for ever
    log_write(&f->log, LOG_INFO, "e");
    assert_int_equal(f->log.lost, 1);
    assert_true(fault.writes < 1000);
}

static void test_failures(void **state)
{
    struct fixture *f = *state;
    static const int ERRORS[] = {EAGAIN, EPIPE, EIO, ENOSPC, EBADF};
    for (size_t i = 0; i < ARRAY_LEN(ERRORS); i++) {
        fault.error = ERRORS[i];
        fault.writes = 0;
        log_write(&f->log, LOG_INFO, "e");
        assert_int_equal(f->log.lost, i + 1);
        assert_int_equal(fault.writes, 1);
    }
    fault.error = 0;
    assert_string_equal(take(f), "");
    log_write(&f->log, LOG_INFO, "e");
    assert_string_equal(take(f), TEXT_HEAD "INFO e\n");
    // A real reader that is gone.
    close(f->from);
    log_write(&f->log, LOG_INFO, "e");
    assert_int_equal(f->log.lost, ARRAY_LEN(ERRORS) + 1);
}

static void test_torn(void **state)
{
    struct fixture *f = *state;
    fault.part = 10;
    log_write(&f->log, LOG_INFO, "first");
    assert_int_equal(f->log.lost, 1);
    fault.part = 0;
    // The line's end can't be made up for yet; the next line, which could be written, must not follow what is there.
    fault.error = EAGAIN;
    fault.errors = 1;
    log_write(&f->log, LOG_INFO, "second");
    assert_int_equal(f->log.lost, 2);
    assert_int_equal(fault.error, 0);
    fault.writes = 0;
    log_write(&f->log, LOG_INFO, "third");
    assert_int_equal(fault.writes, 2);
    log_write(&f->log, LOG_INFO, "fourth");
    assert_int_equal(fault.writes, 3);
    assert_string_equal(take(f), "2026-12-03\n" TEXT_HEAD "INFO third\n" TEXT_HEAD "INFO fourth\n");
    assert_int_equal(f->log.lost, 2);
}

// A pipe that nobody reads: no waiting, and what is read later are whole lines, but for one that was cut by the pipe's end.
static void test_full_pipe(void **state)
{
    struct fixture *f = *state;
    struct log *log = &f->log;
    memset(big, 'y', sizeof big);
    for (int i = 0; i < 100; i++)
        log_write(log, LOG_INFO, "e", LOG_U("i", (uint64_t)i), LOG_V("v", ((struct strv){big, 5000})));
    assert_true(log->lost > 80 && log->lost < 95);
    uint64_t lost = log->lost, whole = 0, torn = 0;
    take(f);
    log_write(log, LOG_INFO, "after");
    size_t n = strlen(f->got);
    ssize_t more = read(f->from, f->got + n, sizeof f->got - 1 - n);
    assert_true(more > 0);
    f->got[n + (size_t)more] = '\0';
    for (char *line = f->got, *end; (end = strchr(line, '\n')); line = end + 1) {
        *end = '\0';
        bool is_whole = strlen(line) > 5000 && strspn(strstr(line, "v=") + 2, "y") == 5000;
        whole += is_whole;
        torn += !is_whole && strcmp(line, TEXT_HEAD "INFO after") != 0;
    }
    assert_int_equal(whole + lost, 100);
    assert_true(torn <= 1);
    assert_string_equal(f->got + n + (size_t)more - strlen("INFO after\n"), "INFO after");
    assert_int_equal(log->lost, lost);
}

int main(void)
{
    sigaction(SIGPIPE, &(struct sigaction){.sa_handler = SIG_IGN}, NULL);
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {TEST(test_text),
                                       TEST(test_json),
                                       TEST(test_numbers),
                                       TEST(test_ascii),
                                       TEST(test_unicode),
                                       TEST(test_any_bytes),
                                       TEST(test_long_value),
                                       TEST(test_long_values_json),
                                       TEST(test_too_many_fields),
                                       TEST(test_levels),
                                       TEST(test_time),
                                       TEST(test_interrupted),
                                       TEST(test_failures),
                                       TEST(test_torn),
                                       TEST(test_full_pipe)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
