// Checked arithmetic on sizes, and rounding up. Used before any allocation that outside numbers size.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define KIB ((uint64_t)1 << 10)
#define MIB ((uint64_t)1 << 20)
#define GIB ((uint64_t)1 << 30)

#define ARRAY_LEN(a) (sizeof(a) / sizeof((a)[0]))

// *ret = a op b, true where it did not overflow; *ret is unspecified otherwise.
static inline bool num_add(uint64_t a, uint64_t b, uint64_t *ret)
{
    return !__builtin_add_overflow(a, b, ret);
}

static inline bool num_mul(uint64_t a, uint64_t b, uint64_t *ret)
{
    return !__builtin_mul_overflow(a, b, ret);
}

// Rounds n up to a multiple of `to` (a power of two). The caller has checked that n is far from the type's
// end.
static inline uint64_t num_align(uint64_t n, uint64_t to)
{
    return (n + to - 1) & ~(to - 1);
}

static inline uint64_t num_div_up(uint64_t n, uint64_t by)
{
    return n / by + (n % by != 0);
}

static inline uint64_t num_min(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static inline uint64_t num_max(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}
