// Detokenizer and stop strings: what may be emitted, and when.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/num.h"
#include "text/detok.h"
#include "text/stop.h"
#include "tok_small.h"

#define BLOB_MAX ((size_t)1 << 20)

static struct small_vocab vocab;

static struct tokenizer *open_small(struct buf *blob)
{
    struct tokenizer *t;
    small_init(&vocab, "gpt-2", 0, 255);
    buf_init(blob, BLOB_MAX);
    assert_int_equal(tok_build(&vocab.src, blob, NULL), ISO_OK);
    assert_int_equal(tok_open(blob->ptr, blob->len, 1024, &t, NULL), ISO_OK);
    return t;
}

static void push(struct detok *d, uint32_t id, const char *want)
{
    char out[DETOK_OUT_MAX];
    size_t n = detok_push(d, id, out);
    assert_int_equal(n, strlen(want));
    assert_memory_equal(out, want, n);
}

static void flush(struct detok *d, const char *want)
{
    char out[DETOK_FLUSH_MAX];
    size_t n = detok_flush(d, out);
    assert_int_equal(n, strlen(want));
    assert_memory_equal(out, want, n);
}

#define REPLACED "\xef\xbf\xbd"

static void test_detok_whole_characters_only(void **state)
{
    (void)state;
    struct buf blob;
    struct tokenizer *t = open_small(&blob);
    struct detok d;
    detok_init(&d, t);
    push(&d, small_id(&vocab, SMALL_HELL), "hell");
    push(&d, 0xF0, "");
    push(&d, 0x9F, "");
    push(&d, small_id(&vocab, SMALL_END), ""); // gives no text and breaks nothing
    push(&d, small_id(&vocab, SMALL_PAD), "");
    push(&d, UINT32_MAX, "");
    push(&d, 0x98, "");
    push(&d, 0x80, "\xf0\x9f\x98\x80");
    push(&d, small_id(&vocab, SMALL_TOOL), "<tool>");
    flush(&d, "");
    tok_close(t);
    buf_deinit(&blob);
}

static void test_detok_replaces_invalid(void **state)
{
    (void)state;
    struct buf blob;
    struct tokenizer *t = open_small(&blob);
    struct detok d;
    detok_init(&d, t);
    push(&d, 0xFF, REPLACED);
    push(&d, 0xE2, "");
    push(&d, 0x82, "");
    push(&d, 'a', REPLACED "a"); // one for the whole broken beginning
    push(&d, 0xE0, "");
    push(&d, 0x80, REPLACED REPLACED); // overlong: the second byte doesn't fit the first
    push(&d, 0xF0, "");
    push(&d, 0xF0, REPLACED);
    push(&d, 0x90, "");
    flush(&d, REPLACED);
    flush(&d, "");
    push(&d, 'b', "b");
    tok_close(t);
    buf_deinit(&blob);
}

// The obvious definition: the first byte that completes a stop string, the longest of those; or SIZE_MAX.
static size_t stop_reference(const char *text, size_t n, const struct strv *strings, size_t n_strings)
{
    for (size_t end = 1; end <= n; end++) {
        size_t longest = 0;
        for (size_t k = 0; k < n_strings; k++)
            if (strings[k].len <= end && strings[k].len > longest &&
                memcmp(text + end - strings[k].len, strings[k].ptr, strings[k].len) == 0)
                longest = strings[k].len;
        if (longest > 0)
            return end - longest;
    }
    return SIZE_MAX;
}

static uint32_t next_random(uint64_t *state)
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(*state >> 33);
}

// Random texts over two letters, cut at random, against the definition.
static void test_stop_like_the_definition(void **state)
{
    (void)state;
    uint64_t seed = 20240607;
    for (int round = 0; round < 20000; round++) {
        char texts[4][8], text[40], got[40 + STOP_HELD_MAX], out[40 + STOP_HELD_MAX];
        struct strv strings[4];
        size_t n_strings = next_random(&seed) % 5, n = next_random(&seed) % sizeof text, n_got = 0;
        for (size_t k = 0; k < n_strings; k++) {
            strings[k] = (struct strv){texts[k], 1 + next_random(&seed) % sizeof texts[k]};
            for (size_t i = 0; i < strings[k].len; i++)
                texts[k][i] = (char)('a' + next_random(&seed) % 2);
        }
        for (size_t i = 0; i < n; i++)
            text[i] = (char)('a' + next_random(&seed) % 2);
        size_t want = stop_reference(text, n, strings, n_strings);

        struct stop s;
        assert_int_equal(stop_init(&s, strings, n_strings, NULL), ISO_OK);
        bool hit = false;
        for (size_t at = 0, part; at < n; at += part) {
            part = next_random(&seed) % (n - at + 1);
            size_t emitted = stop_push(&s, (struct strv){text + at, part}, out, &hit);
            memcpy(got + n_got, out, emitted);
            n_got += emitted;
            // Emitted as early as it may be: never more than the longest beginning is held.
            assert_true(hit || at + part - n_got < 8);
        }
        assert_int_equal(hit, want != SIZE_MAX);
        size_t flushed = stop_flush(&s, out);
        memcpy(got + n_got, out, flushed);
        n_got += flushed;
        assert_int_equal(n_got, hit ? want : n);
        assert_memory_equal(got, text, n_got);
    }
}

static void test_stop_holds_only_beginnings(void **state)
{
    (void)state;
    struct stop s;
    struct strv strings[] = {STRV_LIT("</end>"), STRV_LIT("\n\nUser:")};
    char out[64 + STOP_HELD_MAX];
    bool hit;
    assert_int_equal(stop_init(&s, strings, 2, NULL), ISO_OK);
    assert_int_equal(stop_push(&s, STRV_LIT("hi </"), out, &hit), 3);
    assert_int_equal(stop_push(&s, STRV_LIT("p>"), out, &hit), 4);
    assert_memory_equal(out, "</p>", 4);
    assert_int_equal(stop_push(&s, STRV_LIT("\n\nUser"), out, &hit), 0);
    assert_false(hit);
    assert_int_equal(stop_push(&s, STRV_LIT(": more"), out, &hit), 0);
    assert_true(hit);
    assert_int_equal(stop_push(&s, STRV_LIT("later"), out, &hit), 0);
    assert_true(hit);
    assert_int_equal(stop_flush(&s, out), 0);
}

static void test_stop_refuses(void **state)
{
    (void)state;
    struct stop s;
    struct iso_errinfo err;
    static char text[STOP_BYTES_MAX + 1];
    memset(text, 'a', sizeof text);
    struct strv many[STOP_STRINGS_MAX + 1];
    for (size_t i = 0; i < ARRAY_LEN(many); i++)
        many[i] = (struct strv){text, STOP_BYTES_MAX};
    assert_int_equal(stop_init(&s, many, ARRAY_LEN(many), &err), ISO_E_LIMIT);
    assert_int_equal(stop_init(&s, many, STOP_STRINGS_MAX, &err), ISO_OK);
    many[1].len++;
    assert_int_equal(stop_init(&s, many, 2, &err), ISO_E_LIMIT);
    assert_string_equal(err.text, "stop string 2 has 257 bytes, allowed are 1 to 256");
    many[0].len = 0;
    assert_int_equal(stop_init(&s, many, 1, &err), ISO_E_LIMIT);
    many[0] = STRV_LIT("\xc3");
    assert_int_equal(stop_init(&s, many, 1, &err), ISO_E_FORMAT);
}

// The longest string, all but its end: the most that can be held.
static void test_stop_longest_string(void **state)
{
    (void)state;
    struct stop s;
    char text[STOP_BYTES_MAX], out[STOP_BYTES_MAX + STOP_HELD_MAX];
    bool hit;
    memset(text, 'a', sizeof text);
    struct strv all = {text, sizeof text};
    assert_int_equal(stop_init(&s, &all, 1, NULL), ISO_OK);
    assert_int_equal(stop_push(&s, (struct strv){text, STOP_HELD_MAX}, out, &hit), 0);
    assert_false(hit);
    struct stop other = s; // a copy goes on by itself
    assert_int_equal(stop_push(&s, STRV_LIT("b"), out, &hit), STOP_BYTES_MAX);
    assert_false(hit);
    assert_int_equal(stop_push(&other, STRV_LIT("a"), out, &hit), 0);
    assert_true(hit);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_detok_whole_characters_only),
        cmocka_unit_test(test_detok_replaces_invalid),
        cmocka_unit_test(test_stop_like_the_definition),
        cmocka_unit_test(test_stop_holds_only_beginnings),
        cmocka_unit_test(test_stop_refuses),
        cmocka_unit_test(test_stop_longest_string),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
