// RoPE, the KV cache and attention (numerics.md, rules 8 to 10).
#include "kernels/vec.h"
#include "kernels/kernels_isa.h"

// y_i = fma(x_i, cos_i, -(x_j * sin_i)), y_j = fma(x_j, cos_i, x_i * sin_i), j = i + head_dim / 2.
VEC_INLINE void rotate(float *x, float *x_half, const float *cosine, const float *sine)
{
    vf low = vf_load(x), high = vf_load(x_half), c = vf_load(cosine), s = vf_load(sine);
    vf_store(x, vf_fma(low, c, vf_sub(vf_set1(-0.0f), vf_mul(high, s)))); // -0 - v is -v
    vf_store(x_half, vf_fma(high, c, vf_mul(low, s)));
}

// The last 8 pairs of a head whose half is no multiple of 16.
VEC_INLINE void rotate_eight(float *x, float *x_half, const float *cosine, const float *sine)
{
    float low[VEC_LANES] = {0}, high[VEC_LANES] = {0}, c[VEC_LANES] = {0}, s[VEC_LANES] = {0};
    memcpy(low, x, 8 * sizeof *x);
    memcpy(high, x_half, 8 * sizeof *x);
    memcpy(c, cosine, 8 * sizeof *x);
    memcpy(s, sine, 8 * sizeof *x);
    rotate(low, high, c, s);
    memcpy(x, low, 8 * sizeof *x);
    memcpy(x_half, high, 8 * sizeof *x);
}

void KERNEL(rope)(const struct rope_args *a, uint32_t row_begin, uint32_t row_end)
{
    uint32_t half = a->head_dim / 2;
    ASSERT_HOT(half % 8 == 0); // the smallest head_dim is 16
    for (uint32_t row = row_begin; row < row_end; row++) {
        float *x = (float *)((uint8_t *)a->x + row * a->x_stride);
        const float *cosine = a->table + (size_t)a->rows[row].position * a->head_dim, *sine = cosine + half;
        for (uint32_t h = 0; h < a->heads; h++, x += a->head_dim) {
            uint32_t i = 0;
            for (; half - i >= VEC_LANES; i += VEC_LANES)
                rotate(x + i, x + half + i, cosine + i, sine + i);
            if (i < half)
                rotate_eight(x + i, x + half + i, cosine + i, sine + i);
        }
    }
}

// One head's vector as q8: like an activation group, but over head_dim. Returns the scale.
VEC_INLINE float kv_quantize(const float *x, uint32_t n, int8_t *q, uint32_t q_stride)
{
    uint32_t amax_bits = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t bits = f32_bits(x[i]) & 0x7FFFFFFFu;
        amax_bits = bits > amax_bits ? bits : amax_bits;
    }
    bool coded = amax_bits >= 0x0D800000u && amax_bits < 0x7F800000u;
    float amax = f32_from_bits(amax_bits);
    float inverse = coded ? 127.0f / amax : 0.0f;
    for (uint32_t i = 0; i < n; i++)
        q[i * q_stride] = coded ? (int8_t)(f32_bits(x[i] * inverse + 12582912.0f) - 0x4B400000u) : 0;
    return coded ? amax / 127.0f : amax_bits >= 0x7F800000u ? __builtin_nanf("") : 0.0f;
}

void KERNEL(kv_store)(const struct kv_store_args *a, uint32_t row_begin, uint32_t row_end)
{
    const struct kv_layout *kv = &a->layout;
    uint64_t values = (uint64_t)KV_BLOCK_TOKENS * kv->head_dim;
    for (uint32_t row = row_begin; row < row_end; row++) {
        uint32_t position = a->rows[row].position, token = position % KV_BLOCK_TOKENS;
        uint8_t *block = a->pool + a->rows[row].blocks[position / KV_BLOCK_TOKENS] * kv_block_bytes(kv);
        const float *k = (const float *)((const uint8_t *)a->k + row * a->k_stride);
        const float *v = (const float *)((const uint8_t *)a->v + row * a->v_stride);
        for (uint32_t h = 0; h < kv->kv_heads; h++, k += kv->head_dim, v += kv->head_dim) {
            uint8_t *at_k = block + kv_offset(kv, a->layer, false, h);
            uint8_t *at_v = block + kv_offset(kv, a->layer, true, h);
            if (kv->type == KV_F16) {
                for (uint32_t d = 0; d < kv->head_dim; d++) {
                    ((uint16_t *)at_k)[d * KV_BLOCK_TOKENS + token] = f16_from_f32_saturating(k[d]);
                    ((uint16_t *)at_v)[token * kv->head_dim + d] = f16_from_f32_saturating(v[d]);
                }
            } else {
                int8_t *q_k = (int8_t *)at_k + token, *q_v = (int8_t *)at_v + token * kv->head_dim;
                ((float *)(at_k + values))[token] = kv_quantize(k, kv->head_dim, q_k, KV_BLOCK_TOKENS);
                ((float *)(at_v + values))[token] = kv_quantize(v, kv->head_dim, q_v, 1);
            }
        }
    }
}

VEC_INLINE vf kv_load(enum kv_type type, const uint8_t *head, uint32_t index)
{
    return type == KV_F16 ? vf_load_f16((const uint16_t *)head + index)
                          : vf_load_s8((const int8_t *)head + index);
}

// What a span of keys leaves behind, and the running result that spans merge into.
struct partial {
    float max, sum;
    float o[KV_HEAD_DIM_MAX];
};

// Queries of one sequence and KV head, which share the keys and values they load. Each has a chain of its own;
// who is beside it doesn't show.
struct query_tile {
    const struct kv_layout *kv;
    const uint8_t *k, *v; // of this KV head and layer in block 0
    uint64_t block_bytes;
    const uint32_t *blocks;
    float scale;
    uint32_t first[VEC_QUERY_TILE], end[VEC_QUERY_TILE]; // of each query: positions of its keys
    uint32_t n_blocks; // that hold any query's keys, from the sequence's beginning on
    float q[VEC_QUERY_TILE][KV_HEAD_DIM_MAX];
    float p[VEC_QUERY_TILE][KV_SPAN_TOKENS]; // scores, then weights of the span's keys
    struct partial all[VEC_QUERY_TILE], span[VEC_QUERY_TILE];
};

// Asks for a head's K or V in a block that comes later. A piece of some KiB is too short for the processor's own
// prefetchers, and the next one lies elsewhere.
#define K_AHEAD 4 // blocks: two steps of score_keys, or four where it takes one at a time
#define V_AHEAD 2

VEC_INLINE void kv_prefetch(const struct query_tile *t, const uint8_t *head, uint32_t block)
{
    if (block >= t->n_blocks)
        return;
    const uint8_t *at = head + t->blocks[block] * t->block_bytes;
    for (uint64_t i = 0; i < kv_head_bytes(t->kv); i += 64)
        __builtin_prefetch(at + i, 0, 3);
}

// Scores of the keys of `blocks` blocks from key `at` of the span on, for n queries: s = (sum over d ascending of
// fma(q_d, k_d)) * scale; with q8 the sum runs over codes and is multiplied by the key's scale first. n and blocks
// are constants where this is inlined: 8 chains alone would leave the processor waiting for each fma.
VEC_INLINE void score_blocks(struct query_tile *t, uint32_t n, uint32_t begin, uint32_t at, uint32_t blocks)
{
    const struct kv_layout *kv = t->kv;
    const uint8_t *k[2];
    vf s[2 * VEC_QUERY_TILE];
    VEC_UNROLL
    for (uint32_t b = 0; b < blocks; b++) {
        uint32_t block = (begin + at) / KV_BLOCK_TOKENS + b;
        k[b] = t->k + t->blocks[block] * t->block_bytes;
        kv_prefetch(t, t->k, block + K_AHEAD);
    }
    VEC_UNROLL
    for (uint32_t i = 0; i < n * blocks; i++)
        s[i] = vf_set1(0);
    for (uint32_t d = 0; d < kv->head_dim; d++) {
        vf key[2];
        VEC_UNROLL
        for (uint32_t b = 0; b < blocks; b++)
            key[b] = kv_load(kv->type, k[b], d * KV_BLOCK_TOKENS);
        VEC_UNROLL
        for (uint32_t i = 0; i < n * blocks; i++)
            s[i] = vf_fma(vf_set1(t->q[i / blocks][d]), key[i % blocks], s[i]);
    }
    VEC_UNROLL
    for (uint32_t i = 0; i < n * blocks; i++) {
        if (kv->type == KV_Q8)
            s[i] = vf_mul(s[i],
                          vf_load((const float *)(k[i % blocks] + (size_t)KV_BLOCK_TOKENS * kv->head_dim)));
        vf_store(t->p[i / blocks] + at + i % blocks * KV_BLOCK_TOKENS, vf_mul(s[i], vf_set1(t->scale)));
    }
}

// Scores of keys [first, last) of a span that begins at position `begin`, and of what else is in their blocks.
VEC_INLINE void score_keys(struct query_tile *t, uint32_t n, uint32_t begin, uint32_t first, uint32_t last)
{
    uint32_t at = first / KV_BLOCK_TOKENS * KV_BLOCK_TOKENS;
    for (; VEC_QUERY_VECTORS == 2 && at + KV_BLOCK_TOKENS < last; at += 2 * KV_BLOCK_TOKENS)
        score_blocks(t, n, begin, at, 2);
    for (; at < last; at += KV_BLOCK_TOKENS)
        score_blocks(t, n, begin, at, 1);
}

// o_d = fma(p_j, v_jd, o_d) for keys [first, last) of the span, ascending, for queries [i, i + n) and `vectors`
// vectors of the head from d on.
VEC_INLINE void add_values_at(struct query_tile *t, uint32_t i, uint32_t n, uint32_t begin, uint32_t first,
                              uint32_t last, uint32_t d, uint32_t vectors)
{
    const struct kv_layout *kv = t->kv;
    vf o[2 * VEC_QUERY_TILE];
    VEC_UNROLL
    for (uint32_t j = 0; j < n * vectors; j++)
        o[j] = vf_load(t->span[i + j / vectors].o + d + j % vectors * VEC_LANES);
    for (uint32_t at = first, end; at < last; at = end) {
        uint32_t block = (begin + at) / KV_BLOCK_TOKENS,
                 next = at / KV_BLOCK_TOKENS * KV_BLOCK_TOKENS + KV_BLOCK_TOKENS;
        const uint8_t *v = t->v + t->blocks[block] * t->block_bytes;
        end = last < next ? last : next;
        if (d == 0)
            kv_prefetch(t, t->v, block + V_AHEAD);
        for (uint32_t key = at; key < end; key++) {
            vf value[2];
            VEC_UNROLL
            for (uint32_t x = 0; x < vectors; x++)
                value[x] = kv_load(kv->type, v, key % KV_BLOCK_TOKENS * kv->head_dim + d + x * VEC_LANES);
            VEC_UNROLL
            for (uint32_t j = 0; j < n * vectors; j++)
                o[j] = vf_fma(vf_set1(t->p[i + j / vectors][key]), value[j % vectors], o[j]);
        }
    }
    VEC_UNROLL
    for (uint32_t j = 0; j < n * vectors; j++)
        vf_store(t->span[i + j / vectors].o + d + j % vectors * VEC_LANES, o[j]);
}

VEC_INLINE void add_values(struct query_tile *t, uint32_t i, uint32_t n, uint32_t begin, uint32_t first,
                           uint32_t last)
{
    uint32_t d = 0, dims = first < last ? t->kv->head_dim : 0;
    for (; VEC_QUERY_VECTORS == 2 && d + VEC_LANES < dims; d += 2 * VEC_LANES)
        add_values_at(t, i, n, begin, first, last, d, 2);
    for (; d < dims; d += VEC_LANES)
        add_values_at(t, i, n, begin, first, last, d, 1);
}

// The lanes of keys [first, last) in the block at `at`.
VEC_INLINE vf keep_keys(uint32_t at, uint32_t first, uint32_t last, vf yes, vf no)
{
    vm below_last = vm_below(last - at < KV_BLOCK_TOKENS ? last - at : KV_BLOCK_TOKENS);
    vf kept = vf_select(below_last, yes, no);
    return first > at ? vf_select(vm_below(first - at), no, kept) : kept;
}

// Scores to weights of query i over keys [first, last) of a span: e_j = exp(s_j - max), their sum by position
// mod 16; with q8 then times the value's scale.
VEC_INLINE void weigh_keys(struct query_tile *t, uint32_t i, uint32_t begin, uint32_t first, uint32_t last)
{
    const struct kv_layout *kv = t->kv;
    float *p = t->p[i];
    uint32_t from = first / KV_BLOCK_TOKENS * KV_BLOCK_TOKENS;
    vf max = vf_set1(-__builtin_inff()), sum = vf_set1(0);
    for (uint32_t at = from; at < last; at += KV_BLOCK_TOKENS)
        max = keep_keys(at, first, last, vf_max(max, vf_load(p + at)), max);
    t->span[i].max = vf_fold_max(max);
    for (uint32_t at = from; at < last; at += KV_BLOCK_TOKENS) {
        vf e = vf_exp(vf_sub(vf_load(p + at), vf_set1(t->span[i].max)));
        sum = keep_keys(at, first, last, vf_add(sum, e), sum);
        if (kv->type == KV_Q8) {
            const uint8_t *v = t->v + t->blocks[(begin + at) / KV_BLOCK_TOKENS] * t->block_bytes;
            e = vf_mul(e, vf_load((const float *)(v + (size_t)KV_BLOCK_TOKENS * kv->head_dim)));
        }
        vf_store(p + at, e);
    }
    t->span[i].sum = vf_fold_sum(sum);
}

VEC_INLINE uint32_t in_span(uint32_t position, uint32_t begin)
{
    uint32_t from = position > begin ? position - begin : 0;
    return from < KV_SPAN_TOKENS ? from : KV_SPAN_TOKENS;
}

// A span that begins at position `begin`. Keys that all n queries see are shared; those before and after are each
// query's own.
VEC_INLINE void attend_span(struct query_tile *t, uint32_t n, uint32_t begin)
{
    uint32_t first[VEC_QUERY_TILE], last[VEC_QUERY_TILE];
    uint32_t least = KV_SPAN_TOKENS, most = 0, shared_first = 0, shared_last = KV_SPAN_TOKENS;
    for (uint32_t i = 0; i < n; i++) {
        first[i] = in_span(t->first[i], begin);
        last[i] = in_span(t->end[i], begin);
        least = first[i] < least ? first[i] : least;
        most = last[i] > most ? last[i] : most;
        shared_first = first[i] > shared_first ? first[i] : shared_first;
        shared_last = last[i] < shared_last ? last[i] : shared_last;
    }
    score_keys(t, n, begin, least, most);
    for (uint32_t i = 0; i < n; i++) {
        memset(t->span[i].o, 0, t->kv->head_dim * sizeof(float));
        if (first[i] < last[i])
            weigh_keys(t, i, begin, first[i], last[i]);
    }
    if (shared_first >= shared_last) { // no key is seen by all
        for (uint32_t i = 0; i < n; i++)
            add_values(t, i, 1, begin, first[i], last[i]);
        return;
    }
    for (uint32_t i = 0; i < n; i++)
        add_values(t, i, 1, begin, first[i], shared_first);
    add_values(t, 0, n, begin, shared_first, shared_last);
    for (uint32_t i = 0; i < n; i++)
        add_values(t, i, 1, begin, shared_last, last[i]);
}

// m = max(M, m'), a = exp(M - m), b = exp(m' - m); L = fma(L, a, l * b), O = fma(O, a, o * b).
VEC_INLINE void merge_span(struct partial *all, const struct partial *span, uint32_t head_dim)
{
    float max = all->max > span->max ? all->max : span->max;
    float shift[VEC_LANES] = {all->max - max, span->max - max}, factor[VEC_LANES];
    vf_store(factor, vf_exp(vf_load(shift)));
    vf a = vf_set1(factor[0]), b = vf_set1(factor[1]);
    float sum[VEC_LANES];
    vf_store(sum, vf_fma(vf_set1(all->sum), a, vf_mul(vf_set1(span->sum), b)));
    all->max = max;
    all->sum = sum[0];
    for (uint32_t d = 0; d < head_dim; d += VEC_LANES)
        vf_store(all->o + d, vf_fma(vf_load(all->o + d), a, vf_mul(vf_load(span->o + d), b)));
}

VEC_INLINE void attend(struct query_tile *t, uint32_t n)
{
    uint32_t least = t->first[0], most = 0;
    for (uint32_t i = 0; i < n; i++) {
        least = t->first[i] < least ? t->first[i] : least;
        most = t->end[i] > most ? t->end[i] : most;
    }
    t->n_blocks = (most + KV_BLOCK_TOKENS - 1) / KV_BLOCK_TOKENS;
    for (uint32_t begin = least / KV_SPAN_TOKENS * KV_SPAN_TOKENS; begin < most; begin += KV_SPAN_TOKENS) {
        attend_span(t, n, begin);
        for (uint32_t i = 0; i < n; i++) {
            if (t->first[i] >= begin && t->first[i] < begin + KV_SPAN_TOKENS)
                memcpy(&t->all[i], &t->span[i], sizeof *t->all);
            else if (t->first[i] < begin && t->end[i] > begin)
                merge_span(&t->all[i], &t->span[i], t->kv->head_dim);
        }
    }
}

// Queries [first, first + n) of a KV head, counted row by row from `row` on.
VEC_INLINE void attend_tile(const struct attention_args *a, struct query_tile *t, uint32_t kv_head,
                            uint32_t row, uint32_t first, uint32_t n)
{
    uint32_t per = a->heads / a->layout.kv_heads, head_dim = a->layout.head_dim;
    uint32_t tile = n > 4 ? 8 : n > 2 ? 4 : n; // a query too many is cheaper than a tile of every size
    for (uint32_t i = 0; i < tile; i++) {
        uint32_t at = first + (i < n ? i : n - 1);
        const float *q = (const float *)((const uint8_t *)a->q + (row + at / per) * a->q_stride);
        memcpy(t->q[i], q + (kv_head * per + at % per) * head_dim, head_dim * sizeof(float));
        t->end[i] = a->rows[row + at / per].position + 1;
        t->first[i] = a->window && t->end[i] > a->window ? t->end[i] - a->window : 0;
    }
    if (tile == 8 && VEC_QUERY_TILE >= 8)
        attend(t, VEC_QUERY_TILE >= 8 ? 8 : 1);
    else if (tile == 4)
        attend(t, 4);
    else if (tile == 2)
        attend(t, 2);
    else
        attend(t, 1);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t at = first + i;
        float *y = (float *)((uint8_t *)a->y + (row + at / per) * a->y_stride);
        vf inverse = vf_set1(1.0f / t->all[i].sum);
        for (uint32_t d = 0; d < head_dim; d += VEC_LANES)
            vf_store(y + (kv_head * per + at % per) * head_dim + d,
                     vf_mul(vf_load(t->all[i].o + d), inverse));
    }
}

void KERNEL(attention)(const struct attention_args *a, uint32_t item_begin, uint32_t item_end)
{
    uint32_t per = a->heads / a->layout.kv_heads;
    struct query_tile t; // 40 KiB, written by each tile before it is read
    t.kv = &a->layout;
    t.block_bytes = kv_block_bytes(&a->layout);
    t.scale = a->scale;
    ASSERT_HOT(a->heads % a->layout.kv_heads == 0 && a->layout.head_dim % VEC_LANES == 0);
    ASSERT_HOT(a->layout.head_dim <= KV_HEAD_DIM_MAX);
    for (uint32_t item = item_begin, rows; item < item_end; item += rows) {
        uint32_t kv_head = item / a->n_rows, row = item % a->n_rows;
        for (rows = 1; item + rows < item_end && row + rows < a->n_rows; rows++)
            if (a->rows[row + rows].blocks != a->rows[row].blocks)
                break;
        t.k = a->pool + kv_offset(&a->layout, a->layer, false, kv_head);
        t.v = a->pool + kv_offset(&a->layout, a->layer, true, kv_head);
        t.blocks = a->rows[row].blocks;
        for (uint32_t first = 0, n; first < rows * per; first += n) {
            n = rows * per - first < VEC_QUERY_TILE ? rows * per - first : VEC_QUERY_TILE;
            attend_tile(a, &t, kv_head, row, first, n);
        }
    }
}
