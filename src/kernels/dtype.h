// Element types of tensors and how weights of each type lie in a panel.
//
// A weight matrix W[n][k] (n outputs, k inputs) is stored as ceil(n / 16) panels of 16 outputs side by side,
// so that a vector lane is an output (numerics.md, rule 6). A panel of a grouped type holds, for each group
// of 32 inputs:
//   codes   all groups' codes first. 64-byte vectors; lane r (bytes 4r..4r+3) of vector v holds inputs 4v..4v+3.
//           4 and 5 bits: 4 packed vectors a group, low nibbles are vectors 0..3, high nibbles vectors 4..7.
//           6 bits: of packed vector p, low nibbles are those of vector 2p, high nibbles of 2p + 1.
//           2 and 3 bits: 2 packed vectors a group, bits 2i and 2i + 1 of p are the low two of vector 4p + i.
//           8 bits: 8 vectors a group, signed.
//   high    after all codes, what they lack. 5 and 3 bits: 8 words of 64 bits a group; bit b of word v is the
//           highest bit of byte b of vector v. 6 bits: the highest two bits, packed as 2-bit codes are.
//   subs    types with sub-scales: 16 signed bytes a group, or 32 where each half of a group (16 inputs) has
//           its own. Then as many for the minimum where the type has one.
//   scales  then d of all groups, 16 f16 a group; of a type with sub-scales 16 f16 for SUPER_GROUPS groups.
//   mins    then, where the type has a minimum, m likewise.
// A panel of a float type holds k vectors of 16 elements, input by input. Outputs past n in the last panel
// weigh +-0: their scales and minima are zero. Panels are padded to PANEL_ALIGN. All little-endian.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PANEL_LANES  16
#define PANEL_ALIGN  64
#define GROUP        32 // inputs that share a scale
#define SUPER_GROUPS 8  // groups that share d (and m) where each has a sub-scale

// Codes u are unsigned, q signed; s and n are sub-scales of a group or, marked *, of half a group.
enum dtype {
    DT_F32 = 0,
    DT_F16 = 1,
    DT_BF16 = 2,
    DT_Q4_0 = 3,    // w = d * (u - 8),  u in 0..15
    DT_Q4_1 = 4,    // w = d * u + m,    u in 0..15
    DT_Q5_0 = 5,    // w = d * (u - 16), u in 0..31
    DT_Q5_1 = 6,    // w = d * u + m,    u in 0..31
    DT_Q8_0 = 7,    // w = d * q,        q in -128..127
    DT_Q2_K = 8,    // w = d * s * u + m * n *,  u in 0..3
    DT_Q3_K = 9,    // w = d * s * (u - 4) *,    u in 0..7
    DT_Q4_K = 10,   // w = d * s * u + m * n,    u in 0..15
    DT_Q5_K = 11,   // w = d * s * u + m * n,    u in 0..31
    DT_Q6_K = 12,   // w = d * s * (u - 32) *,   u in 0..63
    DT_IQ4_NL = 13, // w = d * IQ4_VALUES[u],    u in 0..15
    DT_IQ4_XS = 14, // w = d * s * IQ4_VALUES[u]
    DT_W6 = 15,     // w = d * (u - 32), u in 0..63; our own, GGUF has no such type
    DT_A8 = 16,     // activations as codes: struct a8; the weights' types are before it
    DT_COUNT
};

// Activations as codes (numerics.md, rule 2): `rows` rows of k inputs in tiles of A8_TILE rows, the last one with
// those that are left. A tile is stored group by group, so that what a kernel takes together lies together and it
// reads straight on. a8_index says where the numbers of a group and row are.
struct a8 {
    int8_t (*q)[GROUP]; // -127..127
    float *scale;
    float *shift;  // scale * (float)(sum of q): what the minimum of a weight type is multiplied by
    int32_t *zero; // -8 * (sum of q): what the zero point of a weight type adds
    int32_t *half; // the same of the first 16 inputs alone
};

#define A8_TILE        16
#define A8_GROUP_BYTES (GROUP + 2 * sizeof(float) + 2 * sizeof(int32_t))

// The parts of rows * (k / GROUP) * A8_GROUP_BYTES bytes at `base`, aligned to 4.
static inline struct a8 a8_at(void *base, uint32_t rows, uint32_t k)
{
    size_t n = (size_t)rows * (k / GROUP);
    struct a8 a = {.q = base};
    a.scale = (float *)(a.q + n);
    a.shift = a.scale + n;
    a.zero = (int32_t *)(a.shift + n);
    a.half = a.zero + n;
    return a;
}

// Rows in the tile that holds `row`: neighbouring groups are this far apart.
static inline uint32_t a8_tile_rows(uint32_t rows, uint32_t row)
{
    uint32_t left = rows - row / A8_TILE * A8_TILE;
    return left < A8_TILE ? left : A8_TILE;
}

static inline size_t a8_index(uint32_t rows, uint32_t k, uint32_t group, uint32_t row)
{
    return (size_t)(row / A8_TILE) * A8_TILE * (k / GROUP) + (size_t)group * a8_tile_rows(rows, row) +
           row % A8_TILE;
}

struct dtype_info {
    const char *name;
    uint8_t code_bits;   // of grouped types; 0 for float types
    uint8_t float_bytes; // of float types; 0 for grouped types
    bool has_min;
    uint8_t subs; // sub-scales of a group: 0, 1 or 2
    bool is_weight;
};

// The values of the 4-bit types that have a table (ggml's kvalues_iq4nl).
static const int8_t IQ4_VALUES[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                      1,    13,   25,  38,  53,  69,  89,  113};

// NULL for a number that is no dtype.
const struct dtype_info *dtype_info(uint32_t dtype);

// True for the types whose matmul takes quantized activations.
bool dtype_is_grouped(enum dtype dtype);

// What the number of inputs of a matrix is a multiple of.
uint32_t dtype_inputs(enum dtype dtype);

// Where the parts of one panel of k inputs lie, in bytes from the panel's start.
struct panel_layout {
    uint64_t high;           // 3-, 5- and 6-bit types
    uint64_t subs, min_subs; // types with sub-scales
    uint64_t scales;         // grouped types
    uint64_t mins;           // types with a minimum
    uint64_t bytes;          // of the whole panel, a multiple of PANEL_ALIGN
};

// k <= 2^32, a multiple of dtype_inputs.
struct panel_layout panel_layout(enum dtype dtype, uint64_t k);
