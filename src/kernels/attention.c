// RoPE, the KV cache and attention (numerics.md, rules 8 to 10).
#include "kernels/vec.h"
#include "kernels/kernels_isa.h"

// y_i = fma(x_i, cos_i, -(x_j * sin_i)), y_j = fma(x_j, cos_i, x_i * sin_i), j = i + head_dim / 2.
void KERNEL(rope)(const struct rope_args *a, uint32_t row_begin, uint32_t row_end)
{
    uint32_t half = a->head_dim / 2;
    ASSERT_HOT(half % 8 == 0);
    for (uint32_t row = row_begin; row < row_end; row++) {
        float *x = (float *)((uint8_t *)a->x + row * a->x_stride);
        const float *cosine = a->table + (size_t)a->rows[row].position * a->head_dim;
        const float *sine = cosine + half;
        for (uint32_t h = 0; h < a->heads; h++, x += a->head_dim) {
            for (uint32_t i = 0; i < half; i += 8) { // 8 pairs a vector: the smallest head_dim is 16
                float in[VEC_LANES], swapped[VEC_LANES], c[VEC_LANES], s[VEC_LANES];
                for (uint32_t j = 0; j < 8; j++) {
                    in[j] = x[i + j];
                    in[j + 8] = x[i + j + half];
                    swapped[j] = -(x[i + j + half] * sine[i + j]);
                    swapped[j + 8] = x[i + j] * sine[i + j];
                    c[j] = c[j + 8] = cosine[i + j];
                }
                vf_store(s, vf_fma(vf_load(in), vf_load(c), vf_load(swapped)));
                for (uint32_t j = 0; j < 8; j++) {
                    x[i + j] = s[j];
                    x[i + j + half] = s[j + 8];
                }
            }
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

// Scores of 16 keys: s = (sum over d ascending of fma(q_d, k_d)) * scale; with q8 the sum runs over codes and
// is multiplied by the key's scale first.
VEC_INLINE vf score_block(const struct kv_layout *kv, const uint8_t *k, const float *q, float scale)
{
    vf s = vf_set1(0);
    for (uint32_t d = 0; d < kv->head_dim; d++)
        s = vf_fma(vf_set1(q[d]), kv_load(kv->type, k, d * KV_BLOCK_TOKENS), s);
    if (kv->type == KV_Q8)
        s = vf_mul(s, vf_load((const float *)(k + (size_t)KV_BLOCK_TOKENS * kv->head_dim)));
    return vf_mul(s, vf_set1(scale));
}

// o_d = fma(p_j, v_jd, o_d) for the `keys` first keys of a block, ascending; with q8 p_j is multiplied by the
// value's scale first.
VEC_INLINE void value_block(const struct kv_layout *kv, const uint8_t *v, const float *p, uint32_t keys,
                            float *o)
{
    float weight[KV_BLOCK_TOKENS];
    memcpy(weight, p, sizeof weight);
    if (kv->type == KV_Q8) {
        const float *scales = (const float *)(v + (size_t)KV_BLOCK_TOKENS * kv->head_dim);
        for (uint32_t j = 0; j < keys; j++)
            weight[j] = weight[j] * scales[j];
    }
    for (uint32_t d = 0; d < kv->head_dim; d += VEC_LANES) {
        vf sum = vf_load(o + d);
        for (uint32_t j = 0; j < keys; j++)
            sum = vf_fma(vf_set1(weight[j]), kv_load(kv->type, v, j * kv->head_dim + d), sum);
        vf_store(o + d, sum);
    }
}

// What a span of keys leaves behind, and the running result that spans merge into.
struct partial {
    float max, sum;
    float o[KV_HEAD_DIM_MAX];
};

// One span: keys [begin, end), begin a multiple of KV_SPAN_TOKENS.
VEC_INLINE void attend_span(const struct attention_args *a, const struct kv_ref *ref, uint32_t kv_head,
                            const float *q, uint32_t begin, uint32_t end, struct partial *out)
{
    const struct kv_layout *kv = &a->layout;
    uint64_t block_bytes = kv_block_bytes(kv);
    const uint8_t *k = a->pool + kv_offset(kv, a->layer, false, kv_head);
    const uint8_t *v = a->pool + kv_offset(kv, a->layer, true, kv_head);
    float p[KV_SPAN_TOKENS];
    vf max = vf_set1(-__builtin_inff());
    for (uint32_t t = begin; t < end; t += KV_BLOCK_TOKENS) {
        vm exists = vm_below(end - t < KV_BLOCK_TOKENS ? end - t : KV_BLOCK_TOKENS);
        vf s = score_block(kv, k + ref->blocks[t / KV_BLOCK_TOKENS] * block_bytes, q, a->scale);
        max = vf_select(exists, vf_max(max, s), max);
        vf_store(p + (t - begin), s);
    }
    out->max = vf_fold_max(max);
    vf sum = vf_set1(0);
    memset(out->o, 0, kv->head_dim * sizeof(float));
    for (uint32_t t = begin; t < end; t += KV_BLOCK_TOKENS) {
        uint32_t keys = end - t < KV_BLOCK_TOKENS ? end - t : KV_BLOCK_TOKENS;
        vf e = vf_exp(vf_sub(vf_load(p + (t - begin)), vf_set1(out->max)));
        sum = vf_select(vm_below(keys), vf_add(sum, e), sum);
        vf_store(p + (t - begin), e);
        value_block(kv, v + ref->blocks[t / KV_BLOCK_TOKENS] * block_bytes, p + (t - begin), keys, out->o);
    }
    out->sum = vf_fold_sum(sum);
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

VEC_INLINE void attend(const struct attention_args *a, uint32_t row, uint32_t kv_head, uint32_t head)
{
    const struct kv_ref *ref = &a->rows[row];
    uint32_t head_dim = a->layout.head_dim, keys = ref->position + 1;
    const float *q = (const float *)((const uint8_t *)a->q + row * a->q_stride) + head * head_dim;
    float *y = (float *)((uint8_t *)a->y + row * a->y_stride) + head * head_dim;
    struct partial all, span;
    attend_span(a, ref, kv_head, q, 0, keys < KV_SPAN_TOKENS ? keys : KV_SPAN_TOKENS, &all);
    for (uint32_t begin = KV_SPAN_TOKENS; begin < keys; begin += KV_SPAN_TOKENS) {
        uint32_t end = keys - begin < KV_SPAN_TOKENS ? keys : begin + KV_SPAN_TOKENS;
        attend_span(a, ref, kv_head, q, begin, end, &span);
        merge_span(&all, &span, head_dim);
    }
    vf inverse = vf_set1(1.0f / all.sum);
    for (uint32_t d = 0; d < head_dim; d += VEC_LANES)
        vf_store(y + d, vf_mul(vf_load(all.o + d), inverse));
}

void KERNEL(attention)(const struct attention_args *a, uint32_t item_begin, uint32_t item_end)
{
    uint32_t kv_heads = a->layout.kv_heads, per_kv_head = a->heads / kv_heads;
    ASSERT_HOT(a->heads % kv_heads == 0 && a->layout.head_dim % VEC_LANES == 0);
    ASSERT_HOT(a->layout.head_dim <= KV_HEAD_DIM_MAX);
    for (uint32_t item = item_begin; item < item_end; item++)
        for (uint32_t i = 0; i < per_kv_head; i++)
            attend(a, item / kv_heads, item % kv_heads, item % kv_heads * per_kv_head + i);
}
