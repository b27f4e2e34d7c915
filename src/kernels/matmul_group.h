// What the ways to multiply by a panel share: a group's codes and scales, its step of the sum, the end of a row.
#pragma once

#include "kernels/kernels.h"
#include "kernels/vec.h"

struct group_scales {
    vf d, m; // of one group of a panel
};

VEC_INLINE bool is_float(enum dtype type)
{
    return type == DT_F32 || type == DT_F16 || type == DT_BF16;
}

VEC_INLINE bool has_min(enum dtype type)
{
    return type == DT_Q4_1 || type == DT_Q5_1;
}

VEC_INLINE bool has_fifth(enum dtype type)
{
    return type == DT_Q5_0 || type == DT_Q5_1;
}

// Codes are stored unsigned; a type without a minimum has its zero at 8 or 16. In units of 8.
VEC_INLINE int32_t zero_eighths(enum dtype type)
{
    return type == DT_Q4_0 ? 1 : type == DT_Q5_0 ? 2 : type == DT_Q8_0 ? VEC_SIGNED_ZERO / 8 : 0;
}

// Bytes of a panel for each group of 32: codes, fifth bits, scales, minima.
VEC_INLINE uint32_t group_bytes(enum dtype type)
{
    uint32_t codes = type == DT_Q8_0 ? 512 : 256, high = has_fifth(type) ? 64 : 0;
    return codes + high + (has_min(type) ? 64 : 32);
}

VEC_INLINE const uint8_t *panel_codes(enum dtype type, const uint8_t *panel, uint32_t group)
{
    return panel + (size_t)group * (type == DT_Q8_0 ? 512 : 256);
}

// Which of a group's 8 vectors of codes is in pair 0..3, half 0 or 1: a pair is what lies together.
VEC_INLINE uint32_t pair_vector(enum dtype type, uint32_t pair, uint32_t half)
{
    return type == DT_Q8_0 ? 2 * pair + half : pair + 4 * half;
}

// A pair of vectors of a group's codes, a byte each.
VEC_INLINE void group_codes(enum dtype type, const uint8_t *panel, const struct panel_layout *at,
                            uint32_t group, uint32_t pair, vb code[2])
{
    const uint8_t *codes = panel_codes(type, panel, group);
    if (type == DT_Q8_0) {
        code[0] = vb_signed(vb_load(codes + 128 * pair));
        code[1] = vb_signed(vb_load(codes + 128 * pair + 64));
        return;
    }
    vb packed = vb_load(codes + 64 * pair);
    code[0] = vb_low(packed);
    code[1] = vb_high(packed);
    if (has_fifth(type)) {
        uint64_t fifth[8];
        memcpy(fifth, panel + at->high + (size_t)group * sizeof fifth, sizeof fifth);
        code[0] = vb_add_fifth(code[0], fifth[pair]);
        code[1] = vb_add_fifth(code[1], fifth[pair + 4]);
    }
}

VEC_INLINE void group_scales(enum dtype type, const uint8_t *panel, const struct panel_layout *at,
                             uint32_t group, struct group_scales *w)
{
    w->d = vf_load_f16((const uint16_t *)(panel + at->scales) + (size_t)group * PANEL_LANES);
    if (has_min(type))
        w->m = vf_load_f16((const uint16_t *)(panel + at->mins) + (size_t)group * PANEL_LANES);
}

// acc with the exact dot of one group and row, as f32, added.
VEC_INLINE vf group_add(enum dtype type, const struct group_scales *w, const float *scale, const float *shift,
                        vf dot, vf acc)
{
    acc = vf_fma(vf_mul(w->d, vf_set1(*scale)), dot, acc);
    return has_min(type) ? vf_fma(w->m, vf_set1(*shift), acc) : acc;
}

VEC_INLINE void tile_store(const struct matmul_args *a, uint32_t panel, uint32_t row, vf acc)
{
    uint32_t first = panel * PANEL_LANES;
    float *y = (float *)((uint8_t *)a->y + row * a->y_stride) + first;
    if (a->n - first >= PANEL_LANES) {
        vf_store(y, a->bias ? vf_add(acc, vf_load(a->bias + first)) : acc);
        return;
    }
    float lane[PANEL_LANES];
    vf_store(lane, acc);
    for (uint32_t i = 0; i < a->n - first; i++)
        y[i] = a->bias ? lane[i] + a->bias[first + i] : lane[i];
}
