#include "formats/safetensors.h"

#include <endian.h>
#include <inttypes.h>
#include <stdlib.h>

#include "base/buf.h"
#include "base/file.h"
#include "base/num.h"
#include "formats/json_file.h"

static const struct {
    const char *name;
    enum ggml_type type;
} TYPES[] = {{"F32", GGML_F32}, {"F16", GGML_F16}, {"BF16", GGML_BF16}};

enum iso_err safetensors_header_bytes(const uint8_t first[SAFETENSORS_LENGTH_BYTES], uint64_t file_bytes,
                                      uint64_t *ret, struct iso_errinfo *reterr)
{
    uint64_t n;
    memcpy(&n, first, sizeof n);
    n = le64toh(n);
    if (n > SAFETENSORS_HEADER_MAX)
        return iso_fail(reterr, ISO_E_LIMIT, 0, "header",
                        "the header's length is %" PRIu64 " bytes; the limit is %" PRIu64, n,
                        SAFETENSORS_HEADER_MAX);
    if (file_bytes < SAFETENSORS_LENGTH_BYTES || n > file_bytes - SAFETENSORS_LENGTH_BYTES)
        return iso_fail(reterr, ISO_E_FORMAT, 0, "header",
                        "the header of %" PRIu64 " bytes goes past the end of the file (%" PRIu64 " bytes)",
                        n, file_bytes);
    *ret = n;
    return ISO_OK;
}

static enum iso_err bad_tensor(struct strv name, const char *what, struct iso_errinfo *reterr)
{
    return iso_fail(reterr, ISO_E_FORMAT, 0, NULL, "tensor \"%.*s\" has %s", STRV_ARG(name), what);
}

static enum iso_err read_type(struct strv name, const json_t *dtype, enum ggml_type *ret,
                              struct iso_errinfo *reterr)
{
    if (!json_is_string(dtype))
        return bad_tensor(name, "no dtype", reterr);
    for (size_t i = 0; i < ARRAY_LEN(TYPES); i++) {
        if (strv_is(json_strv(dtype), TYPES[i].name)) {
            *ret = TYPES[i].type;
            return ISO_OK;
        }
    }
    return iso_fail(reterr, ISO_E_UNSUPPORTED, 0, NULL,
                    "tensor \"%.*s\" has type %.*s, which is not supported; F32, F16 and BF16 are",
                    STRV_ARG(name), STRV_ARG(json_strv(dtype)));
}

static bool read_number(const json_t *array, size_t i, uint64_t *ret)
{
    return json_whole(json_array_get(array, i), JSON_WHOLE_MAX, ret);
}

static enum iso_err read_shape(const json_t *shape, struct safetensor *t, struct iso_errinfo *reterr)
{
    size_t n = json_array_size(shape);
    uint64_t bytes = ggml_type_info(t->type)->block_bytes;
    if (!json_is_array(shape) || n < 1 || n > SAFETENSORS_DIMS_MAX)
        return bad_tensor(t->name, "no shape of 1 to 4 dimensions", reterr);
    t->n_dims = (uint32_t)n;
    for (size_t i = 0; i < SAFETENSORS_DIMS_MAX; i++) {
        uint64_t *dim = &t->dims[i];
        *dim = 1;
        if (i < n && (!read_number(shape, n - 1 - i, dim) || *dim == 0))
            return bad_tensor(t->name, "a dimension that is no positive integer", reterr);
        if (__builtin_mul_overflow(bytes, *dim, &bytes))
            return bad_tensor(t->name, "more bytes than can be counted", reterr);
    }
    t->bytes = bytes;
    return ISO_OK;
}

static enum iso_err read_tensor(const json_t *value, uint64_t data_bytes, struct safetensor *t,
                                struct iso_errinfo *reterr)
{
    uint64_t begin, end;
    const json_t *offsets = json_object_get(value, "data_offsets");
    enum iso_err err = read_type(t->name, json_object_get(value, "dtype"), &t->type, reterr);
    if (!err)
        err = read_shape(json_object_get(value, "shape"), t, reterr);
    if (err)
        return err;
    if (json_array_size(offsets) != 2 || !read_number(offsets, 0, &begin) || !read_number(offsets, 1, &end) ||
        begin > end || end > data_bytes)
        return bad_tensor(t->name, "data_offsets that are no range of the file's data", reterr);
    if (end - begin != t->bytes)
        return iso_fail(reterr, ISO_E_FORMAT, 0, NULL,
                        "tensor \"%.*s\" has %" PRIu64 " bytes where its type and shape give %" PRIu64,
                        STRV_ARG(t->name), end - begin, t->bytes);
    t->offset = begin; // from the data's beginning so far
    return ISO_OK;
}

static int compare_offsets(const void *a, const void *b)
{
    const struct safetensor *x = a, *y = b;
    return (x->offset > y->offset) - (x->offset < y->offset);
}

// The tensors, in order, follow each other from the data's beginning to its end.
static enum iso_err check_tiling(struct safetensors *s, uint64_t data_at, uint64_t data_bytes,
                                 struct iso_errinfo *reterr)
{
    uint64_t at = 0;
    qsort(s->tensors, s->n_tensors, sizeof *s->tensors, compare_offsets);
    for (uint32_t i = 0; i < s->n_tensors; i++) {
        struct safetensor *t = &s->tensors[i];
        if (t->offset != at)
            return iso_fail(
                reterr, ISO_E_FORMAT, data_at + t->offset, "data_offsets",
                "tensor \"%.*s\" begins at byte %" PRIu64 " of the data, %s at %" PRIu64, STRV_ARG(t->name),
                t->offset,
                t->offset < at ? "before the one in front of it ends" : "but what is before it ends", at);
        at += t->bytes;
        t->offset += data_at;
    }
    if (at != data_bytes)
        return iso_fail(reterr, ISO_E_FORMAT, data_at + at, "data_offsets",
                        "the tensors end at byte %" PRIu64 " of the data, which has %" PRIu64, at,
                        data_bytes);
    return ISO_OK;
}

static enum iso_err read_all(json_t *json, uint64_t data_at, uint64_t file_bytes, struct arena *arena,
                             struct safetensors *s, struct iso_errinfo *reterr)
{
    const char *key;
    size_t key_bytes;
    json_t *value;
    uint64_t data_bytes = file_bytes - data_at;
    size_t n = json_object_size(json);
    if (n > SAFETENSORS_TENSORS_MAX)
        return iso_fail(reterr, ISO_E_LIMIT, 0, "header", "the header has %zu entries; the limit is %d", n,
                        SAFETENSORS_TENSORS_MAX);
    s->tensors = arena_array(arena, n, sizeof *s->tensors);
    if (!s->tensors)
        return iso_fail(reterr, ISO_E_LIMIT, 0, "header", "the header is too long for the compiler's memory");
    json_object_keylen_foreach(json, key, key_bytes, value)
    {
        struct strv name = {key, key_bytes};
        if (strv_is(name, "__metadata__"))
            continue;
        if (name.len == 0 || name.len > SAFETENSORS_NAME_MAX || memchr(name.ptr, '\0', name.len))
            return iso_fail(reterr, ISO_E_FORMAT, 0, "header",
                            "a tensor's name is empty, longer than %d bytes, or holds a zero byte",
                            SAFETENSORS_NAME_MAX);
        struct safetensor *t = &s->tensors[s->n_tensors];
        char *copy = arena_strdup(arena, name);
        if (!copy)
            return iso_fail(reterr, ISO_E_LIMIT, 0, "header",
                            "the header is too long for the compiler's memory");
        t->name = (struct strv){copy, name.len};
        enum iso_err err = read_tensor(value, data_bytes, t, reterr);
        if (err)
            return err;
        s->n_tensors++;
    }
    return check_tiling(s, data_at, data_bytes, reterr);
}

enum iso_err safetensors_parse(struct strv header, uint64_t file_bytes, struct arena *arena,
                               struct safetensors *ret, struct iso_errinfo *reterr)
{
    json_t *json;
    struct safetensors s = {0};
    enum iso_err err = json_parse(header, &json, reterr);
    if (err)
        return err;
    err = read_all(json, SAFETENSORS_LENGTH_BYTES + header.len, file_bytes, arena, &s, reterr);
    json_decref(json);
    if (!err)
        *ret = s;
    return err;
}

static enum iso_err read_into(int fd, uint64_t file_bytes, struct buf *header, struct arena *arena,
                              struct safetensors *ret, struct iso_errinfo *reterr)
{
    uint8_t first[SAFETENSORS_LENGTH_BYTES], *to;
    uint64_t n = 0;
    if (file_bytes < sizeof first)
        return iso_fail(reterr, ISO_E_FORMAT, 0, "file", "is too short to be a safetensors file");
    enum iso_err err = file_read_at(fd, 0, first, sizeof first, reterr);
    if (!err)
        err = safetensors_header_bytes(first, file_bytes, &n, reterr);
    if (err)
        return err;
    if (buf_append_zeros(header, n, &to))
        return iso_fail(reterr, ISO_E_NOMEM, 0, NULL, "the system refused memory to read its header");
    err = file_read_at(fd, sizeof first, to, n, reterr);
    return err ? err : safetensors_parse(buf_strv(header), file_bytes, arena, ret, reterr);
}

enum iso_err safetensors_read(int fd, uint64_t file_bytes, struct arena *arena, struct safetensors *ret,
                              struct iso_errinfo *reterr)
{
    struct buf header;
    buf_init(&header, SAFETENSORS_HEADER_MAX);
    enum iso_err err = read_into(fd, file_bytes, &header, arena, ret, reterr);
    buf_deinit(&header);
    return err;
}
