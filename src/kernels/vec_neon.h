// vec.h on NEON with the dot product extension (aarch64): 16 lanes are four registers.
#pragma once

#include <arm_neon.h>

typedef float32x4x4_t vf;
typedef int32x4x4_t vi;
typedef int8x16x4_t vb;
typedef uint32x4x4_t vm;

#define VEC_SIGNED_ZERO   0
#define VEC_ROW_TILE      2
#define VEC_PANEL_TILE    1
#define VEC_QUERY_TILE    4
#define VEC_QUERY_VECTORS 1

#define VEC_FOUR(type, expression)  \
    type four;                      \
    for (int i = 0; i < 4; i++)     \
        four.val[i] = (expression); \
    return four

VEC_INLINE vf vf_load(const float *p)
{
    VEC_FOUR(vf, vld1q_f32(p + 4 * i));
}

VEC_INLINE void vf_store(float *p, vf v)
{
    for (int i = 0; i < 4; i++)
        vst1q_f32(p + 4 * i, v.val[i]);
}

VEC_INLINE vf vf_set1(float x)
{
    VEC_FOUR(vf, vdupq_n_f32(x));
}

VEC_INLINE vf vf_load_f16(const uint16_t *p)
{
    VEC_FOUR(vf, vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p + 4 * i))));
}

VEC_INLINE vf vf_load_bf16(const uint16_t *p)
{
    VEC_FOUR(vf, vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p + 4 * i), 16)));
}

VEC_INLINE vf vf_load_s8(const int8_t *p)
{
    int8x16_t bytes = vld1q_s8(p);
    int16x8_t words[2] = {vmovl_s8(vget_low_s8(bytes)), vmovl_s8(vget_high_s8(bytes))};
    VEC_FOUR(vf, vcvtq_f32_s32(i % 2 ? vmovl_high_s16(words[i / 2]) : vmovl_s16(vget_low_s16(words[i / 2]))));
}

VEC_INLINE vf vf_add(vf a, vf b)
{
    VEC_FOUR(vf, vaddq_f32(a.val[i], b.val[i]));
}

VEC_INLINE vf vf_sub(vf a, vf b)
{
    VEC_FOUR(vf, vsubq_f32(a.val[i], b.val[i]));
}

VEC_INLINE vf vf_mul(vf a, vf b)
{
    VEC_FOUR(vf, vmulq_f32(a.val[i], b.val[i]));
}

VEC_INLINE vf vf_div(vf a, vf b)
{
    VEC_FOUR(vf, vdivq_f32(a.val[i], b.val[i]));
}

VEC_INLINE vf vf_fma(vf a, vf b, vf c)
{
    VEC_FOUR(vf, vfmaq_f32(c.val[i], a.val[i], b.val[i]));
}

VEC_INLINE float vf_sqrt_scalar(float x)
{
    return vgetq_lane_f32(vsqrtq_f32(vdupq_n_f32(x)), 0);
}

VEC_INLINE vm vf_greater(vf a, vf b)
{
    VEC_FOUR(vm, vcgtq_f32(a.val[i], b.val[i]));
}

VEC_INLINE vm vf_ordered(vf a)
{
    VEC_FOUR(vm, vceqq_f32(a.val[i], a.val[i]));
}

VEC_INLINE vm vm_below(uint32_t n)
{
    const uint32x4_t lane = {0, 1, 2, 3};
    VEC_FOUR(vm, vcltq_u32(vaddq_u32(lane, vdupq_n_u32(4 * (uint32_t)i)), vdupq_n_u32(n)));
}

VEC_INLINE vf vf_select(vm m, vf a, vf b)
{
    VEC_FOUR(vf, vbslq_f32(m.val[i], a.val[i], b.val[i]));
}

VEC_INLINE vf vf_add_exponent(vf a, vf n)
{
    VEC_FOUR(vf, vreinterpretq_f32_u32(vaddq_u32(vreinterpretq_u32_f32(a.val[i]),
                                                 vshlq_n_u32(vreinterpretq_u32_f32(n.val[i]), 23))));
}

VEC_INLINE vi vi_set1(int32_t x)
{
    VEC_FOUR(vi, vdupq_n_s32(x));
}

VEC_INLINE void vi_store(int32_t *p, vi v)
{
    for (int i = 0; i < 4; i++)
        vst1q_s32(p + 4 * i, v.val[i]);
}

VEC_INLINE vi vi_max_magnitude(vi acc, vf a)
{
    VEC_FOUR(vi, vmaxq_s32(acc.val[i], vandq_s32(vreinterpretq_s32_f32(a.val[i]), vdupq_n_s32(0x7FFFFFFF))));
}

VEC_INLINE vf vf_from_vi(vi v)
{
    VEC_FOUR(vf, vcvtq_f32_s32(v.val[i]));
}

VEC_INLINE vi vi_add(vi a, vi b)
{
    VEC_FOUR(vi, vaddq_s32(a.val[i], b.val[i]));
}

VEC_INLINE int32_t vi_fold_add(vi v)
{
    return vaddvq_s32(vaddq_s32(vaddq_s32(v.val[0], v.val[1]), vaddq_s32(v.val[2], v.val[3])));
}

VEC_INLINE int32_t vi_fold_max(vi v)
{
    return vmaxvq_s32(vmaxq_s32(vmaxq_s32(v.val[0], v.val[1]), vmaxq_s32(v.val[2], v.val[3])));
}

VEC_INLINE vi vf_round(vf x)
{
    VEC_FOUR(vi, vcvtnq_s32_f32(x.val[i]));
}

VEC_INLINE void vi_store_s8(int8_t *q, vi v)
{
    int16x8_t low = vcombine_s16(vmovn_s32(v.val[0]), vmovn_s32(v.val[1]));
    int16x8_t high = vcombine_s16(vmovn_s32(v.val[2]), vmovn_s32(v.val[3]));
    vst1q_s8(q, vcombine_s8(vmovn_s16(low), vmovn_s16(high)));
}

VEC_INLINE vb vb_load(const uint8_t *p)
{
    VEC_FOUR(vb, vreinterpretq_s8_u8(vld1q_u8(p + 16 * i)));
}

VEC_INLINE vb vb_low(vb packed)
{
    VEC_FOUR(vb, vandq_s8(packed.val[i], vdupq_n_s8(15)));
}

VEC_INLINE vb vb_high(vb packed)
{
    VEC_FOUR(vb, vreinterpretq_s8_u8(vshrq_n_u8(vreinterpretq_u8_s8(packed.val[i]), 4)));
}

VEC_INLINE vb vb_quarter(vb packed, uint32_t quarter)
{
    const int8x16_t right = vdupq_n_s8((int8_t)(-2 * (int)quarter));
    VEC_FOUR(vb, vandq_s8(vreinterpretq_s8_u8(vshlq_u8(vreinterpretq_u8_s8(packed.val[i]), right)),
                          vdupq_n_s8(3)));
}

VEC_INLINE vb vb_add_high(vb codes, vb quarters)
{
    VEC_FOUR(vb, vaddq_s8(codes.val[i], vshlq_n_s8(quarters.val[i], 4)));
}

VEC_INLINE vb vb_table(const int8_t table[16], vb nibbles)
{
    const int8x16_t values = vld1q_s8(table);
    VEC_FOUR(vb, vqtbl1q_s8(values, vreinterpretq_u8_s8(nibbles.val[i])));
}

VEC_INLINE vb vb_add_bit(vb codes, uint64_t bits, uint8_t value)
{
    // Byte b of a quarter takes byte b / 8 of its 16 bits, then its own bit of it.
    const uint8x16_t spread = {0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1};
    const uint8x16_t own = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
    VEC_FOUR(vb,
             vaddq_s8(codes.val[i],
                      vreinterpretq_s8_u8(vandq_u8(
                          vtstq_u8(vqtbl1q_u8(vreinterpretq_u8_u16(vdupq_n_u16((uint16_t)(bits >> 16 * i))),
                                              spread),
                                   own),
                          vdupq_n_u8(value)))));
}

VEC_INLINE vb vb_signed(vb codes)
{
    return codes;
}

VEC_INLINE vi vi_dot4_s(vi acc, vb w, const int8_t *a)
{
    int32_t bytes;
    memcpy(&bytes, a, sizeof bytes);
    const int8x16_t x = vreinterpretq_s8_s32(vdupq_n_s32(bytes));
    VEC_FOUR(vi, vdotq_s32(acc.val[i], w.val[i], x));
}

VEC_INLINE vi vi_dot4_u(vi acc, vb u, const int8_t *a)
{
    return vi_dot4_s(acc, u, a); // u <= 127
}
