// Tokenizer: building, opening damaged blocks, encoding with limits. Equality with Hugging Face is shown by
// tests/property/test_tokenizer.py.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <cmocka.h>

#include "base/num.h"
#include "text/detok.h"
#include "text/nfc.h"
#include "text/tok_blob.h"
#include "text/tokenizer.h"
#include "tok_small.h"

#define BLOB_MAX ((size_t)1 << 20)
#define TEXT_MAX ((size_t)1 << 16)

// The linker sends mmap here; the call number mmap_fail_at (from 1) fails.
static int mmap_calls, mmap_fail_at;

void *__real_mmap64(void *at, size_t n, int protection, int flags, int fd, off_t offset);
void *__wrap_mmap64(void *at, size_t n, int protection, int flags, int fd, off_t offset);

void *__wrap_mmap64(void *at, size_t n, int protection, int flags, int fd, off_t offset)
{
    return ++mmap_calls == mmap_fail_at ? MAP_FAILED : __real_mmap64(at, n, protection, flags, fd, offset);
}

struct fixture {
    struct small_vocab vocab;
    struct buf blob;
    struct tokenizer *t;
    struct iso_errinfo err;
};

static void open_small(struct fixture *f, const char *pre)
{
    if (pre)
        small_init(&f->vocab, pre, 0, 255);
    else
        small_init_unigram(&f->vocab);
    buf_init(&f->blob, BLOB_MAX);
    assert_int_equal(tok_build(&f->vocab.src, &f->blob, &f->err), ISO_OK);
    assert_int_equal(tok_open(f->blob.ptr, f->blob.len, TEXT_MAX, &f->t, &f->err), ISO_OK);
}

static void close_small(struct fixture *f)
{
    tok_close(f->t);
    buf_deinit(&f->blob);
}

static void expect(struct fixture *f, struct strv text, enum tok_mode mode, bool edges, const uint32_t *want,
                   size_t n_want)
{
    uint32_t ids[64];
    size_t n = 0;
    assert_int_equal(tok_encode(f->t, text, mode, edges, ids, ARRAY_LEN(ids), &n, &f->err), ISO_OK);
    assert_int_equal(n, n_want);
    if (n > 0)
        assert_memory_equal(ids, want, n * sizeof *ids);
}

#define EXPECT(f, text, mode, edges, ...)                                   \
    expect(f, STRV_LIT(text), mode, edges, (const uint32_t[]){__VA_ARGS__}, \
           ARRAY_LEN(((const uint32_t[]){__VA_ARGS__})))

static void test_merges_by_rank_then_leftmost(void **state)
{
    (void)state;
    struct fixture f;
    open_small(&f, "gpt-2");
    uint32_t he = small_id(&f.vocab, SMALL_HE), ll = small_id(&f.vocab, SMALL_LL);
    uint32_t lo = small_id(&f.vocab, SMALL_LO);
    // "l o" ranks before "l l", so "hello" never gets to "he ll".
    EXPECT(&f, "hello", TOK_PLAIN, false, he, 'l', lo);
    EXPECT(&f, "hellll", TOK_PLAIN, false, small_id(&f.vocab, SMALL_HELL), ll);
    EXPECT(&f, "lll", TOK_PLAIN, false, ll, 'l');
    EXPECT(&f, "a  b", TOK_PLAIN, false, 'a', ' ', ' ', 'b');
    expect(&f, STRV_LIT(""), TOK_SPECIAL, false, NULL, 0);
    expect(&f, (struct strv){0}, TOK_PLAIN, false, NULL, 0);
    close_small(&f);

    open_small(&f, "llama-bpe"); // takes a piece that is a token whole
    EXPECT(&f, "hello", TOK_PLAIN, false, small_id(&f.vocab, SMALL_HELLO));
    close_small(&f);
}

static void test_special_tokens_and_modes(void **state)
{
    (void)state;
    struct fixture f;
    open_small(&f, "smollm");
    uint32_t s = small_id(&f.vocab, SMALL_START), e = small_id(&f.vocab, SMALL_END);
    uint32_t tool = small_id(&f.vocab, SMALL_TOOL), tool_x = small_id(&f.vocab, SMALL_TOOL_X);
    EXPECT(&f, "<|s|>a<|e|>", TOK_SPECIAL, true, s, s, 'a', e);
    EXPECT(&f, "<|s|>", TOK_PLAIN, false, '<', '|', 's', '|', '>');
    EXPECT(&f, "<tool>y<tool>x<tool", TOK_PLAIN, false, tool, 'y', tool_x, '<', 't', 'o', 'o', 'l');
    EXPECT(&f, "[PAD]", TOK_SPECIAL, false, '[', 'P', 'A', 'D', ']');
    EXPECT(&f, "", TOK_PLAIN, true, s);
    assert_true(tok_is_control(f.t, s) && tok_is_eog(f.t, e));
    assert_false(tok_is_eog(f.t, s) || tok_is_control(f.t, tool) || tok_is_control(f.t, UINT32_MAX));
    assert_int_equal(tok_find(f.t, STRV_LIT("<tool>x")), tool_x);
    assert_int_equal(tok_find(f.t, STRV_LIT("hell")), small_id(&f.vocab, SMALL_HELL));
    assert_int_equal(tok_find(f.t, STRV_LIT("nothing")), TOK_NONE);
    assert_int_equal(tok_find(f.t, (struct strv){0}), TOK_NONE);
    assert_true(strv_is(tok_piece(f.t, small_id(&f.vocab, SMALL_HELL)), "hell"));
    assert_int_equal(tok_piece(f.t, tok_count(f.t)).len, 0);
    assert_int_equal(tok_type_of(f.t, small_id(&f.vocab, SMALL_PAD)), TOK_TYPE_UNUSED);
    assert_int_equal(tok_role(f.t, TOK_EOS), e);
    assert_int_equal(tok_role(f.t, TOK_PAD), TOK_NONE);
    assert_string_equal(tok_pre(f.t), "smollm");
    assert_true(tok_adds_bos(f.t) && !tok_adds_eos(f.t));
    assert_int_equal(tok_merge_count(f.t), f.vocab.src.n_merges);
    close_small(&f);
}

static void test_invalid_utf8_becomes_replacement(void **state)
{
    (void)state;
    struct fixture f;
    open_small(&f, "qwen2");
    EXPECT(&f, "a\xff", TOK_PLAIN, false, 'a', 0xEF, 0xBF, 0xBD);
    EXPECT(&f, "\xe2\x82", TOK_PLAIN, false, 0xEF, 0xBF, 0xBD);
    EXPECT(&f, "\xe2\x28", TOK_PLAIN, false, 0xEF, 0xBF, 0xBD, '(');
    EXPECT(&f, "e\xcc\x81", TOK_PLAIN, false, 0xC3, 0xA9); // and NFC
    close_small(&f);
}

static void test_limits_of_text_and_ids(void **state)
{
    (void)state;
    struct fixture f;
    open_small(&f, "qwen2");
    static char text[TEXT_MAX + 1];
    static uint32_t ids[TEXT_MAX];
    size_t n = 77;
    memset(text, '.', sizeof text);
    assert_int_equal(
        tok_encode(f.t, (struct strv){text, TEXT_MAX}, TOK_PLAIN, false, ids, TEXT_MAX, &n, NULL), ISO_OK);
    assert_int_equal(n, TEXT_MAX);
    n = 77;
    assert_int_equal(
        tok_encode(f.t, (struct strv){text, TEXT_MAX}, TOK_PLAIN, false, ids, TEXT_MAX - 1, &n, &f.err),
        ISO_E_LIMIT);
    assert_non_null(strstr(f.err.text, "more than 65535 tokens"));
    assert_int_equal(
        tok_encode(f.t, (struct strv){text, TEXT_MAX + 1}, TOK_PLAIN, false, ids, TEXT_MAX, &n, &f.err),
        ISO_E_LIMIT);
    assert_int_equal(n, 77);
    // Invalid bytes count as the three of U+FFFD, and U+1D15E grows from 4 bytes to 8 in normal form.
    memset(text, 0xFF, sizeof text);
    assert_int_equal(
        tok_encode(f.t, (struct strv){text, TEXT_MAX / 2}, TOK_PLAIN, false, ids, TEXT_MAX, &n, &f.err),
        ISO_E_LIMIT);
    for (size_t i = 0; i < TEXT_MAX; i += 4)
        memcpy(text + i, "\xf0\x9d\x85\x9e", 4);
    assert_int_equal(
        tok_encode(f.t, (struct strv){text, TEXT_MAX}, TOK_PLAIN, false, ids, TEXT_MAX, &n, &f.err),
        ISO_E_LIMIT);
    assert_int_equal(tok_encode(f.t, STRV_LIT("a"), TOK_PLAIN, true, ids, 1, &n, &f.err), ISO_E_LIMIT);
    assert_int_equal(tok_encode(f.t, STRV_LIT("<|s|>"), TOK_SPECIAL, false, ids, 0, &n, &f.err), ISO_E_LIMIT);
    close_small(&f);
}

static void test_runtime_bytes_is_what_is_mapped(void **state)
{
    (void)state;
    struct fixture f;
    open_small(&f, "gpt-2");
    assert_true(tok_runtime_bytes(TEXT_MAX) < 40 * TEXT_MAX);
    close_small(&f);
    // Opening maps the pre-tokenizer's memory, then the rest; each may be refused.
    for (int fail = 1; fail <= 2; fail++) {
        small_init(&f.vocab, "gpt-2", 0, 255);
        buf_init(&f.blob, BLOB_MAX);
        assert_int_equal(tok_build(&f.vocab.src, &f.blob, &f.err), ISO_OK);
        mmap_calls = 0;
        mmap_fail_at = fail;
        f.t = NULL;
        assert_int_equal(tok_open(f.blob.ptr, f.blob.len, TEXT_MAX, &f.t, &f.err), ISO_E_NOMEM);
        mmap_fail_at = 0;
        assert_null(f.t);
        buf_deinit(&f.blob);
    }
}

// Changes one thing in a good source; the build has to refuse it with this code and these words.
struct refusal {
    void (*change)(struct small_vocab *v);
    enum iso_err code;
    const char *words;
};

static void set_pre(struct small_vocab *v)
{
    v->src.pre = STRV_LIT("default");
}

static void set_no_tokens(struct small_vocab *v)
{
    v->src.n_tokens = 0;
}

static void set_many_tokens(struct small_vocab *v)
{
    v->src.n_tokens = TOK_TOKENS_MAX + 1;
}

static void set_many_merges(struct small_vocab *v)
{
    v->src.n_merges = TOK_MERGES_MAX + 1;
}

static void set_no_types(struct small_vocab *v)
{
    v->src.types = NULL;
}

static void set_role(struct small_vocab *v)
{
    v->src.roles[TOK_PAD] = v->src.n_tokens;
}

static void set_no_bos(struct small_vocab *v)
{
    v->src.roles[TOK_BOS] = TOK_NONE;
}

static void set_byte_type(struct small_vocab *v)
{
    v->types[3] = 6;
}

static void set_space_in_token(struct small_vocab *v)
{
    v->tokens[3] = STRV_LIT("a b");
}

static void set_invalid_token(struct small_vocab *v)
{
    v->tokens[3] = STRV_LIT("\xff");
}

static void set_long_token(struct small_vocab *v)
{
    static char text[TOK_TOKEN_BYTES_MAX + 1];
    memset(text, 'a', sizeof text);
    v->tokens[3] = (struct strv){text, sizeof text};
}

static void set_long_special(struct small_vocab *v)
{
    static char text[TOK_SPECIAL_BYTES_MAX + 1];
    memset(text, 'a', sizeof text);
    v->tokens[small_id(v, SMALL_END)] = (struct strv){text, sizeof text};
}

static void set_duplicate(struct small_vocab *v)
{
    v->tokens['a'] = STRV_LIT("b");
}

static void set_duplicate_special(struct small_vocab *v)
{
    v->tokens[small_id(v, SMALL_END)] = STRV_LIT("<tool>");
}

static void set_merge(struct small_vocab *v, const char *left, const char *right)
{
    v->merges[1] = (struct tok_pair){strv_from(left), strv_from(right)};
}

static void set_merge_of_three(struct small_vocab *v)
{
    set_merge(v, "l", "o l");
}

static void set_merge_half_empty(struct small_vocab *v)
{
    set_merge(v, "lo", "");
}

static void set_merge_unknown(struct small_vocab *v)
{
    set_merge(v, "x", "y");
}

static void set_merge_twice(struct small_vocab *v)
{
    set_merge(v, "h", "e");
}

static void set_merge_into_control(struct small_vocab *v)
{
    v->types[small_id(v, SMALL_LO)] = TOK_TYPE_CONTROL;
}

// `v` after the change, appended to a buffer that holds something already.
static void expect_refusal(struct small_vocab *v, const struct refusal *r)
{
    struct buf out;
    struct iso_errinfo err = {0};
    buf_init(&out, BLOB_MAX);
    assert_int_equal(buf_append_zeros(&out, 16, NULL), ISO_OK);
    r->change(v);
    assert_int_equal(tok_build(&v->src, &out, &err), r->code);
    if (!strstr(err.text, r->words))
        fail_msg("\"%s\" does not hold \"%s\"", err.text, r->words);
    assert_int_equal(out.len, 16);
    buf_deinit(&out);
}

static void set_no_unknown(struct small_vocab *v)
{
    v->src.roles[TOK_UNK] = TOK_NONE;
}

static void set_score(struct small_vocab *v)
{
    v->scores[7] = -2e6;
}

static void set_score_nan(struct small_vocab *v)
{
    v->scores[7] = (double)NAN;
}

static void set_long_piece(struct small_vocab *v)
{
    static char text[TOK_UNIGRAM_BYTES_MAX + 1];
    memset(text, 'a', sizeof text);
    v->tokens[3] = (struct strv){text, sizeof text};
}

static void test_unigram_build_refuses(void **state)
{
    (void)state;
    static const struct refusal REFUSALS[] = {
        {set_no_unknown, ISO_E_FORMAT, "names no unknown token"},
        {set_score, ISO_E_LIMIT, "the score of token 7 is -2e+06"},
        {set_score_nan, ISO_E_LIMIT, "the score of token 7 is nan"},
        {set_long_piece, ISO_E_LIMIT, "token 3 is 257 bytes long"},
    };
    for (size_t i = 0; i < ARRAY_LEN(REFUSALS); i++) {
        static struct small_vocab v;
        small_init_unigram(&v);
        expect_refusal(&v, &REFUSALS[i]);
    }
}

// More texts with hashes near each other than a probe may pass.
static void test_build_refuses_colliding_hashes(void **state)
{
    (void)state;
    enum { N = TOK_PROBE_MAX + 300, SLOTS = 2048 };
    static char texts[N][8];
    static struct strv tokens[N];
    static int32_t types[N];
    uint32_t n = 0;
    for (uint32_t i = 0; n < N; i++) {
        char text[8];
        int length = snprintf(text, sizeof text, "%06x", i);
        if (tok_key_hash((struct strv){text, (size_t)length}) % SLOTS >= 8)
            continue;
        memcpy(texts[n], text, sizeof text);
        tokens[n] = (struct strv){texts[n], (size_t)length};
        types[n++] = TOK_TYPE_NORMAL;
    }
    struct tok_source src = {.pre = STRV_LIT("gpt-2"), .n_tokens = N, .tokens = tokens, .types = types};
    for (int i = 0; i < TOK_ROLE_COUNT; i++)
        src.roles[i] = TOK_NONE;
    struct buf out;
    struct iso_errinfo err = {0};
    buf_init(&out, BLOB_MAX);
    assert_int_equal(tok_build(&src, &out, &err), ISO_E_FORMAT);
    assert_non_null(strstr(err.text, "have colliding hashes"));
    buf_deinit(&out);
}

static void test_build_refuses(void **state)
{
    (void)state;
    static const struct refusal REFUSALS[] = {
        {set_pre, ISO_E_UNSUPPORTED, "\"default\" is not supported (known are gpt-2, smollm"},
        {set_no_tokens, ISO_E_LIMIT, "0 tokens"},
        {set_many_tokens, ISO_E_LIMIT, "1048577 tokens"},
        {set_many_merges, ISO_E_LIMIT, "1048577 merges"},
        {set_no_types, ISO_E_FORMAT, "no token types"},
        {set_role, ISO_E_FORMAT, "the padding token's id 266 is past"},
        {set_no_bos, ISO_E_FORMAT, "does not name it"},
        {set_byte_type, ISO_E_UNSUPPORTED, "token 3 has type 6"},
        {set_space_in_token, ISO_E_FORMAT, "token 3 (a b) is not text"},
        {set_invalid_token, ISO_E_FORMAT, "token 3 (?) is not text"},
        {set_long_token, ISO_E_FORMAT, "at most 1024 bytes"},
        {set_long_special, ISO_E_LIMIT, "token 262 is 257 bytes long"},
        {set_duplicate, ISO_E_FORMAT, "tokens 97 and 98 are the same text (b)"},
        {set_duplicate_special, ISO_E_FORMAT, "special tokens 262 and 263"},
        {set_merge_of_three, ISO_E_FORMAT, "merge 1 (l, o l) is not two texts"},
        {set_merge_half_empty, ISO_E_FORMAT, "merge 1 (lo, ) is not two texts"},
        {set_merge_unknown, ISO_E_FORMAT, "merge 1 (x, y) needs a token"},
        {set_merge_twice, ISO_E_FORMAT, "merges 0 and 1 are the same (tokens 104 and 101)"},
        {set_merge_into_control, ISO_E_FORMAT, "merge 1 (l, o) needs a token"},
    };
    for (size_t i = 0; i < ARRAY_LEN(REFUSALS); i++) {
        static struct small_vocab v;
        small_init(&v, "gpt-2", 0, 255);
        expect_refusal(&v, &REFUSALS[i]);
    }
}

static void test_build_is_deterministic_and_bounded(void **state)
{
    (void)state;
    struct fixture f;
    open_small(&f, "gpt-2");
    struct buf again;
    buf_init(&again, f.blob.len);
    assert_int_equal(tok_build(&f.vocab.src, &again, &f.err), ISO_OK);
    assert_int_equal(again.len, f.blob.len);
    assert_memory_equal(again.ptr, f.blob.ptr, again.len);
    buf_deinit(&again);
    buf_init(&again, f.blob.len - 1);
    assert_int_equal(tok_build(&f.vocab.src, &again, &f.err), ISO_E_LIMIT);
    assert_int_equal(again.len, 0);
    buf_deinit(&again);
    close_small(&f);
}

// Opens a block at an address of its own, so that a sanitizer sees any read past it; uses it where it opens.
static bool try_block(const uint8_t *bytes, size_t n)
{
    uint8_t *copy = aligned_alloc(16, num_align(n, 16) + 16);
    assert_non_null(copy);
    memcpy(copy, bytes, n);
    struct tokenizer *t = NULL;
    struct iso_errinfo err = {0};
    bool opened = tok_open(copy, n, 256, &t, &err) == ISO_OK;
    if (opened) {
        uint32_t ids[128];
        size_t n_ids = 0;
        struct strv text = STRV_LIT("<|s|>hello <tool>x he'll 123  \n\xc3\xa9\xff<|e|>");
        assert_int_equal(tok_encode(t, text, TOK_SPECIAL, true, ids, ARRAY_LEN(ids), &n_ids, &err), ISO_OK);
        struct detok d;
        detok_init(&d, t);
        char out[DETOK_OUT_MAX];
        for (size_t i = 0; i < n_ids; i++)
            (void)detok_push(&d, ids[i], out);
        (void)tok_find(t, text);
    } else {
        assert_true(err.text[0] != '\0');
        assert_null(t);
    }
    tok_close(t);
    free(copy);
    return opened;
}

static void damage(const char *pre)
{
    struct fixture f;
    open_small(&f, pre);
    uint8_t *bytes = f.blob.ptr;
    size_t n = f.blob.len;
    assert_true(try_block(bytes, n));
    for (size_t cut = 0; cut < n; cut++)
        assert_false(try_block(bytes, cut));
    static const uint8_t FLIPS[] = {0x01, 0x80, 0xFF};
    for (size_t at = 0; at < n; at++)
        for (size_t k = 0; k < ARRAY_LEN(FLIPS); k++) {
            bytes[at] ^= FLIPS[k];
            (void)try_block(bytes, n);
            bytes[at] ^= FLIPS[k];
        }
    struct tokenizer *t;
    assert_int_equal(tok_open(bytes + 8, n - 8, 256, &t, &f.err), ISO_E_FORMAT);
    bytes[8]++;
    assert_int_equal(tok_open(bytes, n, 256, &t, &f.err), ISO_E_VERSION);
    bytes[8]--;
    close_small(&f);
}

static void test_damaged_blocks(void **state)
{
    (void)state;
    damage("smollm");
    damage(NULL); // unigram
}

static void test_unigram_takes_the_best_sum(void **state)
{
    (void)state;
    struct fixture f;
    open_small(&f, NULL);
    uint32_t unknown = f.vocab.src.roles[TOK_UNK], space = unknown - 1;
    uint32_t hello = space - SMALL_ROWS + SMALL_HELLO, lo = space - SMALL_ROWS + SMALL_LO;
    // hello (-0.8) is better than hell o (-1 - 4) and others; unknown characters beside each other are one token.
    const uint32_t want[] = {hello, space, lo, unknown};
    expect(&f, STRV_LIT("hello lo\xc3\xa9\xc3\xa8"), TOK_PLAIN, false, want, ARRAY_LEN(want));
    close_small(&f);
}

static void test_endless_probes_are_refused(void **state)
{
    (void)state;
    struct fixture f;
    open_small(&f, "gpt-2");
    struct tok_layout l;
    assert_true(tok_layout((const struct tok_blob_header *)f.blob.ptr, &l));
    static uint8_t copy[BLOB_MAX] __attribute__((aligned(16)));
    struct tokenizer *t;
    memcpy(copy, f.blob.ptr, f.blob.len);
    memset(copy + l.token_slots, 0, 4 * (size_t)l.n_token_slots);
    assert_int_equal(tok_open(copy, f.blob.len, 256, &t, &f.err), ISO_E_FORMAT);
    assert_non_null(strstr(f.err.text, "too long a run"));
    memcpy(copy, f.blob.ptr, f.blob.len);
    memset(copy + l.merge_slots, 0, 4 * (size_t)l.n_merge_slots);
    assert_int_equal(tok_open(copy, f.blob.len, 256, &t, &f.err), ISO_E_FORMAT);
    assert_non_null(strstr(f.err.text, "too long a run"));
    close_small(&f);
}

static void test_nfc(void **state)
{
    (void)state;
    static const struct {
        const char *in, *out;
    } CASES[] = {
        {"", ""},
        {"abc", "abc"},
        {"e\u0301", "\u00e9"},
        {"e\u0316\u0301", "\u00e9\u0316"},
        {"q\u0301\u0316", "q\u0316\u0301"},
        {"\u0301\u0316", "\u0316\u0301"},
        {"\u1100\u1161\u11a8", "\uac01"},
        {"\u212b", "\u00c5"},
        {"\U0001D15E", "\U0001D157\U0001D165"},     // excluded from composition
        {"e\U00010F46\u0301", "e\U00010F46\u0301"}, // a mark since Unicode 11
        {"\U00011935\U00011930", "\U00011935\U00011930"},
    };
    int32_t work[1024];
    uint8_t out[64];
    for (size_t i = 0; i < ARRAY_LEN(CASES); i++) {
        size_t n = 99;
        assert_int_equal(nfc_normalize(strv_from(CASES[i].in), work, 64, out, sizeof out, &n), ISO_OK);
        assert_int_equal(n, strlen(CASES[i].out));
        assert_memory_equal(out, CASES[i].out, n);
        if (n > 0)
            assert_int_equal(nfc_normalize(strv_from(CASES[i].in), work, 64, out, n - 1, &n), ISO_E_LIMIT);
    }
    assert_true(nfc_work_bytes(64) <= sizeof work);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_merges_by_rank_then_leftmost),
        cmocka_unit_test(test_special_tokens_and_modes),
        cmocka_unit_test(test_invalid_utf8_becomes_replacement),
        cmocka_unit_test(test_limits_of_text_and_ids),
        cmocka_unit_test(test_runtime_bytes_is_what_is_mapped),
        cmocka_unit_test(test_build_refuses),
        cmocka_unit_test(test_build_refuses_colliding_hashes),
        cmocka_unit_test(test_unigram_build_refuses),
        cmocka_unit_test(test_unigram_takes_the_best_sum),
        cmocka_unit_test(test_build_is_deterministic_and_bounded),
        cmocka_unit_test(test_damaged_blocks),
        cmocka_unit_test(test_endless_probes_are_refused),
        cmocka_unit_test(test_nfc),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
