// The splitter of answers: what real models write, and what they spoil; each text whole, cut once at every place, byte by
// byte (character by character where it matters) and at seeded random places.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/buf.h"
#include "base/num.h"
#include "base/utf8.h"
#include "serve/split.h"

#define RECORD_MAX  ((size_t)1 << 20)
#define RANDOM_CUTS 20
#define SEED        UINT64_C(0x5EED)

static bool fail_realloc;

void *__real_realloc(void *ptr, size_t size);
void *__wrap_realloc(void *ptr, size_t size);
void *__wrap_realloc(void *ptr, size_t size)
{
    return fail_realloc ? NULL : __real_realloc(ptr, size);
}

// ---- The pieces, written down

// As text: \1, kind and call, the piece; neighbours of the same kind and call are put together, but for names.
#define R(text)       "\1R0:" text
#define C(text)       "\1C0:" text
#define N(call, text) "\1N" #call ":" text
#define A(call, text) "\1A" #call ":" text

struct record {
    struct buf text;
    uint32_t n_pieces, fail_at; // ISO_E_IO at that piece, from 1
    int kind;                   // of the last piece; -1: none
    uint32_t call;
};

static void append(struct buf *b, const char *c_string)
{
    assert_int_equal(buf_append_strv(b, strv_from(c_string)), ISO_OK);
}

static enum iso_err take(void *context, enum split_kind kind, uint32_t call, struct strv text)
{
    struct record *r = context;
    assert_true(text.len > 0 && text.len <= SPLIT_PIECE_MAX);
    if (++r->n_pieces == r->fail_at)
        return ISO_E_IO;
    if ((int)kind != r->kind || call != r->call || kind == SPLIT_CALL_NAME) {
        char head[32];
        snprintf(head, sizeof head, "\1%c%u:", "RCNA"[kind], call);
        append(&r->text, head);
    }
    r->kind = (int)kind;
    r->call = call;
    assert_int_equal(buf_append_strv(&r->text, text), ISO_OK);
    return ISO_OK;
}

static void record_init(struct record *r)
{
    *r = (struct record){.kind = -1};
    buf_init(&r->text, RECORD_MAX);
}

static struct strv part(struct strv s, size_t from, size_t to)
{
    return (struct strv){s.ptr + from, to - from};
}

static uint64_t next_random(uint64_t *state)
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return *state >> 33;
}

// ---- One text in all its cuts

struct input {
    enum split_style style;
    enum split_thinking thinking;
    struct strv text;
};

enum cut { WHOLE, ONCE, ALL, RANDOM };

// `at`: the place of the cut, or the seed.
static enum iso_err run(const struct input *in, enum cut cut, uint64_t at, struct record *r)
{
    struct split s;
    split_init(&s, in->style, in->thinking, take, r);
    enum iso_err err = ISO_OK;
    size_t n = in->text.len;
    uint64_t random = at;
    for (size_t from = 0, to; from < n && !err; from = to) {
        to = cut == ALL ? from + 1 : cut == ONCE && from < at ? at : n;
        if (cut == RANDOM)
            to = num_min(n, from + next_random(&random) % 12);
        err = split_push(&s, part(in->text, from, to));
    }
    if (!err)
        err = split_end(&s);
    else
        assert_int_equal(split_end(&s), err);
    split_deinit(&s);
    return err;
}

static void same(const struct input *in, enum cut cut, uint64_t at, struct strv want, enum iso_err want_err)
{
    struct record r;
    record_init(&r);
    enum iso_err err = run(in, cut, at, &r);
    if (err != want_err || !strv_equal(buf_strv(&r.text), want)) {
        print_error("style %d, thinking %d, cut %d at %llu\ntext %.*s\nwant %.*s\ngot  %.*s\n", in->style,
                    in->thinking, cut, (unsigned long long)at, (int)num_min(in->text.len, 1000), in->text.ptr,
                    (int)num_min(want.len, 1000), want.ptr, (int)num_min(r.text.len, 1000),
                    (char *)r.text.ptr);
        fail();
    }
    buf_deinit(&r.text);
}

static void check_error(enum split_style style, enum split_thinking thinking, struct strv text,
                        struct strv want, enum iso_err err, size_t stride)
{
    struct input in = {style, thinking, text};
    same(&in, WHOLE, 0, want, err);
    same(&in, ALL, 0, want, err);
    for (size_t at = 1; at < text.len; at += stride)
        same(&in, ONCE, at, want, err);
    for (uint64_t i = 0; i < RANDOM_CUTS; i++)
        same(&in, RANDOM, SEED + i, want, err);
}

static void check(enum split_style style, enum split_thinking thinking, struct strv text, struct strv want)
{
    check_error(style, thinking, text, want, ISO_OK, 1);
}

struct row {
    enum split_style style;
    enum split_thinking thinking;
    const char *text, *want;
};

static void check_rows(const struct row *rows, size_t n)
{
    for (size_t i = 0; i < n; i++)
        check(rows[i].style, rows[i].thinking, strv_from(rows[i].text), strv_from(rows[i].want));
}

#define NONE    SPLIT_NONE
#define QWEN    SPLIT_QWEN
#define LLAMA   SPLIT_LLAMA
#define MISTRAL SPLIT_MISTRAL
#define NO      SPLIT_NO_THINK
#define MAY     SPLIT_MAY_THINK
#define IN      SPLIT_IN_THINK

// ---- Tests

static void test_thinking(void **state)
{
    (void)state;
    static const struct row ROWS[] = {
        {NONE, NO, "", ""},
        {NONE, MAY, "", ""},
        {NONE, IN, "", ""},
        {NONE, NO, " <think>a</think>\n", C(" <think>a</think>\n")},
        {NONE, MAY, "<think>\nSo, 2+2.\n</think>\n\nIt's 4.\n", R("So, 2+2.") C("It's 4.\n")},
        {NONE, MAY, "\n <think>a</think>b", R("a") C("b")},
        {NONE, MAY, "<think>\n\n</think>\n\nHi", C("Hi")}, // Qwen3 told not to think
        {NONE, MAY, "<think></think>", ""},
        {NONE, MAY, "<think>a b\n\n c </think> \n", R("a b\n\n c")},
        {NONE, MAY, "<think>a \n", R("a")},
        {NONE, MAY, "<think> \n", ""},
        {NONE, MAY, "<think>a \n</thi", R("a \n</thi")},
        {NONE, MAY, "<think>a <b </c </think </think>d</think>", R("a <b </c </think") C("d</think>")},
        {NONE, MAY, "<think><think>a</think>b", R("<think>a") C("b")},
        {NONE, MAY, "<think><</think>b", R("<") C("b")},
        {NONE, MAY, "<<think>a</think>b", C("<<think>a</think>b")},
        {NONE, MAY, "\n\n", C("\n\n")},
        {NONE, MAY, "\n <thin", C("\n <thin")},
        {NONE, MAY, "\n <thing>", C("\n <thing>")},
        {NONE, MAY, "a<think>b</think>", C("a<think>b</think>")},
        {NONE, IN, "\nOk.\n</think>\n\nYes.", R("Ok.") C("Yes.")},
        {NONE, IN, "Ok.", R("Ok.")},
        {NONE, IN, "</think>Yes", C("Yes")},
        {NONE, IN, "\xc3\xa4 \xe2\x82\xac\n</think>\xf0\x9f\x98\x80",
         R("\xc3\xa4 \xe2\x82\xac") C("\xf0\x9f\x98\x80")},
        {QWEN, IN, "<tool_call>{\"name\": \"f\"}</tool_call></think>x",
         R("<tool_call>{\"name\": \"f\"}</tool_call>") C("x")},
        {QWEN, MAY, "<tool_call>{\"name\": \"f\"}</tool_call>", N(0, "f") A(0, "{}")},
        {QWEN, MAY, "<t", C("<t")},
        {QWEN, MAY, "<tool_callx", C("<tool_callx")},
        {QWEN, MAY, "<think>a</think>\n\n<tool_cal", R("a") C("<tool_cal")},
        {LLAMA, MAY, "<think>a</think>\n\n{\"name\": \"f\", \"parameters\": {}}",
         R("a") N(0, "f") A(0, "{}")},
        {MISTRAL, IN, "a</think>[TOOL_CALLS]f{}", R("a") N(0, "f") A(0, "{}")},
    };
    check_rows(ROWS, ARRAY_LEN(ROWS));
}

static void test_qwen(void **state)
{
    (void)state;
    static const struct row ROWS[] = {
        {QWEN, NO, "Plain text, 1 < 2, </b>.\n", C("Plain text, 1 < 2, </b>.\n")},
        {QWEN, NO,
         "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}}\n</tool_call>",
         N(0, "get_weather") A(0, "{\"city\": \"Paris\"}")},
        {QWEN, MAY,
         "<think>\nThe user wants {\"a\"}.\n</think>\n\n<tool_call>\n{\"name\": \"f\", \"arguments\": "
         "{\"x\": 1}}\n"
         "</tool_call>\n<tool_call>\n{\"name\": \"g\", \"arguments\": {\"y\": [1, {}]}}\n</tool_call>\n",
         R("The user wants {\"a\"}.") N(0, "f") A(0, "{\"x\": 1}") N(1, "g") A(1, "{\"y\": [1, {}]}")},
        {QWEN, NO,
         "Let me "
         "see.\n\n<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>\nand\n<tool_call>{\"name\":\"g\"}"
         "</tool_call> done\n",
         C("Let me see.\n\n") N(0, "f") A(0, "{}") C("\nand\n") N(1, "g") A(1, "{}") C(" done\n")},
        {QWEN, NO, "<tool_call>[{\"name\": \"f\", \"arguments\": {\"a\": 1}}]</tool_call>",
         N(0, "f") A(0, "{\"a\": 1}")},
        {QWEN, NO,
         "<tool_call>[ {\"name\": \"f\", \"arguments\": {\"a\": 1}} ,\n{\"name\":\"g\"}\n] </tool_call> ",
         N(0, "f") A(0, "{\"a\": 1}") N(1, "g") A(1, "{}")},
        {QWEN, NO, "<tool_call>[]</tool_call>", C("<tool_call>[]</tool_call>")},
        {QWEN, NO, "<tool_call></tool_call>", C("<tool_call></tool_call>")},
        {QWEN, NO, "<tool_call>\n{}\n</tool_call>", C("<tool_call>\n{}\n</tool_call>")},
        // Hermes puts the arguments first.
        {QWEN, NO,
         "<tool_call>\n{\"arguments\": {\"symbol\": \"TSLA\"}, \"name\": \"get_stock\"}\n</tool_call>",
         N(0, "get_stock") A(0, "{\"symbol\": \"TSLA\"}")},
        {QWEN, NO,
         "<tool_call>{\"id\": [1, \"}\"], \"arguments\": [1], \"x\": true, \"name\": \"f\", \"name\": \"g\","
         " \"arguments\": 5}</tool_call>",
         N(0, "f") A(0, "[1]")},
        {QWEN, NO,
         "<tool_call>{\"parameters\": -1.5e+3 , \"arguments\": {\"b\": 2}, \"name\": \"f\"}</tool_call>",
         N(0, "f") A(0, "-1.5e+3")},
        {QWEN, NO,
         "<tool_call>{\"parameters\": null, \"name\": \"f\", \"arguments\": {\"b\": 2}}</tool_call>",
         N(0, "f") A(0, "{\"b\": 2}")},
        {QWEN, NO, "<tool_call>{\"name\": \"f\", \"arguments\": null}</tool_call>", N(0, "f") A(0, "{}")},
        {QWEN, NO, "<tool_call>{\"name\": \"f\", \"arguments\": \"\"}</tool_call>", N(0, "f") A(0, "{}")},
        {QWEN, NO, "<tool_call>{\"arguments\": \"\", \"name\": \"f\"}</tool_call>", N(0, "f") A(0, "{}")},
        {QWEN, NO, "<tool_call>{\"name\": \"f\", \"arguments\": true}</tool_call>", N(0, "f") A(0, "true")},
        {QWEN, NO, "<tool_call>{\"name\" : \"f\" ,\t\"arguments\"\r: {\"a\" : \"\\\"}\\\\\"} }</tool_call>",
         N(0, "f") A(0, "{\"a\" : \"\\\"}\\\\\"}")},
        {QWEN, NO,
         "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": "
         "\"</tool_call>{\\\"<tool_call>\"}}</tool_call>x",
         N(0, "f") A(0, "{\"a\": \"</tool_call>{\\\"<tool_call>\"}") C("x")},
        {QWEN, NO,
         "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"\xf0\x9f\x98\x80\\u00e4\"}}</tool_call>",
         N(0, "f") A(0, "{\"a\": \"\xf0\x9f\x98\x80\\u00e4\"}")},
    };
    check_rows(ROWS, ARRAY_LEN(ROWS));
}

static void test_strings_are_decoded(void **state)
{
    (void)state;
#define NAMED(name) "<tool_call>{\"name\": \"" name "\"}</tool_call>"
#define WITH(text)  "<tool_call>{\"name\": \"f\", \"arguments\": \"" text "\"}</tool_call>"
#define FIRST(text) "<tool_call>{\"arguments\": \"" text "\", \"name\": \"f\"}</tool_call>"
    static const struct row ROWS[] = {
        {QWEN, NO, NAMED("get\\u005fx"), N(0, "get_x") A(0, "{}")},
        {QWEN, NO, NAMED("\\u00e4\\u20AC\\uD83D\\uDe00\xc3\xa4"),
         N(0, "\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80\xc3\xa4") A(0, "{}")},
        {QWEN, NO, NAMED("a\\ud83d"), N(0, "a\xef\xbf\xbd") A(0, "{}")},
        {QWEN, NO, NAMED("\\ud83d\\ud83d\\ude00\\ude00."),
         N(0, "\xef\xbf\xbd\xf0\x9f\x98\x80\xef\xbf\xbd.") A(0, "{}")},
        {QWEN, NO, NAMED("\\ud83d\\u0041\\ud83d\\n"),
         N(0, "\xef\xbf\xbd"
              "A\xef\xbf\xbd\n") A(0, "{}")},
        {QWEN, NO, NAMED("\\\"\\\\\\/\\b\\f\\n\\r\\t"), N(0, "\"\\/\b\f\n\r\t") A(0, "{}")},
        {QWEN, NO, "<tool_call>{\"\\u006eame\": \"f\", \"arg\\u0075ments\": {}}</tool_call>",
         N(0, "f") A(0, "{}")},
        {QWEN, NO, WITH("{\\\"a\\\": \\\"\\\\n</tool_call>\\\"}"),
         N(0, "f") A(0, "{\"a\": \"\\n</tool_call>\"}")},
        {QWEN, NO, FIRST("{\\\"a\\\": \\\"\\ud83d\\ude00\\\"}"),
         N(0, "f") A(0, "{\"a\": \"\xf0\x9f\x98\x80\"}")},
        {QWEN, NO, FIRST("\\ud83d"), N(0, "f") A(0, "\xef\xbf\xbd")},
        // Not JSON: before the name content, behind it the call is over.
        {QWEN, NO, NAMED("a\\x"), C(NAMED("a\\x"))},
        {QWEN, NO, NAMED("a\\u12g4"), C(NAMED("a\\u12g4"))},
        {QWEN, NO, FIRST("a\\x"), C(FIRST("a\\x"))},
        {QWEN, NO, WITH("a\\x"), N(0, "f") A(0, "a") C("x\"}</tool_call>")},
        {QWEN, NO, WITH("a\\ud8x"), N(0, "f") A(0, "a") C("x\"}</tool_call>")},
    };
    check_rows(ROWS, ARRAY_LEN(ROWS));
    check(QWEN, NO, STRV_LIT(NAMED("a\\u0000b")), STRV_LIT("\1N0:a\0b" A(0, "{}")));
}

static void test_spoiled(void **state)
{
    (void)state;
    static const struct row ROWS[] = {
        // No call: unchanged.
        {QWEN, NO, "<tool_call>\nf(x)\n</tool_call>", C("<tool_call>\nf(x)\n</tool_call>")},
        {QWEN, NO, "a <tool_call>{\"arguments\": {\"x\": 1}}</tool_call>b",
         C("a <tool_call>{\"arguments\": {\"x\": 1}}</tool_call>b")},
        {QWEN, NO, "<tool_call>{\"name\": 5}</tool_call>", C("<tool_call>{\"name\": 5}</tool_call>")},
        {QWEN, NO, "<tool_call>{\"name\": null}</tool_call>", C("<tool_call>{\"name\": null}</tool_call>")},
        {QWEN, NO, "<tool_call>{\"name\": \"\"}</tool_call>", C("<tool_call>{\"name\": \"\"}</tool_call>")},
        {QWEN, NO, "<tool_call>{name: \"f\"}</tool_call>", C("<tool_call>{name: \"f\"}</tool_call>")},
        {QWEN, NO, "<tool_call>{\"name\" \"f\"}</tool_call>", C("<tool_call>{\"name\" \"f\"}</tool_call>")},
        {QWEN, NO, "<tool_call>{\"x\": <, \"name\": \"f\"}", C("<tool_call>{\"x\": <, \"name\": \"f\"}")},
        {QWEN, NO, "<tool_call>{\"x\": [1, <], \"name\": \"f\"}",
         C("<tool_call>{\"x\": [1, <], \"name\": \"f\"}")},
        {QWEN, NO, "<tool_call>{\"x\": 1 \"name\": \"f\"}", C("<tool_call>{\"x\": 1 \"name\": \"f\"}")},
        {QWEN, NO, "<tool_call>[5, {\"name\": \"f\"}]", C("<tool_call>[5, {\"name\": \"f\"}]")},
        {QWEN, NO, "</tool_call>\n<tool_call", C("</tool_call>\n<tool_call")},
        // What fails doesn't hide what comes.
        {QWEN, NO, "<tool_call><tool_call><tool_<tool_call>{\"name\": \"f\"}</tool_call>",
         C("<tool_call><tool_call><tool_") N(0, "f") A(0, "{}")},
        {QWEN, NO, "\n<tool_call>no</tool_call>\n<tool_call>{\"name\": \"f\"}</tool_call>\n",
         C("\n<tool_call>no</tool_call>\n") N(0, "f") A(0, "{}")},
        // Behind the name.
        {QWEN, NO, "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1}}", N(0, "f") A(0, "{\"a\": 1}")},
        {QWEN, NO, "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1}}\nSo:",
         N(0, "f") A(0, "{\"a\": 1}") C("\nSo:")},
        {QWEN, NO, "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n<tool_call>{\"name\": \"g\"}",
         N(0, "f") A(0, "{\"a\": 1}") N(1, "g") A(1, "{}")},
        {QWEN, NO, "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1}</tool_call>x",
         N(0, "f") A(0, "{\"a\": 1}") C("x")},
        {QWEN, NO, "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1</tool_call>x",
         N(0, "f") A(0, "{\"a\": 1") C("x")},
        {QWEN, NO, "<tool_call>{\"name\": \"f\"</tool_call>x", N(0, "f") A(0, "{}") C("x")},
        {QWEN, NO, "<tool_call>{\"name\": \"f\", \"arguments\": </tool_call>x", N(0, "f") A(0, "{}") C("x")},
        {QWEN, NO, "<tool_call>{\"name\": \"f\",}</tool_call>", N(0, "f") A(0, "{}")},
        {QWEN, NO, "<tool_call>{\"name\": \"f\", \"arguments\": {'a': 'b'}}</tool_call>",
         N(0, "f") A(0, "{'a': 'b'}")},
        {QWEN, NO, "<tool_call>{\"name\": \"f\", \"arguments\": {}}}</tool_call>",
         N(0, "f") A(0, "{}") C("}</tool_call>")},
        {QWEN, NO, "<tool_call>{\"name\": \"f\", x}</tool_call>", N(0, "f") A(0, "{}") C("x}</tool_call>")},
        {QWEN, NO, "<tool_call>{\"name\": \"f\"}</tool_calls>x", N(0, "f") A(0, "{}") C("</tool_calls>x")},
        {QWEN, NO, "<tool_call>{\"name\": \"f\"}</tool_call></tool_call>",
         N(0, "f") A(0, "{}") C("</tool_call>")},
        {QWEN, NO, "<tool_call>[{\"name\": \"f\"}</tool_call>", N(0, "f") A(0, "{}")},
        {QWEN, NO, "<tool_call>[{\"name\": \"f\"}, {\"x\": 1}]</tool_call>",
         N(0, "f") A(0, "{}") C(", {\"x\": 1}]</tool_call>")},
        {QWEN, NO, "<tool_call>[{\"name\": \"f\"}, 5]</tool_call>",
         N(0, "f") A(0, "{}") C(", 5]</tool_call>")},
        {QWEN, NO, "<tool_call>[{\"name\": \"f\"}]]</tool_call>", N(0, "f") A(0, "{}") C("]</tool_call>")},
        {QWEN, NO, "<tool_call>{\"name\": \"f\"}]</tool_call>", N(0, "f") A(0, "{}") C("]</tool_call>")},
        // Nothing stays of one call for the next.
        {QWEN, NO, "<tool_call>{\"name\": \"\"}</tool_call><tool_call>{\"name\": \"f\"}</tool_call>",
         C("<tool_call>{\"name\": \"\"}</tool_call>") N(0, "f") A(0, "{}")},
        {QWEN, NO, "<tool_call>[{\"name\": \"f\"}</tool_call><tool_call>{\"name\": \"g\"}]</tool_call>",
         N(0, "f") A(0, "{}") N(1, "g") A(1, "{}") C("]</tool_call>")},
        {QWEN, NO,
         "<tool_call>{\"name\": \"f\", \"arguments\": [[<tool_call>{\"name\": \"g\", \"arguments\": "
         "{}}</tool_call>x",
         N(0, "f") A(0, "[[") N(1, "g") A(1, "{}") C("x")},
        {QWEN, NO, "<tool_call>{\"a\\x<tool_call>{\"name\": \"f\"}",
         C("<tool_call>{\"a\\x") N(0, "f") A(0, "{}")},
        {MISTRAL, NO, "[TOOL_CALLS]{\"abc\\x [TOOL_CALLS]f{}",
         C("[TOOL_CALLS]{\"abc\\x ") N(0, "f") A(0, "{}")},
        {MISTRAL, NO, "[TOOL_CALLS]f{<[TOOL_CALLS]{\"arguments\": 1, \"name\": \"g\", \"x\": 2}!",
         N(0, "f") A(0, "{") C("<") N(1, "g") A(1, "1") C("!")},
        {QWEN, NO, "<tool_call>[[{\"name\": \"f\"}]]", C("<tool_call>[[{\"name\": \"f\"}]]")},
        {MISTRAL, NO, "[TOOL_CALLS][f{}", C("[TOOL_CALLS][f{}")},
    };
    check_rows(ROWS, ARRAY_LEN(ROWS));
}

static void test_llama(void **state)
{
    (void)state;
    static const struct row ROWS[] = {
        {LLAMA, NO, "{\"name\": \"get_weather\", \"parameters\": {\"city\": \"Paris\"}}",
         N(0, "get_weather") A(0, "{\"city\": \"Paris\"}")},
        {LLAMA, NO,
         "\n<|python_tag|> {\"type\": \"function\", \"name\": \"f\", \"arguments\": {\"a\": \"1\"}}\n",
         N(0, "f") A(0, "{\"a\": \"1\"}")},
        {LLAMA, NO,
         "{\"name\": \"f\", \"parameters\": {\"a\": 1}}; {\"name\": \"g\", \"parameters\": {}}\n{\"name\": "
         "\"h\"} ;",
         N(0, "f") A(0, "{\"a\": 1}") N(1, "g") A(1, "{}") N(2, "h") A(2, "{}")},
        {LLAMA, NO, "<|python_tag|>{\"name\": \"f\"}<|python_tag|>{\"name\": \"g\"}",
         N(0, "f") A(0, "{}") N(1, "g") A(1, "{}")},
        {LLAMA, NO, "{\"parameters\": {\"a\": 1}, \"name\": \"f\"}", N(0, "f") A(0, "{\"a\": 1}")},
        {LLAMA, NO, "{\"name\": \"f\", \"parameters\": {}}; then {\"name\": \"g\"}",
         N(0, "f") A(0, "{}") C("; then {\"name\": \"g\"}")},
        {LLAMA, NO, "{\"name\": \"f\", \"parameters\": {}}}", N(0, "f") A(0, "{}") C("}")},
        {LLAMA, NO, "{\"name\": \"f\"} {\"x\": 1} {\"name\": \"g\"}",
         N(0, "f") A(0, "{}") C(" {\"x\": 1} {\"name\": \"g\"}")},
        {LLAMA, NO, "; {\"name\": \"f\"}", C("; {\"name\": \"f\"}")},
        {LLAMA, NO, "I call {\"name\": \"f\"}", C("I call {\"name\": \"f\"}")},
        {LLAMA, NO, " [{\"name\": \"f\"}]", C(" [{\"name\": \"f\"}]")},
        {LLAMA, NO, "<|python_tag|>[{\"name\": \"f\"}]", C("<|python_tag|>[{\"name\": \"f\"}]")},
        {LLAMA, NO, " <|python_tag|>import math\n", C(" <|python_tag|>import math\n")},
        {LLAMA, NO, "<|python{\"name\": \"f\"}", C("<|python{\"name\": \"f\"}")},
        {LLAMA, NO, " {\"answer\": {\"name\": \"f\"}}\n", C(" {\"answer\": {\"name\": \"f\"}}\n")},
        {LLAMA, NO, "{}", C("{}")},
        {LLAMA, NO, " \n", C(" \n")},
        {LLAMA, NO, "<tool_call>{\"name\": \"f\"}</tool_call>",
         C("<tool_call>{\"name\": \"f\"}</tool_call>")},
    };
    check_rows(ROWS, ARRAY_LEN(ROWS));
}

static void test_mistral(void **state)
{
    (void)state;
    static const struct row ROWS[] = {
        {MISTRAL, NO,
         "[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {\"a\": [1]}}, {\"name\": \"g\", \"arguments\": "
         "{}}]\n",
         N(0, "f") A(0, "{\"a\": [1]}") N(1, "g") A(1, "{}")},
        {MISTRAL, NO,
         "I see.[TOOL_CALLS][{\"arguments\": {\"a\": 1}, \"name\": \"f\", \"id\": \"D681PevKs\"}] ok",
         C("I see.") N(0, "f") A(0, "{\"a\": 1}") C(" ok")},
        {MISTRAL, NO, "[TOOL_CALLS]{\"name\": \"f\", \"arguments\": {}}", N(0, "f") A(0, "{}")},
        {MISTRAL, NO, "[TOOL_CALLS]get_weather{\"city\": \"P}\"}[TOOL_CALLS] g.h-2 {} \nok",
         N(0, "get_weather") A(0, "{\"city\": \"P}\"}") N(1, "g.h-2") A(1, "{}") C(" \nok")},
        {MISTRAL, NO, "[TOOL_CALLS]f{\"a\": 1", N(0, "f") A(0, "{\"a\": 1")},
        {MISTRAL, NO, "[TOOL_CALLS]f{\"a\": <", N(0, "f") A(0, "{\"a\": ") C("<")},
        {MISTRAL, NO, "[TOOL_CALLS]f", C("[TOOL_CALLS]f")},
        {MISTRAL, NO, "[TOOL_CALLS] is a {mark}", C("[TOOL_CALLS] is a {mark}")},
        {MISTRAL, NO, "[TOOL_CALLS]f(x){}", C("[TOOL_CALLS]f(x){}")},
        {MISTRAL, NO, "[TOOL_CALLS](f){}", C("[TOOL_CALLS](f){}")},
        {MISTRAL, NO, "[TOOL_CALLS][]", C("[TOOL_CALLS][]")},
        {MISTRAL, NO, "[TOOL_[TOOL_CALLS]f{}]", C("[TOOL_") N(0, "f") A(0, "{}") C("]")},
        {MISTRAL, NO, "[TOOL_CALLS][{\"name\": \"f\"}], [1]", N(0, "f") A(0, "{}") C(", [1]")},
        {MISTRAL, NO, "[1, 2] [T", C("[1, 2] [T")},
    };
    check_rows(ROWS, ARRAY_LEN(ROWS));
}

// max_tokens cuts an answer anywhere: what came is a beginning of what would have come, and nothing is lost before the name.
static void test_cut_off(void **state)
{
    (void)state;
    static const char TEXT[] =
        "So:\n<tool_call>\n{\"name\": \"fn\", \"arguments\": {\"a\": \"x\"}}\n</tool_call>";
    const size_t named = strstr(TEXT, "fn\"") + 3 - TEXT, from = strchr(strchr(TEXT, '{') + 1, '{') - TEXT,
                 to = strchr(TEXT, '}') + 1 - TEXT;
    for (size_t n = 1; n <= strlen(TEXT); n++) {
        struct buf want;
        buf_init(&want, RECORD_MAX);
        append(&want, C(""));
        assert_int_equal(buf_append(&want, TEXT, n < named ? n : 4), ISO_OK);
        if (n >= named)
            append(&want, N(0, "fn"));
        if (n > from) {
            append(&want, A(0, ""));
            assert_int_equal(buf_append(&want, TEXT + from, num_min(n, to) - from), ISO_OK);
        }
        check(QWEN, NO, (struct strv){TEXT, n}, buf_strv(&want));
        buf_deinit(&want);
    }
    static const struct row ROWS[] = {
        {QWEN, NO, "<tool_call>{\"name\": \"f\", \"arguments\": \"a\\ud83d", N(0, "f") A(0, "a")},
        {QWEN, NO, "<tool_call>{\"name\": \"f\", \"arguments\": 12", N(0, "f") A(0, "12")},
        {QWEN, NO, "<tool_call>{\"arguments\": 12", C("<tool_call>{\"arguments\": 12")},
        {QWEN, NO, "<tool_call>[{\"name\": \"f\"},\n", N(0, "f") A(0, "{}") C(",\n")},
    };
    check_rows(ROWS, ARRAY_LEN(ROWS));
}

// ---- Limits

static void repeat(struct buf *b, const char *text, size_t times)
{
    for (size_t i = 0; i < times; i++)
        append(b, text);
}

struct pair {
    struct buf text, want;
};

static void pair_init(struct pair *p, const char *text, const char *want)
{
    buf_init(&p->text, RECORD_MAX);
    buf_init(&p->want, RECORD_MAX);
    append(&p->text, text);
    append(&p->want, want);
}

static void both(struct pair *p, const char *text, size_t times)
{
    repeat(&p->text, text, times);
    repeat(&p->want, text, times);
}

static void pair_check(struct pair *p, enum split_style style, enum split_thinking thinking, enum iso_err err)
{
    check_error(style, thinking, buf_strv(&p->text), buf_strv(&p->want), err, 1 + p->text.len / 50);
    buf_deinit(&p->text);
    buf_deinit(&p->want);
}

static void test_depth(void **state)
{
    (void)state;
    for (size_t deep = SPLIT_DEPTH_MAX; deep <= SPLIT_DEPTH_MAX + 1; deep++) {
        bool fits = deep == SPLIT_DEPTH_MAX;
        struct pair p;
        pair_init(&p, "<tool_call>{\"name\": \"f\", \"arguments\": ", N(0, "f") A(0, ""));
        both(&p, "[", SPLIT_DEPTH_MAX);
        append(&p.want, fits ? "" : C("["));
        append(&p.text, fits ? "" : "[");
        both(&p, "]", SPLIT_DEPTH_MAX);
        append(&p.text, "}</tool_call>");
        append(&p.want, fits ? "" : "}</tool_call>");
        pair_check(&p, QWEN, NO, ISO_OK);

        pair_init(&p, "", fits ? N(0, "f") A(0, "{}") : C(""));
        repeat(&p.text, "<tool_call>{\"x\": ", 1);
        repeat(&p.text, "[", deep);
        repeat(&p.text, "]", deep);
        append(&p.text, ", \"name\": \"f\"}");
        if (!fits)
            assert_int_equal(buf_append_strv(&p.want, buf_strv(&p.text)), ISO_OK);
        pair_check(&p, QWEN, NO, ISO_OK);
    }
    struct pair p;
    pair_init(&p, "", C(""));
    both(&p, "<tool_call>{\"arguments\": ", 1);
    both(&p, "[", 10000);
    pair_check(&p, QWEN, NO, ISO_OK);
    pair_init(&p, "", C(""));
    both(&p, "{", 10000);
    pair_check(&p, LLAMA, NO, ISO_OK);
}

static void test_long_names(void **state)
{
    (void)state;
    static const char *const FORMS[][4] = {
        {"<tool_call>{\"name\": \"", "\"}</tool_call>", "a", "a"},
        {"<tool_call>{\"name\": \"", "\"}</tool_call>", "\\u0061", "a"},
        {"[TOOL_CALLS]", "{}", "a", "a"},
    };
    for (size_t i = 0; i < ARRAY_LEN(FORMS); i++)
        for (size_t n = SPLIT_NAME_MAX; n <= SPLIT_NAME_MAX + 1; n++) {
            struct pair p;
            pair_init(&p, FORMS[i][0], "");
            repeat(&p.text, FORMS[i][2], n);
            append(&p.text, FORMS[i][1]);
            if (n > SPLIT_NAME_MAX) {
                append(&p.want, C(""));
                assert_int_equal(buf_append_strv(&p.want, buf_strv(&p.text)), ISO_OK);
            } else {
                append(&p.want, N(0, ""));
                repeat(&p.want, FORMS[i][3], n);
                append(&p.want, A(0, "{}"));
            }
            pair_check(&p, i == 2 ? MISTRAL : QWEN, NO, ISO_OK);
        }
    struct pair p; // a long key is only another key
    pair_init(&p, "<tool_call>{\"name", N(0, "f") A(0, "{}"));
    repeat(&p.text, "e", SPLIT_NAME_MAX);
    append(&p.text, "\": 1, \"name\": \"f\"}");
    pair_check(&p, QWEN, NO, ISO_OK);
}

// What is held: arguments before the name, white space.
static void test_held_limit(void **state)
{
    (void)state;
    static const char BEGIN[] = "<tool_call>{\"arguments\": \"", NAME[] = "\", \"name\": \"f";
    // The quote that ends the name isn't held.
    const size_t room = SPLIT_HELD_MAX - (sizeof BEGIN - 1) - (sizeof NAME - 1);
    struct pair p;
    pair_init(&p, BEGIN, N(0, "f") A(0, ""));
    both(&p, "\xc3\xa4", room / 2);
    both(&p, "b", room % 2);
    append(&p.text, NAME);
    append(&p.text, "\"}</tool_call>");
    pair_check(&p, QWEN, NO, ISO_OK);

    pair_init(&p, "", C(""));
    both(&p, BEGIN, 1);
    both(&p, "\xc3\xa4", room / 2);
    both(&p, "b", room % 2 + 1);
    both(&p, NAME, 1);
    both(&p, "\"}</tool_call>", 1);
    append(&p.text, "<tool_call>{\"name\": \"g\"}");
    append(&p.want, N(0, "g") A(0, "{}"));
    pair_check(&p, QWEN, NO, ISO_OK);

    pair_init(&p, "a", C("a")); // full in the middle of a character
    both(&p, BEGIN, 1);
    both(&p, "\xf0\x9f\x98\x80", SPLIT_HELD_MAX);
    pair_check(&p, QWEN, NO, ISO_OK);

    pair_init(&p, "", C("")); // full at white space, then at what may begin a mark
    both(&p, BEGIN, 1);
    both(&p, " ", SPLIT_HELD_MAX);
    pair_check(&p, QWEN, NO, ISO_OK);
    pair_init(&p, "", C(""));
    both(&p, BEGIN, 1);
    both(&p, "<", SPLIT_HELD_MAX);
    append(&p.text, "<tool_call>{\"name\": \"g\"}");
    append(&p.want, N(0, "g") A(0, "{}"));
    pair_check(&p, QWEN, NO, ISO_OK);

    // Behind the name nothing is held.
    pair_init(&p, "<tool_call>{\"name\": \"f\", \"arguments\": [", N(0, "f") A(0, "["));
    both(&p, "\"\xc3\xa4\", ", SPLIT_HELD_MAX / 4);
    both(&p, "1]", 1);
    repeat(&p.text, " ", SPLIT_HELD_MAX + 1);
    append(&p.text, ", \"name\": \"");
    repeat(&p.text, "a", SPLIT_HELD_MAX + 1);
    append(&p.text, "\"}</tool_call>b");
    append(&p.want, C("b"));
    pair_check(&p, QWEN, NO, ISO_OK);

    for (size_t n = SPLIT_WHITE_MAX; n <= SPLIT_WHITE_MAX + 1; n++) {
        bool fits = n == SPLIT_WHITE_MAX;
        pair_init(&p, "<think>a", R("a"));
        repeat(&p.text, "\n", n);
        repeat(&p.want, "\n", fits ? 0 : SPLIT_WHITE_MAX);
        append(&p.text, "</think>b");
        append(&p.want, C("b"));
        pair_check(&p, NONE, MAY, ISO_OK);

        pair_init(&p, "", fits ? "" : C(""));
        repeat(&p.text, " ", n);
        repeat(&p.want, " ", fits ? 0 : n);
        append(&p.text, "<tool_call>{\"name\": \"f\"}</tool_call>");
        append(&p.want, N(0, "f") A(0, "{}"));
        pair_check(&p, QWEN, NO, ISO_OK);
    }
    pair_init(&p, "<think>", R("a") C("b")); // what is dropped needs no room
    repeat(&p.text, " ", SPLIT_HELD_MAX + 1);
    append(&p.text, "a</think>");
    repeat(&p.text, " ", SPLIT_HELD_MAX + 1);
    append(&p.text, "b");
    pair_check(&p, NONE, MAY, ISO_OK);
}

static void test_many_calls(void **state)
{
    (void)state;
    for (uint32_t n = SPLIT_CALLS_MAX; n <= SPLIT_CALLS_MAX + 1; n++) {
        struct pair p;
        pair_init(&p, "a", C("a"));
        for (uint32_t i = 0; i < n; i++) {
            append(&p.text, "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1}}</tool_call>-");
            char want[64];
            snprintf(want, sizeof want, "\1N%u:f\1A%u:{\"a\": 1}" C("-"), i, i);
            append(&p.want, i < SPLIT_CALLS_MAX
                                ? want
                                : "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1}}</tool_call>-");
        }
        pair_check(&p, QWEN, NO, ISO_OK);
    }
}

// ---- When pieces come

static void expect_so_far(struct split *s, struct record *r, const char *text, const char *want)
{
    assert_int_equal(split_push(s, strv_from(text)), ISO_OK);
    assert_int_equal(buf_append_byte(&r->text, 0), ISO_OK);
    assert_string_equal((char *)r->text.ptr, want);
    r->text.len--;
}

// Nothing is held longer than it is undecided.
static void test_early(void **state)
{
    (void)state;
    struct record r;
    struct split s;
    record_init(&r);
    split_init(&s, QWEN, MAY, take, &r);
    assert_false(split_is_thinking(&s));
    expect_so_far(&s, &r, "\n<think", "");
    assert_false(split_is_thinking(&s));
    expect_so_far(&s, &r, ">\n", "");
    assert_true(split_is_thinking(&s));
    expect_so_far(&s, &r, "Hm", R("Hm"));
    expect_so_far(&s, &r, ". ", R("Hm."));
    expect_so_far(&s, &r, "So </thin", R("Hm. So"));
    assert_true(split_is_thinking(&s));
    expect_so_far(&s, &r, "k>\n\n", R("Hm. So"));
    assert_false(split_is_thinking(&s));
    expect_so_far(&s, &r, "I", R("Hm. So") C("I"));
    expect_so_far(&s, &r, " \n", R("Hm. So") C("I \n"));
    expect_so_far(&s, &r, "<", R("Hm. So") C("I \n"));
    expect_so_far(&s, &r, "b", R("Hm. So") C("I \n<b"));
    expect_so_far(&s, &r, "<tool_call>\n{\"name\": \"f", R("Hm. So") C("I \n<b"));
#define SO_FAR R("Hm. So") C("I \n<b") N(0, "f")
    expect_so_far(&s, &r, "\"", SO_FAR);
    expect_so_far(&s, &r, ", \"arguments\": ", SO_FAR);
    expect_so_far(&s, &r, "{", SO_FAR A(0, "{"));
    expect_so_far(&s, &r, "\"a \\", SO_FAR A(0, "{\"a \\"));
    expect_so_far(&s, &r, "n\": 1}", SO_FAR A(0, "{\"a \\n\": 1}"));
    expect_so_far(&s, &r, "}\n</tool_call>\n", SO_FAR A(0, "{\"a \\n\": 1}"));
    expect_so_far(&s, &r, "x", SO_FAR A(0, "{\"a \\n\": 1}") C("\nx"));
    assert_int_equal(s.n_calls, 1);
    assert_int_equal(split_end(&s), ISO_OK);
    split_deinit(&s);
    buf_deinit(&r.text);

    record_init(&r);
    split_init(&s, NONE, IN, take, &r);
    assert_true(split_is_thinking(&s));
    split_deinit(&s);
    split_init(&s, NONE, NO, take, &r);
    expect_so_far(&s, &r, "\n", C("\n"));
    split_deinit(&s);
    buf_deinit(&r.text);

    record_init(&r);
    split_init(&s, LLAMA, NO, take, &r);
    expect_so_far(&s, &r, "a", C("a"));
    expect_so_far(&s, &r, "\n{<|", C("a\n{<|"));
    split_deinit(&s);
    buf_deinit(&r.text);

    record_init(&r);
    split_init(&s, MISTRAL, NO, take, &r);
    expect_so_far(&s, &r, "[TOOL_CALLS]f", "");
    expect_so_far(&s, &r, "{", N(0, "f") A(0, "{"));
    split_deinit(&s);
    buf_deinit(&r.text);
}

// Pieces end between characters, also those that are cut because they are long.
static enum iso_err take_characters(void *context, enum split_kind kind, uint32_t call, struct strv text)
{
    (void)kind, (void)call;
    assert_true(text.len > 0 && text.len <= SPLIT_PIECE_MAX);
    assert_true(utf8_is_valid((const uint8_t *)text.ptr, text.len));
    *(size_t *)context += text.len;
    return ISO_OK;
}

static void test_pieces_are_whole_characters(void **state)
{
    (void)state;
    static const char *const CHARACTERS[] = {"a", "\xc3\xa4", "\xe2\x82\xac", "\xf0\x9f\x98\x80"};
    for (size_t shift = 0; shift < 4; shift++)
        for (size_t i = 0; i < ARRAY_LEN(CHARACTERS); i++) {
            struct buf text;
            buf_init(&text, RECORD_MAX);
            repeat(&text, "x", shift);
            repeat(&text, CHARACTERS[i], 2000);
            size_t n = 0;
            struct split s;
            split_init(&s, QWEN, NO, take_characters, &n);
            assert_int_equal(split_push(&s, buf_strv(&text)), ISO_OK);
            assert_int_equal(n, text.len);
            split_deinit(&s);
            buf_deinit(&text);
        }
    // No UTF-8: no loop, no overflow.
    struct pair p;
    pair_init(&p, "", C(""));
    both(&p, "\x80", 2 * SPLIT_PIECE_MAX + 1);
    pair_check(&p, QWEN, NO, ISO_OK);
}

// ---- Errors

#define ANSWER                                                                                             \
    STRV_LIT(                                                                                              \
        "<think>a</think>b<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1}}</tool_call>c<tool_call>" \
        "{\"arguments\": \"{}\", \"name\": \"g\"}")
#define ANSWER_PIECES 8

static void test_memory_refused(void **state)
{
    (void)state;
    struct record r;
    struct split s;
    record_init(&r);
    assert_int_equal(buf_append_zeros(&r.text, 4096, NULL), ISO_OK); // room, before realloc fails
    for (int i = 0; i < 3; i++) {
        static const char *const HELD[] = {"<", "\n", "<tool_call>"};
        buf_reset(&r.text);
        split_init(&s, QWEN, NO, take, &r);
        fail_realloc = true;
        enum iso_err err = split_push(&s, strv_from(HELD[i]));
        fail_realloc = false;
        assert_int_equal(err, ISO_E_NOMEM);
        assert_int_equal(split_push(&s, STRV_LIT("text")), ISO_E_NOMEM);
        assert_int_equal(split_end(&s), ISO_E_NOMEM);
        assert_int_equal(r.text.len, 0);
        split_deinit(&s);
    }
    // What is held grows: the memory for a later part is refused.
    struct buf text;
    buf_init(&text, RECORD_MAX);
    append(&text, "<tool_call>{\"arguments\": \"");
    split_init(&s, QWEN, NO, take, &r);
    assert_int_equal(split_push(&s, buf_strv(&text)), ISO_OK);
    buf_reset(&text);
    repeat(&text, "a", 4000);
    fail_realloc = true;
    enum iso_err err = split_push(&s, buf_strv(&text));
    fail_realloc = false;
    assert_int_equal(err, ISO_E_NOMEM);
    assert_int_equal(split_end(&s), ISO_E_NOMEM);
    assert_int_equal(r.text.len, 0);
    split_deinit(&s);
    buf_deinit(&text);
    buf_deinit(&r.text);
}

// An error of on_piece comes back at once, and no piece comes after it.
static void test_piece_refused(void **state)
{
    (void)state;
    struct input in = {QWEN, MAY, ANSWER};
    for (uint32_t at = 1; at <= ANSWER_PIECES; at++) {
        struct record r;
        record_init(&r);
        r.fail_at = at;
        assert_int_equal(run(&in, WHOLE, 0, &r), at < ANSWER_PIECES ? ISO_E_IO : ISO_OK);
        assert_int_equal(r.n_pieces, at < ANSWER_PIECES ? at : ANSWER_PIECES - 1);
        buf_deinit(&r.text);
    }
    // At the end.
    struct record r;
    struct split s;
    record_init(&r);
    r.fail_at = 1;
    split_init(&s, QWEN, NO, take, &r);
    assert_int_equal(split_push(&s, STRV_LIT("<tool")), ISO_OK);
    assert_int_equal(split_end(&s), ISO_E_IO);
    split_deinit(&s);
    buf_deinit(&r.text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_thinking),
        cmocka_unit_test(test_qwen),
        cmocka_unit_test(test_strings_are_decoded),
        cmocka_unit_test(test_spoiled),
        cmocka_unit_test(test_llama),
        cmocka_unit_test(test_mistral),
        cmocka_unit_test(test_cut_off),
        cmocka_unit_test(test_depth),
        cmocka_unit_test(test_long_names),
        cmocka_unit_test(test_held_limit),
        cmocka_unit_test(test_many_calls),
        cmocka_unit_test(test_early),
        cmocka_unit_test(test_pieces_are_whole_characters),
        cmocka_unit_test(test_memory_refused),
        cmocka_unit_test(test_piece_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
