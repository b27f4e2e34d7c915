// Blocks of GGUF's quantized types taken apart: the codes one after the other, and the scales.
#pragma once

#include <stdint.h>

#include "formats/ggml_types.h"

#define BLOCK_ELEMENTS_MAX 256
#define BLOCK_SUBS_MAX     16

struct block {
    uint8_t code[BLOCK_ELEMENTS_MAX];
    int8_t sub[BLOCK_SUBS_MAX],
        min_sub[BLOCK_SUBS_MAX]; // sub-scales of 16 or 32 elements, where the type has them
    uint16_t d, m;               // f16; an element is d * sub * code + m * min_sub
};

// *ret holds what the type has; codes are as kernels/dtype.h has them (unsigned with their zero, or signed bytes).
// `type` is a supported quantized type; `bytes` holds one block, whose layout ggml_types.h names.
void block_unpack(enum ggml_type type, const uint8_t *bytes, struct block *ret);

// `n` weights of any supported type as f32: d * sub * code, then + m * min_sub where the type has a minimum, each
// rounded, as kernels read them. n is a multiple of the type's block.
void block_values(enum ggml_type type, const uint8_t *bytes, uint64_t n, float *ret);
