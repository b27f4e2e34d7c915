// vec.h on AVX-512 (F, BW, VL, DQ) with VNNI.
#pragma once

#include <immintrin.h>

typedef __m512 vf;
typedef __m512i vi;
typedef __m512i vb;
typedef __mmask16 vm;

#define VEC_SIGNED_ZERO   128 // signed codes become unsigned ones, 128 more
#define VEC_ROW_TILE      4
#define VEC_PANEL_TILE    2
#define VEC_QUERY_TILE    8
#define VEC_QUERY_VECTORS 2

VEC_INLINE vf vf_load(const float *p)
{
    return _mm512_loadu_ps(p);
}

VEC_INLINE void vf_store(float *p, vf v)
{
    _mm512_storeu_ps(p, v);
}

VEC_INLINE vf vf_set1(float x)
{
    return _mm512_set1_ps(x);
}

VEC_INLINE vf vf_load_f16(const uint16_t *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}

VEC_INLINE vf vf_load_bf16(const uint16_t *p)
{
    return _mm512_castsi512_ps(
        _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p)), 16));
}

VEC_INLINE vf vf_load_s8(const int8_t *p)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p)));
}

VEC_INLINE vf vf_add(vf a, vf b)
{
    return _mm512_add_ps(a, b);
}

VEC_INLINE vf vf_sub(vf a, vf b)
{
    return _mm512_sub_ps(a, b);
}

VEC_INLINE vf vf_mul(vf a, vf b)
{
    return _mm512_mul_ps(a, b);
}

VEC_INLINE vf vf_div(vf a, vf b)
{
    return _mm512_div_ps(a, b);
}

VEC_INLINE vf vf_fma(vf a, vf b, vf c)
{
    return _mm512_fmadd_ps(a, b, c);
}

VEC_INLINE float vf_sqrt_scalar(float x)
{
    return _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(x)));
}

VEC_INLINE vm vf_greater(vf a, vf b)
{
    return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ);
}

VEC_INLINE vm vf_ordered(vf a)
{
    return _mm512_cmp_ps_mask(a, a, _CMP_ORD_Q);
}

VEC_INLINE vm vm_below(uint32_t n)
{
    return (vm)((1u << n) - 1);
}

VEC_INLINE vf vf_select(vm m, vf a, vf b)
{
    return _mm512_mask_blend_ps(m, b, a);
}

VEC_INLINE vf vf_add_exponent(vf a, vf n)
{
    return _mm512_castsi512_ps(
        _mm512_add_epi32(_mm512_castps_si512(a), _mm512_slli_epi32(_mm512_castps_si512(n), 23)));
}

VEC_INLINE vi vi_set1(int32_t x)
{
    return _mm512_set1_epi32(x);
}

VEC_INLINE void vi_store(int32_t *p, vi v)
{
    _mm512_storeu_si512(p, v);
}

VEC_INLINE vi vi_max_magnitude(vi acc, vf a)
{
    return _mm512_max_epi32(acc, _mm512_and_si512(_mm512_castps_si512(a), _mm512_set1_epi32(0x7FFFFFFF)));
}

VEC_INLINE vf vf_from_vi(vi v)
{
    return _mm512_cvtepi32_ps(v);
}

VEC_INLINE vi vi_add(vi a, vi b)
{
    return _mm512_add_epi32(a, b);
}

VEC_INLINE int32_t vi_fold_add(vi v)
{
    return _mm512_reduce_add_epi32(v);
}

VEC_INLINE int32_t vi_fold_max(vi v)
{
    return _mm512_reduce_max_epi32(v);
}

VEC_INLINE vi vf_round(vf x)
{
    return _mm512_cvtps_epi32(x);
}

VEC_INLINE void vi_store_s8(int8_t *q, vi v)
{
    _mm_storeu_si128((__m128i *)q, _mm512_cvtepi32_epi8(v));
}

VEC_INLINE vb vb_load(const uint8_t *p)
{
    return _mm512_loadu_si512(p);
}

VEC_INLINE void vb_store(uint8_t *p, vb v)
{
    _mm512_storeu_si512(p, v);
}

VEC_INLINE vb vb_low(vb packed)
{
    return _mm512_and_si512(packed, _mm512_set1_epi8(15));
}

VEC_INLINE vb vb_high(vb packed)
{
    return _mm512_and_si512(_mm512_srli_epi16(packed, 4), _mm512_set1_epi8(15));
}

VEC_INLINE vb vb_quarter(vb packed, uint32_t quarter)
{
    return _mm512_and_si512(_mm512_srli_epi16(packed, 2 * quarter), _mm512_set1_epi8(3));
}

VEC_INLINE vb vb_add_high(vb codes, vb quarters)
{
    return _mm512_add_epi8(codes, _mm512_slli_epi16(quarters, 4));
}

VEC_INLINE vb vb_table(const int8_t table[16], vb nibbles)
{
    return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)table)), nibbles);
}

VEC_INLINE vb vb_add_bit(vb codes, uint64_t bits, uint8_t value)
{
    return _mm512_mask_add_epi8(codes, bits, codes, _mm512_set1_epi8((char)value));
}

VEC_INLINE vb vb_minus(vb codes, int8_t n)
{
    return _mm512_sub_epi8(codes, _mm512_set1_epi8(n));
}

VEC_INLINE vb vb_signed(vb codes)
{
    return _mm512_xor_si512(codes, _mm512_set1_epi8((char)0x80));
}

VEC_INLINE vi vi_dot4_u(vi acc, vb u, const int8_t *a)
{
    int32_t four;
    memcpy(&four, a, sizeof four);
    return _mm512_dpbusd_epi32(acc, u, _mm512_set1_epi32(four));
}

VEC_INLINE vi vi_dot4_s(vi acc, vb w, const int8_t *a)
{
    return vi_dot4_u(acc, w, a);
}
