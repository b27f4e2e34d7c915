// What the kernel tests share: seeded inputs, made by integer arithmetic only so that they are the same on
// any machine; definitions of docs/internals/numerics.md in simple loops, written from the text and not by
// calling the kernels' helpers; comparison of bits. The tests are compiled without fma and may use libm's
// exact functions (fmaf, sqrtf, rint, ldexp).
//
// Memory comes from the heap in exact sizes, so that the sanitizer sees a read past an operand's end.
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <math.h>
#include <string.h>
#include <cmocka.h>

#include "base/num.h"
#include "kernels/kernels.h"

#define CASE_LANES    16
#define CASE_SENTINEL 0xA5 // fills what a kernel must leave alone; four of them are a finite f32

// ---- seeded numbers

struct rng {
    uint64_t state;
};

// splitmix64.
static inline uint64_t rng_u64(struct rng *r)
{
    uint64_t z = r->state += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

static inline uint32_t rng_below(struct rng *r, uint32_t n)
{
    return (uint32_t)((rng_u64(r) >> 32) * n >> 32);
}

static inline int rng_between(struct rng *r, int min, int max)
{
    return min + (int)rng_below(r, (uint32_t)(max - min + 1));
}

static inline uint32_t bits_of(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

static inline float float_of(uint32_t u)
{
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

// Any sign and mantissa, 2^exp_min <= |x| < 2^(exp_max + 1).
static inline float rng_f32(struct rng *r, int exp_min, int exp_max)
{
    uint32_t exponent = (uint32_t)(rng_between(r, exp_min, exp_max) + 127);
    uint64_t u = rng_u64(r);
    return float_of((uint32_t)(u >> 63) << 31 | exponent << 23 | ((uint32_t)u & 0x7FFFFF));
}

static inline uint16_t rng_f16(struct rng *r, int exp_min, int exp_max)
{
    uint32_t exponent = (uint32_t)(rng_between(r, exp_min, exp_max) + 15);
    uint64_t u = rng_u64(r);
    return (uint16_t)((u >> 63) << 15 | exponent << 10 | (u & 0x3FF));
}

static inline void *case_alloc(uint64_t bytes)
{
    void *p = NULL;
    if (posix_memalign(&p, 64, bytes ? bytes : 1)) // as weights and values lie in a unit
        abort();
    memset(p, 0, bytes);
    return p;
}

static inline void rng_fill(struct rng *r, float *x, size_t n, int exp_min, int exp_max)
{
    for (size_t i = 0; i < n; i++)
        x[i] = rng_f32(r, exp_min, exp_max);
}

// A generator of its own for each test: the number is written where it is made.
static inline struct rng rng_seeded(uint64_t seed)
{
    return (struct rng){seed * 0xD1342543DE82EF95u + 1};
}

// Times `n` more where the long tests were asked for.
static inline uint32_t case_count(uint32_t n)
{
    const char *full = getenv("ISO_FULL");
    return full && strcmp(full, "1") == 0 ? n * 10 : n;
}

// ---- comparing

// The bits of NaNs are not defined (numerics.md, "Environment"): one of them stands for all.
static inline void canonical_nans(float *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (x[i] != x[i])
            x[i] = float_of(0x7FC00000u);
}

static inline bool same_floats(const char *what, const float *a, const float *b, size_t n)
{
    if (memcmp(a, b, n * sizeof *a) == 0)
        return true;
    for (size_t i = 0; i < n; i++) {
        if (bits_of(a[i]) != bits_of(b[i]) && (a[i] == a[i] || b[i] == b[i])) {
            print_error("%s: element %zu is %a (%08x) where the definition gives %a (%08x)\n", what, i,
                        (double)a[i], bits_of(a[i]), (double)b[i], bits_of(b[i]));
            return false;
        }
    }
    return true;
}

// |got - want| <= bound.
static inline bool is_near(const char *what, double got, double want, double bound)
{
    if (fabs(got - want) <= bound)
        return true;
    print_error("%s: %.9g differs from %.17g by %.3g, more than %.3g\n", what, got, want, fabs(got - want),
                bound);
    return false;
}

// ---- definitions

// binary16 by its standard's formula.
static inline double ref_f16(uint16_t h)
{
    int exponent = h >> 10 & 31, mantissa = h & 0x3FF;
    double magnitude = exponent == 31  ? mantissa ? (double)NAN : (double)INFINITY
                       : exponent == 0 ? ldexp(mantissa, -24)
                                       : ldexp(1024 + mantissa, exponent - 25);
    return h & 0x8000 ? -magnitude : magnitude;
}

// To binary16: the nearest multiple of the spacing at |x|, ties to even, at most 65504.
static inline uint16_t ref_f16_saturating(float x)
{
    if (x != x)
        return 0x7E00;
    uint16_t sign = signbit(x) ? 0x8000 : 0;
    double a = fabs((double)x);
    if (a >= 65504)
        return sign | 0x7BFF;
    int exponent = a == 0 ? -14 : ilogb(a) < -14 ? -14 : ilogb(a);
    double steps = rint(ldexp(a, 10 - exponent)); // 1024..2048 of a normal number, below 1024 else
    return (uint16_t)(sign | ((int)steps + (exponent + 14) * 1024));
}

static inline float ref_bf16(uint16_t h)
{
    return float_of((uint32_t)h << 16);
}

// Rule 8.
static inline float ref_exp(float x)
{
    if (x != x)
        return x;
    if (x < -87)
        return 0;
    if (x > 88)
        return INFINITY;
    float n = (float)rint((double)x * (double)0x1.715476p+0f);
    float r = fmaf(n, 0x1.bd0106p-13f, fmaf(n, -0x1.63p-1f, x));
    static const float Q[] = {0x1.6a2352p-10f, 0x1.123a6cp-7f, 0x1.5558f4p-5f, 0x1.555490p-3f,
                              0x1.fffffcp-2f};
    float q = Q[0];
    for (int i = 1; i < 5; i++)
        q = fmaf(q, r, Q[i]);
    float square = r * r;
    float p = fmaf(q, square, r) + 1.0f;
    return ldexpf(p, (int)n);
}

// Rule 7: 8 + 8, 4 + 4, 2 + 2, 1 + 1.
static inline float ref_fold(const float lane[CASE_LANES])
{
    float a[8], b[4];
    for (int i = 0; i < 8; i++)
        a[i] = lane[i] + lane[i + 8];
    for (int i = 0; i < 4; i++)
        b[i] = a[i] + a[i + 4];
    return (b[0] + b[2]) + (b[1] + b[3]);
}

// Rule 2, over any n: codes and scale; NAN where a value is not finite.
static inline float ref_quantize(const float *x, uint32_t n, int8_t *q)
{
    float amax = 0;
    bool finite = true;
    for (uint32_t i = 0; i < n; i++) {
        finite = finite && isfinite(x[i]);
        amax = fabsf(x[i]) > amax ? fabsf(x[i]) : amax;
    }
    memset(q, 0, n);
    if (!finite)
        return float_of(0x7FC00000u);
    if (amax < 0x1p-100f)
        return 0;
    float inverse = 127.0f / amax;
    for (uint32_t i = 0; i < n; i++)
        q[i] = (int8_t)lrintf(x[i] * inverse);
    return amax / 127.0f;
}

// ---- ISAs

// Runs what follows with k as the table of each ISA that can run here.
#define FOR_EACH_ISA(k)                          \
    for (int isa_ = 0; isa_ < ISA_COUNT; isa_++) \
        for (const struct kernels *k = kernels_get((enum isa)isa_); k; k = NULL)

// [0, n) in pieces of random length, in random order: what threads do with a range.
struct pieces {
    uint32_t begin[64], end[64], n;
};

static inline struct pieces random_pieces(struct rng *r, uint32_t n)
{
    struct pieces p = {.n = 0};
    for (uint32_t at = 0; at < n;) {
        uint32_t left = n - at, len = p.n == 63 ? left : 1 + rng_below(r, left);
        p.begin[p.n] = at;
        p.end[p.n++] = at += len;
    }
    for (uint32_t i = p.n; i > 1; i--) {
        uint32_t j = rng_below(r, i), b = p.begin[j], e = p.end[j];
        p.begin[j] = p.begin[i - 1], p.end[j] = p.end[i - 1];
        p.begin[i - 1] = b, p.end[i - 1] = e;
    }
    return p;
}
