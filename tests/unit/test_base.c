// base: errors, buffers, arena, pages, UTF-8.
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/arena.h"
#include "base/buf.h"
#include "base/err.h"
#include "base/mem.h"
#include "base/pages.h"
#include "base/size.h"
#include "base/utf8.h"

static void test_err_text_is_printable(void **state)
{
    (void)state;
    struct iso_errinfo e;
    enum iso_err err = iso_fail(&e, ISO_E_FORMAT, 7, "a\nb", "bad %s", "\x01\xff\xc3\xa9");
    assert_int_equal(err, ISO_E_FORMAT);
    assert_string_equal(e.text, "bad ??\xc3\xa9");
    assert_string_equal(e.field, "a?b");
    assert_int_equal(e.offset, 7);
    iso_fail_prefix(&e, "file.gguf");
    assert_string_equal(e.text, "file.gguf: bad ??\xc3\xa9");
    char path[600];
    memset(path, 'p', sizeof path);
    strcpy(path + sizeof path - 12, "/the.gguf");
    (void)iso_fail(&e, ISO_E_FORMAT, 0, NULL, "%s", "short");
    iso_fail_prefix(&e, path);
    assert_memory_equal(e.text, "...pp", 5);
    assert_non_null(strstr(e.text, "/the.gguf: short"));
    (void)iso_fail(&e, ISO_E_FORMAT, 0, NULL, "%s", path);
    iso_fail_prefix(&e, path);
    assert_int_equal(strlen(e.text), ISO_ERR_TEXT_MAX - 1);
    assert_non_null(strstr(e.text, "/the.gguf: ppp"));
}

static void test_buf_stops_at_max(void **state)
{
    (void)state;
    struct buf b;
    buf_init(&b, 10);
    assert_int_equal(buf_append(&b, "12345678", 8), ISO_OK);
    assert_int_equal(buf_append(&b, "123", 3), ISO_E_LIMIT);
    assert_int_equal(b.len, 8);
    assert_int_equal(buf_append(&b, "12", 2), ISO_OK);
    assert_int_equal(buf_append_byte(&b, 0), ISO_E_LIMIT);
    assert_memory_equal(b.ptr, "1234567812", 10);
    buf_deinit(&b);
}

static void test_arena_cap_and_overflow(void **state)
{
    (void)state;
    struct arena a;
    assert_int_equal(arena_init(&a, 4096), ISO_OK);
    assert_non_null(arena_alloc(&a, 4000));
    assert_null(arena_alloc(&a, 97));
    assert_null(arena_array(&a, UINT64_MAX / 2, 3));
    assert_non_null(arena_alloc(&a, 96));
    assert_null(arena_alloc(&a, 1));
    arena_reset(&a);
    unsigned char *p = arena_alloc(&a, 16);
    assert_non_null(p);
    assert_int_equal(p[0], 0);
    arena_deinit(&a);
    arena_deinit(&a);
}

// Every code point there and back, and the sequences the standard names as ill-formed.
static void test_utf8(void **state)
{
    (void)state;
    uint8_t s[UTF8_MAX_BYTES];
    uint32_t cp = 0;
    for (uint32_t c = 0; c <= 0x10FFFF; c++) {
        if (c >= 0xD800 && c <= 0xDFFF)
            continue;
        size_t n = utf8_encode(c, s);
        assert_int_equal(utf8_decode(s, n, &cp), n);
        assert_int_equal(cp, c);
        for (size_t k = 1; k < n; k++)
            assert_true(utf8_is_prefix(s, k));
        assert_false(utf8_is_prefix(s, n));
    }
    static const char *const BAD[] = {"\x80",         "\xC0\xAF",         "\xE0\x80\xAF",
                                      "\xED\xA0\x80", "\xF4\x90\x80\x80", "\xF8\x88\x80\x80\x80",
                                      "\xC2",         "\xE2\x82",         "\xFF"};
    for (size_t i = 0; i < sizeof BAD / sizeof BAD[0]; i++)
        assert_int_equal(utf8_decode((const uint8_t *)BAD[i], strlen(BAD[i]), &cp), 0);
    // Unicode 15, table 3-11: maximal subparts E1 80 | E2 | F0 91 92 | F1 BF.
    assert_int_equal(utf8_invalid_length((const uint8_t *)"\xE1\x80\xE2\xF0", 4), 2);
    assert_int_equal(utf8_invalid_length((const uint8_t *)"\xF0\x91\x92\xF1", 4), 3);
    assert_int_equal(utf8_invalid_length((const uint8_t *)"\xC0\xAF", 2), 1);
}

// A sealed thread that allocates ends the process, in a child here.
static void test_sealed_allocation_aborts(void **state)
{
    (void)state;
    struct arena a;
    struct buf b;
    assert_int_equal(arena_init(&a, 4096), ISO_OK);
    buf_init(&b, 100);
    for (int way = 0; way < 3; way++) {
        pid_t child = fork();
        if (child == 0) {
            fclose(stderr);
            mem_seal();
            if (way == 0)
                (void)arena_alloc(&a, 1);
            else if (way == 1)
                (void)!buf_append_byte(&b, 0);
            else
                (void)!arena_init(&a, 4096);
            _exit(0);
        }
        int status = 0;
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
    }
    mem_seal();
    assert_true(mem_is_sealed());
    mem_unseal();
    assert_non_null(arena_alloc(&a, 1));
    arena_deinit(&a);
}

// What the machine can't have is refused when it is asked for, not killed when it is used; what it can have is
// zeroed, aligned for huge pages, and there once touched.
static void test_pages(void **state)
{
    (void)state;
    const uint64_t bytes = 3 * PAGES_HUGE_BYTES + 5 * PAGES_BYTES;
    uint8_t *p = pages_map(bytes, "isochron-test");
    assert_non_null(p);
    assert_int_equal((uintptr_t)p % PAGES_HUGE_BYTES, 0);
    assert_true(pages_touch(p, bytes));
    unsigned char resident[4 * PAGES_HUGE_BYTES / PAGES_BYTES];
    assert_int_equal(mincore(p, bytes, resident), 0);
    for (uint64_t at = 0; at < bytes; at += PAGES_BYTES)
        assert_true(resident[at / PAGES_BYTES] & 1 && p[at] == 0);
    p[0] = p[bytes - 1] = 1;
    pages_unmap(p, bytes);
    FILE *f = fopen("/proc/sys/vm/overcommit_memory", "re");
    bool promises_all = f && fgetc(f) == '1';
    if (f)
        fclose(f);
    if (promises_all)
        print_message("# this system promises any memory: its refusal could not be tested\n");
    else
        assert_null(pages_map((uint64_t)1 << 45, "isochron-test"));
}

static void test_sizes(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        uint64_t bytes; // 0: refused
    } ROWS[] = {{"1", 1},
                {"7B", 7},
                {"2K", 2048},
                {"2KiB", 2048},
                {"3M", 3145728},
                {"512MiB", 536870912},
                {"8G", 8589934592},
                {"8GiB", 8589934592},
                {"2kB", 2000},
                {"2MB", 2000000},
                {"2GB", 2000000000},
                {"0008", 8},
                {"18446744073709551615", UINT64_MAX},
                {"17179869183GiB", UINT64_MAX - 1073741823},
                {"17179869184GiB", 0},
                {"18446744073709551616", 0},
                {"99999999999999999999", 0},
                {"", 0},
                {"0", 0},
                {"0GiB", 0},
                {"GiB", 0},
                {"1 GiB", 0},
                {" 1", 0},
                {"+1", 0},
                {"-1", 0},
                {"1.5GiB", 0},
                {"0x10", 0},
                {"1gib", 0},
                {"1KB", 0},
                {"1GiBx", 0}};
    for (size_t i = 0; i < sizeof ROWS / sizeof ROWS[0]; i++) {
        uint64_t bytes = 77;
        assert_int_equal(size_parse(strv_from(ROWS[i].text), &bytes), ROWS[i].bytes > 0);
        assert_int_equal(bytes, ROWS[i].bytes ? ROWS[i].bytes : 77);
    }
    uint64_t value = 77;
    assert_int_equal(size_digits(STRV_LIT("18446744073709551616"), &value), 0);
    assert_int_equal(size_digits(STRV_LIT("x1"), &value), 0);
    assert_false(size_parse_whole(STRV_LIT("1x"), &value));
    assert_false(size_parse_whole(STRV_LIT("1\0"), &value));
    assert_false(size_parse_whole(STRV_LIT(""), &value));
    assert_int_equal(value, 77);
    assert_int_equal(size_digits(STRV_LIT("12x"), &value), 2);
    assert_int_equal(value, 12);
    assert_true(size_parse_whole(STRV_LIT("0"), &value));
    assert_int_equal(value, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_err_text_is_printable),
        cmocka_unit_test(test_buf_stops_at_max),
        cmocka_unit_test(test_arena_cap_and_overflow),
        cmocka_unit_test(test_utf8),
        cmocka_unit_test(test_sealed_allocation_aborts),
        cmocka_unit_test(test_pages),
        cmocka_unit_test(test_sizes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
