// keys: what a file may hold, who is found, the rates against another formulation of them, reloads under running requests, and
// that no key stays in memory.
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <errno.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/num.h"
#include "serve/keys.h"

#define SECRET "correct-horse-battery-staple"
#define S      1000000000ull
#define MS     1000000ull

static char path[64];

// ---- calls that can be made to fail (the linker's --wrap)

static struct {
    int calloc_after, read_error, reads; // reads: that work, before one fails; short ones
    bool read_interrupted, fstat, sodium;
} fault;
static struct {
    uint32_t big, with_secret; // freed blocks of the size of a file being read, and what was still in them
} freed;

void *__real_calloc(size_t n, size_t size);
void __real_free(void *p);
ssize_t __real_read(int fd, void *p, size_t n);
int __real_fstat64(int fd, struct stat64 *st);
int __real_sodium_init(void);
void *__wrap_calloc(size_t n, size_t size);
void __wrap_free(void *p);
ssize_t __wrap_read(int fd, void *p, size_t n);
int __wrap_fstat64(int fd, struct stat64 *st);
int __wrap_sodium_init(void);

void *__wrap_calloc(size_t n, size_t size)
{
    return fault.calloc_after && --fault.calloc_after == 0 ? NULL : __real_calloc(n, size);
}

void __wrap_free(void *p)
{
    size_t n = p ? malloc_usable_size(p) : 0;
    if (n >= KEYS_FILE_BYTES_MAX) {
        freed.big++;
        freed.with_secret += memmem(p, n, SECRET, 8) != NULL;
    }
    __real_free(p);
}

ssize_t __wrap_read(int fd, void *p, size_t n)
{
    if (fault.read_interrupted) {
        fault.read_interrupted = false;
        errno = EINTR;
        return -1;
    }
    if (!fault.read_error)
        return __real_read(fd, p, n);
    if (fault.reads-- > 0)
        return __real_read(fd, p, num_min(n, 3));
    errno = fault.read_error;
    return -1;
}

int __wrap_fstat64(int fd, struct stat64 *st)
{
    errno = EIO;
    return fault.fstat ? -1 : __real_fstat64(fd, st);
}

int __wrap_sodium_init(void)
{
    return fault.sodium ? -1 : __real_sodium_init();
}

// ---- files

static void write_bytes(const void *bytes, size_t n)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

static void write_text(const char *text)
{
    write_bytes(text, strlen(text));
}

// Lines with the keys numbered from..from+n-1.
static void write_numbered(uint32_t from, uint32_t n, const char *options)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    for (uint32_t i = from; i < from + n; i++)
        fprintf(f, "numbered-%06u %s\n", i, options);
    assert_int_equal(fclose(f), 0);
}

static uint32_t find(const struct keys *k, const char *key)
{
    return keys_find(k, strv_from(key));
}

static uint32_t find_numbered(const struct keys *k, uint32_t i)
{
    char key[32];
    snprintf(key, sizeof key, "numbered-%06u", i);
    return find(k, key);
}

static struct keys *open_text(const char *text)
{
    struct keys *k = NULL;
    struct iso_errinfo e;
    write_text(text);
    enum iso_err err = keys_open(path, &k, &e);
    if (err)
        fail_msg("%s", e.text);
    return k;
}

static void reload_text(struct keys *k, const char *text)
{
    struct iso_errinfo e;
    write_text(text);
    assert_int_equal(keys_reload(k, path, &e), ISO_OK);
}

static void expect_failure(enum iso_err want, const char *words)
{
    struct keys *k = NULL;
    struct iso_errinfo e;
    assert_int_equal(keys_open(path, &k, &e), want);
    assert_null(k);
    assert_int_equal(e.code, want);
    if (!strstr(e.text, words) || (want != ISO_E_NOMEM && strncmp(e.text, path, strlen(path)) != 0))
        fail_msg("'%s' instead of '%s'", e.text, words);
    assert_int_equal(keys_open(path, &k, NULL), want);
}

static void expect_refused(const char *text, const char *words)
{
    write_text(text);
    expect_failure(ISO_E_FORMAT, words);
}

// ---- the file

static void test_file(void **state)
{
    (void)state;
    struct keys *k = open_text("# the first\n"
                               "\n"
                               " \t \r\n"
                               "alpha-key\n"
                               "  beta-key!\tname=b~  rate=5/min admin=no concurrency=2 \r\n"
                               "\t# admin-key\n"
                               "gamma=key# admin=yes name=#c\n"
                               "12345678");
    assert_int_equal(keys_count(k), 4);
    static const struct {
        const char *key, *name;
        bool admin;
    } WANT[] = {{"alpha-key", "key4", true},
                {"beta-key!", "b~", false},
                {"gamma=key#", "#c", true},
                {"12345678", "key8", true}};
    for (uint32_t i = 0; i < ARRAY_LEN(WANT); i++) {
        uint32_t key = find(k, WANT[i].key);
        assert_int_equal(key, i);
        assert_string_equal(keys_name(k, key), WANT[i].name);
        assert_int_equal(keys_may_admin(k, key), WANT[i].admin);
    }
    static const char *const ABSENT[] = {"",        "alpha-ke", "alpha-key ", "Alpha-key", "# admin-key",
                                         "1234567", "123456789"};
    for (size_t i = 0; i < ARRAY_LEN(ABSENT); i++)
        assert_int_equal(find(k, ABSENT[i]), KEYS_NONE);
    assert_int_equal(keys_find(k, (struct strv){NULL, 0}), KEYS_NONE);
    assert_int_equal(keys_find(k, (struct strv){"alpha-key", 8}), KEYS_NONE);
    assert_int_equal(keys_find(k, (struct strv){"alpha-key", 10}), KEYS_NONE); // with its zero
    keys_close(k);
    keys_close(NULL);
}

// A line with a key of n characters.
static const char *key_of(char text[400], size_t n, const char *more)
{
    memset(text, '~', n);
    snprintf(text + n, 400 - n, "%s", more);
    return text;
}

static void test_refused(void **state)
{
    (void)state;
    char text[400];
    expect_refused("", "no key");
    expect_refused("# none\n\n \t\n", "no key");
    expect_refused("first-key\n1234567\n", "line 2: a key has 8 to 256 characters");
    expect_refused(key_of(text, 257, "\n"), "line 1: a key has 8 to 256 characters");
    expect_refused("a-key-twice\n\nanother-key\na-key-twice name=x\n", "line 4: the same key as in line 1");
    expect_refused("with-\x7f-del", "line 1: a key has only visible ASCII characters");
    expect_refused("with-\x01-one", "visible ASCII");
    expect_refused("with-\xc3\xbc-umlaut", "visible ASCII");
    expect_refused("\xef\xbb\xbf-bom-before", "visible ASCII");
    expect_refused("one\rtwo-three", "visible ASCII");
    write_bytes("alpha-key\0name=x\n", 17);
    expect_failure(ISO_E_FORMAT, "visible ASCII");
    static const char *const OPTIONS[][2] = {
        {"speed=3", "unknown option"},
        {"=", "unknown option"},
        {"rates=3/s", "unknown option"},
        {"Rate=3/s", "unknown option"},
        {"name=a name=a", "twice"},
        {"rate=1/s rate=2/s", "twice"},
        {"admin=no admin=no", "twice"},
        {"concurrency=1 concurrency=1", "twice"},
        {"name=", "name must be"},
        {"name", "name must be"},
        {"name=\x01", "name must be"},
        {"name=\xc3\xbc", "name must be"},
        {"admin=", "admin must be"},
        {"admin=false", "admin must be"},
        {"admin=No", "admin must be"},
        {"rate=", "rate must be"},
        {"rate=10", "rate must be"},
        {"rate=/s", "rate must be"},
        {"rate=10/h", "rate must be"},
        {"rate=10/s/s", "rate must be"},
        {"rate=10/", "rate must be"},
        {"rate=0/s", "rate must be"},
        {"rate=-1/s", "rate must be"},
        {"rate=+1/s", "rate must be"},
        {"rate=1.5/s", "rate must be"},
        {"rate=1e3/s", "rate must be"},
        {"rate=0x10/s", "rate must be"},
        {"rate=1000001/s", "rate must be"},
        {"rate=18446744073709551617/min", "rate must be"},
        {"concurrency=", "concurrency must be"},
        {"concurrency=0", "concurrency must be"},
        {"concurrency=1000001", "concurrency must be"},
        {"concurrency=4294967297", "concurrency must be"},
        {"concurrency=2x", "concurrency must be"},
    };
    for (size_t i = 0; i < ARRAY_LEN(OPTIONS); i++) {
        snprintf(text, sizeof text, "\nsome-key-1\nsome-key-2 %s\n", OPTIONS[i][0]);
        expect_refused(text, OPTIONS[i][1]);
        expect_refused(text, "line 3: ");
    }
    expect_refused("rate=10/s name=x\n", "the key comes first");
    expect_refused("name=somebody\n", "the key comes first");
    snprintf(text, sizeof text, "some-key name=%065d", 0);
    expect_refused(text, "name must be 1 to 64");
}

static void test_limits(void **state)
{
    (void)state;
    char text[400], name[65];
    struct keys *k = open_text(key_of(text, 256, " rate=1000000/min concurrency=1000000"));
    text[256] = '\0';
    assert_int_equal(find(k, text), 0);
    keys_close(k);
    memset(name, 'n', 64);
    name[64] = '\0';
    snprintf(text, sizeof text, "~~~~~~~~ name=%s rate=1000000/s", name);
    k = open_text(text);
    assert_string_equal(keys_name(k, find(k, "~~~~~~~~")), name);
    keys_close(k);

    struct iso_errinfo e;
    write_numbered(0, KEYS_MAX, "rate=1/s");
    assert_int_equal(keys_open(path, &k, &e), ISO_OK);
    assert_int_equal(keys_count(k), KEYS_MAX);
    for (uint32_t i = 0; i < KEYS_MAX; i++)
        assert_int_equal(find_numbered(k, i), i);
    assert_int_equal(find_numbered(k, KEYS_MAX), KEYS_NONE);
    keys_close(k);
    write_numbered(0, KEYS_MAX + 1, "");
    expect_failure(ISO_E_LIMIT, "line 1025: more than 1024 keys");

    char *big = malloc(KEYS_FILE_BYTES_MAX + 1);
    assert_non_null(big);
    memset(big, '\n', KEYS_FILE_BYTES_MAX + 1);
    memcpy(big, "some-key", 8);
    write_bytes(big, KEYS_FILE_BYTES_MAX);
    assert_int_equal(keys_open(path, &k, &e), ISO_OK);
    keys_close(k);
    write_bytes(big, KEYS_FILE_BYTES_MAX + 1);
    expect_failure(ISO_E_LIMIT, "more than 1048576 bytes");
    free(big);
}

static void test_no_file(void **state)
{
    (void)state;
    unlink(path);
    expect_failure(ISO_E_IO, "opening failed: No such file");
    assert_int_equal(mkdir(path, 0700), 0);
    expect_failure(ISO_E_IO, "no regular file");
    rmdir(path);
    assert_int_equal(mkfifo(path, 0600), 0);
    expect_failure(ISO_E_IO, "no regular file"); // without waiting for a writer
    unlink(path);
    write_text("some-key-1\nsome-key-2\n");
    fault.fstat = true;
    expect_failure(ISO_E_IO, "mode failed: Input/output error");
    fault.fstat = false;
    for (int reads = 0; reads < 3; reads++) {
        struct keys *k = NULL;
        struct iso_errinfo e;
        fault.read_error = EIO;
        fault.reads = reads;
        assert_int_equal(keys_open(path, &k, &e), ISO_E_IO);
        assert_non_null(strstr(e.text, "reading failed: Input/output error"));
        assert_int_equal(e.offset, 3 * reads);
    }
    struct keys *k = NULL;
    fault.reads = 1000;
    fault.read_interrupted = true;
    assert_int_equal(keys_open(path, &k, NULL), ISO_OK); // in pieces of 3 bytes
    assert_int_equal(find(k, "some-key-2"), 1);
    fault.read_error = 0;
    keys_close(k);
}

static void test_no_memory(void **state)
{
    (void)state;
    struct keys *k = NULL;
    struct iso_errinfo e;
    write_text("some-key\n");
    for (int after = 1; after <= 2; after++) {
        fault.calloc_after = after;
        assert_int_equal(keys_open(path, &k, &e), ISO_E_NOMEM);
        assert_non_null(strstr(e.text, "no memory"));
    }
    fault.calloc_after = 0;
    fault.sodium = true;
    assert_int_equal(keys_open(path, &k, &e), ISO_E_IO);
    assert_non_null(strstr(e.text, "libsodium"));
    fault.sodium = false;
    assert_null(k);
}

static void test_readable_by_others(void **state)
{
    (void)state;
    struct keys *k = open_text("some-key\n");
    static const int MODES[][2] = {{0600, 0}, {0640, 0}, {0644, 1}, {0604, 1}, {0400, 0}};
    for (size_t i = 0; i < ARRAY_LEN(MODES); i++) {
        assert_int_equal(chmod(path, (mode_t)MODES[i][0]), 0);
        assert_int_equal(keys_reload(k, path, NULL), ISO_OK);
        assert_int_equal(keys_is_readable_by_others(k), MODES[i][1]);
    }
    keys_close(k);
    unlink(path);
}

static void test_wiped(void **state)
{
    (void)state;
    freed.big = freed.with_secret = 0;
    char *volatile left = malloc(KEYS_FILE_BYTES_MAX); // that the looking finds one
    assert_non_null(left);
    memset(left, 0, KEYS_FILE_BYTES_MAX);
    memcpy(left + 5000, SECRET, strlen(SECRET));
    free(left);
    assert_int_equal(freed.with_secret, 1);
    struct keys *k = open_text("first-key\n" SECRET " name=x\n");
    assert_int_equal(find(k, SECRET), 1);
    reload_text(k, "another-key\n" SECRET);
    struct iso_errinfo e;
    write_text(SECRET " " SECRET "\n");
    assert_int_equal(keys_reload(k, path, &e), ISO_E_FORMAT);
    assert_null(strstr(e.text, "horse"));
    write_text("battery\n" SECRET " name=horse=\x01 \n");
    assert_int_equal(keys_reload(k, path, &e), ISO_E_FORMAT);
    assert_null(strstr(e.text, "battery"));
    assert_null(memmem(k, malloc_usable_size(k), SECRET, 8));
    keys_close(k);
    assert_true(freed.big >= 5);
    assert_int_equal(freed.with_secret, 1);
}

// ---- limits of a key

// A token bucket that refills continuously is the same as: each request has a theoretical arrival time a period / rate after the one
// before, and may come early by rate - 1 of them. Here in 1 / rate ns.
struct reference {
    unsigned __int128 rate, period_ns, next;
};

static bool reference_admits(struct reference *r, uint64_t now_ns)
{
    unsigned __int128 now = now_ns * r->rate;
    if (now + (r->rate - 1) * r->period_ns < r->next)
        return false;
    r->next = (now > r->next ? now : r->next) + r->period_ns;
    return true;
}

static uint64_t next_random(uint64_t *s)
{
    *s ^= *s << 13;
    *s ^= *s >> 7;
    return *s ^= *s << 17;
}

static void check_rate(uint32_t rate, bool minute, uint64_t seed)
{
    char text[64];
    snprintf(text, sizeof text, "some-key rate=%u/%s", rate, minute ? "min" : "s");
    struct keys *k = open_text(text);
    struct reference r = {rate, (minute ? 60 : 1) * S, 0};
    // The time between requests goes from none over about what is allowed to more than a period.
    uint64_t now = seed % 3 ? seed % (1000 * S) : 0, mean = (uint64_t)r.period_ns / rate;
    uint32_t refused = 0, admitted = 0;
    uint64_t retry_ms;
    for (uint32_t i = 0; i < rate; i++) { // what is there at the beginning
        assert_true(keys_begin(k, 0, now, &retry_ms) == KEYS_ADMITTED && reference_admits(&r, now));
        keys_end(k, 0);
    }
    for (int i = 0; i < 20000; i++) {
        uint64_t dice = next_random(&seed), most = mean;
        if (dice % 1000 == 0 && rate <= 60)
            most = 3 * (uint64_t)r.period_ns;
        else if (dice % 5 == 0)
            most = dice % 100 == 0 ? 20 * mean : 4 * mean;
        now += (dice >> 10) % (most + 2);
        retry_ms = 77;
        struct reference before = r;
        enum keys_verdict got = keys_begin(k, 0, now, &retry_ms);
        assert_int_equal(got, reference_admits(&r, now) ? KEYS_ADMITTED : KEYS_TOO_OFTEN);
        if (got == KEYS_ADMITTED) {
            admitted++;
            assert_int_equal(retry_ms, 77);
            keys_end(k, 0);
            continue;
        }
        refused++;
        assert_true(retry_ms >= 1);
        struct reference then = before;
        assert_true(reference_admits(&then, now + retry_ms * MS));
        then = before;
        assert_false(reference_admits(&then, now + (retry_ms - 1) * MS));
    }
    assert_true(admitted > 1000 && refused > 1000);
    keys_close(k);
}

static void test_rate(void **state)
{
    (void)state;
    static const uint32_t RATES[] = {1, 2, 3, 7, 60, 1000, 999983};
    for (size_t i = 0; i < ARRAY_LEN(RATES); i++) {
        check_rate(RATES[i], false, 1000003 * i + 12345);
        check_rate(RATES[i], true, 7000003 * i + 54321);
    }
}

static uint32_t burst(struct keys *k, uint32_t key, uint64_t now)
{
    uint64_t retry_ms;
    uint32_t n = 0;
    while (keys_begin(k, key, now, &retry_ms) == KEYS_ADMITTED && n < 2000000)
        n++;
    for (uint32_t i = 0; i < n; i++)
        keys_end(k, key);
    return n;
}

static void test_rate_ends(void **state)
{
    (void)state;
    // The largest: no product overflows, after however long a time.
    struct keys *k = open_text("some-key rate=1000000/min\nfree-key-\n");
    assert_int_equal(burst(k, 0, 0), 1000000);
    assert_int_equal(burst(k, 0, UINT64_MAX), 1000000);
    assert_int_equal(burst(k, 0, UINT64_MAX), 0);
    keys_close(k);
    // A time whose product with the rate is 0 in 64 bits. And a clock that goes back, and forth again, brings nothing.
    k = open_text("some-key rate=1000000/min\nfree-key-\n");
    const uint64_t late = 1ull << 58;
    assert_int_equal(burst(k, 0, 0), 1000000);
    assert_int_equal(burst(k, 0, late), 1000000);
    assert_int_equal(burst(k, 0, late - 30 * S), 0);
    assert_int_equal(burst(k, 0, late), 0);
    assert_int_equal(burst(k, 0, late + 30 * S), 500000);
    assert_int_equal(burst(k, 1, 0), 2000000);
    keys_close(k);
    // Seven in a second, for a day: no drift.
    k = open_text("some-key rate=7/s");
    uint64_t n = burst(k, 0, 0), retry_ms;
    for (uint64_t ms = 0; ms <= 86400 * 1000ull; ms += 10)
        if (keys_begin(k, 0, ms * MS, &retry_ms) == KEYS_ADMITTED) {
            n++;
            keys_end(k, 0);
        }
    assert_int_equal(n, 7 + 7 * 86400);
    keys_close(k);
}

static void test_concurrency(void **state)
{
    (void)state;
    struct keys *k = open_text("some-key concurrency=2 rate=3/s\nother-key concurrency=1\n");
    uint64_t retry_ms = 5;
    assert_int_equal(keys_begin(k, 0, S, &retry_ms), KEYS_ADMITTED);
    assert_int_equal(keys_begin(k, 0, S, &retry_ms), KEYS_ADMITTED);
    for (int i = 0; i < 10; i++) // which costs nothing of the rate
        assert_int_equal(keys_begin(k, 0, S, &retry_ms), KEYS_TOO_MANY);
    assert_int_equal(retry_ms, 5);
    assert_int_equal(keys_begin(k, 1, S, &retry_ms), KEYS_ADMITTED);
    assert_int_equal(keys_begin(k, 1, S, &retry_ms), KEYS_TOO_MANY);
    keys_end(k, 0);
    assert_int_equal(keys_begin(k, 0, S, &retry_ms), KEYS_ADMITTED);
    keys_end(k, 0);
    assert_int_equal(keys_begin(k, 0, S, &retry_ms), KEYS_TOO_OFTEN);
    assert_int_equal(retry_ms, 334);
    assert_int_equal(keys_begin(k, 1, S, &retry_ms), KEYS_TOO_MANY);
    keys_close(k);
}

// ---- reloading

static void test_reload(void **state)
{
    (void)state;
    uint64_t retry_ms;
    struct keys *k = open_text("key-number-a\nkey-number-b concurrency=1\nkey-number-c\n");
    uint32_t b = find(k, "key-number-b");
    assert_int_equal(keys_begin(k, b, S, &retry_ms), KEYS_ADMITTED);

    // Other places and names; b's number and its running request stay.
    reload_text(k, "key-number-d\n\nkey-number-c\nkey-number-b concurrency=1 name=bee admin=no\n");
    assert_int_equal(keys_count(k), 3);
    assert_int_equal(find(k, "key-number-a"), KEYS_NONE);
    assert_int_equal(find(k, "key-number-b"), b);
    assert_int_equal(find(k, "key-number-c"), 2);
    assert_int_equal(find(k, "key-number-d"), 0); // a's, of which nothing ran
    assert_string_equal(keys_name(k, b), "bee");
    assert_string_equal(keys_name(k, 2), "key3");
    assert_false(keys_may_admin(k, b));
    assert_int_equal(keys_begin(k, b, S, &retry_ms), KEYS_TOO_MANY);

    // Removed while its request runs: not found, but not given away.
    reload_text(k, "key-number-e\nkey-number-f\nkey-number-g\nkey-number-h\n");
    assert_int_equal(find(k, "key-number-b"), KEYS_NONE);
    assert_string_equal(keys_name(k, b), "bee");
    static const char *const NEW[] = {"key-number-e", "key-number-f", "key-number-g", "key-number-h"};
    for (size_t i = 0; i < ARRAY_LEN(NEW); i++)
        assert_true(find(k, NEW[i]) != b && find(k, NEW[i]) < 5);
    // Back again: the same number, the same count.
    reload_text(k, "key-number-b concurrency=1\nkey-number-h\n");
    assert_int_equal(find(k, "key-number-b"), b);
    assert_int_equal(find(k, "key-number-h"), 4);
    assert_int_equal(keys_begin(k, b, S, &retry_ms), KEYS_TOO_MANY);
    // Removed, and ended then: the next gets its slot, with nothing of it left.
    reload_text(k, "key-number-h\nkey-number-i\n");
    keys_end(k, b);
    assert_int_equal(find(k, "key-number-i"), 0);
    reload_text(k, "key-number-h\nkey-number-i\nkey-number-j concurrency=1\n");
    assert_int_equal(find(k, "key-number-j"), b);
    assert_int_equal(keys_begin(k, b, S, &retry_ms), KEYS_ADMITTED);
    keys_close(k);
}

static void test_failed_reload(void **state)
{
    (void)state;
    uint64_t retry_ms;
    struct iso_errinfo e;
    struct keys *k = open_text("key-number-a name=ann rate=2/min\nkey-number-b\n");
    assert_int_equal(chmod(path, 0600), 0);
    assert_int_equal(keys_begin(k, 0, S, &retry_ms), KEYS_ADMITTED);
    static const char *const BAD[] = {"", "key-number-a name=other\nkey-number-c\nshort\n",
                                      "key-number-c\nkey-number-c"};
    for (size_t i = 0; i < ARRAY_LEN(BAD); i++) {
        write_text(BAD[i]);
        assert_int_equal(keys_reload(k, path, &e), ISO_E_FORMAT);
        assert_int_equal(keys_count(k), 2);
        assert_string_equal(keys_name(k, find(k, "key-number-a")), "ann");
        assert_int_equal(find(k, "key-number-b"), 1);
        assert_int_equal(find(k, "key-number-c"), KEYS_NONE);
    }
    fault.calloc_after = 1;
    assert_int_equal(keys_reload(k, path, &e), ISO_E_NOMEM);
    unlink(path);
    assert_int_equal(keys_reload(k, path, &e), ISO_E_IO);
    assert_int_equal(keys_begin(k, 0, S, &retry_ms), KEYS_ADMITTED);
    assert_int_equal(keys_begin(k, 0, S, &retry_ms), KEYS_TOO_OFTEN);
    keys_close(k);
}

static void test_rate_over_reload(void **state)
{
    (void)state;
    struct keys *k = open_text("some-key rate=10/s");
    uint64_t retry_ms;
    for (int i = 0; i < 6; i++) {
        assert_int_equal(keys_begin(k, 0, S, &retry_ms), KEYS_ADMITTED);
        keys_end(k, 0);
    }
    reload_text(k, "some-key rate=10/s name=x"); // four are left
    assert_int_equal(keys_begin(k, 0, S, &retry_ms), KEYS_ADMITTED);
    keys_end(k, 0);
    reload_text(k, "some-key rate=10/min"); // three
    assert_int_equal(keys_begin(k, 0, S, &retry_ms), KEYS_ADMITTED);
    keys_end(k, 0);
    reload_text(k, "some-key rate=5/s"); // two
    assert_int_equal(burst(k, 0, S), 2);
    reload_text(k, "some-key rate=3/min");
    assert_int_equal(burst(k, 0, S), 0);
    reload_text(k, "some-key");
    assert_int_equal(burst(k, 0, S), 2000000);
    reload_text(k, "some-key rate=8/s");
    reload_text(k, "some-key rate=3/s"); // no more than a burst of the new one
    reload_text(k, "some-key rate=8/s");
    assert_int_equal(burst(k, 0, S), 3);
    reload_text(k, "some-key rate=1000000/min");
    assert_int_equal(burst(k, 0, S + 60 * S), 1000000);
    assert_int_equal(burst(k, 0, S + 120 * S - 1), 999999);
    reload_text(k, "some-key rate=1000000/min name=y");
    assert_int_equal(burst(k, 0, S + 180 * S), 1000000);
    keys_close(k);
}

static void test_full_table(void **state)
{
    (void)state;
    struct iso_errinfo e;
    struct keys *k = NULL;
    uint64_t retry_ms;
    write_numbered(0, KEYS_MAX, "");
    assert_int_equal(keys_open(path, &k, &e), ISO_OK);
    for (uint32_t i = 0; i < KEYS_MAX; i++)
        assert_int_equal(keys_begin(k, i, S, &retry_ms), KEYS_ADMITTED);
    write_numbered(KEYS_MAX, KEYS_MAX, "");
    assert_int_equal(keys_reload(k, path, &e), ISO_OK);
    for (uint32_t i = 0; i < KEYS_MAX; i++)
        assert_int_equal(find_numbered(k, KEYS_MAX + i), KEYS_MAX + i);
    // One of them that runs, too, is one too many.
    assert_int_equal(keys_begin(k, KEYS_MAX + 500, S, &retry_ms), KEYS_ADMITTED);
    write_numbered(2 * KEYS_MAX, KEYS_MAX, "");
    assert_int_equal(keys_reload(k, path, &e), ISO_E_LIMIT);
    assert_non_null(strstr(e.text, "requests of too many removed keys still run"));
    assert_int_equal(find_numbered(k, 2 * KEYS_MAX - 1), 2 * KEYS_MAX - 1);
    keys_end(k, 7);
    assert_int_equal(keys_reload(k, path, &e), ISO_OK);
    assert_int_equal(keys_count(k), KEYS_MAX);
    assert_int_equal(find_numbered(k, 2 * KEYS_MAX), 7);
    for (uint32_t i = 0; i < KEYS_MAX; i++)
        assert_int_not_equal(find_numbered(k, 2 * KEYS_MAX + i), KEYS_NONE);
    keys_close(k);
}

int main(void)
{
    snprintf(path, sizeof path, "/tmp/test_keys.%ld", (long)getpid());
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_file),
                                       cmocka_unit_test(test_refused),
                                       cmocka_unit_test(test_limits),
                                       cmocka_unit_test(test_no_file),
                                       cmocka_unit_test(test_no_memory),
                                       cmocka_unit_test(test_readable_by_others),
                                       cmocka_unit_test(test_wiped),
                                       cmocka_unit_test(test_rate),
                                       cmocka_unit_test(test_rate_ends),
                                       cmocka_unit_test(test_concurrency),
                                       cmocka_unit_test(test_reload),
                                       cmocka_unit_test(test_failed_reload),
                                       cmocka_unit_test(test_rate_over_reload),
                                       cmocka_unit_test(test_full_table)};
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    unlink(path);
    return failed;
}
