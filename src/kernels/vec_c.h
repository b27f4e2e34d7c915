// vec.h in plain C: the definition. Needs nothing but IEEE f32 and f64 arithmetic rounding to nearest even.
#pragma once

// a * b + c rounded once. The product of two f32 is exact in f64; the f64 sum is forced to odd where it is
// inexact (Boldo and Melquiond, "Emulation of FMA and correctly rounded sums: proved algorithms using
// rounding to odd", 2008), so that the final rounding to f32 is the only one that counts.
VEC_INLINE float fma_exact(float a, float b, float c)
{
#ifdef __FMA__
    return __builtin_fmaf(a, b, c);
#else
    double p = (double)a * b;
    double s = p + c;
    double back = s - p;
    double lost = (p - (s - back)) + (c - back);
    uint64_t bits;
    memcpy(&bits, &s, 8);
    if ((lost < 0 || lost > 0) && !(bits & 1))
        bits += (lost > 0) == (s > 0) ? 1 : (uint64_t)-1;
    memcpy(&s, &bits, 8);
    return (float)s;
#endif
}

VEC_INLINE vf vf_fma(vf a, vf b, vf c)
{
    float x[VEC_LANES], y[VEC_LANES], z[VEC_LANES];
    vf_store(x, a);
    vf_store(y, b);
    vf_store(z, c);
    for (int i = 0; i < VEC_LANES; i++)
        z[i] = fma_exact(x[i], y[i], z[i]);
    return vf_load(z);
}

VEC_INLINE float vf_sqrt_scalar(float x)
{
    return __builtin_sqrtf(x);
}

VEC_INLINE vf vf_load_f16(const uint16_t *p)
{
    float x[VEC_LANES];
    for (int i = 0; i < VEC_LANES; i++)
        x[i] = f32_from_f16(p[i]);
    return vf_load(x);
}

VEC_INLINE vf vf_load_bf16(const uint16_t *p)
{
    float x[VEC_LANES];
    for (int i = 0; i < VEC_LANES; i++)
        x[i] = f32_from_bf16(p[i]);
    return vf_load(x);
}

VEC_INLINE vf vf_load_s8(const int8_t *p)
{
    float x[VEC_LANES];
    for (int i = 0; i < VEC_LANES; i++)
        x[i] = (float)p[i];
    return vf_load(x);
}

VEC_INLINE vi vi_dot4_us(vi acc, vb u, const int8_t *a)
{
    uint8_t byte[64];
    int32_t sum[VEC_LANES];
    memcpy(byte, &u, sizeof byte);
    memcpy(sum, &acc, sizeof sum);
    for (int r = 0; r < VEC_LANES; r++)
        for (int j = 0; j < 4; j++)
            sum[r] += byte[4 * r + j] * a[j];
    memcpy(&acc, sum, sizeof acc);
    return acc;
}

VEC_INLINE vi vi_dot4_ss(vi acc, vb w, const int8_t *a)
{
    int8_t byte[64];
    int32_t sum[VEC_LANES];
    memcpy(byte, &w, sizeof byte);
    memcpy(sum, &acc, sizeof sum);
    for (int r = 0; r < VEC_LANES; r++)
        for (int j = 0; j < 4; j++)
            sum[r] += byte[4 * r + j] * a[j];
    memcpy(&acc, sum, sizeof acc);
    return acc;
}

// Adds 16 to byte b of codes where bit b of `high` is set.
VEC_INLINE vb vb_add_high(vb codes, uint64_t high)
{
    uint8_t byte[64];
    memcpy(byte, &codes, sizeof byte);
    for (int b = 0; b < 64; b++)
        byte[b] = (uint8_t)(byte[b] + ((high >> b & 1) << 4));
    memcpy(&codes, byte, sizeof codes);
    return codes;
}
