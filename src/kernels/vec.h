// The vector that kernels are written on: 16 lanes of f32 (vf) or int32 (vi), 64 bytes (vb), 16 lane masks
// (vm). Every ISA implements the same primitives in a header of its own, each an exact operation in each
// lane, so that a kernel gives the same bytes on all. A kernel file is compiled once per ISA, KERNEL(name)
// giving each function its own name.
//
//   vf_load, vf_store, vf_set1            any alignment
//   vf_load_f16, vf_load_bf16, vf_load_s8 16 narrow values, exact
//   vf_add, vf_sub, vf_mul, vf_div        IEEE operations
//   vf_fma(a, b, c)                       a * b + c, rounded once
//   vf_sqrt_scalar                        IEEE square root of one f32
//   vf_greater(a, b), vf_ordered(a)       masks: a > b; a is a number
//   vm_below(n)                           the first n lanes
//   vf_select(m, a, b)                    m ? a : b
//   vf_add_exponent(a, n)                 bits of a plus (low bits of n) << 23: a * 2^n where that is normal
//   vi_set1, vi_store
//   vi_max_magnitude(acc, a)              lane-wise maximum of acc and the bits of |a| (numerics.md, rule 2)
//   vf_from_vi                            int32 to f32, round to nearest even
//   vi_add, vi_fold_add, vi_fold_max      integers: any order
//   vf_round(x)                           f32 to int32, round to nearest even; |x| < 2^22
//   vi_store_s8(q, v)                     16 values in -128..127, a byte each
//   vb_load
//   vb_low, vb_high(packed)               the low, the high nibble of each byte
//   vb_quarter(packed, i)                 bits 2i and 2i + 1 of each byte
//   vb_add_high(codes, quarters)          codes + 16 * quarters; quarters in 0..3
//   vb_add_bit(codes, bits, value)        codes + value in each byte b where bit b is set
//   vb_table(table, nibbles)              signed table[nibble] of each byte
//   vb_signed(codes)                      signed codes in the form that vi_dot4_s takes
//   vi_dot4_u(acc, u, a)                  acc[r] += sum over j of u[4r + j] * a[j], j = 0..3; u <= 127 and
//                                         a >= -127
//   vi_dot4_s(acc, w, a)                  the same with signed codes from vb_signed, but for a part that the
//                                         caller adds: VEC_SIGNED_ZERO times the sum of all a
// An ISA with a matrix unit (VEC_MATRIX) also has vb_store, vb_minus(codes, n) and matrix_*.
#pragma once

#include <stdbool.h>
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
// Before a loop of a constant count over an array of vectors: unrolled whole, so that they stay in registers. Not in
// sanitized builds, where a compiler would take minutes over the checks of every step.
#ifdef KERNEL_SANITIZED
#define VEC_UNROLL
#else
#define VEC_UNROLL _Pragma("GCC unroll 16")
#endif
#define VEC_LANES 16
#define VEC_MAGIC 12582912.0f // 1.5 * 2^23: adding it rounds |x| < 2^22 to an integer in the low bits

#if defined(KERNEL_AMX)
#include "kernels/vec_amx.h"
#elif defined(KERNEL_AVX512)
#include "kernels/vec_avx512.h"
#elif defined(KERNEL_AVX2)
#include "kernels/vec_avx2.h"
#elif defined(KERNEL_NEON)
#include "kernels/vec_neon.h"
#else
#include "kernels/vec_c.h"
#endif

#define VEC_TILE (VEC_PANEL_TILE * VEC_ROW_TILE) // accumulators of a tile of a matmul
_Static_assert(A8_TILE % VEC_ROW_TILE == 0, "a tile's rows lie in one tile of activation codes");

// a > b ? a : b in every lane (numerics.md, rule 1).
VEC_INLINE vf vf_max(vf a, vf b)
{
    return vf_select(vf_greater(a, b), a, b);
}

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
    vf shifted = vf_fma(x, vf_set1(0x1.715476p+0f), vf_set1(VEC_MAGIC));
    vf n = vf_sub(shifted, vf_set1(VEC_MAGIC));
    vf r = vf_fma(n, vf_set1(-0x1.63p-1f), x);
    r = vf_fma(n, vf_set1(0x1.bd0106p-13f), r);
    vf q = vf_set1(0x1.6a2352p-10f);
    q = vf_fma(q, r, vf_set1(0x1.123a6cp-7f));
    q = vf_fma(q, r, vf_set1(0x1.5558f4p-5f));
    q = vf_fma(q, r, vf_set1(0x1.555490p-3f));
    q = vf_fma(q, r, vf_set1(0x1.fffffcp-2f));
    q = vf_add(vf_fma(q, vf_mul(r, r), r), vf_set1(1.0f));
    vf y = vf_add_exponent(q, shifted);
    y = vf_select(vf_greater(vf_set1(-87.0f), x), vf_set1(0.0f), y);
    y = vf_select(vf_greater(x, vf_set1(88.0f)), vf_set1(__builtin_inff()), y);
    return vf_select(vf_ordered(x), y, x);
}
