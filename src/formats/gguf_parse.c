#include "formats/gguf_parse.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/utf8.h"

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "GGUF values are read as they stand in the file");

#define MAGIC            "GGUF"
#define GGUF_VERSION_MIN 2
#define GGUF_VERSION_MAX 3
// The least that a pair (key of one byte, value of one byte) and a tensor's entry (name of one byte, one
// dimension) take in a file.
#define KV_BYTES_MIN     14
#define TENSOR_BYTES_MIN 33

// Where the parser stands, and what it is at for messages. The first error sticks: nothing is taken after it.
struct cursor {
    const uint8_t *bytes;
    size_t n;            // bytes at hand
    uint64_t file_bytes; // bytes there are
    size_t at;           // <= n, <= GGUF_HEADER_BYTES_MAX
    bool more;           // the bytes at hand ended before the file did; then err is set too
    enum iso_err err;

    const char *kind; // "metadata key", "tensor", or NULL at what is before them
    uint64_t index;   // of the pair or tensor
    struct strv name; // empty until it is known
    struct iso_errinfo *reterr;
};

static void cursor_set_subject(struct cursor *c, const char *kind, uint64_t index, struct strv name)
{
    c->kind = kind;
    c->index = index;
    c->name = name;
}

// Fails with a sentence whose subject is what the cursor is at: 'tensor "x" ' and the rest from format.
// Returns false, as every function here does after a failure.
static bool fail(struct cursor *c, enum iso_err code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static bool fail(struct cursor *c, enum iso_err code, const char *format, ...)
{
    char rest[ISO_ERR_TEXT_MAX];
    va_list args;
    va_start(args, format);
    vsnprintf(rest, sizeof rest, format, args);
    va_end(args);
    if (!c->kind) {
        c->err = iso_fail(c->reterr, code, c->at, "header", "the header %s", rest);
    } else if (c->name.len == 0) {
        c->err = iso_fail(c->reterr, code, c->at, c->kind, "%s %" PRIu64 " %s", c->kind, c->index, rest);
    } else {
        char name[ISO_ERR_FIELD_MAX];
        snprintf(name, sizeof name, "%.*s", STRV_ARG(c->name));
        c->err = iso_fail(c->reterr, code, c->at, name, "%s \"%.*s\" %s", c->kind, STRV_ARG(c->name), rest);
    }
    return false;
}

// The next n bytes, for the part `what`; NULL after a failure. Where the file has them but not the bytes at
// hand, c->more is set, which gguf_parse turns into its second outcome.
static const uint8_t *take(struct cursor *c, const char *what, uint64_t n)
{
    ASSERT(c->at <= c->n && c->at <= GGUF_HEADER_BYTES_MAX);
    if (c->err)
        return NULL;
    if (n > c->file_bytes - c->at) {
        fail(c, ISO_E_FORMAT,
             "needs %" PRIu64 " bytes for its %s at byte %zu, but the file has %" PRIu64 " bytes", n, what,
             c->at, c->file_bytes);
        return NULL;
    }
    if (n > GGUF_HEADER_BYTES_MAX - c->at) {
        fail(c, ISO_E_LIMIT,
             "needs %" PRIu64 " bytes for its %s at byte %zu; the limit of the whole header is %" PRIu64, n,
             what, c->at, GGUF_HEADER_BYTES_MAX);
        return NULL;
    }
    if (n > c->n - c->at) {
        c->more = true;
        c->err = ISO_E_IO;
        return NULL;
    }
    const uint8_t *p = c->bytes + c->at;
    c->at += n;
    return p;
}

static uint32_t take_u32(struct cursor *c, const char *what)
{
    uint32_t value = 0;
    const uint8_t *p = take(c, what, sizeof value);
    if (p)
        memcpy(&value, p, sizeof value);
    return value;
}

static uint64_t take_u64(struct cursor *c, const char *what)
{
    uint64_t value = 0;
    const uint8_t *p = take(c, what, sizeof value);
    if (p)
        memcpy(&value, p, sizeof value);
    return value;
}

// A key or a tensor's name: not empty, at most len_max bytes, UTF-8, and a C string too (no zero bytes).
static bool take_name(struct cursor *c, const char *what, uint64_t len_max, struct strv *ret)
{
    uint64_t len = take_u64(c, what);
    if (c->err)
        return false;
    if (len == 0)
        return fail(c, ISO_E_FORMAT, "has an empty %s", what);
    if (len > len_max)
        return fail(c, ISO_E_LIMIT, "has a %s of %" PRIu64 " bytes; the limit is %" PRIu64, what, len,
                    len_max);
    const uint8_t *p = take(c, what, len);
    if (!p)
        return false;
    if (!utf8_is_valid(p, len))
        return fail(c, ISO_E_FORMAT, "has a %s that is not valid UTF-8", what);
    if (memchr(p, 0, len))
        return fail(c, ISO_E_FORMAT, "has a %s with a zero byte in it", what);
    *ret = (struct strv){(const char *)p, len};
    return true;
}

static bool take_version(struct cursor *c, struct gguf *g)
{
    const uint8_t *magic = take(c, "magic number", 4);
    if (!magic)
        return false;
    if (memcmp(magic, MAGIC, 4) != 0)
        return fail(c, ISO_E_FORMAT,
                    "begins with the bytes %02x %02x %02x %02x, not with \"GGUF\": this is no GGUF file",
                    magic[0], magic[1], magic[2], magic[3]);
    g->version = take_u32(c, "version");
    if (c->err)
        return false;
    uint32_t swapped = __builtin_bswap32(g->version);
    if (swapped >= 1 && swapped <= GGUF_VERSION_MAX)
        return fail(c, ISO_E_UNSUPPORTED,
                    "has version %" PRIu32 " in big-endian order; only little-endian GGUF is supported",
                    swapped);
    if (g->version < GGUF_VERSION_MIN || g->version > GGUF_VERSION_MAX)
        return fail(c, ISO_E_UNSUPPORTED, "has GGUF version %" PRIu32 "; versions %d to %d are supported",
                    g->version, GGUF_VERSION_MIN, GGUF_VERSION_MAX);
    return true;
}

static bool take_counts(struct cursor *c, struct gguf *g)
{
    uint64_t n_tensors = take_u64(c, "tensor count");
    uint64_t n_kv = take_u64(c, "metadata count");
    if (c->err)
        return false;
    if (n_tensors > GGUF_TENSORS_MAX)
        return fail(c, ISO_E_LIMIT, "states a tensor count of %" PRIu64 "; the limit is %d", n_tensors,
                    GGUF_TENSORS_MAX);
    if (n_kv > GGUF_KV_MAX)
        return fail(c, ISO_E_LIMIT, "states a metadata count of %" PRIu64 "; the limit is %d", n_kv,
                    GGUF_KV_MAX);
    uint64_t least = c->at + n_kv * KV_BYTES_MIN + n_tensors * TENSOR_BYTES_MIN;
    if (least > c->file_bytes)
        return fail(c, ISO_E_FORMAT,
                    "states a tensor count of %" PRIu64 " and a metadata count of %" PRIu64
                    ", which take at least %" PRIu64 " bytes, but the file has %" PRIu64,
                    n_tensors, n_kv, least, c->file_bytes);
    g->n_tensors = (uint32_t)n_tensors;
    g->n_kv = (uint32_t)n_kv;
    return true;
}

// The counts have been checked: at most some 15 MiB.
static bool alloc_tables(struct cursor *c, struct gguf *g)
{
    uint64_t bytes = num_align(g->n_kv * sizeof *g->kv, ARENA_ALIGN) +
                     num_align(g->n_kv * sizeof *g->kv_by_key, ARENA_ALIGN) +
                     num_align(g->n_tensors * sizeof *g->tensors, ARENA_ALIGN) +
                     num_align(g->n_tensors * sizeof *g->by_name, ARENA_ALIGN);
    enum iso_err err = arena_init(&g->tables, num_max(bytes, ARENA_ALIGN));
    if (err)
        return fail(c, err, "needs %" PRIu64 " bytes for its tables, which the system refused", bytes);
    g->kv = arena_array(&g->tables, g->n_kv, sizeof *g->kv);
    g->kv_by_key = arena_array(&g->tables, g->n_kv, sizeof *g->kv_by_key);
    g->tensors = arena_array(&g->tables, g->n_tensors, sizeof *g->tensors);
    g->by_name = arena_array(&g->tables, g->n_tensors, sizeof *g->by_name);
    ASSERT(g->kv && g->kv_by_key && g->tensors && g->by_name);
    return true;
}

// v->n elements of v->type, both known.
static bool take_elements(struct cursor *c, struct gguf_array *v)
{
    const struct gguf_type_info *info = gguf_type_info(v->type);
    uint64_t bytes; // for strings: the least they take
    if (!num_mul(v->n, info->bytes, &bytes))
        return fail(c, ISO_E_FORMAT, "states %" PRIu64 " elements of type %s, more than any file can have",
                    v->n, info->name);
    size_t start = c->at;
    const uint8_t *p = take(c, "value", bytes);
    if (!p)
        return false;
    if (v->type == GGUF_STR) {
        c->at = start;
        for (uint64_t i = 0; i < v->n && !c->err; i++)
            take(c, "value", take_u64(c, "value"));
        if (c->err)
            return false;
    }
    for (uint64_t i = 0; v->type == GGUF_BOOL && i < v->n; i++) {
        if (p[i] > 1)
            return fail(c, ISO_E_FORMAT, "has a bool of value %d; 0 and 1 are allowed", p[i]);
    }
    v->bytes = p;
    v->n_bytes = c->at - start;
    return true;
}

static bool take_type(struct cursor *c, const char *what, enum gguf_type *ret)
{
    uint32_t type = take_u32(c, what);
    if (c->err)
        return false;
    if (type >= GGUF_TYPE_COUNT)
        return fail(c, ISO_E_FORMAT, "has %s %" PRIu32 "; the highest there is is %d", what, type,
                    GGUF_TYPE_COUNT - 1);
    *ret = (enum gguf_type)type;
    return true;
}

static bool take_kv(struct cursor *c, struct gguf_kv *kv, uint64_t index)
{
    cursor_set_subject(c, "metadata pair", index, (struct strv){0});
    if (!take_name(c, "key", GGUF_KEY_BYTES_MAX, &kv->key))
        return false;
    cursor_set_subject(c, "metadata key", index, kv->key);
    if (!take_type(c, "value type", &kv->type))
        return false;
    kv->value.type = kv->type;
    kv->value.n = 1;
    if (kv->type == GGUF_ARRAY) {
        if (!take_type(c, "element type", &kv->value.type))
            return false;
        if (kv->value.type == GGUF_ARRAY)
            return fail(c, ISO_E_UNSUPPORTED, "is an array of arrays, which is not supported");
        kv->value.n = take_u64(c, "element count");
    }
    return take_elements(c, &kv->value);
}

int gguf_compare(struct strv a, struct strv b)
{
    int order = memcmp(a.ptr, b.ptr, num_min(a.len, b.len));
    if (order != 0)
        return order;
    return (a.len > b.len) - (a.len < b.len);
}

static int compare_keys(const void *a, const void *b)
{
    const struct gguf_kv *x = *(const struct gguf_kv *const *)a, *y = *(const struct gguf_kv *const *)b;
    return gguf_compare(x->key, y->key);
}

static int compare_names(const void *a, const void *b)
{
    const struct gguf_tensor *x = *(const struct gguf_tensor *const *)a;
    const struct gguf_tensor *y = *(const struct gguf_tensor *const *)b;
    return gguf_compare(x->name, y->name);
}

// Equal offsets go by the order in the file, so that a message names the same tensors everywhere.
static int compare_offsets(const void *a, const void *b)
{
    const struct gguf_tensor *x = *(const struct gguf_tensor *const *)a;
    const struct gguf_tensor *y = *(const struct gguf_tensor *const *)b;
    if (x->offset != y->offset)
        return x->offset < y->offset ? -1 : 1;
    return (x > y) - (x < y);
}

static bool take_metadata(struct cursor *c, struct gguf *g)
{
    for (uint32_t i = 0; i < g->n_kv; i++) {
        if (!take_kv(c, &g->kv[i], i))
            return false;
        g->kv_by_key[i] = &g->kv[i];
    }
    qsort(g->kv_by_key, g->n_kv, sizeof *g->kv_by_key, compare_keys);
    for (uint32_t i = 1; i < g->n_kv; i++) {
        if (strv_equal(g->kv_by_key[i - 1]->key, g->kv_by_key[i]->key)) {
            cursor_set_subject(c, "metadata key", i, g->kv_by_key[i]->key);
            return fail(c, ISO_E_FORMAT, "occurs twice");
        }
    }

    g->alignment = GGUF_ALIGNMENT_DEFAULT;
    const struct gguf_kv *kv = gguf_find(g, "general.alignment");
    if (!kv)
        return true;
    cursor_set_subject(c, "metadata key", 0, kv->key);
    if (kv->type != GGUF_U32)
        return fail(c, ISO_E_FORMAT, "has type %s; uint32 is needed", gguf_type_info(kv->type)->name);
    memcpy(&g->alignment, kv->value.bytes, sizeof g->alignment);
    if (g->alignment == 0 || g->alignment > GGUF_ALIGNMENT_MAX || (g->alignment & (g->alignment - 1)) != 0)
        return fail(c, ISO_E_FORMAT, "is %" PRIu32 "; a power of two from 1 to %d is needed", g->alignment,
                    GGUF_ALIGNMENT_MAX);
    return true;
}

// Fills t->type and t->bytes.
static bool check_type(struct cursor *c, uint32_t number, struct gguf_tensor *t)
{
    const struct ggml_type_info *info = ggml_type_info(number);
    if (!info)
        return fail(c, ISO_E_UNSUPPORTED,
                    "has the unknown type number %" PRIu32 "; supported are " GGML_SUPPORTED_NAMES, number);
    if (!info->supported)
        return fail(c, ISO_E_UNSUPPORTED,
                    "has type %s, which is not supported; supported are " GGML_SUPPORTED_NAMES, info->name);
    uint64_t elements = 1;
    for (uint32_t i = 0; i < t->n_dims; i++) {
        if (t->dims[i] == 0)
            return fail(c, ISO_E_FORMAT, "has dimension %" PRIu32 " of 0; at least 1 is needed", i);
        if (!num_mul(elements, t->dims[i], &elements))
            return fail(c, ISO_E_FORMAT, "has dimensions whose product, its element count, is over 64 bits");
    }
    if (t->dims[0] % info->block_elements != 0)
        return fail(c, ISO_E_FORMAT,
                    "has dimension 0 of %" PRIu64 ", not a multiple of the %" PRIu32
                    " elements of a block of %s",
                    t->dims[0], info->block_elements, info->name);
    if (!num_mul(elements / info->block_elements, info->block_bytes, &t->bytes))
        return fail(c, ISO_E_FORMAT, "has dimensions whose byte count is over 64 bits");
    t->type = (enum ggml_type)number;
    return true;
}

// t->offset is left as it stands in the file: from the beginning of the data.
static bool take_tensor(struct cursor *c, struct gguf_tensor *t, uint64_t index)
{
    cursor_set_subject(c, "tensor", index, (struct strv){0});
    if (!take_name(c, "name", GGUF_NAME_BYTES_MAX, &t->name))
        return false;
    cursor_set_subject(c, "tensor", index, t->name);
    t->n_dims = take_u32(c, "number of dimensions");
    if (c->err)
        return false;
    if (t->n_dims == 0 || t->n_dims > GGUF_DIMS_MAX)
        return fail(c, ISO_E_FORMAT, "has %" PRIu32 " dimensions; 1 to %d are allowed", t->n_dims,
                    GGUF_DIMS_MAX);
    for (uint32_t i = 0; i < GGUF_DIMS_MAX; i++)
        t->dims[i] = i < t->n_dims ? take_u64(c, "dimensions") : 1;
    uint32_t type = take_u32(c, "type");
    t->offset = take_u64(c, "offset");
    if (c->err)
        return false;
    return check_type(c, type, t);
}

// Makes the offsets absolute and checks that the tensors lie in the file, apart from each other. Gaps between
// them are allowed; after the last one there is at most padding.
static bool place_tensors(struct cursor *c, struct gguf *g)
{
    uint64_t data = num_align(c->at, g->alignment);
    for (uint32_t i = 0; i < g->n_tensors; i++) {
        struct gguf_tensor *t = &g->tensors[i];
        cursor_set_subject(c, "tensor", i, t->name);
        if (t->offset % g->alignment != 0)
            return fail(c, ISO_E_FORMAT, "has offset %" PRIu64 ", not a multiple of the alignment %" PRIu32,
                        t->offset, g->alignment);
        uint64_t end;
        if (!num_add(t->offset, data, &t->offset) || !num_add(t->offset, t->bytes, &end) ||
            end > c->file_bytes)
            return fail(c, ISO_E_FORMAT,
                        "has %" PRIu64 " bytes of data that go past the end of the file (%" PRIu64 " bytes)",
                        t->bytes, c->file_bytes);
        g->by_name[i] = t;
    }

    const struct gguf_tensor **by_offset = g->by_name;
    qsort(by_offset, g->n_tensors, sizeof *by_offset, compare_offsets);
    uint64_t end = c->at;
    for (uint32_t i = 0; i < g->n_tensors; i++) {
        const struct gguf_tensor *t = by_offset[i];
        if (t->offset < end) {
            cursor_set_subject(c, "tensor", i, t->name);
            return fail(c, ISO_E_FORMAT, "overlaps tensor \"%.*s\"", STRV_ARG(by_offset[i - 1]->name));
        }
        end = t->offset + t->bytes;
    }
    cursor_set_subject(c, NULL, 0, (struct strv){0});
    if (num_align(end, g->alignment) < c->file_bytes)
        return fail(c, ISO_E_FORMAT,
                    "describes a file of %" PRIu64 " bytes, padded to %" PRIu32 ", but the file has %" PRIu64,
                    end, g->alignment, c->file_bytes);

    qsort(g->by_name, g->n_tensors, sizeof *g->by_name, compare_names);
    for (uint32_t i = 1; i < g->n_tensors; i++) {
        if (strv_equal(g->by_name[i - 1]->name, g->by_name[i]->name)) {
            cursor_set_subject(c, "tensor", i, g->by_name[i]->name);
            return fail(c, ISO_E_FORMAT, "occurs twice");
        }
    }
    return true;
}

static bool parse(struct cursor *c, struct gguf *g)
{
    if (!take_version(c, g) || !take_counts(c, g) || !alloc_tables(c, g) || !take_metadata(c, g))
        return false;
    for (uint32_t i = 0; i < g->n_tensors; i++) {
        if (!take_tensor(c, &g->tensors[i], i))
            return false;
    }
    return place_tensors(c, g);
}

enum iso_err gguf_parse(const uint8_t *bytes, size_t n, uint64_t file_bytes, struct gguf *ret, bool *ret_more,
                        struct iso_errinfo *reterr)
{
    ASSERT(n <= file_bytes && file_bytes <= INT64_MAX);
    struct cursor c = {.bytes = bytes, .n = n, .file_bytes = file_bytes, .reterr = reterr};
    struct gguf g = {.fd = -1};
    if (!parse(&c, &g)) {
        ASSERT(c.err);
        gguf_deinit(&g);
        if (!c.more)
            return c.err;
        *ret_more = true;
        return ISO_OK;
    }
    *ret = g;
    *ret_more = false;
    return ISO_OK;
}
