// vec.h on a processor with AMX: everything as on AVX-512, and a matrix unit for the dots of 16 rows with the
// 16 outputs of a panel at a time (matmul_matrix.h). An A tile is a group of up to 16 rows of codes, 32 bytes
// each; a B tile is a group of a panel as it lies in memory, 8 rows of 64 bytes; the sums are exact int32.
// While tiles are in use the vector unit has one port for products instead of two (measured): what the matrix
// unit is fed with and what becomes of its sums is most of the work.
#pragma once

#include "kernels/vec_avx512.h"

#define VEC_MATRIX     A8_TILE // rows at a time
#define VEC_MATRIX_MIN 8       // rows from which on the matrix unit is faster than the vector unit

// Tiles: 0 and 1 sums of 16 rows, 2 sums of the last rows; 3 and 4 codes of 16 rows, 5 of the last rows; 6
// and 7 weights.
struct matrix_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};
_Static_assert(sizeof(struct matrix_config) == 64, "LDTILECFG reads 64 bytes");

// Until matrix_end. last_rows: 1 to 15, or 0 where all tiles are whole.
VEC_INLINE void matrix_begin(uint32_t last_rows)
{
    struct matrix_config config = {.palette = 1};
    for (int tile = 0; tile < 8; tile++) {
        bool is_last = tile == 2 || tile == 5, is_weight = tile >= 6, is_sum = tile <= 2;
        config.rows[tile] = (uint8_t)(is_weight ? 8 : is_last && last_rows ? last_rows : VEC_MATRIX);
        config.row_bytes[tile] = is_sum || is_weight ? 64 : 32;
    }
    __asm__ volatile(""
                     :
                     : "r"(&config)
                     : "memory"); // GCC's intrinsic tells of 8 of the 64 bytes that it reads
    _tile_loadconfig(&config);
}

VEC_INLINE void matrix_end(void)
{
    _tile_release();
}

// Sums start at the bits of VEC_MAGIC, so that a sum, of less than 2^22, is one when read as f32: taking
// VEC_MAGIC off is exact, and does not need the port that a conversion shares with products.
static const _Alignas(64) uint32_t MATRIX_BIAS[VEC_LANES] = {
    0x4B400000, 0x4B400000, 0x4B400000, 0x4B400000, 0x4B400000, 0x4B400000, 0x4B400000, 0x4B400000,
    0x4B400000, 0x4B400000, 0x4B400000, 0x4B400000, 0x4B400000, 0x4B400000, 0x4B400000, 0x4B400000};

VEC_INLINE vf matrix_sum(const int32_t sum[VEC_LANES])
{
    return vf_sub(vf_load((const float *)sum), vf_set1(VEC_MAGIC));
}

// Starts the dots of a group: sum[row][out] = sum over the group of q[row] times the panel's signed codes. Two
// groups can be under way, `odd` saying on which registers. GCC's intrinsics don't tell that they read memory:
// hence the barrier.
VEC_INLINE void matrix_start(int odd, const int8_t (*q)[32], const uint8_t *code)
{
    __asm__ volatile("" ::: "memory");
    if (odd) {
        _tile_loadd(1, MATRIX_BIAS, 0);
        _tile_loadd(4, q, 32);
        _tile_loadd(7, code, 64);
        _tile_dpbssd(1, 4, 7);
    } else {
        _tile_loadd(0, MATRIX_BIAS, 0);
        _tile_loadd(3, q, 32);
        _tile_loadd(6, code, 64);
        _tile_dpbssd(0, 3, 6);
    }
}

VEC_INLINE void matrix_finish(int odd, int32_t sum[VEC_MATRIX][VEC_LANES])
{
    if (odd)
        _tile_stored(1, sum, 64);
    else
        _tile_stored(0, sum, 64);
}

// Both, of the last rows.
VEC_INLINE void matrix_last_rows(const int8_t (*q)[32], const uint8_t *code,
                                 int32_t sum[VEC_MATRIX][VEC_LANES])
{
    __asm__ volatile("" ::: "memory");
    _tile_loadd(2, MATRIX_BIAS, 0);
    _tile_loadd(5, q, 32);
    _tile_loadd(6, code, 64);
    _tile_dpbssd(2, 5, 6);
    _tile_stored(2, sum, 64);
}
