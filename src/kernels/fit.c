// Weights to codes: for each group of 32 inputs of an output a scale d and codes, such that the outputs change little:
// sum over k, l of e_k H_kl e_l for the errors e = w - d code, H being how inputs go together. With H = (I + U) D
// (I + U)^T, U strictly upper, this is sum over k of D_k (e_k + sum over i < k of e_i U_ik)^2 (LDLQ: Chee, Cai, Kuleshov,
// De Sa, "QuIP", 2023). So each weight is rounded with the errors before it added: w'_k = w_k + sum of e_i U_ik.
// U reaches over blocks of FIT_BLOCK inputs. Without U: w' = w.
//
// The scale of a group, whose w' have the errors before the group: 1/d = t / largest are tried, where `largest` is the w'
// of largest magnitude and t its code: 2 STEPS + 1 values around each end of the codes. For the codes q that a scale
// gives, the error is least at d = sum D w' q / sum D q q, and by (sum D w' q)^2 / sum D q q: the first scale with the
// largest such gain is taken, its d rounded to f16, and the codes are those nearest to w' / d. Sums are in f32,
// ascending, without fma, so that plain C is fast too.
#include "kernels/half.h"
#include "kernels/kernels_isa.h"
#include "kernels/matmul_group.h"

#define STEPS 9

// The least and largest code, its zero taken off, and the distance of the t that are tried.
struct fit_rule {
    float low, high, step;
};

VEC_INLINE struct fit_rule fit_rule(enum dtype type)
{
    switch (type) {
    case DT_Q8_0:
        return (struct fit_rule){-127, 127, 0.1f};
    case DT_W6:
        return (struct fit_rule){-32, 31, 0.15f};
    case DT_Q4_0:
        return (struct fit_rule){-8, 7, 0.1f};
    default: // IQ4_NL
        return (struct fit_rule){-127, 113, 2.0f};
    }
}

VEC_INLINE vf negative(vf x)
{
    return vf_sub(vf_set1(-0.0f), x);
}

VEC_INLINE vf magnitude(vf x)
{
    return vf_max(x, negative(x));
}

// The code nearest to v, or of a type with a table its index; *ret_value is what it stands for.
VEC_INLINE vf nearest(enum dtype type, vf v, vf *ret_value)
{
    struct fit_rule rule = fit_rule(type);
    if (!has_table(type)) {
        v = vf_select(vf_greater(vf_set1(rule.low), v), vf_set1(rule.low), v);
        v = vf_select(vf_greater(v, vf_set1(rule.high)), vf_set1(rule.high), v);
        *ret_value = vf_from_vi(vf_round(v));
        return *ret_value;
    }
    vf index = vf_set1(0);
    *ret_value = vf_set1(IQ4_VALUES[0]);
    VEC_UNROLL
    for (int i = 1; i < 16; i++) {
        vm above = vf_greater(v, vf_set1(0.5f * (float)(IQ4_VALUES[i - 1] + IQ4_VALUES[i])));
        *ret_value = vf_select(above, vf_set1(IQ4_VALUES[i]), *ret_value);
        index = vf_select(above, vf_set1((float)i), index);
    }
    return index;
}

// Of each output the weight of largest magnitude, of equals the first.
VEC_INLINE vf largest(const float *w)
{
    vf best = vf_load(w);
    for (uint32_t k = 1; k < GROUP; k++) {
        vf x = vf_load(w + (size_t)k * PANEL_LANES);
        best = vf_select(vf_greater(magnitude(x), magnitude(best)), x, best);
    }
    return best;
}

// w[32][16]; importance h[32].
VEC_INLINE void try_scale(enum dtype type, const float *w, const float *h, vf inverse, vf *gain, vf *d)
{
    vf wq = vf_set1(0), qq = vf_set1(0);
    for (uint32_t k = 0; k < GROUP; k++) {
        vf x = vf_load(w + (size_t)k * PANEL_LANES), q;
        nearest(type, vf_mul(x, inverse), &q);
        vf hq = vf_mul(vf_set1(h[k]), q);
        wq = vf_add(wq, vf_mul(hq, x));
        qq = vf_add(qq, vf_mul(hq, q));
    }
    vf scale = vf_div(wq, vf_select(vf_greater(qq, vf_set1(0)), qq, vf_set1(1)));
    vf reached = vf_mul(wq, scale);
    vm better = vf_greater(reached, *gain);
    *gain = vf_select(better, reached, *gain);
    *d = vf_select(better, scale, *d);
}

// The best d of a group, as f16.
VEC_INLINE void fit_scale(enum dtype type, const float *w, const float *h, uint16_t d[PANEL_LANES])
{
    struct fit_rule rule = fit_rule(type);
    vf most = largest(w), gain = vf_set1(0), best = vf_set1(0);
    vm some = vf_greater(magnitude(most), vf_set1(0x1p-60f));
    vf inverse = vf_select(some, vf_div(vf_set1(1), vf_select(some, most, vf_set1(1))), vf_set1(0));
    for (int end = 0; end < 2; end++)
        for (int i = -STEPS; i <= STEPS; i++) {
            float t = (end ? rule.high : rule.low) + (float)i * rule.step;
            try_scale(type, w, h, vf_mul(vf_set1(t), inverse), &gain, &best);
        }
    float lane[PANEL_LANES];
    vf_store(lane, best);
    for (int r = 0; r < PANEL_LANES; r++)
        d[r] = f16_from_f32_saturating(lane[r]);
}

// e_i U_ik added for i in [begin, end); u is row k of U^T.
VEC_INLINE vf with_errors(vf w, const float (*error)[PANEL_LANES], const float *u, uint32_t begin,
                          uint32_t end)
{
    for (uint32_t i = begin; i < end; i++)
        w = vf_add(w, vf_mul(vf_load(error[i]), vf_set1(u[i])));
    return w;
}

// The group's codes in order, each with the errors before it. `first` is its place in the block; `w` is w' of the group
// where only the errors before it were added; `original` the weights.
VEC_INLINE void fit_codes(const struct fit_args *a, enum dtype type, const float *original, const float *w,
                          const float *u, uint32_t first, const uint16_t d[PANEL_LANES],
                          uint8_t code[PANEL_LANES][GROUP], float (*error)[PANEL_LANES])
{
    vf scale = vf_load_f16(d), one = vf_set1(1);
    vm some = vf_greater(magnitude(scale), vf_set1(0));
    vf inverse = vf_select(some, vf_div(one, vf_select(some, scale, one)), vf_set1(0));
    for (uint32_t k = 0; k < GROUP; k++) {
        vf x = vf_load(w + (size_t)k * PANEL_LANES), value;
        if (a->feedback)
            x = with_errors(x, error, u + (size_t)(first + k) * FIT_BLOCK, first, first + k);
        vf q = nearest(type, vf_mul(x, inverse), &value);
        if (a->feedback)
            vf_store(error[first + k],
                     vf_sub(vf_load(original + (size_t)k * PANEL_LANES), vf_mul(scale, value)));
        int8_t lane[PANEL_LANES];
        vi_store_s8(lane, vf_round(q));
        for (int r = 0; r < PANEL_LANES; r++)
            code[r][k] = (uint8_t)(lane[r] + zero_of(type));
    }
}

VEC_INLINE void fit_block(enum dtype type, const struct fit_args *a, uint32_t block)
{
    _Alignas(64) float error[FIT_BLOCK][PANEL_LANES];
    _Alignas(64) float adjusted[GROUP * PANEL_LANES];
    uint32_t begin = block * FIT_BLOCK, end = a->k - begin < FIT_BLOCK ? a->k : begin + FIT_BLOCK;
    const float *u = a->feedback ? a->feedback + (size_t)begin * FIT_BLOCK : NULL;
    for (uint32_t k = begin; k < end; k += GROUP) {
        const float *original = a->w + (size_t)k * PANEL_LANES, *w = original;
        for (uint32_t i = 0; u && i < GROUP; i++) {
            vf x = vf_load(original + (size_t)i * PANEL_LANES);
            x = with_errors(x, error, u + (size_t)(k - begin + i) * FIT_BLOCK, 0, k - begin);
            vf_store(adjusted + (size_t)i * PANEL_LANES, x);
            w = adjusted;
        }
        fit_scale(type, w, a->importance + k, a->d[k / GROUP]);
        fit_codes(a, type, original, w, u, k - begin, a->d[k / GROUP], a->code[k / GROUP], error);
    }
}

VEC_INLINE void fit_blocks(enum dtype type, const struct fit_args *a, uint32_t begin, uint32_t end)
{
    for (uint32_t i = begin; i < end; i++)
        fit_block(type, a, i);
}

void KERNEL(fit)(const struct fit_args *a, uint32_t block_begin, uint32_t block_end)
{
    switch (a->dtype) {
    case DT_Q8_0:
        fit_blocks(DT_Q8_0, a, block_begin, block_end);
        break;
    case DT_W6:
        fit_blocks(DT_W6, a, block_begin, block_end);
        break;
    case DT_Q4_0:
        fit_blocks(DT_Q4_0, a, block_begin, block_end);
        break;
    default:
        ASSERT_HOT(a->dtype == DT_IQ4_NL);
        fit_blocks(DT_IQ4_NL, a, block_begin, block_end);
    }
}

// Row by row, so that each product's sum is ascending; what is added to lies in registers meanwhile.
VEC_INLINE void add_products(const struct products_args *a, uint32_t k, uint32_t first, uint32_t vectors)
{
    float *to = a->to + (size_t)k * FIT_BLOCK + (first - k / FIT_BLOCK * FIT_BLOCK);
    vf sum[4];
    VEC_UNROLL
    for (uint32_t v = 0; v < vectors; v++)
        sum[v] = vf_load(to + v * VEC_LANES);
    for (uint32_t r = 0; r < a->rows; r++) {
        const float *x = (const float *)((const uint8_t *)a->x + r * a->x_stride);
        vf xk = vf_set1(x[k]);
        VEC_UNROLL
        for (uint32_t v = 0; v < vectors; v++)
            sum[v] = vf_add(sum[v], vf_mul(xk, vf_load(x + first + v * VEC_LANES)));
    }
    VEC_UNROLL
    for (uint32_t v = 0; v < vectors; v++)
        vf_store(to + v * VEC_LANES, sum[v]);
}

void KERNEL(products)(const struct products_args *a, uint32_t k_begin, uint32_t k_end)
{
    ASSERT_HOT(a->cols % GROUP == 0);
    for (uint32_t k = k_begin; k < k_end; k++) {
        uint32_t l = k / FIT_BLOCK * FIT_BLOCK;
        for (; l + 4 * VEC_LANES <= k + 1; l += 4 * VEC_LANES)
            add_products(a, k, l, 4);
        for (; l <= k; l += VEC_LANES)
            add_products(a, k, l, 1);
    }
}
