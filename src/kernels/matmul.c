// y[row][out] = sum over k of W[out][k] x[row][k], in the order of numerics.md, rules 3 to 6:
//   grouped types  per group of 32, ascending: acc = fma(d * sa, (float)dot, acc), then where the type has a
//                  minimum acc = fma(m, sa * (float)suma, acc); dot = sum of signed codes times activation
//                  codes, exact; where halves of the group have sub-scales, those weigh the halves' sums in
//                  dot and suma
//   float types    per input, ascending: acc = fma(w, x, acc)
// One accumulator per output, whose lane it is. A tile of rows shares the unpacked weights; each row's own
// chain is the same whatever rows are beside it.
#include "base/num.h"
#include "kernels/kernels_isa.h"
#include "kernels/matmul_group.h"
#include "kernels/matmul_matrix.h"

// Dots of `n_pairs` pairs of vectors of one group, of `panels` panels, each as many bytes after the last as it has, with
// `rows` rows that lie together from x_at on: added to dot[row * panels + panel].
VEC_INLINE void pair_dots(enum dtype type, const uint8_t *w, const struct panel_layout *at, uint32_t group,
                          uint32_t panels, const struct a8 *x, size_t x_at, uint32_t rows,
                          uint32_t first_pair, uint32_t n_pairs, vi *dot)
{
    // A single chain waits for memory: all its codes are loaded first. Several need the registers.
    const uint32_t together = rows * panels == 1 ? n_pairs : 1;
    VEC_UNROLL
    for (uint32_t first = first_pair; first < first_pair + n_pairs; first += together) {
        vb code[4 * VEC_PANEL_TILE][2];
        VEC_UNROLL
        for (uint32_t c = 0; c < together * panels; c++)
            group_codes(type, w + c % panels * at->bytes, at, group, first + c / panels, code[c]);
        VEC_UNROLL
        for (uint32_t v = 0; v < 2 * together; v++) {
            VEC_UNROLL
            for (uint32_t i = 0; i < rows * panels; i++) {
                const int8_t *q = x->q[x_at + i / panels] + 4 * pair_vector(type, first + v / 2, v % 2);
                vb u = code[v / 2 * panels + i % panels][v % 2];
                dot[i] = is_signed(type) ? vi_dot4_s(dot[i], u, q) : vi_dot4_u(dot[i], u, q);
            }
        }
    }
}

// A group: added to acc[row * panels + panel].
VEC_INLINE void group_dots(enum dtype type, const uint8_t *w, const struct panel_layout *at, uint32_t group,
                           uint32_t panels, const struct a8 *x, size_t x_at, uint32_t rows, vf *acc)
{
    struct group_scales scales[VEC_PANEL_TILE];
    VEC_UNROLL
    for (uint32_t p = 0; p < panels; p++)
        group_scales(type, w + p * at->bytes, at, group, &scales[p]);
    vi dot[VEC_TILE];
    VEC_UNROLL
    for (uint32_t i = 0; i < rows * panels; i++)
        dot[i] = vi_set1(vector_zero(type) ? zero_part(type, x->zero[x_at + i / panels]) : 0);
    pair_dots(type, w, at, group, panels, x, x_at, rows, 0, 4, dot);
    VEC_UNROLL
    for (uint32_t i = 0; i < rows * panels; i++) {
        size_t row = x_at + i / panels;
        acc[i] =
            group_add(type, &scales[i % panels], x->scale + row, x->shift + row, vf_from_vi(dot[i]), acc[i]);
    }
}

// A group of a type whose halves have sub-scales. Their weighed sum is an exact integer below 2^24, and never -0, as it
// starts at +0.
VEC_INLINE void half_dots(enum dtype type, const uint8_t *w, const struct panel_layout *at, uint32_t group,
                          uint32_t panels, const struct a8 *x, size_t x_at, uint32_t rows, vf *acc)
{
    struct group_scales scales[VEC_PANEL_TILE];
    VEC_UNROLL
    for (uint32_t p = 0; p < panels; p++)
        group_scales(type, w + p * at->bytes, at, group, &scales[p]);
    vf sum[VEC_TILE];
    VEC_UNROLL
    for (uint32_t half = 0; half < 2; half++) {
        vi dot[VEC_TILE];
        VEC_UNROLL
        for (uint32_t i = 0; i < rows * panels; i++) {
            size_t row = x_at + i / panels;
            dot[i] = vi_set1(zero_part(type, half ? x->zero[row] - x->half[row] : x->half[row]));
        }
        pair_dots(type, w, at, group, panels, x, x_at, rows, 2 * half, 2, dot);
        VEC_UNROLL
        for (uint32_t i = 0; i < rows * panels; i++)
            sum[i] = vf_fma(scales[i % panels].sub[half], vf_from_vi(dot[i]), half ? sum[i] : vf_set1(0));
    }
    VEC_UNROLL
    for (uint32_t i = 0; i < rows * panels; i++) {
        const struct group_scales *s = &scales[i % panels];
        size_t row = x_at + i / panels;
        vf scale = vf_set1(x->scale[row]);
        acc[i] = vf_fma(vf_mul(s->d, scale), sum[i], acc[i]);
        if (has_min(type)) {
            float first = (float)x->half[row] * -0.125f,
                  second = (float)(x->zero[row] - x->half[row]) * -0.125f;
            vf shift = vf_fma(s->min_sub[0], vf_set1(first), vf_set1(0));
            shift = vf_fma(s->min_sub[1], vf_set1(second), shift);
            acc[i] = vf_fma(s->m, vf_mul(scale, shift), acc[i]);
        }
    }
}

VEC_INLINE vf float_load(enum dtype type, const uint8_t *panel, uint32_t k)
{
    if (type == DT_F32)
        return vf_load((const float *)panel + (size_t)k * PANEL_LANES);
    if (type == DT_F16)
        return vf_load_f16((const uint16_t *)panel + (size_t)k * PANEL_LANES);
    return vf_load_bf16((const uint16_t *)panel + (size_t)k * PANEL_LANES);
}

// A panel is read in two to six streams at once (codes, high bits, sub-scales, scales, minima), which the processor's own
// prefetchers follow less well than one. So the first rows of a panel ask for what lies this far ahead of the codes,
// and for what follows the codes in the next panel; the other rows find a panel in the cache. To go on in the codes
// alone, and to spread the second request over the first, was measured and is slower (decode of Q4_0 by a fifth).
#define PREFETCH_BYTES 6144

// From an address, which near the end of the weights may lie past them.
VEC_INLINE void prefetch(uintptr_t from, uint64_t bytes)
{
    for (uint64_t i = 0; i < bytes; i += 64)
        __builtin_prefetch((const void *)(from + i), 0, 3);
}

// `panels` panels times `rows` rows, constants where this is inlined, so that the accumulators stay in registers.
VEC_INLINE void matmul_tile(enum dtype type, const struct matmul_args *a, const struct panel_layout *at,
                            uint32_t panel, uint32_t panels, uint32_t row, uint32_t rows)
{
    const uint8_t *w = a->w + panel * at->bytes;
    vf acc[VEC_TILE]; // row * panels + panel
    VEC_UNROLL
    for (uint32_t i = 0; i < rows * panels; i++)
        acc[i] = vf_set1(0);
    if (is_float(type)) {
        const uint8_t *x = (const uint8_t *)a->x + row * a->x_stride;
        for (uint32_t k = 0; k < a->k; k++) {
            vf weights[VEC_PANEL_TILE];
            VEC_UNROLL
            for (uint32_t p = 0; p < panels; p++)
                weights[p] = float_load(type, w + p * at->bytes, k);
            VEC_UNROLL
            for (uint32_t i = 0; i < rows * panels; i++)
                acc[i] = vf_fma(weights[i % panels],
                                vf_set1(((const float *)(x + i / panels * a->x_stride))[k]), acc[i]);
        }
    } else {
        const struct a8 x = a8_at((void *)a->x, a->rows, a->k);
        size_t x_at = a8_index(a->rows, a->k, 0, row);
        uint64_t codes = (uint64_t)code_bytes(type) * (a->k / GROUP);
        for (uint32_t p = 0; p < panels && row == 0; p++)
            prefetch((uintptr_t)w + (panels + p) * at->bytes + codes, at->bytes - codes);
        for (uint32_t g = 0; g < a->k / GROUP; g++, x_at += a8_tile_rows(a->rows, row)) {
            for (uint32_t p = 0; p < panels && row == 0; p++)
                prefetch((uintptr_t)(w + p * at->bytes) + (size_t)g * group_bytes(type) + PREFETCH_BYTES,
                         group_bytes(type));
            if (subs_of(type) == 2)
                half_dots(type, w, at, g, panels, &x, x_at, rows, acc);
            else
                group_dots(type, w, at, g, panels, &x, x_at, rows, acc);
        }
    }
    VEC_UNROLL
    for (uint32_t i = 0; i < rows * panels; i++)
        tile_store(a, panel + i % panels, row + i / panels, acc[i]);
}

VEC_INLINE void matmul_panels(enum dtype type, const struct matmul_args *a, const struct panel_layout *at,
                              uint32_t panel, uint32_t panels)
{
    uint32_t row = 0;
    for (; a->rows - row >= VEC_ROW_TILE; row += VEC_ROW_TILE)
        matmul_tile(type, a, at, panel, panels, row, VEC_ROW_TILE);
    for (; a->rows - row >= 2; row += 2)
        matmul_tile(type, a, at, panel, panels, row, 2);
    // A last row takes panel after panel, which reads the weights straight on.
    for (uint32_t p = panel; p < panel + panels && row < a->rows; p++)
        matmul_tile(type, a, at, p, 1, row, 1);
}

VEC_INLINE void matmul(enum dtype type, const struct matmul_args *a, uint32_t panel_begin, uint32_t panel_end)
{
#ifdef VEC_MATRIX
    if (!is_float(type) && subs_of(type) < 2 && a->rows >= VEC_MATRIX_MIN) {
        matmul_matrix(type, a, panel_begin, panel_end);
        return;
    }
#endif
    const struct panel_layout at = panel_layout(type, a->k);
    ASSERT_HOT(is_float(type) ||
               num_align((uint64_t)group_bytes(type) * (a->k / GROUP), PANEL_ALIGN) == at.bytes);
    uint32_t p = panel_begin;
    for (; panel_end - p >= VEC_PANEL_TILE; p += VEC_PANEL_TILE)
        matmul_panels(type, a, &at, p, VEC_PANEL_TILE);
    for (; p < panel_end; p++)
        matmul_panels(type, a, &at, p, 1);
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
MATMUL(matmul_q2_k, DT_Q2_K)
MATMUL(matmul_q3_k, DT_Q3_K)
MATMUL(matmul_q4_k, DT_Q4_K)
MATMUL(matmul_q5_k, DT_Q5_K)
MATMUL(matmul_q6_k, DT_Q6_K)
MATMUL(matmul_iq4_nl, DT_IQ4_NL)
MATMUL(matmul_iq4_xs, DT_IQ4_XS)
MATMUL(matmul_w6, DT_W6)
