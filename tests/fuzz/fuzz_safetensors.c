// safetensors headers: data is the JSON of a header, its last byte how much data the file has behind it. What is
// accepted tiles the data exactly.
#include <stddef.h>
#include <stdint.h>

#include "base/assert.h"
#include "formats/safetensors.h"

#define ARENA_BYTES ((size_t)16 << 20)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0)
        return 0;
    struct strv header = {(const char *)data, size - 1};
    uint64_t data_at = SAFETENSORS_LENGTH_BYTES + header.len,
             file_bytes = data_at + (uint64_t)data[size - 1] * 4;
    struct arena arena;
    struct safetensors s;
    struct iso_errinfo e = {0};
    ASSERT(arena_init(&arena, ARENA_BYTES) == ISO_OK);
    enum iso_err err = safetensors_parse(header, file_bytes, &arena, &s, &e);
    ASSERT(err == e.code && (err == ISO_OK || e.text[0] != '\0'));
    uint64_t at = data_at;
    for (uint32_t i = 0; !err && i < s.n_tensors; i++) {
        const struct safetensor *t = &s.tensors[i];
        uint64_t elements = t->dims[0] * t->dims[1] * t->dims[2] * t->dims[3];
        ASSERT(t->offset == at && t->name.len > 0 && t->n_dims >= 1 && t->n_dims <= SAFETENSORS_DIMS_MAX);
        ASSERT(t->bytes == elements * ggml_type_info(t->type)->block_bytes && t->bytes > 0);
        at += t->bytes;
    }
    ASSERT(err || at == file_bytes);
    arena_deinit(&arena);
    return 0;
}
