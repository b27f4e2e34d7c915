// f16 and bf16 as bit patterns, converted exactly by integer operations (IEEE 754-2008 binary16, round to
// nearest even). One definition for the compiler, the plain C kernels and the tests.
#pragma once

#include <stdint.h>
#include <string.h>

static inline uint32_t f32_bits(float x)
{
    uint32_t u;
    memcpy(&u, &x, 4);
    return u;
}

static inline float f32_from_bits(uint32_t u)
{
    float x;
    memcpy(&x, &u, 4);
    return x;
}

static inline float f32_from_bf16(uint16_t h)
{
    return f32_from_bits((uint32_t)h << 16);
}

// Exact. Subnormals: the mantissa is placed below the exponent of 2^-14, whose implied one is then
// subtracted.
static inline float f32_from_f16(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16;
    uint32_t magnitude = h & 0x7FFF;
    uint32_t normal = (magnitude << 13) + (112u << 23);
    uint32_t special = (magnitude << 13) | 0x7F800000u;
    float subnormal = f32_from_bits((magnitude << 13) + (113u << 23)) - f32_from_bits(113u << 23);
    uint32_t bits = magnitude >= 0x7C00 ? special : magnitude >= 0x0400 ? normal : f32_bits(subnormal);
    return f32_from_bits(sign | bits);
}

// Round to nearest even, saturating at +-65504 (the KV cache's rule); a NaN becomes the quiet NaN 0x7E00.
static inline uint16_t f16_from_f32_saturating(float x)
{
    uint32_t bits = f32_bits(x);
    uint32_t sign = bits >> 16 & 0x8000;
    bits &= 0x7FFFFFFFu;
    if (bits > 0x7F800000u)
        return (uint16_t)0x7E00;
    if (bits >= 0x477FE000u) // 65504
        return (uint16_t)(sign | 0x7BFF);
    if (bits < 0x38800000u) { // below 2^-14: adding 0.5 leaves the subnormal's bits, rounded, at the low end
        float shifted = f32_from_bits(bits) + 0.5f;
        return (uint16_t)(sign | (f32_bits(shifted) - 0x3F000000u));
    }
    bits += 0xFFFu + (bits >> 13 & 1);
    return (uint16_t)(sign | ((bits - (112u << 23)) >> 13));
}
