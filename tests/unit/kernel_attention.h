// A KV cache and queries for the kernel tests, and rules 9 and 10 of numerics.md in simple loops over a cache
// of their own, laid out from the description in kernels/kv_layout.h.
#pragma once

#include "kernel_cases.h"

// One sequence of `tokens` tokens in a pool of shuffled blocks; more blocks than it needs.
struct kv_case {
    struct kv_layout layout;
    uint32_t layer, heads, tokens, n_blocks;
    uint32_t window; // 0 after making
    uint64_t pool_bytes, kv_stride, q_stride;
    uint32_t *blocks;   // [n_blocks], a permutation
    struct kv_ref *ref; // [tokens], row i at position i
    float *k, *v;       // [tokens][kv_heads * head_dim]
    float *q;           // [tokens][heads * head_dim]
};

static inline uint64_t case_head_bytes(const struct kv_layout *kv)
{
    return kv->type == KV_F16 ? 16 * kv->head_dim * 2 : 16 * kv->head_dim + 16 * 4;
}

static inline uint64_t case_block_bytes(const struct kv_layout *kv)
{
    return kv->layers * 2 * kv->kv_heads * case_head_bytes(kv);
}

// K (or V) of a head in the block of a position.
static inline uint8_t *case_head(const struct kv_case *c, uint8_t *pool, uint32_t position, bool is_v,
                                 uint32_t kv_head)
{
    const struct kv_layout *kv = &c->layout;
    uint64_t head = (c->layer * 2 + (is_v ? 1 : 0)) * kv->kv_heads + kv_head;
    return pool + c->blocks[position / 16] * case_block_bytes(kv) + head * case_head_bytes(kv);
}

static inline uint32_t case_element(const struct kv_case *c, uint32_t position, bool is_v, uint32_t d)
{
    return is_v ? position % 16 * c->layout.head_dim + d : d * 16 + position % 16;
}

// The stored number, a code for q8, whose scale is *ret_scale.
static inline float case_value(const struct kv_case *c, uint8_t *pool, uint32_t position, bool is_v,
                               uint32_t kv_head, uint32_t d, float *ret_scale)
{
    const uint8_t *head = case_head(c, pool, position, is_v, kv_head);
    uint32_t i = case_element(c, position, is_v, d);
    *ret_scale = 1;
    if (c->layout.type == KV_F16) {
        uint16_t h;
        memcpy(&h, head + i * 2, 2);
        return (float)ref_f16(h);
    }
    memcpy(ret_scale, head + 16 * c->layout.head_dim + position % 16 * 4, 4);
    return (float)((const int8_t *)head)[i];
}

static inline struct kv_case kv_case_make(struct rng *r, struct kv_layout layout, uint32_t heads,
                                          uint32_t tokens, int exp_max)
{
    struct kv_case c = {
        .layout = layout, .layer = rng_below(r, layout.layers), .heads = heads, .tokens = tokens};
    c.n_blocks = (tokens + 15) / 16 + 3;
    c.pool_bytes = c.n_blocks * case_block_bytes(&layout);
    c.blocks = case_alloc(c.n_blocks * sizeof *c.blocks);
    for (uint32_t i = 0; i < c.n_blocks; i++) {
        uint32_t j = rng_below(r, i + 1);
        c.blocks[i] = c.blocks[j];
        c.blocks[j] = i;
    }
    c.ref = case_alloc(tokens * sizeof *c.ref);
    for (uint32_t i = 0; i < tokens; i++)
        c.ref[i] = (struct kv_ref){.blocks = c.blocks, .position = i};
    uint32_t kv_cols = layout.kv_heads * layout.head_dim, q_cols = heads * layout.head_dim;
    c.kv_stride = (kv_cols + rng_below(r, 3)) * sizeof(float);
    c.q_stride = (q_cols + rng_below(r, 3)) * sizeof(float);
    c.k = case_alloc(tokens * c.kv_stride);
    c.v = case_alloc(tokens * c.kv_stride);
    c.q = case_alloc(tokens * c.q_stride);
    rng_fill(r, c.k, tokens * c.kv_stride / 4, exp_max - 5, exp_max);
    rng_fill(r, c.v, tokens * c.kv_stride / 4, exp_max - 5, exp_max);
    rng_fill(r, c.q, tokens * c.q_stride / 4, exp_max - 5, exp_max);
    return c;
}

static inline void kv_case_free(struct kv_case *c)
{
    free(c->blocks);
    free(c->ref);
    free(c->k);
    free(c->v);
    free(c->q);
}

static inline const float *case_row(const float *x, uint64_t stride, uint32_t row)
{
    return (const float *)((const uint8_t *)x + row * stride);
}

static inline struct kv_store_args case_store_args(const struct kv_case *c, uint8_t *pool)
{
    return (struct kv_store_args){.k = c->k,
                                  .v = c->v,
                                  .k_stride = c->kv_stride,
                                  .v_stride = c->kv_stride,
                                  .pool = pool,
                                  .layout = c->layout,
                                  .layer = c->layer,
                                  .rows = c->ref};
}

// y has the strides of q. `rows` names the rows and their positions.
static inline struct attention_args case_attention_args(const struct kv_case *c, const uint8_t *pool,
                                                        const struct kv_ref *rows, uint32_t n_rows,
                                                        const float *q, float *y)
{
    return (struct attention_args){.q = q,
                                   .y = y,
                                   .q_stride = c->q_stride,
                                   .y_stride = c->q_stride,
                                   .pool = pool,
                                   .layout = c->layout,
                                   .layer = c->layer,
                                   .heads = c->heads,
                                   .window = c->window,
                                   .scale = 1.0f / sqrtf((float)c->layout.head_dim),
                                   .n_rows = n_rows,
                                   .rows = rows};
}

// Rule 10: row `row` into the pool.
static inline void ref_kv_store(const struct kv_case *c, uint8_t *pool, uint32_t row)
{
    uint32_t head_dim = c->layout.head_dim, position = c->ref[row].position;
    for (uint32_t i = 0; i < 2 * c->layout.kv_heads; i++) {
        bool is_v = i % 2;
        const float *x = case_row(is_v ? c->v : c->k, c->kv_stride, row) + i / 2 * head_dim;
        uint8_t *head = case_head(c, pool, position, is_v, i / 2);
        int8_t codes[KV_HEAD_DIM_MAX];
        float scale = ref_quantize(x, head_dim, codes);
        for (uint32_t d = 0; d < head_dim; d++) {
            uint32_t at = case_element(c, position, is_v, d);
            uint16_t h = ref_f16_saturating(x[d]);
            if (c->layout.type == KV_F16)
                memcpy(head + at * 2, &h, 2);
            else
                head[at] = (uint8_t)codes[d];
        }
        if (c->layout.type == KV_Q8)
            memcpy(head + 16 * head_dim + position % 16 * 4, &scale, 4);
    }
}

struct ref_span {
    float max, sum, o[KV_HEAD_DIM_MAX];
};

// Rule 9, keys [begin, end) of one span.
static inline void ref_attend_span(const struct kv_case *c, uint8_t *pool, const float *q, float scale,
                                   uint32_t kv_head, uint32_t begin, uint32_t end, struct ref_span *span)
{
    float s[KV_SPAN_TOKENS], lane[CASE_LANES] = {0}, stored;
    uint32_t head_dim = c->layout.head_dim;
    memset(span->o, 0, sizeof span->o);
    span->max = -INFINITY;
    for (uint32_t t = begin; t < end; t++) {
        float sum = 0;
        for (uint32_t d = 0; d < head_dim; d++)
            sum = fmaf(q[d], case_value(c, pool, t, false, kv_head, d, &stored), sum);
        if (c->layout.type == KV_Q8)
            sum = sum * stored;
        s[t - begin] = sum * scale;
        span->max = span->max > s[t - begin] ? span->max : s[t - begin];
    }
    for (uint32_t t = begin; t < end; t++) {
        float p = ref_exp(s[t - begin] - span->max);
        lane[t % CASE_LANES] = lane[t % CASE_LANES] + p;
        for (uint32_t d = 0; d < head_dim; d++) {
            float v = case_value(c, pool, t, true, kv_head, d, &stored);
            float weight = c->layout.type == KV_Q8 ? p * stored : p;
            span->o[d] = fmaf(weight, v, span->o[d]);
        }
    }
    span->sum = ref_fold(lane);
}

static inline uint32_t case_first_key(const struct kv_case *c, uint32_t position)
{
    return c->window > 0 && c->window <= position ? position + 1 - c->window : 0;
}

static inline void ref_attend(const struct kv_case *c, uint8_t *pool, const float *q, float scale,
                              uint32_t kv_head, uint32_t position, float *y)
{
    struct ref_span all, span;
    uint32_t first = case_first_key(c, position);
    for (uint32_t begin = first, end; begin <= position; begin = end) {
        end = (uint32_t)num_min(begin - begin % KV_SPAN_TOKENS + KV_SPAN_TOKENS, position + 1);
        ref_attend_span(c, pool, q, scale, kv_head, begin, end, begin == first ? &all : &span);
        if (begin == first)
            continue;
        float max = all.max > span.max ? all.max : span.max;
        float a = ref_exp(all.max - max), b = ref_exp(span.max - max);
        all.sum = fmaf(all.sum, a, span.sum * b);
        for (uint32_t d = 0; d < c->layout.head_dim; d++)
            all.o[d] = fmaf(all.o[d], a, span.o[d] * b);
        all.max = max;
    }
    float inverse = 1.0f / all.sum;
    for (uint32_t d = 0; d < c->layout.head_dim; d++)
        y[d] = all.o[d] * inverse;
}

// softmax(q K^T scale) V of the stored K and V in f64; *ret_size is the largest |v|.
static inline void exact_attend(const struct kv_case *c, uint8_t *pool, const float *q, float scale,
                                uint32_t kv_head, uint32_t position, double *y, double *ret_size)
{
    uint32_t head_dim = c->layout.head_dim;
    double *s = case_alloc((position + 1) * sizeof *s), max = -(double)INFINITY, sum = 0;
    float stored;
    for (uint32_t t = case_first_key(c, position); t <= position; t++) {
        s[t] = 0;
        for (uint32_t d = 0; d < head_dim; d++) {
            double code = (double)case_value(c, pool, t, false, kv_head, d, &stored);
            s[t] += (double)q[d] * code * (double)stored * (double)scale;
        }
        max = fmax(max, s[t]);
    }
    memset(y, 0, head_dim * sizeof *y);
    *ret_size = 0;
    for (uint32_t t = case_first_key(c, position); t <= position; t++) {
        double p = exp(s[t] - max);
        sum += p;
        for (uint32_t d = 0; d < head_dim; d++) {
            double v = (double)case_value(c, pool, t, true, kv_head, d, &stored) * (double)stored;
            y[d] += p * v;
            *ret_size = fmax(*ret_size, fabs(v));
        }
    }
    for (uint32_t d = 0; d < head_dim; d++)
        y[d] /= sum;
    free(s);
}
