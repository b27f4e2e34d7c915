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
// d and m per group of 32 or, where there are sub-scales, per 8 groups.
struct weights {
    enum dtype type;
    uint32_t n, k;
    uint32_t *raw;        // [n][k]
    uint16_t *d, *m;      // [n][k / weights_shared]
    int8_t (*sub)[2];     // [n][k / 32]: of both halves of a group, or the first of the whole
    int8_t (*min_sub)[2]; // likewise
    uint8_t *panels;      // as kernels take them
    uint64_t panel_bytes; // of one panel
};

// What the rules say of a grouped type.
struct weights_rule {
    uint32_t bits;
    int zero;
    bool has_min;
    uint32_t subs;
    int sub_min, sub_max, min_sub_max;
};

static inline struct weights_rule weights_rule(enum dtype type)
{
    switch (type) {
    case DT_Q4_0:
        return (struct weights_rule){.bits = 4, .zero = 8};
    case DT_Q4_1:
        return (struct weights_rule){.bits = 4, .has_min = true};
    case DT_Q5_0:
        return (struct weights_rule){.bits = 5, .zero = 16};
    case DT_Q5_1:
        return (struct weights_rule){.bits = 5, .has_min = true};
    case DT_Q8_0:
        return (struct weights_rule){.bits = 8};
    case DT_Q2_K:
        return (struct weights_rule){2, 0, true, 2, 0, 15, 15};
    case DT_Q3_K:
        return (struct weights_rule){3, 4, false, 2, -32, 31, 0};
    case DT_Q4_K:
        return (struct weights_rule){4, 0, true, 1, 0, 63, 63};
    case DT_Q5_K:
        return (struct weights_rule){5, 0, true, 1, 0, 63, 63};
    case DT_Q6_K:
        return (struct weights_rule){6, 32, false, 2, -128, 127, 0};
    case DT_IQ4_NL:
        return (struct weights_rule){.bits = 4};
    case DT_IQ4_XS:
        return (struct weights_rule){4, 0, false, 1, -32, 31, 0};
    case DT_W6:
        return (struct weights_rule){.bits = 6, .zero = 32};
    default:
        return (struct weights_rule){0};
    }
}

static inline int weights_zero(enum dtype type)
{
    return weights_rule(type).zero;
}

static inline bool weights_has_min(enum dtype type)
{
    return weights_rule(type).has_min;
}

static inline uint32_t weights_code_bits(enum dtype type)
{
    return weights_rule(type).bits;
}

// Inputs that share d and m.
static inline uint32_t weights_shared(enum dtype type)
{
    return weights_rule(type).subs ? 256 : 32;
}

// The code with its zero taken off, or what it stands for.
static inline int32_t weights_code(const struct weights *w, uint32_t out, uint32_t k)
{
    static const int32_t VALUES[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                       1,    13,   25,  38,  53,  69,  89,  113};
    uint32_t u = w->raw[(size_t)out * w->k + k];
    if (w->type == DT_IQ4_NL || w->type == DT_IQ4_XS)
        return VALUES[u];
    return w->type == DT_Q8_0 ? (int8_t)u : (int32_t)u - weights_zero(w->type);
}

// Where d and m of input k are.
static inline size_t weights_scale_at(const struct weights *w, uint32_t out, uint32_t k)
{
    return (size_t)out * (w->k / weights_shared(w->type)) + k / weights_shared(w->type);
}

// The sub-scale of input k; 1 where the type has none.
static inline int32_t weights_sub(const struct weights *w, int8_t (*sub)[2], uint32_t out, uint32_t k)
{
    uint32_t subs = weights_rule(w->type).subs;
    return subs ? sub[(size_t)out * (w->k / 32) + k / 32][subs == 2 ? k % 32 / 16 : 0] : 1;
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
    switch (weights_code_bits(w->type)) {
    case 8:
        panel[group * 512 + vector * 64 + byte] = (uint8_t)u;
        break;
    case 6:
        panel[group * 256 + vector / 2 * 64 + byte] |= (uint8_t)((u & 15) << (vector % 2 ? 4 : 0));
        panel[groups * 256 + group * 128 + vector / 4 * 64 + byte] |= (uint8_t)(u >> 4 << vector % 4 * 2);
        break;
    case 5:
    case 4:
        panel[group * 256 + vector % 4 * 64 + byte] |= (uint8_t)((u & 15) << (vector < 4 ? 0 : 4));
        if (u & 16)
            panel[groups * 256 + group * 64 + vector * 8 + byte / 8] |= (uint8_t)(1 << byte % 8);
        break;
    default:
        panel[group * 128 + vector / 4 * 64 + byte] |= (uint8_t)((u & 3) << vector % 4 * 2);
        if (u & 4)
            panel[groups * 128 + group * 64 + vector * 8 + byte / 8] |= (uint8_t)(1 << byte % 8);
    }
}

// Sub-scales, then d and m, of one output from `at` on.
static inline void pack_scales(const struct weights *w, uint32_t out, uint64_t at)
{
    struct weights_rule rule = weights_rule(w->type);
    uint8_t *panel = w->panels + out / 16 * w->panel_bytes;
    uint32_t lane = out % 16, groups = w->k / 32, scales = w->k / weights_shared(w->type);
    for (int min = 0; min <= rule.has_min; min++) {
        int8_t(*sub)[2] = min ? w->min_sub : w->sub;
        for (uint32_t i = 0; i < groups * rule.subs; i++)
            panel[at + i * 16 + lane] = (uint8_t)sub[(size_t)out * groups + i / rule.subs][i % rule.subs];
        at += groups * rule.subs * 16;
    }
    for (int min = 0; min <= rule.has_min; min++) {
        for (uint32_t i = 0; i < scales; i++)
            memcpy(panel + at + (i * 16 + lane) * 2, (min ? w->m : w->d) + (size_t)out * scales + i, 2);
        at += scales * 32;
    }
}

static inline void weights_pack(struct weights *w)
{
    struct weights_rule rule = weights_rule(w->type);
    uint32_t groups = w->k / 32, panels = (w->n + 15) / 16, with_min = 1 + rule.has_min;
    uint64_t element = w->type == DT_F32 ? 4 : 2;
    uint64_t codes = (uint64_t)groups * 64 * rule.bits;
    uint64_t scales = (groups * rule.subs * 16 + w->k / weights_shared(w->type) * 32) * with_min;
    uint64_t used = rule.bits ? codes + scales : w->k * 16 * element;
    w->panel_bytes = (used + 63) / 64 * 64;
    w->panels = case_alloc(panels * w->panel_bytes);
    memset(w->panels, 0, panels * w->panel_bytes);
    for (uint32_t out = 0; out < w->n; out++) {
        uint8_t *panel = w->panels + out / 16 * w->panel_bytes;
        for (uint32_t k = 0; k < w->k; k++) {
            uint32_t u = w->raw[(size_t)out * w->k + k];
            if (rule.bits)
                pack_code(w, out, k, u);
            else
                memcpy(panel + ((uint64_t)k * 16 + out % 16) * element, &u, element); // little-endian
        }
        if (rule.bits)
            pack_scales(w, out, codes);
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

static inline int8_t random_sub(struct rng *r, int min, int max, enum profile profile)
{
    if (profile != PROFILE_PLAIN && rng_below(r, 2))
        return (int8_t)(rng_below(r, 2) ? min : max);
    return (int8_t)rng_between(r, min, max);
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
    struct weights_rule rule = weights_rule(type);
    uint32_t bits = rule.bits;
    size_t groups = (size_t)n * (k / 32);
    w.raw = case_alloc((size_t)n * k * sizeof *w.raw);
    w.d = case_alloc(groups * sizeof *w.d);
    w.m = case_alloc(groups * sizeof *w.m);
    w.sub = case_alloc(groups * sizeof *w.sub);
    w.min_sub = case_alloc(groups * sizeof *w.min_sub);
    for (size_t i = 0; i < (size_t)n * k; i++)
        w.raw[i] = bits ? random_code(r, bits, profile) : random_float_bits(r, type, profile);
    for (size_t i = 0; bits && i < groups; i++) {
        w.d[i] = random_scale(r, profile);
        w.m[i] = random_scale(r, profile);
    }
    for (size_t i = 0; i < groups; i++)
        for (uint32_t j = 0; j < rule.subs; j++) {
            w.sub[i][j] = random_sub(r, rule.sub_min, rule.sub_max, profile);
            w.min_sub[i][j] = random_sub(r, 0, rule.min_sub_max, profile);
        }
    weights_pack(&w);
    return w;
}

static inline void weights_free(struct weights *w)
{
    free(w->raw);
    free(w->d);
    free(w->m);
    free(w->sub);
    free(w->min_sub);
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
    uint8_t *packed = case_alloc(n * 48);
    for (size_t j = 0; j < n; j++) { // tiles of 16 rows, in a tile by group, then by row
        uint32_t row = (uint32_t)(j / groups), g = (uint32_t)(j % groups), first = row & ~15u;
        uint32_t in_tile = rows - first < 16 ? rows - first : 16;
        size_t i = first * groups + g * in_tile + (row - first);
        const struct codes *c = &codes[j];
        float shift = c->scale * (float)c->sum;
        int32_t zero = -8 * c->sum, half = 0;
        for (int k = 0; k < 16; k++)
            half -= 8 * c->q[k];
        memcpy(packed + 32 * i, c->q, 32);
        memcpy(packed + 32 * n + 4 * i, &c->scale, 4);
        memcpy(packed + 36 * n + 4 * i, &shift, 4);
        memcpy(packed + 40 * n + 4 * i, &zero, 4);
        memcpy(packed + 44 * n + 4 * i, &half, 4);
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
            struct weights_rule rule = weights_rule(w->type);
            int32_t dot = 0, sum = 0;
            for (uint32_t i = 0; i < GROUP; i++) {
                uint32_t k = g * GROUP + i;
                dot +=
                    (rule.subs == 2 ? weights_sub(w, w->sub, out, k) : 1) * weights_code(w, out, k) * a->q[i];
                sum += (rule.subs == 2 ? weights_sub(w, w->min_sub, out, k) : 1) * a->q[i];
            }
            size_t at = weights_scale_at(w, out, g * GROUP);
            float d = (float)ref_f16(w->d[at]), m = (float)ref_f16(w->m[at]);
            if (rule.subs == 1) {
                d = d * (float)weights_sub(w, w->sub, out, g * GROUP);
                m = m * (float)weights_sub(w, w->min_sub, out, g * GROUP);
            }
            float scale = d * a->scale;
            acc = fmaf(scale, (float)dot, acc);
            double term = (double)d * a->scale * dot;
            exact += term, size += fabs(term);
            if (rule.has_min) {
                float shift = a->scale * (float)sum;
                acc = fmaf(m, shift, acc);
                term = (double)m * a->scale * sum;
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
