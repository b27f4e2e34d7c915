// A panel times 16 rows at a time on a matrix unit, where the ISA has one (see vec_amx.h). The unit gives the
// exact dots of a group; scales follow in the vector unit as for every ISA, one group after the other, so the
// bytes are the same.
#pragma once

#include "kernels/matmul_group.h"

#ifdef VEC_MATRIX

#define MATRIX_GROUPS     32
#define MATRIX_BLOCK_ROWS 128 // rows that share what is unpacked

struct matrix_block {
    _Alignas(64) uint8_t code[MATRIX_GROUPS][GROUP * PANEL_LANES];
    _Alignas(64) float d[MATRIX_GROUPS][PANEL_LANES];
    _Alignas(64) float m[MATRIX_GROUPS][PANEL_LANES];
    _Alignas(64) float acc[MATRIX_BLOCK_ROWS][PANEL_LANES];
    _Alignas(64) int32_t dot[4][A8_TILE][PANEL_LANES];
};

// Unpacks groups [begin, end). The result is their codes: 8-bit ones are used where they are.
VEC_INLINE const uint8_t *matrix_unpack(enum dtype type, const uint8_t *panel, const struct panel_layout *at,
                                        uint32_t begin, uint32_t end, struct matrix_block *block)
{
    for (uint32_t g = begin; g < end; g++) {
        struct group_scales w;
        group_scales(type, panel, at, g, &w);
        vf_store(block->d[g - begin], w.d);
        if (has_min(type))
            vf_store(block->m[g - begin], w.m);
        if (type == DT_Q8_0)
            continue;
        VEC_UNROLL
        for (uint32_t pair = 0; pair < 4; pair++) {
            vb code[2];
            group_codes(type, panel, at, g, pair, code);
            for (uint32_t half = 0; half < 2; half++)
                vb_store(block->code[g - begin] + 64 * pair_vector(type, pair, half),
                         vb_minus(code[half], (int8_t)vector_zero(type)));
        }
    }
    return type == DT_Q8_0 ? panel_codes(type, panel, begin) : block->code[0];
}

// The way through a block: tiles of 16 rows, each through the same groups; `step` counts groups over all tiles.
// Dots are started four steps before they are used and stored two before, over the end of a tile into the next,
// so that none is waited for.
struct matrix_walk {
    enum dtype type;
    const struct matmul_args *args;
    uint32_t panel;
    const uint8_t *codes;                       // signed, of the block's first group on
    float (*d)[PANEL_LANES], (*m)[PANEL_LANES]; // the same groups' scales
    struct a8 x;
    uintptr_t next;                       // what is unpacked after this block
    uint32_t begin, groups;               // of K, in this block
    int32_t (*dot)[A8_TILE][PANEL_LANES]; // of step i in dot[i % 4]
};

VEC_INLINE void walk_scales(const struct matrix_walk *w, uint32_t g, struct group_scales *ret)
{
    ret->d = vf_load(w->d[g]);
    if (has_min(w->type))
        ret->m = vf_load(w->m[g]);
}

// Where group g of the block and a row are in x.
VEC_INLINE size_t walk_at(const struct matrix_walk *w, uint32_t g, size_t row)
{
    return a8_index(w->args->rows, w->args->k, w->begin + g, (uint32_t)row);
}

// The next dots to start.
struct matrix_ahead {
    const int8_t (*q)[GROUP];
    const uint8_t *code;
    uint32_t g;
};

VEC_INLINE void walk_start(const struct matrix_walk *w, int odd, struct matrix_ahead *ahead)
{
    matrix_start(odd, ahead->q, ahead->code);
    ahead->q += A8_TILE;
    ahead->code += GROUP * PANEL_LANES;
    if (++ahead->g == w->groups) { // on to the next tile
        ahead->g = 0;
        ahead->q += (size_t)A8_TILE * (w->args->k / GROUP - w->groups);
        ahead->code = w->codes;
    }
}

VEC_INLINE void walk_step(const struct matrix_walk *w, int odd, uint32_t step, uint32_t steps, uint32_t g,
                          size_t at, struct matrix_ahead *ahead, vf acc[A8_TILE])
{
    struct group_scales scales;
    if (step + 2 < steps)
        matrix_finish(odd, w->dot[(step + 2) % 4]);
    if (step + 4 < steps)
        walk_start(w, odd, ahead);
    for (size_t line = 0; line < 2; line++) // of the weights to be unpacked next, into the L2 cache
        __builtin_prefetch((const void *)(w->next + (2 * step + line) * 64), 0, 2);
    walk_scales(w, g, &scales);
    VEC_UNROLL
    for (uint32_t r = 0; r < A8_TILE; r++)
        acc[r] = group_add(w->type, &scales, w->x.scale + at + r, w->x.shift + at + r,
                           matrix_sum(w->dot[step % 4][r]), acc[r]);
}

// Accumulators of a row: from +0 in the first block, kept between blocks, to y after the last.
VEC_INLINE vf walk_load(const struct matrix_walk *w, const float *acc)
{
    return w->begin == 0 ? vf_set1(0) : vf_load(acc);
}

VEC_INLINE void walk_store(const struct matrix_walk *w, size_t row, float *acc_at, vf acc)
{
    if (w->begin + w->groups == w->args->k / GROUP)
        tile_store(w->args, w->panel, (uint32_t)row, acc);
    else
        vf_store(acc_at, acc);
}

// `tiles` tiles from `row` on.
VEC_INLINE void matrix_tiles(const struct matrix_walk *w, size_t row, uint32_t tiles,
                             float (*acc_at)[PANEL_LANES])
{
    struct matrix_ahead ahead = {.q = w->x.q + walk_at(w, 0, row), .code = w->codes};
    uint32_t steps = tiles * w->groups, step = 0;
    for (uint32_t i = 0; i < 4; i++) {
        if (i >= 2 && i - 2 < steps)
            matrix_finish(i % 2, w->dot[i - 2]);
        if (i < steps)
            walk_start(w, i % 2, &ahead);
    }
    for (; step < steps; row += A8_TILE, acc_at += A8_TILE) {
        size_t at = walk_at(w, 0, row);
        vf acc[A8_TILE];
        VEC_UNROLL
        for (int r = 0; r < A8_TILE; r++)
            acc[r] = walk_load(w, acc_at[r]);
        for (uint32_t g = 0; g < w->groups; g++, step++, at += A8_TILE) {
            if (step % 2)
                walk_step(w, 1, step, steps, g, at, &ahead, acc);
            else
                walk_step(w, 0, step, steps, g, at, &ahead, acc);
        }
        VEC_UNROLL
        for (uint32_t r = 0; r < A8_TILE; r++)
            walk_store(w, row + r, acc_at[r], acc[r]);
    }
}

// The last rows, fewer than 16.
VEC_INLINE void matrix_last(const struct matrix_walk *w, size_t row, float (*acc_at)[PANEL_LANES])
{
    for (uint32_t r = 0; r < w->args->rows - row; r++)
        vf_store(acc_at[r], walk_load(w, acc_at[r]));
    for (uint32_t g = 0; g < w->groups; g++) {
        struct group_scales scales;
        size_t i = walk_at(w, g, row);
        matrix_last_rows(w->x.q + i, w->codes + (size_t)g * GROUP * PANEL_LANES, w->dot[0]);
        walk_scales(w, g, &scales);
        for (uint32_t r = 0; r < w->args->rows - row; r++)
            vf_store(acc_at[r], group_add(w->type, &scales, w->x.scale + i + r, w->x.shift + i + r,
                                          matrix_sum(w->dot[0][r]), vf_load(acc_at[r])));
    }
    for (uint32_t r = 0; r < w->args->rows - row; r++)
        walk_store(w, row + r, acc_at[r], vf_load(acc_at[r]));
}

// Rows [first, last) of one panel.
VEC_INLINE void matrix_rows(enum dtype type, const struct matmul_args *a, const struct panel_layout *at,
                            uint32_t p, uint32_t first, uint32_t last, struct matrix_block *block)
{
    const uint8_t *panel = a->w + p * at->bytes;
    uint32_t groups = a->k / GROUP;
    struct matrix_walk w = {.type = type,
                            .args = a,
                            .panel = p,
                            .x = a8_at((void *)a->x, a->rows, a->k),
                            .d = block->d,
                            .m = block->m,
                            .dot = block->dot};
    uint32_t whole = (last - first) / A8_TILE * A8_TILE;
    for (; w.begin < groups; w.begin += w.groups) {
        w.groups = groups - w.begin < MATRIX_GROUPS ? groups - w.begin : MATRIX_GROUPS;
        w.codes = matrix_unpack(type, panel, at, w.begin, w.begin + w.groups, block);
        w.next = (uintptr_t)(w.begin + w.groups < groups ? panel_codes(type, panel, w.begin + w.groups)
                                                         : panel + at->bytes);
        if (whole > 0)
            matrix_tiles(&w, first, whole / A8_TILE, block->acc);
        if (first + whole < last)
            matrix_last(&w, first + whole, block->acc + whole);
    }
}

VEC_INLINE void matmul_matrix(enum dtype type, const struct matmul_args *a, uint32_t panel_begin,
                              uint32_t panel_end)
{
    const struct panel_layout at = panel_layout(type, a->k);
    struct matrix_block block;
    matrix_begin(a->rows % A8_TILE);
    for (uint32_t p = panel_begin; p < panel_end; p++)
        for (uint32_t first = 0, last; first < a->rows; first = last) {
            last = a->rows - first < MATRIX_BLOCK_ROWS ? a->rows : first + MATRIX_BLOCK_ROWS;
            matrix_rows(type, a, &at, p, first, last, &block);
        }
    matrix_end();
}
#endif
