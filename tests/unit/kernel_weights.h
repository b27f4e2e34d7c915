// Weights and activations for the kernel tests: matrices of each type as their definition has them (codes,
// scales and minima per output), packed into panels from the description in kernels/dtype.h, and the matmul
// of numerics.md, rules 3 to 6, in simple loops.
#pragma once

#include "kernel_cases.h"

enum profile {
    PROFILE_PLAIN,
    PROFILE_EXTREME,   // codes at their ends; scales zero, subnormal, largest; activations tiny and huge
    PROFILE_NONFINITE, // the same, with a NaN or infinity here and there
    PROFILE_COUNT
};

// W[n][k]. A float type has its elements' bits in `raw`; a grouped type its codes, as stored in a file, with
// d and m per group of 32.
struct weights {
    enum dtype type;
    uint32_t n, k;
    uint32_t *raw;        // [n][k]
    uint16_t *d, *m;      // [n][k / 32]
    uint8_t *panels;      // as kernels take them
    uint64_t panel_bytes; // of one panel
};

static inline int weights_zero(enum dtype type)
{
    return type == DT_Q4_0 ? 8 : type == DT_Q5_0 ? 16 : 0;
}

static inline bool weights_has_min(enum dtype type)
{
    return type == DT_Q4_1 || type == DT_Q5_1;
}

static inline uint32_t weights_code_bits(enum dtype type)
{
    switch (type) {
    case DT_Q4_0:
    case DT_Q4_1:
        return 4;
    case DT_Q5_0:
    case DT_Q5_1:
        return 5;
    case DT_Q8_0:
        return 8;
    default:
        return 0;
    }
}

// The code with its zero taken off.
static inline int32_t weights_code(const struct weights *w, uint32_t out, uint32_t k)
{
    uint32_t u = w->raw[(size_t)out * w->k + k];
    return w->type == DT_Q8_0 ? (int8_t)u : (int32_t)u - weights_zero(w->type);
}

// A weight of a float type, exactly.
static inline float weights_float(const struct weights *w, uint32_t out, uint32_t k)
{
    uint32_t u = w->raw[(size_t)out * w->k + k];
    return w->type == DT_F32   ? float_of(u)
           : w->type == DT_F16 ? (float)ref_f16((uint16_t)u)
                               : ref_bf16((uint16_t)u);
}

static inline void pack_code(const struct weights *w, uint32_t out, uint32_t k, uint32_t u)
{
    uint8_t *panel = w->panels + out / 16 * w->panel_bytes;
    uint32_t group = k / 32, vector = k % 32 / 4, byte = 4 * (out % 16) + k % 4, groups = w->k / 32;
    if (w->type == DT_Q8_0) {
        panel[group * 512 + vector * 64 + byte] = (uint8_t)u;
        return;
    }
    panel[group * 256 + vector % 4 * 64 + byte] |= (uint8_t)((u & 15) << (vector < 4 ? 0 : 4));
    if (u & 16)
        panel[groups * 256 + group * 64 + vector * 8 + byte / 8] |= (uint8_t)(1 << byte % 8);
}

static inline void weights_pack(struct weights *w)
{
    uint32_t bits = weights_code_bits(w->type), groups = w->k / 32, panels = (w->n + 15) / 16;
    uint64_t element = w->type == DT_F32 ? 4 : 2;
    uint64_t scales = (uint64_t)groups * 64 * bits, mins = scales + (uint64_t)groups * 32;
    uint64_t used = bits ? mins + (weights_has_min(w->type) ? groups * 32 : 0) : w->k * 16 * element;
    w->panel_bytes = (used + 63) / 64 * 64;
    w->panels = case_alloc(panels * w->panel_bytes);
    memset(w->panels, 0, panels * w->panel_bytes);
    for (uint32_t out = 0; out < w->n; out++) {
        uint8_t *panel = w->panels + out / 16 * w->panel_bytes;
        uint32_t lane = out % 16;
        for (uint32_t k = 0; k < w->k; k++) {
            uint32_t u = w->raw[(size_t)out * w->k + k];
            if (bits)
                pack_code(w, out, k, u);
            else
                memcpy(panel + ((uint64_t)k * 16 + lane) * element, &u, element); // little-endian
        }
        for (uint32_t g = 0; bits && g < groups; g++) {
            memcpy(panel + scales + (g * 16 + lane) * 2, &w->d[(size_t)out * groups + g], 2);
            if (weights_has_min(w->type))
                memcpy(panel + mins + (g * 16 + lane) * 2, &w->m[(size_t)out * groups + g], 2);
        }
    }
}

static inline uint16_t random_scale(struct rng *r, enum profile profile)
{
    static const uint16_t EXTREME[] = {0x0000, 0x8000, 0x0001, 0x8001, 0x03FF, 0x0400, 0x7BFF, 0xFBFF};
    static const uint16_t NONFINITE[] = {0x7C00, 0xFC00, 0x7E00, 0xFE01};
    if (profile == PROFILE_NONFINITE && rng_below(r, 16) == 0)
        return NONFINITE[rng_below(r, 4)];
    if (profile != PROFILE_PLAIN && rng_below(r, 2))
        return EXTREME[rng_below(r, 8)];
    return rng_f16(r, -12, -2);
}

static inline uint32_t random_code(struct rng *r, uint32_t bits, enum profile profile)
{
    uint32_t top = (1u << bits) - 1;
    if (profile == PROFILE_PLAIN || rng_below(r, 4) == 0)
        return rng_below(r, top + 1);
    if (bits == 8)
        return rng_below(r, 2) ? 0x80 : 0x7F; // -128, 127
    return rng_below(r, 2) ? top : 0;
}

static inline uint32_t random_float_bits(struct rng *r, enum dtype type, enum profile profile)
{
    static const uint32_t EXTREME[] = {0,          0x80000000, 1,          0x807FFFFF,
                                       0x00800000, 0x7F7FFFFF, 0xFF7FFFFF, 0x3F800001};
    static const uint32_t NONFINITE[] = {0x7F800000, 0xFF800000, 0x7FC00000, 0xFFA00000};
    uint32_t u = bits_of(rng_f32(r, -8, 2));
    if (profile == PROFILE_NONFINITE && rng_below(r, 16) == 0)
        u = NONFINITE[rng_below(r, 4)];
    else if (profile != PROFILE_PLAIN && rng_below(r, 3) == 0)
        u = EXTREME[rng_below(r, 8)];
    if (type == DT_BF16)
        return u >> 16;
    return type == DT_F16 ? random_scale(r, profile) : u;
}

static inline struct weights weights_make(struct rng *r, enum dtype type, uint32_t n, uint32_t k,
                                          enum profile profile)
{
    struct weights w = {.type = type, .n = n, .k = k};
    uint32_t bits = weights_code_bits(type);
    size_t groups = (size_t)n * (k / 32);
    w.raw = case_alloc((size_t)n * k * sizeof *w.raw);
    w.d = case_alloc(groups * sizeof *w.d);
    w.m = case_alloc(groups * sizeof *w.m);
    for (size_t i = 0; i < (size_t)n * k; i++)
        w.raw[i] = bits ? random_code(r, bits, profile) : random_float_bits(r, type, profile);
    for (size_t i = 0; bits && i < groups; i++) {
        w.d[i] = random_scale(r, profile);
        w.m[i] = random_scale(r, profile);
    }
    weights_pack(&w);
    return w;
}

static inline void weights_free(struct weights *w)
{
    free(w->raw);
    free(w->d);
    free(w->m);
    free(w->panels);
}

// A group of activations as rule 2 has it.
struct codes {
    int8_t q[GROUP];
    float scale;
    int32_t sum; // of q
};

// codes[rows][groups] in the layout of struct a8.
static inline void *codes_pack(const struct codes *codes, uint32_t rows, uint32_t groups)
{
    size_t n = (size_t)rows * groups;
    uint8_t *packed = case_alloc(n * 44);
    for (size_t j = 0; j < n; j++) { // tiles of 16 rows, in a tile by group, then by row
        uint32_t row = (uint32_t)(j / groups), g = (uint32_t)(j % groups), first = row & ~15u;
        uint32_t in_tile = rows - first < 16 ? rows - first : 16;
        size_t i = first * groups + g * in_tile + (row - first);
        const struct codes *c = &codes[j];
        float shift = c->scale * (float)c->sum;
        int32_t zero = -8 * c->sum;
        memcpy(packed + 32 * i, c->q, 32);
        memcpy(packed + 32 * n + 4 * i, &c->scale, 4);
        memcpy(packed + 36 * n + 4 * i, &shift, 4);
        memcpy(packed + 40 * n + 4 * i, &zero, 4);
    }
    return packed;
}

// A matmul with its operands.
struct matmul_case {
    struct weights w;
    struct codes *codes;     // [rows][k / 32] where the weights are grouped, else NULL
    struct matmul_args args; // x and bias belong to the case; y is NULL
    uint64_t y_bytes;
};

static inline void random_codes(struct rng *r, enum profile profile, struct codes *g)
{
    static const float EXTREME[] = {0.0f, 0x1p-107f, 0x1p120f, 0x1p-149f, 0x1.fffffep+120f};
    bool extreme = profile != PROFILE_PLAIN && rng_below(r, 2);
    g->sum = 0;
    for (int i = 0; i < GROUP; i++) {
        int q = extreme ? (rng_below(r, 2) ? 127 : -127) : rng_between(r, -127, 127);
        g->q[i] = (int8_t)q;
        g->sum += q;
    }
    g->scale = extreme ? EXTREME[rng_below(r, 5)] : fabsf(rng_f32(r, -14, 0));
    if (profile == PROFILE_NONFINITE && rng_below(r, 8) == 0)
        g->scale = NAN;
}

static inline struct matmul_case matmul_make(struct rng *r, enum dtype type, uint32_t rows, uint32_t n,
                                             uint32_t k, enum profile profile)
{
    struct matmul_case c = {.w = weights_make(r, type, n, k, profile)};
    bool grouped = weights_code_bits(type) > 0;
    uint32_t pad = 4 * rng_below(r, 3);
    c.args = (struct matmul_args){.w = c.w.panels, .rows = rows, .n = n, .k = k};
    c.args.x_stride = grouped ? 0 : k * sizeof(float) + pad;
    c.args.y_stride = n * sizeof(float) + pad;
    c.y_bytes = rows * c.args.y_stride;
    if (grouped) {
        c.codes = case_alloc((size_t)rows * (k / GROUP) * sizeof *c.codes);
        for (uint32_t i = 0; i < rows * (k / GROUP); i++)
            random_codes(r, profile, &c.codes[i]);
        c.args.x = codes_pack(c.codes, rows, k / GROUP);
    } else {
        uint8_t *x = case_alloc(rows * c.args.x_stride);
        for (uint32_t row = 0; row < rows; row++)
            for (uint32_t i = 0; i < k; i++)
                ((float *)(x + row * c.args.x_stride))[i] = float_of(random_float_bits(r, DT_F32, profile));
        c.args.x = x;
    }
    if (rng_below(r, 2)) {
        float *bias = case_alloc(n * sizeof(float));
        rng_fill(r, bias, n, -6, 3);
        c.args.bias = bias;
    }
    return c;
}

static inline void matmul_free(struct matmul_case *c)
{
    weights_free(&c->w);
    free(c->codes);
    free((void *)c->args.x);
    free((void *)c->args.bias);
}

// One output by rules 3 to 5. *ret_exact is the sum in f64 and *ret_bound what its rounding in f32 may cost.
static inline float ref_matmul(const struct matmul_case *c, uint32_t row, uint32_t out, double *ret_exact,
                               double *ret_bound)
{
    const struct weights *w = &c->w;
    const void *x = (const uint8_t *)c->args.x + row * c->args.x_stride;
    float acc = 0;
    double exact = 0, size = 0;
    uint32_t groups = w->k / GROUP;
    if (weights_code_bits(w->type)) {
        for (uint32_t g = 0; g < groups; g++) {
            const struct codes *a = &c->codes[row * groups + g];
            int32_t dot = 0;
            for (uint32_t i = 0; i < GROUP; i++)
                dot += weights_code(w, out, g * GROUP + i) * a->q[i];
            float d = (float)ref_f16(w->d[out * groups + g]), m = (float)ref_f16(w->m[out * groups + g]);
            float scale = d * a->scale;
            acc = fmaf(scale, (float)dot, acc);
            double term = (double)d * a->scale * dot;
            exact += term, size += fabs(term);
            if (weights_has_min(w->type)) {
                float shift = a->scale * (float)a->sum;
                acc = fmaf(m, shift, acc);
                term = (double)m * a->scale * a->sum;
                exact += term, size += fabs(term);
            }
        }
    } else {
        for (uint32_t k = 0; k < w->k; k++) {
            float v = weights_float(w, out, k), a = ((const float *)x)[k];
            acc = fmaf(v, a, acc);
            exact += (double)v * a, size += fabs((double)v * a);
        }
        groups = w->k;
    }
    if (c->args.bias) {
        acc = acc + c->args.bias[out];
        exact += (double)c->args.bias[out], size += fabs((double)c->args.bias[out]);
    }
    *ret_exact = exact;
    *ret_bound = (2.0 * groups + 4) * (0x1p-24 * size + 0x1p-130); // subnormal d * sa loses bits
    return acc;
}
