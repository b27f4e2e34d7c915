// Tensor element types of GGUF files: ggml's numbers, names and block layouts, and the check that the numbers
// in a block are finite.
//
// A tensor is a sequence of blocks. A block holds `block_elements` consecutive elements of the first
// dimension in `block_bytes` bytes, little-endian, without padding. Types marked supported can be compiled;
// the others are here so that a refusal can name them. Pure functions over constant tables, safe from any
// thread.
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

// clang-format off
// Block layouts of the supported types (d, m: f16 scale and minimum; qh: the fifth bits; qs: the codes):
//   F32  4 bytes              F16, BF16  2 bytes
//   Q4_0 d qs[16]             Q4_1 d m qs[16]
//   Q5_0 d qh[4] qs[16]       Q5_1 d m qh[4] qs[16]
//   Q8_0 d qs[32]             IQ4_NL d qs[16]
// and of 256 elements (scales: sub-scales of 16 or 32 elements; ql, qh: low and high bits of the codes):
//   Q2_K scales[16] qs[64] d m           Q3_K hmask[32] qs[64] scales[12] d
//   Q4_K d m scales[12] qs[128]          Q5_K d m scales[12] qh[32] qs[128]
//   Q6_K ql[128] qh[64] scales[16] d     IQ4_XS d scales_h[2] scales_l[4] qs[128]
// Removed types have no layout any more: 0 elements, 0 bytes.
//    name        number elements bytes supported
#define GGML_TYPE_LIST(X)               \
    X(F32,          0,   1,   4, true)  \
    X(F16,          1,   1,   2, true)  \
    X(Q4_0,         2,  32,  18, true)  \
    X(Q4_1,         3,  32,  20, true)  \
    X(Q4_2,         4,   0,   0, false) \
    X(Q4_3,         5,   0,   0, false) \
    X(Q5_0,         6,  32,  22, true)  \
    X(Q5_1,         7,  32,  24, true)  \
    X(Q8_0,         8,  32,  34, true)  \
    X(Q8_1,         9,  32,  36, false) \
    X(Q2_K,        10, 256,  84, true)  \
    X(Q3_K,        11, 256, 110, true)  \
    X(Q4_K,        12, 256, 144, true)  \
    X(Q5_K,        13, 256, 176, true)  \
    X(Q6_K,        14, 256, 210, true)  \
    X(Q8_K,        15, 256, 292, false) \
    X(IQ2_XXS,     16, 256,  66, false) \
    X(IQ2_XS,      17, 256,  74, false) \
    X(IQ3_XXS,     18, 256,  98, false) \
    X(IQ1_S,       19, 256,  50, false) \
    X(IQ4_NL,      20,  32,  18, true)  \
    X(IQ3_S,       21, 256, 110, false) \
    X(IQ2_S,       22, 256,  82, false) \
    X(IQ4_XS,      23, 256, 136, true)  \
    X(I8,          24,   1,   1, false) \
    X(I16,         25,   1,   2, false) \
    X(I32,         26,   1,   4, false) \
    X(I64,         27,   1,   8, false) \
    X(F64,         28,   1,   8, false) \
    X(IQ1_M,       29, 256,  56, false) \
    X(BF16,        30,   1,   2, true)  \
    X(Q4_0_4_4,    31,   0,   0, false) \
    X(Q4_0_4_8,    32,   0,   0, false) \
    X(Q4_0_8_8,    33,   0,   0, false) \
    X(TQ1_0,       34, 256,  54, false) \
    X(TQ2_0,       35, 256,  66, false) \
    X(IQ4_NL_4_4,  36,   0,   0, false) \
    X(IQ4_NL_4_8,  37,   0,   0, false) \
    X(IQ4_NL_8_8,  38,   0,   0, false) \
    X(MXFP4,       39,  32,  17, false) \
    X(NVFP4,       40,  64,  36, false) \
    X(Q1_0,        41, 128,  18, false)
// clang-format on

enum ggml_type {
#define X(name, number, elements, bytes, supported) GGML_##name = number,
    GGML_TYPE_LIST(X)
#undef X
        GGML_TYPE_COUNT
};

// For messages: the supported types, in the order of their numbers.
#define GGML_SUPPORTED_NAMES \
    "F32, F16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_NL, IQ4_XS, BF16"

struct ggml_type_info {
    const char *name;
    uint32_t block_elements;
    uint32_t block_bytes;
    bool supported;
};

// The row of a type's number as it stands in a file, or NULL where no type has that number.
const struct ggml_type_info *ggml_type_info(uint32_t number);

// Checks that every value of n_blocks blocks (F32, F16, BF16) or every scale and minimum (quantized types) is
// finite. `type` must be supported; `blocks` holds n_blocks * block_bytes bytes of any alignment.
// ISO_E_NONFINITE with *ret_bad_block set to the first offender's index.
enum iso_err ggml_check_values(enum ggml_type type, const void *blocks, uint64_t n_blocks,
                               uint64_t *ret_bad_block) ISO_MUST_USE;
