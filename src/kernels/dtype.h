// Element types of tensors and how weights of each type lie in a panel.
//
// A weight matrix W[n][k] (n outputs, k inputs) is stored as ceil(n / 16) panels of 16 outputs side by side,
// so that a vector lane is an output (numerics.md, rule 6). A panel of a grouped type holds, for each group
// of 32 inputs:
//   codes   all groups' codes first. 64-byte vectors; lane r (bytes 4r..4r+3) of vector v holds inputs 4v..4v+3.
//           4 and 5 bits: 4 vectors a group, low nibbles are vectors 0..3, high nibbles vectors 4..7.
//           8 bits: 8 vectors a group, signed.
//   high    5-bit types: after all codes, 8 words of 64 bits a group; bit b of word v is bit 4 of byte b of
//           vector v.
//   scales  then d of all groups, 16 f16 a group.
//   mins    then, where the type has a minimum, m of all groups, 16 f16 a group.
// A panel of a float type holds k vectors of 16 elements, input by input. Outputs past n in the last panel
// are zero. Panels are padded to PANEL_ALIGN. All little-endian.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PANEL_LANES 16
#define PANEL_ALIGN 64
#define GROUP       32 // inputs that share a scale

enum dtype {
    DT_F32 = 0,
    DT_F16 = 1,
    DT_BF16 = 2,
    DT_Q4_0 = 3, // w = d * (u - 8),  u in 0..15
    DT_Q4_1 = 4, // w = d * u + m,    u in 0..15
    DT_Q5_0 = 5, // w = d * (u - 16), u in 0..31
    DT_Q5_1 = 6, // w = d * u + m,    u in 0..31
    DT_Q8_0 = 7, // w = d * q,        q in -128..127
    DT_A8 = 8,   // activations as codes: struct a8
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
};

#define A8_TILE        16
#define A8_GROUP_BYTES (GROUP + 2 * sizeof(float) + sizeof(int32_t))

// The parts of rows * (k / GROUP) * A8_GROUP_BYTES bytes at `base`, aligned to 4.
static inline struct a8 a8_at(void *base, uint32_t rows, uint32_t k)
{
    size_t n = (size_t)rows * (k / GROUP);
    struct a8 a = {.q = base};
    a.scale = (float *)(a.q + n);
    a.shift = a.scale + n;
    a.zero = (int32_t *)(a.shift + n);
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
    bool is_weight;
};

// NULL for a number that is no dtype.
const struct dtype_info *dtype_info(uint32_t dtype);

// True for the types whose matmul takes quantized activations.
bool dtype_is_grouped(enum dtype dtype);

// Where the parts of one panel of k inputs lie, in bytes from the panel's start.
struct panel_layout {
    uint64_t high;   // 5-bit types
    uint64_t scales; // grouped types
    uint64_t mins;   // types with a minimum
    uint64_t bytes;  // of the whole panel, a multiple of PANEL_ALIGN
};

// k <= 2^32; for grouped types a multiple of GROUP.
struct panel_layout panel_layout(enum dtype dtype, uint64_t k);
