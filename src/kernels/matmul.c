// y[row][out] = sum over k of W[out][k] x[row][k], in the order of numerics.md, rules 3 to 6:
//   grouped types  per group of 32, ascending: acc = fma(d * sa, (float)dot, acc), then where the type has a
//                  minimum acc = fma(m, sa * (float)suma, acc); dot = sum of signed codes times activation
//                  codes, exact
//   float types    per input, ascending: acc = fma(w, x, acc)
// One accumulator per output, whose lane it is. A tile of rows shares the unpacked weights; each row's own
// chain is the same whatever rows are beside it.
#include "kernels/kernels_isa.h"
#include "kernels/matmul_group.h"
#include "kernels/matmul_matrix.h"

VEC_INLINE vf group_dot(enum dtype type, const struct group_weights *w, const struct a8 *x, size_t at, vf acc)
{
    vi dot = vi_set1(zero_eighths(type) ? zero_eighths(type) * x->zero[at] : 0);
    for (int v = 0; v < 8; v++) {
        if (type == DT_Q8_0)
            dot = vi_dot4_s(dot, w->code[v], x->q[at] + 4 * v);
        else
            dot = vi_dot4_u(dot, w->code[v], x->q[at] + 4 * v);
    }
    return group_add(type, w, x->scale + at, x->shift + at, vf_from_vi(dot), acc);
}

VEC_INLINE vf float_load(enum dtype type, const uint8_t *panel, uint32_t k)
{
    if (type == DT_F32)
        return vf_load((const float *)panel + (size_t)k * PANEL_LANES);
    if (type == DT_F16)
        return vf_load_f16((const uint16_t *)panel + (size_t)k * PANEL_LANES);
    return vf_load_bf16((const uint16_t *)panel + (size_t)k * PANEL_LANES);
}

// A panel is read in two or three streams at once (codes, scales, minima), which the processor's own prefetchers
// follow less well than one. Panels are asked for in the order they lie in, this far ahead: in effect the codes, by
// far the most, and the scales only near a panel's end.
#define PREFETCH_ROWS  4
#define PREFETCH_BYTES 2048

// One panel times `tile` rows, a constant where this is inlined, so that the accumulators stay in registers.
VEC_INLINE void matmul_tile(enum dtype type, const struct matmul_args *a, const struct panel_layout *at,
                            uint32_t panel, uint32_t row, uint32_t tile)
{
    const uint8_t *w = a->w + panel * at->bytes;
    vf acc[VEC_ROW_TILE];
    VEC_UNROLL
    for (uint32_t r = 0; r < tile; r++)
        acc[r] = vf_set1(0);
    if (is_float(type)) {
        const uint8_t *x = (const uint8_t *)a->x + row * a->x_stride;
        for (uint32_t k = 0; k < a->k; k++) {
            vf weights = float_load(type, w, k);
            VEC_UNROLL
            for (uint32_t r = 0; r < tile; r++)
                acc[r] = vf_fma(weights, vf_set1(((const float *)(x + r * a->x_stride))[k]), acc[r]);
        }
    } else {
        const struct a8 x = a8_at((void *)a->x, a->rows, a->k);
        size_t x_at = a8_index(a->rows, a->k, 0, row);
        for (uint32_t g = 0; g < a->k / GROUP; g++, x_at += a8_tile_rows(a->rows, row)) {
            struct group_weights weights;
            if (tile <= PREFETCH_ROWS) // more rows are bound by arithmetic
                for (uint32_t i = 0; i < group_bytes(type); i += 64)
                    __builtin_prefetch(w + (size_t)g * group_bytes(type) + i + PREFETCH_BYTES, 0, 3);
            group_codes(type, w, at, g, &weights);
            group_scales(type, w, at, g, &weights);
            VEC_UNROLL
            for (uint32_t r = 0; r < tile; r++)
                acc[r] = group_dot(type, &weights, &x, x_at + r, acc[r]);
        }
    }
    VEC_UNROLL
    for (uint32_t r = 0; r < tile; r++)
        tile_store(a, panel, row + r, acc[r]);
}

VEC_INLINE void matmul(enum dtype type, const struct matmul_args *a, uint32_t panel_begin, uint32_t panel_end)
{
#ifdef VEC_MATRIX
    if (!is_float(type) && a->rows >= VEC_MATRIX_MIN) {
        matmul_matrix(type, a, panel_begin, panel_end);
        return;
    }
#endif
    const struct panel_layout at = panel_layout(type, a->k);
    for (uint32_t p = panel_begin; p < panel_end; p++) {
        uint32_t row = 0;
        for (; a->rows - row >= VEC_ROW_TILE; row += VEC_ROW_TILE)
            matmul_tile(type, a, &at, p, row, VEC_ROW_TILE);
        for (; a->rows - row >= 4 && VEC_ROW_TILE > 4; row += 4)
            matmul_tile(type, a, &at, p, row, 4);
        for (; a->rows - row >= 2; row += 2)
            matmul_tile(type, a, &at, p, row, 2);
        if (row < a->rows)
            matmul_tile(type, a, &at, p, row, 1);
    }
}

#define MATMUL(name, type)                                                                   \
    void KERNEL(name)(const struct matmul_args *a, uint32_t panel_begin, uint32_t panel_end) \
    {                                                                                        \
        matmul(type, a, panel_begin, panel_end);                                             \
    }

MATMUL(matmul_f32, DT_F32)
MATMUL(matmul_f16, DT_F16)
MATMUL(matmul_bf16, DT_BF16)
MATMUL(matmul_q4_0, DT_Q4_0)
MATMUL(matmul_q4_1, DT_Q4_1)
MATMUL(matmul_q5_0, DT_Q5_0)
MATMUL(matmul_q5_1, DT_Q5_1)
MATMUL(matmul_q8_0, DT_Q8_0)
