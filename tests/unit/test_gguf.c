// GGUF parser: every refusal by its code and text, what is allowed, lookups and typed values.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "formats/gguf_parse.h"
#include "gguf_build.h"

#define FILE_BYTES_MAX (8 * MIB)

// Parses the bytes of b from memory of exactly their size, so that ASan sees a read past them. Where the file
// is longer than b (file_bytes), the rest is not at hand.
static enum iso_err parse(const struct buf *b, uint64_t file_bytes, struct gguf *ret, bool *ret_more,
                          uint8_t **ret_bytes, struct iso_errinfo *reterr)
{
    uint8_t *bytes = malloc(b->len + (b->len == 0));
    assert_non_null(bytes);
    if (b->len > 0)
        memcpy(bytes, b->ptr, b->len);
    enum iso_err err = gguf_parse(bytes, b->len, file_bytes, ret, ret_more, reterr);
    if (err || *ret_more)
        free(bytes);
    else
        *ret_bytes = bytes;
    return err;
}

struct fixture {
    struct buf buf;
    struct gguf g;
    uint8_t *bytes;
};

static void fixture_open(struct fixture *f, void (*build)(struct buf *))
{
    struct iso_errinfo e = {0};
    bool more = true;
    buf_init(&f->buf, FILE_BYTES_MAX);
    build(&f->buf);
    if (parse(&f->buf, f->buf.len, &f->g, &more, &f->bytes, &e))
        fail_msg("%s", e.text);
    assert_false(more);
}

static void fixture_close(struct fixture *f)
{
    gguf_deinit(&f->g);
    free(f->bytes);
    buf_deinit(&f->buf);
}

// ---- Refusals ----

struct refusal {
    const char *name;
    void (*build)(struct buf *b);
    enum iso_err code;
    const char *text; // part of the message
};

static void one_kv(struct buf *b, uint32_t type)
{
    gb_begin(b, 0, 1);
    gb_key(b, "the.key", type);
}

static void one_tensor(struct buf *b, uint32_t type, uint32_t n_dims, const uint64_t *dims, uint64_t offset)
{
    gb_begin(b, 1, 0);
    gb_tensor(b, "the.tensor", type, n_dims, dims, offset);
    gb_data(b, 32, 64);
}

static void alignment(struct buf *b, uint32_t value)
{
    gb_begin(b, 0, 1);
    gb_kv_u32(b, "general.alignment", value);
}

static void version(struct buf *b, uint32_t value)
{
    gb_bytes(b, "GGUF", 4);
    gb_u32(b, value);
    gb_u64(b, 0);
    gb_u64(b, 0);
}

static void two_tensors(struct buf *b, const char *first, uint64_t first_at, const char *second,
                        uint64_t second_at)
{
    gb_begin(b, 2, 0);
    gb_tensor(b, first, GGML_F32, 1, (uint64_t[]){9}, first_at);
    gb_tensor(b, second, GGML_F32, 1, (uint64_t[]){8}, second_at);
    gb_data(b, 32, 96);
}

static void long_string(struct buf *b, uint64_t len)
{
    gb_u64(b, len);
    for (uint64_t i = 0; i < len; i++)
        gb_u8(b, 'x');
}

#define BUILD(name, ...)            \
    static void name(struct buf *b) \
    {                               \
        __VA_ARGS__;                \
    }

// clang-format off
BUILD(empty, (void)b)
BUILD(other_magic, gb_bytes(b, "PK\x03\x04", 4); gb_u64(b, 0); gb_u64(b, 0); gb_u64(b, 0))
BUILD(version_0, version(b, 0))
BUILD(version_1, version(b, 1))
BUILD(version_4, version(b, 4))
BUILD(big_endian, version(b, 0x03000000))
BUILD(cut_counts, gb_bytes(b, "GGUF\x03\0\0\0\x01\0\0\0\0\0\0\0\0", 17))
BUILD(many_tensors, gb_begin(b, (uint64_t)1 << 40, 0); gb_data(b, 1, 136))
BUILD(many_kv, gb_begin(b, 0, UINT64_MAX); gb_data(b, 1, 136))
BUILD(tensors_over_file, gb_begin(b, 65536, 0); gb_data(b, 1, 136))
BUILD(kv_over_file, gb_begin(b, 0, 65536); gb_data(b, 1, 136))
BUILD(key_empty, gb_begin(b, 0, 1); gb_kv_u32(b, "", 0); gb_u8(b, 0))
BUILD(key_long, gb_begin(b, 0, 1); long_string(b, 65536); gb_u32(b, 0); gb_u8(b, 0))
BUILD(key_huge, gb_begin(b, 0, 1); gb_u64(b, (uint64_t)1 << 60); gb_data(b, 1, 128))
BUILD(key_not_utf8, gb_begin(b, 0, 1); gb_kv_u32(b, "a\xc3(", 0))
BUILD(key_zero, gb_begin(b, 0, 1); gb_u64(b, 3); gb_bytes(b, "a\0b", 3); gb_u32(b, 0); gb_u8(b, 0))
BUILD(key_past_end, gb_begin(b, 0, 1); gb_u64(b, 100); gb_u64(b, 0))
BUILD(key_twice, gb_begin(b, 0, 3); gb_kv_u32(b, "twin", 0); gb_kv_u32(b, "b", 0); gb_kv_u32(b, "twin", 1))
BUILD(value_type_13, one_kv(b, 13); gb_u64(b, 0))
BUILD(value_cut, one_kv(b, GGUF_U64); gb_u32(b, 0))
BUILD(value_missing, gb_begin(b, 0, 1); gb_str(b, "the.long.enough.key"))
BUILD(bool_2, one_kv(b, GGUF_BOOL); gb_u8(b, 2))
BUILD(bool_array_255, gb_begin(b, 0, 1); gb_array(b, "the.key", GGUF_BOOL, 2); gb_u8(b, 1); gb_u8(b, 255))
BUILD(string_huge, one_kv(b, GGUF_STR); gb_u64(b, (uint64_t)1 << 60); gb_data(b, 1, 113))
BUILD(string_max, one_kv(b, GGUF_STR); gb_u64(b, UINT64_MAX))
BUILD(array_nested, gb_begin(b, 0, 1); gb_array(b, "the.key", GGUF_ARRAY, 1); gb_u32(b, 0); gb_u64(b, 0))
BUILD(array_type_99, gb_begin(b, 0, 1); gb_array(b, "the.key", 99, 1); gb_u64(b, 0))
BUILD(array_overflow, gb_begin(b, 0, 1); gb_array(b, "the.key", GGUF_U64, (uint64_t)1 << 61))
BUILD(array_past_end, gb_begin(b, 0, 1); gb_array(b, "the.key", GGUF_I32, 3); gb_u64(b, 0))
BUILD(strings_past_end, gb_begin(b, 0, 1); gb_array(b, "the.key", GGUF_STR, 1u << 30); gb_u64(b, 0))
BUILD(strings_cut, gb_begin(b, 0, 1); gb_array(b, "the.key", GGUF_STR, 2); gb_str(b, "abc"); gb_u64(b, 1))
BUILD(alignment_0, alignment(b, 0))
BUILD(alignment_24, alignment(b, 24))
BUILD(alignment_large, alignment(b, 131072))
BUILD(alignment_type, gb_begin(b, 0, 1); gb_key(b, "general.alignment", GGUF_U64); gb_u64(b, 32))
BUILD(name_empty, gb_begin(b, 1, 0); gb_tensor(b, "", 0, 1, (uint64_t[]){64, 2}, 0); gb_u8(b, 0))
BUILD(name_long, gb_begin(b, 1, 0); long_string(b, 65); gb_data(b, 1, 64))
BUILD(name_not_utf8, gb_begin(b, 1, 0); gb_tensor(b, "\xed\xa0\x80", 0, 1, (uint64_t[]){64, 2}, 0))
BUILD(name_twice, two_tensors(b, "twin", 32, "twin", 0))
BUILD(dims_0, one_tensor(b, GGML_F32, 0, NULL, 0))
BUILD(dims_5, one_tensor(b, GGML_F32, 5, (uint64_t[]){1, 1, 1, 1, 1}, 0))
BUILD(dim_zero, one_tensor(b, GGML_F32, 2, (uint64_t[]){4, 0}, 0))
BUILD(dims_overflow, one_tensor(b, GGML_F32, 2, (uint64_t[]){(uint64_t)1 << 32, (uint64_t)1 << 32}, 0))
BUILD(bytes_overflow, one_tensor(b, GGML_F32, 1, (uint64_t[]){(uint64_t)1 << 62}, 0))
BUILD(not_blocks, one_tensor(b, GGML_Q4_0, 2, (uint64_t[]){16, 2}, 0))
BUILD(type_iq2_xs, one_tensor(b, GGML_IQ2_XS, 1, (uint64_t[]){256}, 0))
BUILD(type_removed, one_tensor(b, GGML_Q4_2, 1, (uint64_t[]){256}, 0))
BUILD(type_unknown, one_tensor(b, 1000, 1, (uint64_t[]){256}, 0))
BUILD(offset_odd, one_tensor(b, GGML_F32, 1, (uint64_t[]){4}, 8))
BUILD(data_past_end, one_tensor(b, GGML_F32, 1, (uint64_t[]){17}, 0))
BUILD(offset_past_end, one_tensor(b, GGML_F32, 1, (uint64_t[]){1}, 64))
BUILD(offset_overflow, one_tensor(b, GGML_F32, 1, (uint64_t[]){1}, UINT64_MAX - 31))
BUILD(overlap, two_tensors(b, "x", 0, "y", 32))
BUILD(overlap_same, two_tensors(b, "x", 32, "y", 32))
BUILD(trailing, two_tensors(b, "x", 32, "y", 0); gb_data(b, 32, 1))
BUILD(trailing_no_tensor, gb_begin(b, 0, 0); gb_data(b, 32, 1))
// clang-format on

#define KEY    "metadata key \"the.key\" "
#define TENSOR "tensor \"the.tensor\" "

static const struct refusal REFUSALS[] = {
    {"empty", empty, ISO_E_FORMAT, "the header needs 4 bytes for its magic number at byte 0"},
    {"other magic", other_magic, ISO_E_FORMAT,
     "the header begins with the bytes 50 4b 03 04, not with \"GGUF\""},
    {"version 0", version_0, ISO_E_UNSUPPORTED, "GGUF version 0; versions 2 to 3"},
    {"version 1", version_1, ISO_E_UNSUPPORTED, "GGUF version 1; versions 2 to 3"},
    {"version 4", version_4, ISO_E_UNSUPPORTED, "GGUF version 4; versions 2 to 3"},
    {"big-endian", big_endian, ISO_E_UNSUPPORTED, "version 3 in big-endian order; only little-endian"},
    {"counts cut", cut_counts, ISO_E_FORMAT,
     "8 bytes for its metadata count at byte 16, but the file has 17"},
    {"2^40 tensors", many_tensors, ISO_E_LIMIT, "tensor count of 1099511627776; the limit is 65536"},
    {"2^64-1 pairs", many_kv, ISO_E_LIMIT, "metadata count of 18446744073709551615; the limit is 65536"},
    {"tensors over file", tensors_over_file, ISO_E_FORMAT, "tensor count of 65536"},
    {"pairs over file", kv_over_file, ISO_E_FORMAT,
     "metadata count of 65536, which take at least 917528 bytes"},
    {"key empty", key_empty, ISO_E_FORMAT, "metadata pair 0 has an empty key"},
    {"key long", key_long, ISO_E_LIMIT, "metadata pair 0 has a key of 65536 bytes; the limit is 65535"},
    {"key huge", key_huge, ISO_E_LIMIT, "metadata pair 0 has a key of 1152921504606846976 bytes"},
    {"key not UTF-8", key_not_utf8, ISO_E_FORMAT, "metadata pair 0 has a key that is not valid UTF-8"},
    {"key with zero", key_zero, ISO_E_FORMAT, "metadata pair 0 has a key with a zero byte in it"},
    {"key past end", key_past_end, ISO_E_FORMAT, "metadata pair 0 needs 100 bytes for its key at byte 32"},
    {"key twice", key_twice, ISO_E_FORMAT, "metadata key \"twin\" occurs twice"},
    {"value type 13", value_type_13, ISO_E_FORMAT, KEY "has value type 13; the highest there is is 12"},
    {"value cut", value_cut, ISO_E_FORMAT, KEY "needs 8 bytes for its value at byte 43, but the file has 47"},
    {"value missing", value_missing, ISO_E_FORMAT, "needs 4 bytes for its value type at byte 51"},
    {"bool 2", bool_2, ISO_E_FORMAT, KEY "has a bool of value 2; 0 and 1"},
    {"bool 255 in array", bool_array_255, ISO_E_FORMAT, KEY "has a bool of value 255; 0 and 1"},
    {"string huge", string_huge, ISO_E_FORMAT, KEY "needs 1152921504606846976 bytes for its value"},
    {"string max", string_max, ISO_E_FORMAT, KEY "needs 18446744073709551615 bytes for its value"},
    {"array nested", array_nested, ISO_E_UNSUPPORTED, KEY "is an array of arrays"},
    {"array type 99", array_type_99, ISO_E_FORMAT, KEY "has element type 99; the highest there is is 12"},
    {"array overflow", array_overflow, ISO_E_FORMAT,
     KEY "states 2305843009213693952 elements of type uint64"},
    {"array past end", array_past_end, ISO_E_FORMAT, KEY "needs 12 bytes for its value at byte 55"},
    {"strings past end", strings_past_end, ISO_E_FORMAT, KEY "needs 8589934592 bytes for its value"},
    {"strings cut", strings_cut, ISO_E_FORMAT, KEY "needs 1 bytes for its value at byte 74"},
    {"alignment 0", alignment_0, ISO_E_FORMAT, "\"general.alignment\" is 0; a power of two from 1 to 65536"},
    {"alignment 24", alignment_24, ISO_E_FORMAT, "\"general.alignment\" is 24; a power of two"},
    {"alignment large", alignment_large, ISO_E_FORMAT, "\"general.alignment\" is 131072; a power of two"},
    {"alignment type", alignment_type, ISO_E_FORMAT, "\"general.alignment\" has type uint64; uint32"},
    {"name empty", name_empty, ISO_E_FORMAT, "tensor 0 has an empty name"},
    {"name long", name_long, ISO_E_LIMIT, "tensor 0 has a name of 65 bytes; the limit is 64"},
    {"name not UTF-8", name_not_utf8, ISO_E_FORMAT, "tensor 0 has a name that is not valid UTF-8"},
    {"name twice", name_twice, ISO_E_FORMAT, "tensor \"twin\" occurs twice"},
    {"no dimension", dims_0, ISO_E_FORMAT, TENSOR "has 0 dimensions; 1 to 4"},
    {"5 dimensions", dims_5, ISO_E_FORMAT, TENSOR "has 5 dimensions; 1 to 4"},
    {"dimension 0", dim_zero, ISO_E_FORMAT, TENSOR "has dimension 1 of 0"},
    {"elements overflow", dims_overflow, ISO_E_FORMAT, TENSOR "has dimensions whose product"},
    {"bytes overflow", bytes_overflow, ISO_E_FORMAT, TENSOR "has dimensions whose byte count"},
    {"no whole blocks", not_blocks, ISO_E_FORMAT, TENSOR "has dimension 0 of 16, not a multiple of the 32"},
    {"type IQ2_XS", type_iq2_xs, ISO_E_UNSUPPORTED,
     TENSOR "has type IQ2_XS, which is not supported; supported are F32"},
    {"type removed", type_removed, ISO_E_UNSUPPORTED, TENSOR "has type Q4_2, which is not supported"},
    {"type unknown", type_unknown, ISO_E_UNSUPPORTED, TENSOR "has the unknown type number 1000"},
    {"offset odd", offset_odd, ISO_E_FORMAT, TENSOR "has offset 8, not a multiple of the alignment 32"},
    {"data past end", data_past_end, ISO_E_FORMAT,
     TENSOR "has 68 bytes of data that go past the end of the file"},
    {"offset past end", offset_past_end, ISO_E_FORMAT, TENSOR "has 4 bytes of data that go past the end"},
    {"offset overflow", offset_overflow, ISO_E_FORMAT, TENSOR "has 4 bytes of data that go past the end"},
    {"overlap", overlap, ISO_E_FORMAT, "tensor \"y\" overlaps tensor \"x\""},
    {"overlap same", overlap_same, ISO_E_FORMAT, "tensor \"y\" overlaps tensor \"x\""},
    {"trailing", trailing, ISO_E_FORMAT, "describes a file of 164 bytes, padded to 32, but the file has"},
    {"trailing, no tensor", trailing_no_tensor, ISO_E_FORMAT, "describes a file of 24 bytes"},
};

static void test_refusal(void **state)
{
    const struct refusal *r = *state;
    struct iso_errinfo e = {0};
    struct gguf g;
    memset(&g, 0xA5, sizeof g);
    struct gguf before = g;
    bool more = false;
    uint8_t *bytes = NULL;
    struct buf b;
    buf_init(&b, FILE_BYTES_MAX);
    r->build(&b);
    assert_int_equal(parse(&b, b.len, &g, &more, &bytes, &e), r->code);
    if (!strstr(e.text, r->text))
        fail_msg("the message is: %s", e.text);
    assert_int_equal(e.code, r->code);
    assert_true(e.field[0] != '\0');
    assert_memory_equal(&g, &before, sizeof g);
    // Without a place for the message, the same.
    assert_int_equal(parse(&b, b.len, &g, &more, &bytes, NULL), r->code);
    // And from a file.
    char path[64];
    int fd = gb_make_file(&b, path);
    struct gguf *opened = NULL;
    assert_int_equal(gguf_open(path, &opened, &e), r->code);
    assert_null(opened);
    close(fd);
    buf_deinit(&b);
}

// ---- What is right ----

static void test_good(void **state)
{
    (void)state;
    struct fixture f;
    fixture_open(&f, gb_good);
    const struct gguf *g = &f.g;
    assert_int_equal(g->version, 3);
    assert_int_equal(g->alignment, 32);
    assert_int_equal(g->n_kv, 9);
    assert_int_equal(g->n_tensors, 2);
    assert_true(strv_is(g->kv[1].key, "llama.block_count"));
    assert_string_equal(gguf_type_info(g->kv[4].type)->name, "array");
    assert_string_equal(gguf_type_info(g->kv[4].value.type)->name, "string");
    assert_null(gguf_type_info(13));

    const struct gguf_tensor *w = gguf_tensor_find(g, "w");
    const struct gguf_tensor *norm = gguf_tensor_find(g, "a.norm");
    assert_ptr_equal(w, &g->tensors[0]);
    assert_ptr_equal(norm, &g->tensors[1]);
    assert_null(gguf_tensor_find(g, "a.nor"));
    assert_null(gguf_tensor_find(g, ""));
    assert_int_equal(w->bytes, 72);
    assert_int_equal(w->dims[0], 64);
    assert_int_equal(w->dims[1], 2);
    assert_int_equal(w->dims[2], 1);
    assert_int_equal(norm->bytes, 32);
    assert_int_equal(norm->offset, w->offset + 96);
    assert_int_equal(norm->offset + norm->bytes, f.buf.len);
    fixture_close(&f);
}

// Every beginning of a good file: not at hand means "more", not there means malformed, and neither reads past
// it.
static void test_every_prefix(void **state)
{
    (void)state;
    struct buf whole, b;
    buf_init(&whole, FILE_BYTES_MAX);
    gb_good(&whole);
    struct iso_errinfo e;
    struct gguf g;
    uint8_t *bytes = NULL;
    size_t header_bytes = 0;
    for (size_t n = 0; n < whole.len; n++) {
        b = whole;
        b.len = n;
        bool more = false;
        assert_int_equal(parse(&b, n, &g, &more, &bytes, &e), ISO_E_FORMAT);
        assert_int_equal(parse(&b, whole.len, &g, &more, &bytes, &e), ISO_OK);
        if (!more) {
            header_bytes = header_bytes ? header_bytes : n;
            gguf_deinit(&g);
            free(bytes);
        }
        assert_true(more == (header_bytes == 0));
    }
    assert_true(header_bytes > 0 && num_align(header_bytes, 32) + 128 == whole.len);
    buf_deinit(&whole);
}

BUILD(padded_end, gb_begin(b, 1, 1); gb_kv_u32(b, "general.alignment", 1024);
      gb_tensor(b, "x", GGML_F16, 1, (uint64_t[]){5}, 0); gb_data(b, 1024, 10); gb_data(b, 1024, 0))
BUILD(version_2, version(b, 2))
BUILD(gap, two_tensors(b, "x", 0, "y", 64))
BUILD(long_name, gb_begin(b, 1, 0); long_string(b, 64); gb_u32(b, 1); gb_u64(b, 1); gb_u32(b, 0);
      gb_u64(b, 0); gb_data(b, 32, 4))

static void test_allowed(void **state)
{
    (void)state;
    static void (*const BUILDS[])(struct buf *) = {padded_end, version_2, gap, long_name};
    for (size_t i = 0; i < ARRAY_LEN(BUILDS); i++) {
        struct fixture f;
        fixture_open(&f, BUILDS[i]);
        fixture_close(&f);
    }
}

// All pairs and all tensors that the limits allow, found again one by one; then a duplicate among them.
static void test_many(void **state)
{
    (void)state;
    struct buf b;
    buf_init(&b, FILE_BYTES_MAX);
    gb_begin(&b, GGUF_TENSORS_MAX, GGUF_KV_MAX);
    char name[16];
    size_t last = 0;
    for (uint32_t i = 0; i < GGUF_KV_MAX; i++) {
        last = b.len + 8;
        snprintf(name, sizeof name, "k%05u", (i * 7919u) % GGUF_KV_MAX);
        gb_kv_u32(&b, name, i);
    }
    for (uint32_t i = 0; i < GGUF_TENSORS_MAX; i++) {
        snprintf(name, sizeof name, "t%05u", (i * 7919u) % GGUF_TENSORS_MAX);
        gb_tensor(&b, name, GGML_F32, 1, (uint64_t[]){8}, (uint64_t)(GGUF_TENSORS_MAX - 1 - i) * 32);
    }
    gb_data(&b, 32, 32u * GGUF_TENSORS_MAX);
    struct iso_errinfo e = {0};
    struct gguf g;
    bool more = false;
    if (gguf_parse(b.ptr, b.len, b.len, &g, &more, &e))
        fail_msg("%s", e.text);
    for (uint32_t i = 0; i < GGUF_KV_MAX; i++) {
        uint32_t value = 0;
        snprintf(name, sizeof name, "k%05u", (i * 7919u) % GGUF_KV_MAX);
        assert_int_equal(gguf_get_u32(&g, name, &value, &e), ISO_OK);
        assert_int_equal(value, i);
        name[0] = 't';
        assert_ptr_equal(gguf_tensor_find(&g, name), &g.tensors[i]);
    }
    gguf_deinit(&g);
    memcpy(b.ptr + last, "k00000", 6); // the first pair's key
    assert_int_equal(gguf_parse(b.ptr, b.len, b.len, &g, &more, &e), ISO_E_FORMAT);
    assert_string_equal(e.text, "metadata key \"k00000\" occurs twice");
    assert_string_equal(e.field, "k00000");
    buf_deinit(&b);
}

static void test_getters(void **state)
{
    (void)state;
    struct fixture f;
    fixture_open(&f, gb_good);
    const struct gguf *g = &f.g;
    struct iso_errinfo e = {0};
    uint32_t u = 0;
    float x = 0;
    bool flag = false;
    struct strv s = {0};
    struct gguf_array a = {0};

    assert_true(gguf_has(g, "eps"));
    assert_false(gguf_has(g, "ep"));
    assert_int_equal(gguf_get_u32(g, "llama.block_count", &u, &e), ISO_OK);
    assert_int_equal(u, 30);
    assert_int_equal(gguf_get_f32(g, "eps", &x, &e), ISO_OK);
    assert_true(x == 1e-5f);
    assert_int_equal(gguf_get_bool(g, "flag", &flag, &e), ISO_OK);
    assert_true(flag);
    assert_int_equal(gguf_get_str(g, "general.architecture", &s, &e), ISO_OK);
    assert_true(strv_is(s, "llama"));

    assert_int_equal(gguf_get_array(g, "tokens", GGUF_STR, &a, &e), ISO_OK);
    struct gguf_str_iter iter = gguf_str_iter(&a);
    assert_true(gguf_next_str(&iter, &s) && strv_is(s, "a"));
    assert_true(gguf_next_str(&iter, &s) && strv_is(s, ""));
    assert_true(gguf_next_str(&iter, &s) && strv_is(s, "\xff\xfe"));
    assert_false(gguf_next_str(&iter, &s));
    assert_int_equal(gguf_get_array(g, "none", GGUF_STR, &a, &e), ISO_OK);
    iter = gguf_str_iter(&a);
    assert_false(gguf_next_str(&iter, &s));
    assert_int_equal(gguf_get_array(g, "types", GGUF_I32, &a, &e), ISO_OK);
    assert_int_equal(a.n, 2);
    assert_int_equal(gguf_array_i32(&a, 0), 7);
    assert_int_equal(gguf_array_i32(&a, 1), -7);
    assert_int_equal(gguf_get_array(g, "scores", GGUF_F32, &a, &e), ISO_OK);
    assert_true(gguf_array_f32(&a, 0) == 0.5f && gguf_array_f32(&a, 1) == -2);

    assert_int_equal(gguf_get_u32(g, "nowhere", &u, &e), ISO_E_FORMAT);
    assert_string_equal(e.text, "metadata key \"nowhere\" is missing");
    assert_string_equal(e.field, "nowhere");
    assert_int_equal(gguf_get_u32(g, "eps", &u, &e), ISO_E_FORMAT);
    assert_string_equal(e.text, "metadata key \"eps\" has type float32; an integer is needed");
    assert_int_equal(gguf_get_f32(g, "flag", &x, &e), ISO_E_FORMAT);
    assert_string_equal(e.text, "metadata key \"flag\" has type bool; float32 or float64 is needed");
    assert_int_equal(gguf_get_f32(g, "eps64", &x, &e), ISO_E_FORMAT);
    assert_string_equal(e.text, "metadata key \"eps64\" is 1e+300; a finite float32 is needed");
    assert_int_equal(gguf_get_bool(g, "eps", &flag, &e), ISO_E_FORMAT);
    assert_string_equal(e.text, "metadata key \"eps\" has type float32; a bool is needed");
    assert_int_equal(gguf_get_str(g, "tokens", &s, &e), ISO_E_FORMAT);
    assert_string_equal(e.text, "metadata key \"tokens\" is an array of string; a string is needed");
    assert_int_equal(gguf_get_array(g, "types", GGUF_STR, &a, &e), ISO_E_FORMAT);
    assert_string_equal(e.text, "metadata key \"types\" is an array of int32; an array of string is needed");
    assert_int_equal(gguf_get_array(g, "flag", GGUF_F32, &a, NULL), ISO_E_FORMAT);
    assert_int_equal(gguf_get_f32(g, "nowhere", &x, &e), ISO_E_FORMAT);
    assert_int_equal(gguf_get_bool(g, "nowhere", &flag, &e), ISO_E_FORMAT);
    assert_int_equal(gguf_get_str(g, "nowhere", &s, &e), ISO_E_FORMAT);
    assert_int_equal(gguf_get_array(g, "nowhere", GGUF_STR, &a, &e), ISO_E_FORMAT);
    assert_string_equal(e.text, "metadata key \"nowhere\" is missing");
    // Untouched by all these failures.
    assert_true(u == 30 && x == 1e-5f && flag && a.n == 2);
    fixture_close(&f);
}

static const struct {
    enum gguf_type type;
    uint64_t bits;
    int64_t as_u32; // -1: refused
    const char *text;
} SCALARS[] = {
    {GGUF_U8, 0xFF, 255, "255"},
    {GGUF_I8, 0xFF, -1, "-1"},
    {GGUF_I8, 0x7F, 127, "127"},
    {GGUF_U16, 0xFFFF, 65535, "65535"},
    {GGUF_I16, 0x8000, -1, "-32768"},
    {GGUF_U32, 0xFFFFFFFF, 0xFFFFFFFF, "4294967295"},
    {GGUF_I32, 0x80000000, -1, "-2147483648"},
    {GGUF_I32, 5, 5, "5"},
    {GGUF_U64, 0x100000000, -1, "4294967296"},
    {GGUF_U64, UINT64_MAX, -1, "18446744073709551615"},
    {GGUF_U64, 7, 7, "7"},
    {GGUF_I64, (uint64_t)1 << 63, -1, "-9223372036854775808"},
    {GGUF_I64, 9, 9, "9"},
    {GGUF_BOOL, 0, -1, "false"},
    {GGUF_BOOL, 1, -1, "true"},
    {GGUF_F32, 0x3DCCCCCD, -1, "0.100000001"},
    {GGUF_F32, 0x7FC00000, -1, "nan"},
    {GGUF_F64, 0x3FB999999999999A, -1, "0.10000000000000001"},
    {GGUF_F64, 0xFFEFFFFFFFFFFFFF, -1, "-1.7976931348623157e+308"},
};

static void test_scalars(void **state)
{
    (void)state;
    struct buf b;
    buf_init(&b, FILE_BYTES_MAX);
    gb_begin(&b, 0, ARRAY_LEN(SCALARS));
    char key[8];
    for (size_t i = 0; i < ARRAY_LEN(SCALARS); i++) {
        snprintf(key, sizeof key, "k%zu", i);
        gb_key(&b, key, SCALARS[i].type);
        gb_bytes(&b, &SCALARS[i].bits, gguf_type_info(SCALARS[i].type)->bytes);
    }
    struct iso_errinfo e;
    struct gguf g;
    bool more;
    assert_int_equal(gguf_parse(b.ptr, b.len, b.len, &g, &more, &e), ISO_OK);
    for (size_t i = 0; i < ARRAY_LEN(SCALARS); i++) {
        char text[GGUF_SCALAR_TEXT_MAX];
        snprintf(key, sizeof key, "k%zu", i);
        assert_true(gguf_scalar_text(gguf_find(&g, key), text));
        assert_string_equal(text, SCALARS[i].text);
        uint32_t u = 0;
        enum iso_err err = gguf_get_u32(&g, key, &u, &e);
        assert_int_equal(err, SCALARS[i].as_u32 < 0 ? ISO_E_FORMAT : ISO_OK);
        if (!err)
            assert_int_equal(u, SCALARS[i].as_u32);
    }
    assert_int_equal(gguf_get_u32(&g, "k8", &(uint32_t){0}, &e), ISO_E_FORMAT);
    assert_string_equal(e.text,
                        "metadata key \"k8\" is 4294967296; an integer from 0 to 4294967295 is needed");
    gguf_deinit(&g);
    buf_deinit(&b);
    struct fixture f;
    fixture_open(&f, gb_good);
    char text[GGUF_SCALAR_TEXT_MAX];
    assert_false(gguf_scalar_text(gguf_find(&f.g, "tokens"), text));
    assert_false(gguf_scalar_text(gguf_find(&f.g, "general.architecture"), text));
    fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest fixed[] = {
        cmocka_unit_test(test_good), cmocka_unit_test(test_every_prefix), cmocka_unit_test(test_allowed),
        cmocka_unit_test(test_many), cmocka_unit_test(test_getters),      cmocka_unit_test(test_scalars),
    };
    struct CMUnitTest tests[ARRAY_LEN(REFUSALS) + ARRAY_LEN(fixed)];
    for (size_t i = 0; i < ARRAY_LEN(REFUSALS); i++)
        tests[i] = (struct CMUnitTest){
            .name = REFUSALS[i].name, .test_func = test_refusal, .initial_state = (void *)&REFUSALS[i]};
    memcpy(tests + ARRAY_LEN(REFUSALS), fixed, sizeof fixed);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
