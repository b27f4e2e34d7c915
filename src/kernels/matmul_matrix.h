// A panel times 16 rows at a time on a matrix unit (see vec_amx.h), included by matmul.c where an ISA has one.
// The unit gives the exact dots of a group; scales follow in the vector unit as for every ISA, one group after
// the other, so the bytes are the same.
#pragma once

#define MATRIX_GROUPS     32
#define MATRIX_BLOCK_ROWS 128 // rows that share what is unpacked

struct matrix_block {
    _Alignas(64) uint8_t code[MATRIX_GROUPS][GROUP * PANEL_LANES];
    _Alignas(64) float d[MATRIX_GROUPS][PANEL_LANES];
    _Alignas(64) float m[MATRIX_GROUPS][PANEL_LANES];
    _Alignas(64) float acc[MATRIX_BLOCK_ROWS][PANEL_LANES];
    _Alignas(64) int32_t dot[4][VEC_MATRIX_ROWS][PANEL_LANES];
};

// Unpacks groups [begin, end). The result is their codes: 8-bit ones are used where they are.
VEC_INLINE const uint8_t *matrix_unpack(enum dtype type, const uint8_t *panel, const struct panel_layout *at,
                                        uint32_t begin, uint32_t end, struct matrix_block *block)
{
    for (uint32_t g = begin; g < end; g++) {
        struct group_weights w;
        group_scales(type, panel, at, g, &w);
        vf_store(block->d[g - begin], w.d);
        if (has_min(type))
            vf_store(block->m[g - begin], w.m);
        if (type == DT_Q8_0)
            continue;
        group_codes(type, panel, at, g, &w);
        VEC_UNROLL
        for (int v = 0; v < 8; v++)
            vb_store(block->code[g - begin] + 64 * v, vb_minus(w.code[v], 8 * zero_eighths(type)));
    }
    return type == DT_Q8_0 ? panel + (size_t)begin * GROUP * PANEL_LANES : block->code[0];
}

// What a tile of rows needs while it goes through the groups of K.
struct matrix_walk {
    enum dtype type;
    const uint8_t *codes;                       // signed, of group `begin` on
    float (*d)[PANEL_LANES], (*m)[PANEL_LANES]; // the same groups' scales
    struct a8 x;
    size_t row, rows; // the tile's first, and all of x
    uint32_t begin, end;
    int32_t (*dot)[VEC_MATRIX_ROWS][PANEL_LANES]; // of group g in dot[g % 4]
};

VEC_INLINE void walk_scales(const struct matrix_walk *w, uint32_t g, struct group_weights *ret)
{
    ret->d = vf_load(w->d[g - w->begin]);
    if (has_min(w->type))
        ret->m = vf_load(w->m[g - w->begin]);
}

VEC_INLINE void walk_start(const struct matrix_walk *w, int odd, uint32_t g)
{
    matrix_start(odd, w->x.q + g * w->rows + w->row, w->codes + (size_t)(g - w->begin) * GROUP * PANEL_LANES);
}

VEC_INLINE void walk_finish(const struct matrix_walk *w, int odd, uint32_t g)
{
    matrix_finish(odd, w->dot[g % 4]);
}

// Group g. Before its sums are used, those of g + 2 are stored and those of g + 4 started, so that none is
// waited for.
VEC_INLINE void walk_group(const struct matrix_walk *w, int odd, uint32_t g, vf acc[VEC_MATRIX_ROWS])
{
    struct group_weights scales;
    if (g + 2 < w->end)
        walk_finish(w, odd, g + 2);
    if (g + 4 < w->end)
        walk_start(w, odd, g + 4);
    walk_scales(w, g, &scales);
    VEC_UNROLL
    for (uint32_t r = 0; r < VEC_MATRIX_ROWS; r++)
        acc[r] =
            group_add(w->type, &scales, &w->x, g * w->rows + w->row + r, vi_load(w->dot[g % 4][r]), acc[r]);
}

// 16 rows; their accumulators are in acc_at between calls.
VEC_INLINE void matrix_tile(const struct matrix_walk *w, float (*acc_at)[PANEL_LANES])
{
    vf acc[VEC_MATRIX_ROWS];
    VEC_UNROLL
    for (int r = 0; r < VEC_MATRIX_ROWS; r++)
        acc[r] = vf_load(acc_at[r]);
    for (int ahead = 0; ahead < 4; ahead += 2) {
        if (w->begin + ahead < w->end)
            walk_start(w, 0, w->begin + ahead);
        if (w->begin + ahead + 1 < w->end)
            walk_start(w, 1, w->begin + ahead + 1);
        if (ahead == 0)
            walk_finish(w, 0, w->begin);
        if (ahead == 0 && w->begin + 1 < w->end)
            walk_finish(w, 1, w->begin + 1);
    }
    for (uint32_t g = w->begin; g < w->end; g += 2) {
        walk_group(w, 0, g, acc);
        if (g + 1 < w->end)
            walk_group(w, 1, g + 1, acc);
    }
    VEC_UNROLL
    for (int r = 0; r < VEC_MATRIX_ROWS; r++)
        vf_store(acc_at[r], acc[r]);
}

// The last rows, fewer than 16.
VEC_INLINE void matrix_last(const struct matrix_walk *w, float (*acc_at)[PANEL_LANES])
{
    const uint8_t *codes = w->codes;
    for (uint32_t g = w->begin; g < w->end; g++, codes += GROUP * PANEL_LANES) {
        struct group_weights scales;
        size_t i = g * w->rows + w->row;
        matrix_last_rows(w->x.q + i, codes, w->dot[0]);
        walk_scales(w, g, &scales);
        for (uint32_t r = 0; r < w->rows - w->row; r++)
            vf_store(acc_at[r],
                     group_add(w->type, &scales, &w->x, i + r, vi_load(w->dot[0][r]), vf_load(acc_at[r])));
    }
}

// Rows [first, last) of one panel.
VEC_INLINE void matrix_rows(enum dtype type, const struct matmul_args *a, const struct panel_layout *at,
                            uint32_t p, uint32_t first, uint32_t last, struct matrix_block *block)
{
    const uint8_t *panel = a->w + p * at->bytes;
    uint32_t groups = a->k / GROUP;
    struct matrix_walk w = {.type = type,
                            .x = a8_at((void *)a->x, a->rows, a->k),
                            .rows = a->rows,
                            .d = block->d,
                            .m = block->m,
                            .dot = block->dot};
    memset(block->acc, 0, (last - first) * sizeof block->acc[0]);
    for (; w.begin < groups; w.begin = w.end) {
        w.end = groups - w.begin < MATRIX_GROUPS ? groups : w.begin + MATRIX_GROUPS;
        w.codes = matrix_unpack(type, panel, at, w.begin, w.end, block);
        for (w.row = first; last - w.row >= VEC_MATRIX_ROWS; w.row += VEC_MATRIX_ROWS)
            matrix_tile(&w, block->acc + (w.row - first));
        if (w.row < last)
            matrix_last(&w, block->acc + (w.row - first));
    }
    for (uint32_t row = first; row < last; row++)
        tile_store(a, p, row, vf_load(block->acc[row - first]));
}

VEC_INLINE void matmul_matrix(enum dtype type, const struct matmul_args *a, uint32_t panel_begin,
                              uint32_t panel_end)
{
    const struct panel_layout at = panel_layout(type, a->k);
    struct matrix_block block;
    matrix_begin(a->rows % VEC_MATRIX_ROWS);
    for (uint32_t p = panel_begin; p < panel_end; p++)
        for (uint32_t first = 0, last; first < a->rows; first = last) {
            last = a->rows - first < MATRIX_BLOCK_ROWS ? a->rows : first + MATRIX_BLOCK_ROWS;
            matrix_rows(type, a, &at, p, first, last, &block);
        }
    matrix_end();
}
