#include "compile/block.h"

#include <string.h>

#include "base/assert.h"
#include "graph/ir.h"
#include "kernels/dtype.h"
#include "kernels/half.h"

static uint16_t u16_at(const uint8_t *p)
{
    uint16_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

// Nibbles of n bytes: the low ones first, then the high ones.
static void nibbles(const uint8_t *q, uint32_t n, uint8_t *code)
{
    for (uint32_t i = 0; i < n; i++) {
        code[i] = q[i] & 15;
        code[n + i] = q[i] >> 4;
    }
}

// Fifth bits of 32 codes: bit i of a word is that of code i.
static void fifth_bits(const uint8_t *q, uint8_t *code)
{
    for (uint32_t i = 0; i < 32; i++)
        code[i] |= (uint8_t)((q[i / 8] >> i % 8 & 1) << 4);
}

// The 6-bit scales and minima of Q4_K and Q5_K, 8 of each in 12 bytes. The types subtract the minimum, so m changes its
// sign.
static void k_scales(const uint8_t *q, struct block *b)
{
    b->d = u16_at(q);
    b->m = u16_at(q + 2) ^ 0x8000;
    q += 4;
    for (uint32_t i = 0; i < 4; i++) {
        b->sub[i] = (int8_t)(q[i] & 63);
        b->min_sub[i] = (int8_t)(q[i + 4] & 63);
        b->sub[i + 4] = (int8_t)((q[i + 8] & 15) | q[i] >> 6 << 4);
        b->min_sub[i + 4] = (int8_t)(q[i + 8] >> 4 | q[i + 4] >> 6 << 4);
    }
}

// 128 bytes of nibbles: 64 elements from each 32.
static void k_nibbles(const uint8_t *q, uint8_t *code)
{
    for (uint32_t c = 0; c < 4; c++)
        nibbles(q + 32 * c, 32, code + 64 * c);
}

// 64 bytes of 2-bit numbers: 128 elements from each 32, the lowest bits first.
static void k_quarters(const uint8_t *q, uint8_t *code)
{
    for (uint32_t i = 0; i < 256; i++)
        code[i] = q[i / 128 * 32 + i % 32] >> i % 128 / 32 * 2 & 3;
}

static void q2_k(const uint8_t *q, struct block *b)
{
    k_quarters(q + 16, b->code);
    for (uint32_t i = 0; i < 16; i++) {
        b->sub[i] = q[i] & 15;
        b->min_sub[i] = (int8_t)(q[i] >> 4);
    }
    b->d = u16_at(q + 80);
    b->m = u16_at(q + 82) ^ 0x8000;
}

static void q3_k(const uint8_t *q, struct block *b)
{
    const uint8_t *scales = q + 96;
    k_quarters(q + 32, b->code);
    for (uint32_t i = 0; i < 256; i++)
        b->code[i] |= (uint8_t)((q[i % 32] >> i / 32 & 1) << 2);
    for (uint32_t i = 0; i < 16; i++) {
        uint32_t low = i < 8 ? scales[i] & 15 : scales[i - 8] >> 4, high = scales[8 + i % 4] >> i / 4 * 2 & 3;
        b->sub[i] = (int8_t)((int)(low | high << 4) - 32);
    }
    b->d = u16_at(q + 108);
}

static void q6_k(const uint8_t *q, struct block *b)
{
    const uint8_t *high = q + 128;
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t half = i / 128, within = i % 128, l = within % 64;
        uint32_t low = q[64 * half + l] >> within / 64 * 4 & 15;
        b->code[i] = (uint8_t)(low | (high[32 * half + i % 32] >> within / 32 * 2 & 3) << 4);
    }
    memcpy(b->sub, q + 192, 16);
    b->d = u16_at(q + 208);
}

static void iq4_xs(const uint8_t *q, struct block *b)
{
    uint32_t high = u16_at(q + 2);
    b->d = u16_at(q);
    for (uint32_t i = 0; i < 8; i++) {
        b->sub[i] = (int8_t)((int)((q[4 + i / 2] >> i % 2 * 4 & 15) | (high >> 2 * i & 3) << 4) - 32);
        nibbles(q + 8 + 16 * i, 16, b->code + 32 * i);
    }
}

void block_unpack(enum ggml_type type, const uint8_t *bytes, struct block *ret)
{
    ret->d = u16_at(bytes);
    switch (type) {
    case GGML_Q4_0:
    case GGML_IQ4_NL:
        nibbles(bytes + 2, 16, ret->code);
        break;
    case GGML_Q4_1:
        ret->m = u16_at(bytes + 2);
        nibbles(bytes + 4, 16, ret->code);
        break;
    case GGML_Q5_0:
        nibbles(bytes + 6, 16, ret->code);
        fifth_bits(bytes + 2, ret->code);
        break;
    case GGML_Q5_1:
        ret->m = u16_at(bytes + 2);
        nibbles(bytes + 8, 16, ret->code);
        fifth_bits(bytes + 4, ret->code);
        break;
    case GGML_Q8_0:
        memcpy(ret->code, bytes + 2, 32);
        break;
    case GGML_Q2_K:
        q2_k(bytes, ret);
        break;
    case GGML_Q3_K:
        q3_k(bytes, ret);
        break;
    case GGML_Q4_K:
        k_scales(bytes, ret);
        k_nibbles(bytes + 16, ret->code);
        break;
    case GGML_Q5_K:
        k_scales(bytes, ret);
        k_nibbles(bytes + 48, ret->code);
        for (uint32_t i = 0; i < 256; i++)
            ret->code[i] |= (uint8_t)((bytes[16 + i % 32] >> i / 32 & 1) << 4);
        break;
    case GGML_Q6_K:
        q6_k(bytes, ret);
        break;
    case GGML_IQ4_XS:
        iq4_xs(bytes, ret);
        break;
    default:
        ASSERT(!"a supported quantized type");
    }
}

// What a code stands for, its zero taken off.
static int32_t code_value(enum dtype type, uint8_t code)
{
    switch (type) {
    case DT_Q8_0:
        return (int8_t)code;
    case DT_IQ4_NL:
    case DT_IQ4_XS:
        return IQ4_VALUES[code];
    case DT_Q4_0:
        return code - 8;
    case DT_Q5_0:
        return code - 16;
    case DT_Q3_K:
        return code - 4;
    case DT_Q6_K:
        return code - 32;
    default:
        return code;
    }
}

static void float_values(enum ggml_type type, const uint8_t *bytes, uint64_t n, float *ret)
{
    if (type == GGML_F32) {
        memcpy(ret, bytes, n * sizeof *ret);
        return;
    }
    for (uint64_t i = 0; i < n; i++)
        ret[i] =
            type == GGML_F16 ? f32_from_f16(u16_at(bytes + 2 * i)) : f32_from_bf16(u16_at(bytes + 2 * i));
}

void block_values(enum ggml_type type, const uint8_t *bytes, uint64_t n, float *ret)
{
    const struct ggml_type_info *info = ggml_type_info(type);
    if (info->block_elements == 1) {
        float_values(type, bytes, n, ret);
        return;
    }
    enum dtype dtype = ir_dtype_of(type);
    bool has_min = dtype_info(dtype)->has_min;
    uint32_t subs = dtype_info(dtype)->subs, per_sub = subs ? GROUP / subs : 0;
    for (uint64_t at = 0; at < n; at += info->block_elements, bytes += info->block_bytes) {
        struct block b;
        block_unpack(type, bytes, &b);
        for (uint32_t i = 0; i < info->block_elements; i++) {
            float d = f32_from_f16(b.d), m = has_min ? f32_from_f16(b.m) : 0;
            if (subs) {
                d *= (float)b.sub[i / per_sub];
                m *= has_min ? (float)b.min_sub[i / per_sub] : 0;
            }
            ret[at + i] = d * (float)code_value(dtype, b.code[i]);
            if (has_min)
                ret[at + i] += m;
        }
    }
}
