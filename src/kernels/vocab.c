// Operations over a whole vocabulary of logits (numerics.md, rules 7 and 11).
#include "kernels/vec.h"
#include "kernels/kernels_isa.h"

#define VOCAB_CHUNK 4096 // ids whose sum is folded before it joins the others, whatever the threads

// A vector of x[i..i+16), with `pad` past n.
VEC_INLINE vf vocab_load(const float *x, uint32_t i, uint32_t n, float pad)
{
    if (n - i >= VEC_LANES)
        return vf_load(x + i);
    float tail[VEC_LANES];
    vf_store(tail, vf_set1(pad));
    memcpy(tail, x + i, (n - i) * sizeof(float));
    return vf_load(tail);
}

bool KERNEL(vocab_max)(const float *x, uint32_t n, float *ret_max)
{
    vf max = vf_set1(-__builtin_inff());
    vi biggest = vi_set1(0);
    for (uint32_t i = 0; i < n; i += VEC_LANES) {
        vf v = vocab_load(x, i, n, x[0]);
        max = vf_max(max, v);
        biggest = vi_max_magnitude(biggest, v);
    }
    if ((uint32_t)vi_fold_max(biggest) >= 0x7F800000u)
        return false;
    *ret_max = vf_fold_max(max);
    return true;
}

float KERNEL(vocab_sum_exp)(const float *x, uint32_t n, float max)
{
    float total = 0;
    for (uint32_t begin = 0; begin < n; begin += VOCAB_CHUNK) {
        uint32_t end = n - begin < VOCAB_CHUNK ? n : begin + VOCAB_CHUNK;
        vf sum = vf_set1(0);
        for (uint32_t i = begin; i < end; i += VEC_LANES) // exp(-infinity) pads with +0
            sum = vf_add(sum, vf_exp(vf_sub(vocab_load(x, i, end, -__builtin_inff()), vf_set1(max))));
        total = total + vf_fold_sum(sum);
    }
    return total;
}

void KERNEL(exp_shifted)(const float *x, uint32_t n, float max, float *y)
{
    for (uint32_t i = 0; i < n; i += VEC_LANES) {
        float e[VEC_LANES];
        vf_store(e, vf_exp(vf_sub(vocab_load(x, i, n, max), vf_set1(max))));
        memcpy(y + i, e, (n - i < VEC_LANES ? n - i : VEC_LANES) * sizeof(float));
    }
}
