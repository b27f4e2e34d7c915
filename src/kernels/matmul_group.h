// What the ways to multiply by a panel share: a group's codes and scales, its step of the sum, the end of a row.
#pragma once

#include "kernels/kernels.h"
#include "kernels/vec.h"

struct group_scales {
    vf d, m;               // of one group of a panel
    vf sub[2], min_sub[2]; // of its halves, where those have their own
};

VEC_INLINE bool is_float(enum dtype type)
{
    return type == DT_F32 || type == DT_F16 || type == DT_BF16;
}

VEC_INLINE bool has_min(enum dtype type)
{
    return type == DT_Q4_1 || type == DT_Q5_1 || type == DT_Q2_K || type == DT_Q4_K || type == DT_Q5_K;
}

// Codes are signed bytes: as stored, or from a table.
VEC_INLINE bool has_table(enum dtype type)
{
    return type == DT_IQ4_NL || type == DT_IQ4_XS;
}

// Codes of 6 bits: the highest two are a plane of their own.
VEC_INLINE bool has_quarters(enum dtype type)
{
    return type == DT_Q6_K || type == DT_W6;
}

VEC_INLINE bool is_signed(enum dtype type)
{
    return type == DT_Q8_0 || has_table(type);
}

// Sub-scales of a group.
VEC_INLINE uint32_t subs_of(enum dtype type)
{
    return type == DT_Q2_K || type == DT_Q3_K || type == DT_Q6_K     ? 2
           : type == DT_Q4_K || type == DT_Q5_K || type == DT_IQ4_XS ? 1
                                                                     : 0;
}

// The value of a code's bit in the high plane, where that has one bit a code.
VEC_INLINE uint8_t high_bit(enum dtype type)
{
    return type == DT_Q5_0 || type == DT_Q5_1 || type == DT_Q5_K ? 16 : type == DT_Q3_K ? 4 : 0;
}

// What is taken off a code.
VEC_INLINE int32_t zero_of(enum dtype type)
{
    switch (type) {
    case DT_Q4_0:
        return 8;
    case DT_Q5_0:
        return 16;
    case DT_Q3_K:
        return 4;
    case DT_Q6_K:
    case DT_W6:
        return 32;
    default:
        return 0;
    }
}

// The same of the codes that group_codes gives.
VEC_INLINE int32_t vector_zero(enum dtype type)
{
    return is_signed(type) ? VEC_SIGNED_ZERO : zero_of(type);
}

// What that adds to a dot; `eighths` is -8 times the sum of its activation codes.
VEC_INLINE int32_t zero_part(enum dtype type, int32_t eighths)
{
    return vector_zero(type) % 8 ? eighths / 8 * vector_zero(type) : eighths * (vector_zero(type) / 8);
}

// Packed bytes of a group.
VEC_INLINE uint32_t code_bytes(enum dtype type)
{
    return type == DT_Q8_0 ? 512 : type == DT_Q2_K || type == DT_Q3_K ? 128 : 256;
}

VEC_INLINE uint32_t high_bytes(enum dtype type)
{
    return has_quarters(type) ? 128 : high_bit(type) ? 64 : 0;
}

// Bytes of a panel for each group of 32: codes, high planes, sub-scales, scales, minima.
VEC_INLINE uint32_t group_bytes(enum dtype type)
{
    uint32_t scales = subs_of(type) ? subs_of(type) * 16 + 32 / SUPER_GROUPS : 32;
    return code_bytes(type) + high_bytes(type) + (has_min(type) ? 2 * scales : scales);
}

VEC_INLINE const uint8_t *panel_codes(enum dtype type, const uint8_t *panel, uint32_t group)
{
    return panel + (size_t)group * code_bytes(type);
}

// Which of a group's 8 vectors of codes is in pair 0..3, half 0 or 1: a pair is what lies together.
VEC_INLINE uint32_t pair_vector(enum dtype type, uint32_t pair, uint32_t half)
{
    return type == DT_Q8_0 || has_quarters(type) || subs_of(type) == 2 ? 2 * pair + half : pair + 4 * half;
}

// A pair of vectors of 2-bit numbers, from what holds those of a group.
VEC_INLINE void pair_quarters(const uint8_t *packed, uint32_t pair, vb ret[2])
{
    vb four = vb_load(packed + 64 * (pair / 2));
    ret[0] = vb_quarter(four, 2 * (pair % 2));
    ret[1] = vb_quarter(four, 2 * (pair % 2) + 1);
}

// A pair of vectors of a group's codes, a byte each.
VEC_INLINE void group_codes(enum dtype type, const uint8_t *panel, const struct panel_layout *at,
                            uint32_t group, uint32_t pair, vb code[2])
{
    const uint8_t *codes = panel_codes(type, panel, group);
    const uint8_t *high = panel + at->high + (size_t)group * high_bytes(type);
    if (type == DT_Q8_0) {
        code[0] = vb_signed(vb_load(codes + 128 * pair));
        code[1] = vb_signed(vb_load(codes + 128 * pair + 64));
        return;
    }
    if (code_bytes(type) == 128) {
        pair_quarters(codes, pair, code);
    } else {
        vb packed = vb_load(codes + 64 * pair);
        code[0] = vb_low(packed);
        code[1] = vb_high(packed);
    }
    if (high_bit(type)) {
        uint64_t bits[8];
        memcpy(bits, high, sizeof bits);
        code[0] = vb_add_bit(code[0], bits[pair_vector(type, pair, 0)], high_bit(type));
        code[1] = vb_add_bit(code[1], bits[pair_vector(type, pair, 1)], high_bit(type));
    }
    if (has_quarters(type)) {
        vb quarters[2];
        pair_quarters(high, pair, quarters);
        code[0] = vb_add_high(code[0], quarters[0]);
        code[1] = vb_add_high(code[1], quarters[1]);
    }
    if (has_table(type)) {
        code[0] = vb_signed(vb_table(IQ4_VALUES, code[0]));
        code[1] = vb_signed(vb_table(IQ4_VALUES, code[1]));
    }
}

// d or m of a group. A type with one sub-scale has it multiplied in, which is exact; one with two has them in sub[].
VEC_INLINE vf group_scale(enum dtype type, const uint8_t *panel, uint64_t scales, uint64_t subs,
                          uint32_t group, vf sub[2])
{
    const uint16_t *d = (const uint16_t *)(panel + scales);
    if (subs_of(type) == 0)
        return vf_load_f16(d + (size_t)group * PANEL_LANES);
    vf super = vf_load_f16(d + (size_t)(group / SUPER_GROUPS) * PANEL_LANES);
    const int8_t *s = (const int8_t *)panel + subs + (size_t)group * subs_of(type) * PANEL_LANES;
    if (subs_of(type) == 1)
        return vf_mul(super, vf_load_s8(s));
    sub[0] = vf_load_s8(s);
    sub[1] = vf_load_s8(s + PANEL_LANES);
    return super;
}

VEC_INLINE void group_scales(enum dtype type, const uint8_t *panel, const struct panel_layout *at,
                             uint32_t group, struct group_scales *w)
{
    w->d = group_scale(type, panel, at->scales, at->subs, group, w->sub);
    if (has_min(type))
        w->m = group_scale(type, panel, at->mins, at->min_subs, group, w->min_sub);
}

// acc with the exact dot of one group and row, as f32, added; of a type with at most one sub-scale.
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
