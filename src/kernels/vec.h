// The vector that kernels are written on: 16 lanes of f32 or int32. Arithmetic (+ - * /), comparison and bit
// operations on `vf` and `vi` are the compiler's vector operators, exact IEEE operations in each lane on
// every ISA; what C has no operator for is named here and implemented once per ISA in a header of its own. A
// kernel file is compiled once per ISA with KERNEL(name) giving each function its own name.
//
//   vf_load, vf_store         16 f32, any alignment
//   vf_set1, vi_set1          one value in all lanes
//   vf_fma(a, b, c)           a * b + c, rounded once
//   vf_max(a, b)              a > b ? a : b (numerics.md, rule 1)
//   vf_select(mask, a, b)     lane-wise mask ? a : b; a mask lane is 0 or -1
//   vf_from_vi                int32 to f32, round to nearest even
//   vf_load_f16, vf_load_bf16, vf_load_s8   16 narrow values, exact
//   vf_sqrt_scalar            IEEE square root of one f32
//   vi_dot4_us(acc, u, a)     acc[r] += sum_j u8(u[4r+j]) * s8(a[j]), j = 0..3; u <= 127
//   vi_dot4_ss(acc, w, a)     the same with signed w, a >= -127
//   vb_add_high(codes, bits)  adds 16 to byte b where bit b is set: the fifth bit of 5-bit codes
#pragma once

#include <stdint.h>
#include <string.h>

#include "base/assert.h"
#include "kernels/dtype.h"
#include "kernels/half.h"

#ifndef KERNEL_ISA
#error "compile kernels through src/kernels/meson.build, which names the ISA"
#endif
#define KERNEL_JOIN2(name, isa) name##_##isa
#define KERNEL_JOIN(name, isa)  KERNEL_JOIN2(name, isa)
#define KERNEL(name)            KERNEL_JOIN(name, KERNEL_ISA)

#define VEC_INLINE static inline __attribute__((always_inline))
#define VEC_LANES  16

typedef float vf __attribute__((vector_size(64)));
typedef int32_t vi __attribute__((vector_size(64)));
typedef uint32_t vu __attribute__((vector_size(64)));
typedef uint8_t vb __attribute__((vector_size(64)));

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

VEC_INLINE vb vb_load(const uint8_t *p)
{
    vb v;
    memcpy(&v, p, sizeof v);
    return v;
}

VEC_INLINE vf vf_set1(float x)
{
    return (vf){x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x};
}

VEC_INLINE vi vi_set1(int32_t x)
{
    return (vi){x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x};
}

VEC_INLINE vf vf_select(vi mask, vf a, vf b)
{
    return (vf)(((vi)a & mask) | ((vi)b & ~mask));
}

VEC_INLINE vf vf_max(vf a, vf b)
{
    return vf_select(a > b, a, b);
}

VEC_INLINE vf vf_from_vi(vi v)
{
    return __builtin_convertvector(v, vf);
}

#include "kernels/vec_c.h"

// 16 lanes folded as 8+8, 4+4, 2+2, 1+1 (numerics.md, rule 7).
VEC_INLINE float vf_fold_sum(vf v)
{
    float lane[VEC_LANES];
    vf_store(lane, v);
    for (int half = VEC_LANES / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++)
            lane[i] = lane[i] + lane[i + half];
    return lane[0];
}

VEC_INLINE float vf_fold_max(vf v)
{
    float lane[VEC_LANES];
    vf_store(lane, v);
    for (int half = VEC_LANES / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++)
            lane[i] = lane[i] > lane[i + half] ? lane[i] : lane[i + half];
    return lane[0];
}

// exp(x) in every lane (numerics.md, rule 8): n = rne(x / ln 2), r = x - n ln 2 in two parts,
// 1 + r + r^2 q(r) with a minimax q of degree 4 (relative error 3.1e-9 before rounding), times 2^n through
// the exponent. Below -87 the result is +0, above 88 it is +infinity; a NaN gives a NaN.
VEC_INLINE vf vf_exp(vf x)
{
    const vf magic = vf_set1(12582912.0f); // 1.5 * 2^23: adding it rounds to an integer in the low bits
    vf shifted = vf_fma(x, vf_set1(0x1.715476p+0f), magic);
    vf n = shifted - magic;
    vf r = vf_fma(n, vf_set1(-0x1.63p-1f), x);
    r = vf_fma(n, vf_set1(0x1.bd0106p-13f), r);
    vf q = vf_set1(0x1.6a2352p-10f);
    q = vf_fma(q, r, vf_set1(0x1.123a6cp-7f));
    q = vf_fma(q, r, vf_set1(0x1.5558f4p-5f));
    q = vf_fma(q, r, vf_set1(0x1.555490p-3f));
    q = vf_fma(q, r, vf_set1(0x1.fffffcp-2f));
    q = vf_fma(q, r * r, r) + vf_set1(1.0f);
    vf y = (vf)((vu)q + (((vu)shifted - (vu)magic) << 23));
    y = vf_select(x < vf_set1(-87.0f), vf_set1(0.0f), y);
    y = vf_select(x > vf_set1(88.0f), vf_set1(__builtin_inff()), y);
    return vf_select(x == x, y, x);
}
