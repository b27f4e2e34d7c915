// vec.h in plain C: the definition. Needs nothing but IEEE f32 and f64 arithmetic rounding to nearest even.
#pragma once

typedef float vf __attribute__((vector_size(64)));
typedef int32_t vi __attribute__((vector_size(64)));
typedef uint32_t vu __attribute__((vector_size(64)));
typedef uint8_t vb __attribute__((vector_size(64)));
typedef vi vm; // -1 or 0

#define VEC_SIGNED_ZERO   0
#define VEC_ROW_TILE      4
#define VEC_PANEL_TILE    1
#define VEC_QUERY_TILE    4
#define VEC_QUERY_VECTORS 1

VEC_INLINE vf vf_load(const float *p)
{
    vf v;
    memcpy(&v, p, sizeof v);
    return v;
}

VEC_INLINE void vf_store(float *p, vf v)
{
    memcpy(p, &v, sizeof v);
}

VEC_INLINE vf vf_set1(float x)
{
    return (vf){x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x};
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

VEC_INLINE vf vf_add(vf a, vf b)
{
    return a + b;
}

VEC_INLINE vf vf_sub(vf a, vf b)
{
    return a - b;
}

VEC_INLINE vf vf_mul(vf a, vf b)
{
    return a * b;
}

VEC_INLINE vf vf_div(vf a, vf b)
{
    return a / b;
}

// a * b + c rounded once. The product of two f32 is exact in f64; the f64 sum is forced to odd where it is
// inexact (Boldo and Melquiond, "Emulation of FMA and correctly rounded sums: proved algorithms using
// rounding to odd", 2008), so that the final rounding to f32 is the only one that counts.
VEC_INLINE float fma_exact(float a, float b, float c)
{
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

VEC_INLINE vm vf_greater(vf a, vf b)
{
    return a > b;
}

VEC_INLINE vm vf_ordered(vf a)
{
    return a == a;
}

VEC_INLINE vi vi_set1(int32_t x)
{
    return (vi){x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x};
}

VEC_INLINE void vi_store(int32_t *p, vi v)
{
    memcpy(p, &v, sizeof v);
}

VEC_INLINE vm vm_below(uint32_t n)
{
    const vi lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    return lane < vi_set1((int32_t)n);
}

VEC_INLINE vf vf_select(vm m, vf a, vf b)
{
    return (vf)(((vi)a & m) | ((vi)b & ~m));
}

VEC_INLINE vf vf_add_exponent(vf a, vf n)
{
    return (vf)((vu)a + ((vu)n << 23));
}

VEC_INLINE vi vi_max_magnitude(vi acc, vf a)
{
    vi magnitude = (vi)a & 0x7FFFFFFF;
    vi larger = magnitude > acc;
    return (magnitude & larger) | (acc & ~larger);
}

VEC_INLINE vf vf_from_vi(vi v)
{
    return __builtin_convertvector(v, vf);
}

VEC_INLINE vi vi_add(vi a, vi b)
{
    return a + b;
}

VEC_INLINE int32_t vi_fold_add(vi v)
{
    int32_t sum = 0;
    for (int i = 0; i < VEC_LANES; i++)
        sum += v[i];
    return sum;
}

VEC_INLINE int32_t vi_fold_max(vi v)
{
    int32_t max = v[0];
    for (int i = 1; i < VEC_LANES; i++)
        max = v[i] > max ? v[i] : max;
    return max;
}

VEC_INLINE vi vf_round(vf x)
{
    return (vi)((vu)(x + VEC_MAGIC) - 0x4B400000u); // the bits of VEC_MAGIC
}

VEC_INLINE void vi_store_s8(int8_t *q, vi v)
{
    for (int i = 0; i < VEC_LANES; i++)
        q[i] = (int8_t)v[i];
}

VEC_INLINE vb vb_load(const uint8_t *p)
{
    vb v;
    memcpy(&v, p, sizeof v);
    return v;
}

VEC_INLINE vb vb_low(vb packed)
{
    return packed & 15;
}

VEC_INLINE vb vb_high(vb packed)
{
    return packed >> 4;
}

VEC_INLINE vb vb_quarter(vb packed, uint32_t quarter)
{
    return (packed >> 2 * quarter) & 3;
}

VEC_INLINE vb vb_add_high(vb codes, vb quarters)
{
    return codes + (quarters << 4);
}

VEC_INLINE vb vb_table(const int8_t table[16], vb nibbles)
{
    uint8_t byte[64];
    memcpy(byte, &nibbles, sizeof byte);
    for (int b = 0; b < 64; b++)
        byte[b] = (uint8_t)table[byte[b]];
    memcpy(&nibbles, byte, sizeof nibbles);
    return nibbles;
}

VEC_INLINE vb vb_add_bit(vb codes, uint64_t bits, uint8_t value)
{
    uint8_t byte[64];
    memcpy(byte, &codes, sizeof byte);
    for (int b = 0; b < 64; b++)
        byte[b] = (uint8_t)(byte[b] + (bits >> b & 1) * value);
    memcpy(&codes, byte, sizeof codes);
    return codes;
}

VEC_INLINE vb vb_signed(vb codes)
{
    return codes;
}

VEC_INLINE vi vi_dot4_u(vi acc, vb u, const int8_t *a)
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

VEC_INLINE vi vi_dot4_s(vi acc, vb w, const int8_t *a)
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
