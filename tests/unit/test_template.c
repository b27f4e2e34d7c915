// The template interpreter's limits and errors. What it renders is compared with jinja2 by
// tests/property/test_template.py.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <cmocka.h>

#include "base/clock.h"
#include "text/template.h"

#define OUTPUT_MAX  (1 * MIB)
#define QUICK_NS    (10 * UINT64_C(1000000000)) // with sanitizers and a busy machine
#define PATTERN_MAX (2 * TMPL_SOURCE_MAX)

// ---- failures of the system: the linker sends these calls here

static bool fail_calloc, fail_mmap, fail_realloc;

void *__real_calloc(size_t count, size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_calloc(size_t count, size_t size)
{
    return fail_calloc ? NULL : __real_calloc(count, size);
}

void *__real_mmap64(void *addr, size_t len, int prot, int flags, int fd, off_t offset);
void *__wrap_mmap64(void *addr, size_t len, int prot, int flags, int fd, off_t offset);
void *__wrap_mmap64(void *addr, size_t len, int prot, int flags, int fd, off_t offset)
{
    return fail_mmap ? MAP_FAILED : __real_mmap64(addr, len, prot, flags, fd, offset);
}

void *__real_realloc(void *ptr, size_t size);
void *__wrap_realloc(void *ptr, size_t size);
void *__wrap_realloc(void *ptr, size_t size)
{
    return fail_realloc ? NULL : __real_realloc(ptr, size);
}

// ---- helpers

// Renders `source` with the context (JSON) into *out, which the caller gives back.
static enum iso_err try_render(struct strv source, const char *context, struct buf *out,
                               struct iso_errinfo *info)
{
    buf_init(out, OUTPUT_MAX);
    json_error_t error;
    json_t *json = json_loads(context, 0, &error);
    assert_non_null(json);
    struct tmpl *t = NULL;
    uint64_t start = clock_now_ns();
    enum iso_err err = tmpl_open(source, &t, info);
    if (!err)
        err = tmpl_render(t, json, out, info);
    assert_true(clock_now_ns() - start < QUICK_NS);
    tmpl_close(t);
    json_decref(json);
    return err;
}

static void expect_text(struct strv source, const char *context, const char *want)
{
    struct buf out;
    struct iso_errinfo info = {0};
    enum iso_err err = try_render(source, context, &out, &info);
    if (err)
        fail_msg("%s: %s", iso_err_name(err), info.text);
    assert_int_equal(out.len, strlen(want));
    if (out.len > 0)
        assert_memory_equal(out.ptr, want, out.len);
    buf_deinit(&out);
}

// Fails with the code, and with `part` in its text.
static void expect_error(struct strv source, const char *context, enum iso_err code, const char *part)
{
    struct buf out;
    struct iso_errinfo info = {0};
    enum iso_err err = try_render(source, context, &out, &info);
    assert_int_equal(err, code);
    assert_int_equal(info.code, code);
    if (!strstr(info.text, part))
        fail_msg("'%s' is not in '%s'", part, info.text);
    assert_int_equal(out.len, 0);
    buf_deinit(&out);
}

// before, then `count` times `part`, then middle, then `count` times `end`.
static struct strv nest(const char *before, const char *part, const char *middle, const char *end, int count)
{
    static char text[PATTERN_MAX];
    size_t len = (size_t)snprintf(text, sizeof text, "%s", before);
    for (int i = 0; i < 2 * count + 1; i++) {
        const char *piece = i < count ? part : i == count ? middle : end;
        size_t n = strlen(piece);
        assert_true(len + n < sizeof text);
        memcpy(text + len, piece, n);
        len += n;
    }
    return (struct strv){text, len};
}

// ---- opening

static void test_source_limits(void **state)
{
    (void)state;
    static char text[TMPL_SOURCE_MAX + 1];
    memset(text, 'x', sizeof text);
    expect_error((struct strv){text, sizeof text}, "{}", ISO_E_LIMIT, "the limit is 262144");
    struct buf out;
    struct iso_errinfo info;
    assert_int_equal(try_render((struct strv){text, TMPL_SOURCE_MAX}, "{}", &out, &info), ISO_OK);
    assert_int_equal(out.len, TMPL_SOURCE_MAX);
    buf_deinit(&out);
    expect_error(STRV_LIT("a\xff"), "{}", ISO_E_FORMAT, "not valid UTF-8");
    expect_error(STRV_LIT("\xc3"), "{}", ISO_E_FORMAT, "not valid UTF-8");
    expect_error(nest("", "{{1}}", "", "", TMPL_NODES_MAX / 2), "{}", ISO_E_LIMIT, "more than 65536 nodes");
    expect_text((struct strv){"", 0}, "{}", "");
    expect_text((struct strv){NULL, 0}, "{}", "");
}

static void test_nesting(void **state)
{
    (void)state;
    const int fits = TMPL_DEPTH_MAX - 1;
    static const char *const ROWS[][4] = {
        {"{{ ", "(", "1", ")"},          {"{{ ", "[", "", "]"},       {"{{ ", "{1:", "1", "}"},
        {"{{ ", "not ", "1", ""},        {"{{ ", "- ", "1", ""},      {"{{ x", "[x", "", "]"},
        {"{{ x", "|default(x", "", ")"}, {"{{ 1", " if 1", "", ""},   {"{{ 1", " if 1 else 1", "", ""},
        {"{% for i in ", "[", "", "]"},  {"{% set ", "(", "a", ",)"},
    };
    for (size_t i = 0; i < ARRAY_LEN(ROWS); i++) {
        const char *const *row = ROWS[i];
        struct tmpl *t = NULL;
        struct iso_errinfo info;
        enum iso_err err =
            tmpl_open(nest(row[0], row[1], row[2], row[3], 60000 / (int)strlen(row[1])), &t, &info);
        assert_int_equal(err, ISO_E_LIMIT);
        if (!strstr(info.text, "deeper than 64"))
            fail_msg("%s%s: %s", row[0], row[1], info.text);
    }
    for (size_t i = 0; i < 9; i++) {
        struct tmpl *t = NULL;
        struct strv open = nest(ROWS[i][0], ROWS[i][1], ROWS[i][2], ROWS[i][3], fits);
        char text[4096];
        int n = snprintf(text, sizeof text, "%.*s }}", (int)open.len, open.ptr);
        struct iso_errinfo info = {0};
        if (tmpl_open((struct strv){text, (size_t)n}, &t, &info))
            fail_msg("%s: %s", text, info.text);
        tmpl_close(t);
    }
    expect_text(nest("", "{% if 1 %}", "x", "{% endif %}", fits), "{}", "x");
    expect_error(nest("", "{% if 1 %}", "x", "{% endif %}", 10000), "{}", ISO_E_LIMIT,
                 "nested deeper than 64");
    expect_error(nest("", "{% for x in 'a' %}", "x", "{% endfor %}", 5000), "{}", ISO_E_LIMIT,
                 "deeper than 64");
    expect_error(nest("", "{% set a %}", "x", "{% endset %}", 5000), "{}", ISO_E_LIMIT, "deeper than 64");
}

// Chains are lists in the tree, not nesting: long ones are fine.
static void test_chains(void **state)
{
    (void)state;
    expect_text(nest("{{ 0", " + 1", " }}", "", 10000), "{}", "10000");
    expect_text(nest("{{ 1", " and 1", " }}", "", 10000), "{}", "1");
    expect_text(nest("{{ 0", " < 1 > 0", " }}", "", 5000), "{}", "True");
    expect_text(nest("{{ x", "[:2]", " }}", "", 10000), "{\"x\": \"abc\"}", "ab");
}

static void test_positions(void **state)
{
    (void)state;
    struct tmpl *t = NULL;
    struct iso_errinfo info;
    assert_int_equal(tmpl_open(STRV_LIT("\xc3\xa9\r\n\xc3\xa9\xc3\xa9 {{ 1 + }}"), &t, &info), ISO_E_FORMAT);
    assert_string_equal(info.field, "line 2, column 11");
    assert_string_equal(info.text, "line 2, column 11: expected an expression, got '}}'");
    assert_int_equal(info.offset, 15);
    assert_null(t);
    assert_int_equal(tmpl_open(STRV_LIT("{{ 1 + }}"), &t, NULL), ISO_E_FORMAT);
    expect_error(STRV_LIT("{{ x ! }}"), "{}", ISO_E_FORMAT, "line 1, column 6: unexpected character '!'");
    expect_error(STRV_LIT("{{ \xc3\xa9 }}"), "{}", ISO_E_FORMAT, "unexpected character '\xc3\xa9'");
    expect_error(STRV_LIT("{% endif %}"), "{}", ISO_E_FORMAT, "unexpected tag 'endif'");
    expect_error(STRV_LIT("{% include 'x' %}"), "{}", ISO_E_UNSUPPORTED,
                 "the tag 'include' is not supported");
    expect_error(STRV_LIT("{{ '\\ud800' }}"), "{}", ISO_E_FORMAT,
                 "line 1, column 5: an escape is not a character");
    expect_error(STRV_LIT("{{ f(*x) }}"), "{}", ISO_E_UNSUPPORTED, "unpacked arguments");
    expect_error(nest("{{ namespace(", "1,", "", "", 40), "{}", ISO_E_FORMAT, "expected an expression");
    expect_error(nest("{{ namespace(", "1,", ") }}", "", 40), "{}", ISO_E_LIMIT, "more than 32 arguments");
}

// ---- rendering

static void test_steps(void **state)
{
    (void)state;
    const char *context = "{\"s\": \"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\"}";
    expect_error(nest("", "{% for c in s %}", "", "{% endfor %}", 8), context, ISO_E_LIMIT,
                 "more than 2000000 steps");
    expect_error(STRV_LIT("{% for c in 'a' * 50000 %}{% for d in 'a' * 50000 %}{% endfor %}{% endfor %}"),
                 "{}", ISO_E_LIMIT, "more than");
    // Long strings cost by their length.
    expect_error(STRV_LIT("{% set s = 'a' * 1000000 %}{% for c in 'a' * 50000 %}{{ 'b' in s }}{% endfor %}"),
                 "{}", ISO_E_LIMIT, "steps");
    expect_error(STRV_LIT("{% set s = 'a' * 1000000 %}{% for c in 'a' * 50000 %}{{ s|length }}{% endfor %}"),
                 "{}", ISO_E_LIMIT, "steps");
    expect_error(STRV_LIT("{{ ('a' * 1000000).strip('b' * 1000000 ~ 'a') }}"), "{}", ISO_E_LIMIT, "steps");
    expect_error(
        STRV_LIT(
            "{% set d = {'k' * 1000000: 1} %}{% for c in 'a' * 50000 %}{{ d['k' * 1000000] }}{% endfor %}"),
        "{}", ISO_E_LIMIT, "");
}

static void test_memory(void **state)
{
    (void)state;
    expect_error(STRV_LIT("{{ 'a' * 1000000000 }}"), "{}", ISO_E_LIMIT, "take more than 64 MiB");
    expect_error(STRV_LIT("{{ 'a' * 10**18 }}"), "{}", ISO_E_LIMIT, "take more than 64 MiB");
    expect_error(STRV_LIT("{{ [1, 2] * 10**9 }}"), "{}", ISO_E_LIMIT, "take more than 64 MiB");
    expect_error(STRV_LIT("{% set ns = namespace(s='ab') %}{% for i in 'a' * 99 %}{% set ns.s = ns.s + ns.s "
                          "%}{% endfor %}"),
                 "{}", ISO_E_LIMIT, "");
    expect_error(
        STRV_LIT(
            "{% set ns = namespace(s=[1]) %}{% for i in 'a' * 99 %}{% set ns.s = ns.s + ns.s %}{% endfor %}"),
        "{}", ISO_E_LIMIT, "");
    expect_error(STRV_LIT("{{ ('a' * 30000)|replace('a', 'a' * 30000) }}"), "{}", ISO_E_LIMIT, "");
    expect_error(STRV_LIT("{{ ('a' * 30000)|join('b' * 30000) }}"), "{}", ISO_E_LIMIT, "");
    expect_error(STRV_LIT("{{ 'a' * 1100000 }}"), "{}", ISO_E_LIMIT, "the text is longer than 1048576 bytes");
    expect_error(STRV_LIT("{% set x %}{% for i in 'a' * 9999 %}{{ 'a' * 9999 }}{% endfor %}{% endset %}"),
                 "{}", ISO_E_LIMIT, "");
}

// Text put together piece by piece takes memory once, not once for each piece, and older strings stay.
static void test_growing_string(void **state)
{
    (void)state;
    expect_text(STRV_LIT("{% set ns = namespace(s='') %}{% for i in 'a' * 300 %}{% for j in 'b' * 300 %}"
                         "{% set ns.s = ns.s ~ 'xyz' %}{% endfor %}{% endfor %}{{ ns.s|length }}"),
                "{}", "270000");
    expect_text(
        STRV_LIT("{% set s = 'a' ~ 'b' %}{% set t = s ~ 'x' %}{% set u = s ~ 'y' %}{% set v = t ~ 'z' %}"
                 "{% set w = t ~ t %}{{ s }} {{ t }} {{ u }} {{ v }} {{ w }}"),
        "{}", "ab abx aby abxz abxabx");
}

static void test_deep_values(void **state)
{
    (void)state;
    static const char DEEPEN[] = "{% set ns = namespace(v=1, w=1) %}{% for i in 'a' * 1000 %}{% set ns.v = "
                                 "[ns.v] %}{% set ns.w = [ns.w] %}"
                                 "{% endfor %}";
    static const char *const USES[] = {"{{ ns.v }}",        "{{ ns.v|tojson }}",    "{{ ns.v == ns.w }}",
                                       "{{ ns.v < ns.w }}", "{{ ns.v in [ns.w] }}", "{{ [ns.v]|join }}",
                                       "{{ ns.v ~ '' }}"};
    for (size_t i = 0; i < ARRAY_LEN(USES); i++) {
        char text[512];
        int n = snprintf(text, sizeof text, "%s%s", DEEPEN, USES[i]);
        expect_error((struct strv){text, (size_t)n}, "{}", ISO_E_LIMIT, "a value nests deeper than 64");
    }
    expect_error(STRV_LIT("{% set ns = namespace() %}{% set ns.x = ns %}{{ ns }}"), "{}", ISO_E_LIMIT,
                 "deeper than 64");
    // Small, but without end if written out.
    expect_error(
        STRV_LIT(
            "{% set ns = namespace(v=1) %}{% for i in 'a' * 60 %}{% set ns.v = [ns.v, ns.v] %}{% endfor %}"
            "{% if ns.v == ns.v %}{% endif %}"),
        "{}", ISO_E_LIMIT, "steps");
    expect_error(
        STRV_LIT(
            "{% set ns = namespace(v=1) %}{% for i in 'a' * 60 %}{% set ns.v = [ns.v, ns.v] %}{% endfor %}"
            "{% if ns.v|tojson %}{% endif %}"),
        "{}", ISO_E_LIMIT, "");
}

static void test_context(void **state)
{
    (void)state;
    struct strv deep = nest("", "{\"a\":", "1", "}", TMPL_DEPTH_MAX + 1);
    char text[1024];
    snprintf(text, sizeof text, "%.*s", (int)deep.len, deep.ptr);
    expect_error(STRV_LIT("x"), text, ISO_E_LIMIT, "the context nests deeper than 64");
    deep = nest("", "{\"a\":", "1", "}", TMPL_DEPTH_MAX);
    snprintf(text, sizeof text, "%.*s", (int)deep.len, deep.ptr);
    expect_text(STRV_LIT("{{ a|tojson == a|tojson }}"), text, "True");

    struct buf out;
    struct iso_errinfo info;
    assert_int_equal(try_render(STRV_LIT("x"), "[1]", &out, &info), ISO_E_USAGE);
    buf_deinit(&out);
    struct tmpl *t;
    assert_int_equal(tmpl_open(STRV_LIT("x"), &t, NULL), ISO_OK);
    buf_init(&out, 10);
    assert_int_equal(tmpl_render(t, NULL, &out, NULL), ISO_E_USAGE);
    tmpl_close(t);
    tmpl_close(NULL);
}

static void test_variables(void **state)
{
    (void)state;
    static char text[64 * (TMPL_VARS_MAX + 1)];
    size_t n = 0;
    for (int i = 0; i < TMPL_VARS_MAX; i++)
        n += (size_t)snprintf(text + n, sizeof text - n, "{%% set v%d = %d %%}", i, i);
    size_t full = n;
    n += (size_t)snprintf(text + n, sizeof text - n, "{{ v0 + v255 }}");
    expect_text((struct strv){text, n}, "{}", "255");
    n = full + (size_t)snprintf(text + full, sizeof text - full, "{%% set one_more = 1 %%}");
    expect_error((struct strv){text, n}, "{}", ISO_E_LIMIT, "more than 256 variables");
    n = full + (size_t)snprintf(text + full, sizeof text - full, "{%% for x in 'a' %%}{%% endfor %%}");
    expect_error((struct strv){text, n}, "{}", ISO_E_LIMIT, "more than 256 variables");
}

// Output and what was there before it.
static void test_output(void **state)
{
    (void)state;
    struct buf out;
    struct iso_errinfo info;
    struct tmpl *t;
    buf_init(&out, 8);
    json_t *context = json_pack("{s:s}", "x", "abc");
    assert_int_equal(buf_append(&out, "12", 2), ISO_OK);
    assert_int_equal(tmpl_open(STRV_LIT("{{ x }}{{ x }}"), &t, &info), ISO_OK);
    assert_int_equal(tmpl_render(t, context, &out, &info), ISO_OK);
    assert_int_equal(out.len, 8);
    assert_memory_equal(out.ptr, "12abcabc", 8);
    out.len = 3;
    assert_int_equal(tmpl_render(t, context, &out, &info), ISO_E_LIMIT);
    assert_string_equal(info.text, "line 1, column 8: the text is longer than 8 bytes");
    assert_int_equal(out.len, 3);
    tmpl_close(t);
    json_decref(context);
    buf_deinit(&out);
}

static void test_raise_exception(void **state)
{
    (void)state;
    struct buf out;
    struct iso_errinfo info;
    assert_int_equal(
        try_render(STRV_LIT("a{{ raise_exception('roles must alternate') }}"), "{}", &out, &info),
        ISO_E_FORMAT);
    assert_string_equal(info.text, "roles must alternate");
    assert_string_equal(info.field, "raise_exception");
    assert_int_equal(out.len, 0);
    buf_deinit(&out);
    expect_error(STRV_LIT("{{ raise_exception('') }}"), "{}", ISO_E_FORMAT, "");
    expect_error(STRV_LIT("{{ raise_exception('x' * 100000) }}"), "{}", ISO_E_FORMAT, "xxx");
}

static void test_numbers(void **state)
{
    (void)state;
    expect_error(STRV_LIT("{{ 9223372036854775807 * 2 }}"), "{}", ISO_E_LIMIT, "63 bits");
    expect_error(STRV_LIT("{{ -9223372036854775807 - 2 }}"), "{}", ISO_E_LIMIT, "63 bits");
    expect_error(STRV_LIT("{{ (-9223372036854775807 - 1) // -1 }}"), "{}", ISO_E_LIMIT, "63 bits");
    expect_error(STRV_LIT("{{ -(-9223372036854775807 - 1) }}"), "{}", ISO_E_LIMIT, "63 bits");
    expect_text(STRV_LIT("{{ (-9223372036854775807 - 1) % -1 }}"), "{}", "0");
    expect_error(STRV_LIT("{{ 10 ** 19 }}"), "{}", ISO_E_LIMIT, "63 bits");
    expect_text(STRV_LIT("{{ 1 ** 9223372036854775807 }} {{ (-1) ** 9223372036854775807 }} {{ 0 ** 0 }}"),
                "{}", "1 -1 1");
    expect_error(STRV_LIT("{{ 2 ** -1 }}"), "{}", ISO_E_UNSUPPORTED, "whole numbers");
    expect_error(STRV_LIT("{{ 2.5 // 1 }}"), "{}", ISO_E_UNSUPPORTED,
                 "'//' is supported for whole numbers only");
    expect_error(STRV_LIT("{{ 2.5 % 0 }}"), "{}", ISO_E_UNSUPPORTED, "whole numbers");
    expect_error(STRV_LIT("{{ 1e308 + 1e308 }}"), "{}", ISO_E_NONFINITE, "not a finite number");
    expect_error(STRV_LIT("{{ 1e999 }}"), "{}", ISO_E_LIMIT, "too long or too large");
    expect_text(
        STRV_LIT("{{ 'abc'[9223372036854775807] }}{{ 'abc'[-9223372036854775807:9223372036854775807] }}"
                 "{{ 'abc'[::9223372036854775807] }}{{ 'abc'[::-9223372036854775807] }}"),
        "{}", "abcac");
}

// ---- no memory

static void test_no_memory(void **state)
{
    (void)state;
    struct iso_errinfo info;
    struct tmpl *t = NULL;
    fail_calloc = true;
    assert_int_equal(tmpl_open(STRV_LIT("x"), &t, &info), ISO_E_NOMEM);
    fail_calloc = false;
    fail_mmap = true;
    assert_int_equal(tmpl_open(STRV_LIT("x"), &t, &info), ISO_E_NOMEM);
    fail_mmap = false;
    assert_null(t);

    json_t *context = json_object();
    struct buf out;
    buf_init(&out, OUTPUT_MAX);
    assert_int_equal(tmpl_open(STRV_LIT("x"), &t, &info), ISO_OK);
    fail_mmap = true;
    assert_int_equal(tmpl_render(t, context, &out, &info), ISO_E_NOMEM);
    fail_mmap = false;
    fail_realloc = true;
    assert_int_equal(tmpl_render(t, context, &out, &info), ISO_E_NOMEM);
    assert_string_equal(info.text, "line 1, column 1: no memory for the text");
    fail_realloc = false;
    assert_int_equal(tmpl_render(t, context, &out, &info), ISO_OK);
    tmpl_close(t);
    buf_deinit(&out);
    json_decref(context);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_source_limits),  cmocka_unit_test(test_nesting),
        cmocka_unit_test(test_chains),         cmocka_unit_test(test_positions),
        cmocka_unit_test(test_steps),          cmocka_unit_test(test_memory),
        cmocka_unit_test(test_growing_string), cmocka_unit_test(test_deep_values),
        cmocka_unit_test(test_context),        cmocka_unit_test(test_variables),
        cmocka_unit_test(test_output),         cmocka_unit_test(test_raise_exception),
        cmocka_unit_test(test_numbers),        cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
