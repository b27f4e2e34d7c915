// vec.h on AVX2 with FMA and F16C: 16 lanes are two registers.
#pragma once

#include <immintrin.h>

typedef struct {
    __m256 h[2];
} vf;

typedef struct {
    __m256i h[2];
} vi;

typedef vi vb;
typedef vf vm; // all bits of a lane, or none

#define VEC_SIGNED_ZERO   0
#define VEC_ROW_TILE      2
#define VEC_PANEL_TILE    1
#define VEC_QUERY_TILE    4
#define VEC_QUERY_VECTORS 1

#define VEC_BOTH(type, expression) \
    type both;                     \
    for (int i = 0; i < 2; i++)    \
        both.h[i] = (expression);  \
    return both

VEC_INLINE vf vf_load(const float *p)
{
    VEC_BOTH(vf, _mm256_loadu_ps(p + 8 * i));
}

VEC_INLINE void vf_store(float *p, vf v)
{
    _mm256_storeu_ps(p, v.h[0]);
    _mm256_storeu_ps(p + 8, v.h[1]);
}

VEC_INLINE vf vf_set1(float x)
{
    VEC_BOTH(vf, _mm256_set1_ps(x));
}

VEC_INLINE vf vf_load_f16(const uint16_t *p)
{
    VEC_BOTH(vf, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(p + 8 * i))));
}

VEC_INLINE vf vf_load_bf16(const uint16_t *p)
{
    VEC_BOTH(vf, _mm256_castsi256_ps(_mm256_slli_epi32(
                     _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(p + 8 * i))), 16)));
}

VEC_INLINE vf vf_load_s8(const int8_t *p)
{
    VEC_BOTH(vf, _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(p + 8 * i)))));
}

VEC_INLINE vf vf_add(vf a, vf b)
{
    VEC_BOTH(vf, _mm256_add_ps(a.h[i], b.h[i]));
}

VEC_INLINE vf vf_sub(vf a, vf b)
{
    VEC_BOTH(vf, _mm256_sub_ps(a.h[i], b.h[i]));
}

VEC_INLINE vf vf_mul(vf a, vf b)
{
    VEC_BOTH(vf, _mm256_mul_ps(a.h[i], b.h[i]));
}

VEC_INLINE vf vf_div(vf a, vf b)
{
    VEC_BOTH(vf, _mm256_div_ps(a.h[i], b.h[i]));
}

VEC_INLINE vf vf_fma(vf a, vf b, vf c)
{
    VEC_BOTH(vf, _mm256_fmadd_ps(a.h[i], b.h[i], c.h[i]));
}

VEC_INLINE float vf_sqrt_scalar(float x)
{
    return _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(x)));
}

VEC_INLINE vm vf_greater(vf a, vf b)
{
    VEC_BOTH(vm, _mm256_cmp_ps(a.h[i], b.h[i], _CMP_GT_OQ));
}

VEC_INLINE vm vf_ordered(vf a)
{
    VEC_BOTH(vm, _mm256_cmp_ps(a.h[i], a.h[i], _CMP_ORD_Q));
}

VEC_INLINE vm vm_below(uint32_t n)
{
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    VEC_BOTH(vm, _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32((int)n - 8 * i), lane)));
}

VEC_INLINE vf vf_select(vm m, vf a, vf b)
{
    VEC_BOTH(vf, _mm256_blendv_ps(b.h[i], a.h[i], m.h[i]));
}

VEC_INLINE vf vf_add_exponent(vf a, vf n)
{
    VEC_BOTH(vf, _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(a.h[i]),
                                                      _mm256_slli_epi32(_mm256_castps_si256(n.h[i]), 23))));
}

VEC_INLINE vi vi_set1(int32_t x)
{
    VEC_BOTH(vi, _mm256_set1_epi32(x));
}

VEC_INLINE void vi_store(int32_t *p, vi v)
{
    _mm256_storeu_si256((__m256i *)p, v.h[0]);
    _mm256_storeu_si256((__m256i *)(p + 8), v.h[1]);
}

VEC_INLINE vi vi_max_magnitude(vi acc, vf a)
{
    VEC_BOTH(vi, _mm256_max_epi32(
                     acc.h[i], _mm256_and_si256(_mm256_castps_si256(a.h[i]), _mm256_set1_epi32(0x7FFFFFFF))));
}

VEC_INLINE vf vf_from_vi(vi v)
{
    VEC_BOTH(vf, _mm256_cvtepi32_ps(v.h[i]));
}

VEC_INLINE vi vi_add(vi a, vi b)
{
    VEC_BOTH(vi, _mm256_add_epi32(a.h[i], b.h[i]));
}

VEC_INLINE int32_t vi_fold_add(vi v)
{
    __m256i eight = _mm256_add_epi32(v.h[0], v.h[1]);
    __m128i four = _mm_add_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
    four = _mm_add_epi32(four, _mm_unpackhi_epi64(four, four));
    return _mm_cvtsi128_si32(four) + _mm_extract_epi32(four, 1);
}

VEC_INLINE int32_t vi_fold_max(vi v)
{
    __m256i eight = _mm256_max_epi32(v.h[0], v.h[1]);
    __m128i four = _mm_max_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
    four = _mm_max_epi32(four, _mm_unpackhi_epi64(four, four));
    return _mm_cvtsi128_si32(_mm_max_epi32(four, _mm_shuffle_epi32(four, 1)));
}

VEC_INLINE vi vf_round(vf x)
{
    VEC_BOTH(vi, _mm256_cvtps_epi32(x.h[i]));
}

VEC_INLINE void vi_store_s8(int8_t *q, vi v)
{
    __m256i words = _mm256_packs_epi32(v.h[0], v.h[1]);
    words = _mm256_permute4x64_epi64(words, 0xD8); // packs works within halves
    _mm_storeu_si128((__m128i *)q,
                     _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
}

VEC_INLINE vb vb_load(const uint8_t *p)
{
    VEC_BOTH(vb, _mm256_loadu_si256((const __m256i *)(p + 32 * i)));
}

VEC_INLINE vb vb_low(vb packed)
{
    VEC_BOTH(vb, _mm256_and_si256(packed.h[i], _mm256_set1_epi8(15)));
}

VEC_INLINE vb vb_high(vb packed)
{
    VEC_BOTH(vb, _mm256_and_si256(_mm256_srli_epi16(packed.h[i], 4), _mm256_set1_epi8(15)));
}

VEC_INLINE vb vb_quarter(vb packed, uint32_t quarter)
{
    VEC_BOTH(vb, _mm256_and_si256(_mm256_srli_epi16(packed.h[i], 2 * (int)quarter), _mm256_set1_epi8(3)));
}

VEC_INLINE vb vb_add_high(vb codes, vb quarters)
{
    VEC_BOTH(vb, _mm256_add_epi8(codes.h[i], _mm256_slli_epi16(quarters.h[i], 4)));
}

VEC_INLINE vb vb_table(const int8_t table[16], vb nibbles)
{
    const __m256i values = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)table));
    VEC_BOTH(vb, _mm256_shuffle_epi8(values, nibbles.h[i]));
}

VEC_INLINE vb vb_add_bit(vb codes, uint64_t bits, uint8_t value)
{
    // Byte b of a half takes byte b / 8 of its 32 bits, then its own bit of it.
    const __m256i spread = _mm256_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2,
                                            2, 2, 3, 3, 3, 3, 3, 3, 3, 3);
    const __m256i own = _mm256_set1_epi64x((long long)0x8040201008040201ull);
    VEC_BOTH(
        vb, _mm256_add_epi8(
                codes.h[i],
                _mm256_and_si256(
                    _mm256_set1_epi8((char)value),
                    _mm256_cmpeq_epi8(
                        own, _mm256_and_si256(own, _mm256_shuffle_epi8(
                                                       _mm256_set1_epi32((int)(bits >> 32 * i)), spread))))));
}

VEC_INLINE vb vb_signed(vb codes)
{
    return codes;
}

// Pairs of u8 * s8 never pass 16 bits: 2 * 127 * 127 < 32768.
VEC_INLINE vi vi_dot4_u(vi acc, vb u, const int8_t *a)
{
    int32_t four;
    memcpy(&four, a, sizeof four);
    const __m256i x = _mm256_set1_epi32(four), ones = _mm256_set1_epi16(1);
    VEC_BOTH(vi, _mm256_add_epi32(acc.h[i], _mm256_madd_epi16(_mm256_maddubs_epi16(u.h[i], x), ones)));
}

// |w| * (a with w's sign): 2 * 128 * 127 < 32768, as a >= -127.
VEC_INLINE vi vi_dot4_s(vi acc, vb w, const int8_t *a)
{
    int32_t four;
    memcpy(&four, a, sizeof four);
    const __m256i x = _mm256_set1_epi32(four), ones = _mm256_set1_epi16(1);
    VEC_BOTH(vi,
             _mm256_add_epi32(acc.h[i], _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_abs_epi8(w.h[i]),
                                                                               _mm256_sign_epi8(x, w.h[i])),
                                                          ones)));
}
