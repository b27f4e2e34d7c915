// GGUF parser on arbitrary bytes. Besides memory errors it looks for broken promises: a parser that has only
// a beginning of the file at hand may ask for more but must not decide otherwise, and what it accepts must
// have the properties that gguf.h states.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/utf8.h"
#include "formats/gguf_parse.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

// A sum over bytes, so that each is read.
static uint64_t touch(const void *bytes, size_t n)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += ((const uint8_t *)bytes)[i];
    return sum;
}

static uint64_t walk_kv(const struct gguf *g, const struct gguf_kv *kv)
{
    uint64_t sum = touch(kv->key.ptr, kv->key.len) + touch(kv->value.bytes, kv->value.n_bytes);
    ASSERT(utf8_is_valid((const uint8_t *)kv->key.ptr, kv->key.len));
    if (kv->value.type == GGUF_STR) {
        struct gguf_str_iter iter = gguf_str_iter(&kv->value);
        struct strv s;
        while (gguf_next_str(&iter, &s))
            sum += touch(s.ptr, s.len);
        ASSERT(iter.at == kv->value.bytes + kv->value.n_bytes);
    }
    for (uint64_t i = 0; kv->value.type == GGUF_I32 && i < kv->value.n; i++)
        sum += (uint64_t)gguf_array_i32(&kv->value, i);
    for (uint64_t i = 0; kv->value.type == GGUF_F32 && i < kv->value.n; i++)
        sum += gguf_array_f32(&kv->value, i) > 0;

    char text[GGUF_SCALAR_TEXT_MAX];
    if (gguf_scalar_text(kv, text))
        sum += strlen(text);
    char key[256];
    if (kv->key.len >= sizeof key)
        return sum;
    snprintf(key, sizeof key, "%.*s", (int)kv->key.len, kv->key.ptr);
    ASSERT(gguf_find(g, key) == kv);
    uint32_t u = 0;
    float f = 0;
    bool b = false;
    struct strv s = {0};
    struct gguf_array a = {0};
    struct iso_errinfo e;
    enum iso_err errs[] = {gguf_get_u32(g, key, &u, &e),
                           gguf_get_f32(g, key, &f, &e),
                           gguf_get_bool(g, key, &b, &e),
                           gguf_get_str(g, key, &s, &e),
                           gguf_get_array(g, key, GGUF_STR, &a, &e),
                           gguf_get_array(g, key, GGUF_I32, &a, &e)};
    uint32_t fitting = 0;
    for (size_t i = 0; i < ARRAY_LEN(errs); i++)
        fitting += errs[i] == ISO_OK;
    ASSERT(fitting <= 1);
    return sum + u + (f > 0) + b + touch(s.ptr, s.len);
}

static uint64_t walk_tensor(const struct gguf *g, uint32_t index, const uint8_t *data, size_t size)
{
    const struct gguf_tensor *t = &g->tensors[index];
    const struct ggml_type_info *info = ggml_type_info(t->type);
    ASSERT(info && info->supported && t->n_dims >= 1 && t->n_dims <= GGUF_DIMS_MAX);
    ASSERT(t->name.len > 0 && t->name.len <= GGUF_NAME_BYTES_MAX);
    ASSERT(t->offset % g->alignment == 0);
    ASSERT(t->bytes > 0 && t->offset <= size && t->bytes <= size - t->offset);
    uint64_t elements = 1;
    for (uint32_t i = 0; i < GGUF_DIMS_MAX; i++)
        elements *= t->dims[i];
    ASSERT(elements / info->block_elements * info->block_bytes == t->bytes);
    char name[GGUF_NAME_BYTES_MAX + 1];
    snprintf(name, sizeof name, "%.*s", (int)t->name.len, t->name.ptr);
    ASSERT(gguf_tensor_find(g, name) == t);
    uint64_t bad = 0;
    if (ggml_check_values(t->type, data + t->offset, t->bytes / info->block_bytes, &bad))
        ASSERT(bad < t->bytes / info->block_bytes);
    return touch(data + t->offset, t->bytes);
}

// Parses data[0..n) of a file of `size` bytes from memory of exactly n bytes.
static enum iso_err parse_beginning(const uint8_t *data, size_t n, size_t size, bool *ret_more)
{
    uint8_t *bytes = malloc(n + (n == 0));
    ASSERT(bytes);
    memcpy(bytes, data, n);
    struct gguf g;
    struct iso_errinfo e;
    enum iso_err err = gguf_parse(bytes, n, size, &g, ret_more, &e);
    if (!err && !*ret_more)
        gguf_deinit(&g);
    free(bytes);
    return err;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0)
        return 0;
    struct gguf g;
    struct iso_errinfo e = {0};
    bool more = true;
    enum iso_err err = gguf_parse(data, size, size, &g, &more, &e);
    ASSERT(err ? e.code == err && e.text[0] != '\0' && e.field[0] != '\0' : !more);

    bool beginning_more = false;
    enum iso_err beginning_err = parse_beginning(data, size * data[size - 1] / 256, size, &beginning_more);
    ASSERT(beginning_err ? beginning_err == err : beginning_more || !err);
    if (err)
        return 0;

    volatile uint64_t sum = 0; // keeps the reads alive
    for (uint32_t i = 0; i < g.n_kv; i++)
        sum += walk_kv(&g, &g.kv[i]);
    for (uint32_t i = 0; i < g.n_tensors; i++)
        sum += walk_tensor(&g, i, data, size);
    (void)sum;
    gguf_deinit(&g);
    return 0;
}
