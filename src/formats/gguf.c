#include "formats/gguf.h"

#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/file.h"
#include "formats/gguf_parse.h"

// The header is read in pieces: this much first, then twice as much in all, and so on to
// GGUF_HEADER_BYTES_MAX.
#define HEADER_BYTES_FIRST (1 * MIB)

static const struct gguf_type_info TYPES[GGUF_TYPE_COUNT] = {
#define X(name, number, text, bytes, kind) [number] = {text, bytes, kind},
    GGUF_TYPE_LIST(X)
#undef X
};

const struct gguf_type_info *gguf_type_info(uint32_t number)
{
    return number < GGUF_TYPE_COUNT ? &TYPES[number] : NULL;
}

static enum iso_err open_file(const char *path, int *ret_fd, struct gguf_identity *ret,
                              struct iso_errinfo *reterr)
{
    // Without O_NONBLOCK a FIFO would wait here for a writer; on regular files it changes nothing.
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0)
        return iso_fail(reterr, ISO_E_IO, 0, "file", "cannot be opened: %m");
    struct stat st;
    enum iso_err err;
    if (fstat(fd, &st) != 0) {
        err = iso_fail(reterr, ISO_E_IO, 0, "file", "cannot be examined: %m");
        goto fail;
    }
    if (!S_ISREG(st.st_mode)) {
        err = iso_fail(reterr, ISO_E_IO, 0, "file", "is %s, not a regular file",
                       S_ISDIR(st.st_mode) ? "a folder" : "a device, pipe or socket");
        goto fail;
    }
    *ret_fd = fd;
    *ret = (struct gguf_identity){
        .bytes = (uint64_t)st.st_size,
        .mtime_ns = (int64_t)st.st_mtim.tv_sec * 1000000000 + st.st_mtim.tv_nsec,
        .inode = st.st_ino,
        .device = st.st_dev,
    };
    return ISO_OK;
fail:
    close(fd);
    return err;
}

// Reads and parses until the header is whole. *ret then owns nothing but its tables; *header owns the bytes,
// on failure too.
static enum iso_err load_header(int fd, uint64_t file_bytes, struct arena *header, struct gguf *ret,
                                struct iso_errinfo *reterr)
{
    // Address space for the longest header; pages become real as they are read into.
    uint64_t cap = num_min(file_bytes, GGUF_HEADER_BYTES_MAX);
    enum iso_err err = arena_init(header, num_max(num_align(cap, ARENA_ALIGN), ARENA_ALIGN));
    if (err)
        return iso_fail(reterr, err, 0, "header", "the system refused %" PRIu64 " bytes for the header", cap);
    uint8_t *bytes = arena_alloc(header, cap);
    ASSERT(bytes);
    uint64_t have = 0;
    for (uint64_t want = num_min(HEADER_BYTES_FIRST, cap);; want = num_min(want * 2, cap)) {
        err = file_read_at(fd, have, bytes + have, want - have, reterr);
        if (err)
            return err;
        have = want;
        bool more;
        err = gguf_parse(bytes, have, file_bytes, ret, &more, reterr);
        if (err || !more)
            return err;
        ASSERT(have < cap); // gguf_parse asks for no more than the file and the limit have
    }
}

enum iso_err gguf_open(const char *path, struct gguf **ret, struct iso_errinfo *reterr)
{
    struct gguf *g = calloc(1, sizeof *g);
    if (!g)
        return iso_fail(reterr, ISO_E_NOMEM, 0, "file", "the system refused %zu bytes", sizeof *g);
    g->fd = -1;
    int fd = -1;
    struct arena header = {0};
    struct gguf_identity identity;
    enum iso_err err = open_file(path, &fd, &identity, reterr);
    if (!err)
        err = load_header(fd, identity.bytes, &header, g, reterr);
    g->fd = fd;
    g->header = header;
    if (err) {
        gguf_close(g);
        return err;
    }
    g->identity = identity;
    *ret = g;
    return ISO_OK;
}

void gguf_deinit(struct gguf *g)
{
    if (g->fd >= 0)
        close(g->fd);
    arena_deinit(&g->header);
    arena_deinit(&g->tables);
    *g = (struct gguf){.fd = -1};
}

void gguf_close(struct gguf *g)
{
    if (!g)
        return;
    gguf_deinit(g);
    free(g);
}

enum iso_err gguf_read(const struct gguf *g, const struct gguf_tensor *tensor, uint64_t at, void *dst,
                       size_t n, struct iso_errinfo *reterr)
{
    ASSERT(g->fd >= 0);
    ASSERT(at <= tensor->bytes && n <= tensor->bytes - at);
    return file_read_at(g->fd, tensor->offset + at, dst, n, reterr);
}

const struct gguf_kv *gguf_find(const struct gguf *g, const char *key)
{
    struct strv wanted = strv_from(key);
    for (uint32_t low = 0, high = g->n_kv; low < high;) {
        uint32_t middle = low + (high - low) / 2;
        int order = gguf_compare(wanted, g->kv_by_key[middle]->key);
        if (order == 0)
            return g->kv_by_key[middle];
        if (order < 0)
            high = middle;
        else
            low = middle + 1;
    }
    return NULL;
}

const struct gguf_tensor *gguf_tensor_find(const struct gguf *g, const char *name)
{
    struct strv wanted = strv_from(name);
    for (uint32_t low = 0, high = g->n_tensors; low < high;) {
        uint32_t middle = low + (high - low) / 2;
        int order = gguf_compare(wanted, g->by_name[middle]->name);
        if (order == 0)
            return g->by_name[middle];
        if (order < 0)
            high = middle;
        else
            low = middle + 1;
    }
    return NULL;
}

bool gguf_has(const struct gguf *g, const char *key)
{
    return gguf_find(g, key) != NULL;
}

static enum gguf_kind kv_kind(const struct gguf_kv *kv)
{
    return TYPES[kv->type].kind;
}

// An integer of any width as sign and 64 bits: `bits` is the value, in two's complement where negative.
struct integer {
    bool negative;
    uint64_t bits;
};

static struct integer kv_integer(const struct gguf_kv *kv)
{
    ASSERT(kv_kind(kv) == GGUF_UNSIGNED || kv_kind(kv) == GGUF_SIGNED);
    uint32_t n = TYPES[kv->type].bytes;
    uint64_t bits = 0;
    memcpy(&bits, kv->value.bytes, n);
    uint64_t sign = (uint64_t)1 << (8 * n - 1);
    if (kv_kind(kv) == GGUF_UNSIGNED || (bits & sign) == 0)
        return (struct integer){false, bits};
    return (struct integer){true, bits | ~(sign | (sign - 1))};
}

static double kv_float(const struct gguf_kv *kv)
{
    if (kv->type == GGUF_F64) {
        double d;
        memcpy(&d, kv->value.bytes, sizeof d);
        return d;
    }
    ASSERT(kv->type == GGUF_F32);
    float f;
    memcpy(&f, kv->value.bytes, sizeof f);
    return (double)f;
}

static enum iso_err missing(const char *key, struct iso_errinfo *reterr)
{
    return iso_fail(reterr, ISO_E_FORMAT, 0, key, "metadata key \"%s\" is missing", key);
}

static enum iso_err wrong_type(const char *key, const struct gguf_kv *kv, const char *needed,
                               struct iso_errinfo *reterr)
{
    if (kv->type == GGUF_ARRAY)
        return iso_fail(reterr, ISO_E_FORMAT, 0, key, "metadata key \"%s\" is an array of %s; %s is needed",
                        key, TYPES[kv->value.type].name, needed);
    return iso_fail(reterr, ISO_E_FORMAT, 0, key, "metadata key \"%s\" has type %s; %s is needed", key,
                    TYPES[kv->type].name, needed);
}

enum iso_err gguf_get_u32(const struct gguf *g, const char *key, uint32_t *ret, struct iso_errinfo *reterr)
{
    const struct gguf_kv *kv = gguf_find(g, key);
    if (!kv)
        return missing(key, reterr);
    if (kv_kind(kv) != GGUF_UNSIGNED && kv_kind(kv) != GGUF_SIGNED)
        return wrong_type(key, kv, "an integer", reterr);
    struct integer value = kv_integer(kv);
    if (value.negative || value.bits > UINT32_MAX) {
        char text[GGUF_SCALAR_TEXT_MAX] = "";
        (void)gguf_scalar_text(kv, text);
        return iso_fail(reterr, ISO_E_FORMAT, 0, key,
                        "metadata key \"%s\" is %s; an integer from 0 to %" PRIu32 " is needed", key, text,
                        UINT32_MAX);
    }
    *ret = (uint32_t)value.bits;
    return ISO_OK;
}

enum iso_err gguf_get_f32(const struct gguf *g, const char *key, float *ret, struct iso_errinfo *reterr)
{
    const struct gguf_kv *kv = gguf_find(g, key);
    if (!kv)
        return missing(key, reterr);
    if (kv_kind(kv) != GGUF_FLOAT)
        return wrong_type(key, kv, "float32 or float64", reterr);
    double value = kv_float(kv);
    float as_f32 = (float)value;
    if (!isfinite(as_f32))
        return iso_fail(reterr, ISO_E_FORMAT, 0, key, "metadata key \"%s\" is %g; a finite float32 is needed",
                        key, value);
    *ret = as_f32;
    return ISO_OK;
}

enum iso_err gguf_get_bool(const struct gguf *g, const char *key, bool *ret, struct iso_errinfo *reterr)
{
    const struct gguf_kv *kv = gguf_find(g, key);
    if (!kv)
        return missing(key, reterr);
    if (kv->type != GGUF_BOOL)
        return wrong_type(key, kv, "a bool", reterr);
    *ret = kv->value.bytes[0] == 1;
    return ISO_OK;
}

enum iso_err gguf_get_str(const struct gguf *g, const char *key, struct strv *ret, struct iso_errinfo *reterr)
{
    const struct gguf_kv *kv = gguf_find(g, key);
    if (!kv)
        return missing(key, reterr);
    if (kv->type != GGUF_STR)
        return wrong_type(key, kv, "a string", reterr);
    struct gguf_str_iter iter = gguf_str_iter(&kv->value);
    bool found = gguf_next_str(&iter, ret);
    ASSERT(found);
    return ISO_OK;
}

enum iso_err gguf_get_array(const struct gguf *g, const char *key, enum gguf_type elem_type,
                            struct gguf_array *ret, struct iso_errinfo *reterr)
{
    ASSERT(elem_type < GGUF_TYPE_COUNT && elem_type != GGUF_ARRAY);
    const struct gguf_kv *kv = gguf_find(g, key);
    if (!kv)
        return missing(key, reterr);
    if (kv->type != GGUF_ARRAY || kv->value.type != elem_type) {
        char needed[32];
        snprintf(needed, sizeof needed, "an array of %s", TYPES[elem_type].name);
        return wrong_type(key, kv, needed, reterr);
    }
    *ret = kv->value;
    return ISO_OK;
}

int32_t gguf_array_i32(const struct gguf_array *a, uint64_t i)
{
    ASSERT(a->type == GGUF_I32 && i < a->n);
    int32_t value;
    memcpy(&value, a->bytes + i * sizeof value, sizeof value);
    return value;
}

float gguf_array_f32(const struct gguf_array *a, uint64_t i)
{
    ASSERT(a->type == GGUF_F32 && i < a->n);
    float value;
    memcpy(&value, a->bytes + i * sizeof value, sizeof value);
    return value;
}

struct gguf_str_iter gguf_str_iter(const struct gguf_array *a)
{
    ASSERT(a->type == GGUF_STR);
    return (struct gguf_str_iter){.at = a->bytes, .left = a->n};
}

bool gguf_next_str(struct gguf_str_iter *iter, struct strv *ret)
{
    if (iter->left == 0)
        return false;
    uint64_t len;
    memcpy(&len, iter->at, sizeof len);
    *ret = (struct strv){(const char *)iter->at + sizeof len, len};
    iter->at += sizeof len + len;
    iter->left--;
    return true;
}

bool gguf_scalar_text(const struct gguf_kv *kv, char out[GGUF_SCALAR_TEXT_MAX])
{
    struct integer value;
    switch (kv_kind(kv)) {
    case GGUF_UNSIGNED:
    case GGUF_SIGNED:
        value = kv_integer(kv);
        if (value.negative)
            snprintf(out, GGUF_SCALAR_TEXT_MAX, "%" PRId64, (int64_t)value.bits);
        else
            snprintf(out, GGUF_SCALAR_TEXT_MAX, "%" PRIu64, value.bits);
        return true;
    case GGUF_FLOAT:
        snprintf(out, GGUF_SCALAR_TEXT_MAX, kv->type == GGUF_F64 ? "%.17g" : "%.9g", kv_float(kv));
        return true;
    case GGUF_BOOLEAN:
        snprintf(out, GGUF_SCALAR_TEXT_MAX, "%s", kv->value.bytes[0] ? "true" : "false");
        return true;
    default:
        return false;
    }
}
