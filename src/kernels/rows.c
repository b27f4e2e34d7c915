// Operations on rows: RMSNorm, quantization of activations, addition, SiLU, GELU, embedding.
#include "kernels/vec.h"
#include "kernels/kernels_isa.h"
#include "kernels/matmul_group.h"

#define GELU_C1 0x1.988454p+0f // 2 sqrt(2 / pi)
#define GELU_C3 0x1.2444f2p-4f // 2 sqrt(2 / pi) * 0.044715

// Row r of an operand with a stride in bytes.
VEC_INLINE const float *row_in(const float *base, uint64_t stride, uint32_t r)
{
    return (const float *)((const uint8_t *)base + r * stride);
}

VEC_INLINE void *row_out(void *base, uint64_t stride, uint32_t r)
{
    return (uint8_t *)base + r * stride;
}

// Elements [i, i + 16) of a row of n, zero past its end.
VEC_INLINE vf row_load(const float *row, uint32_t i, uint32_t n)
{
    if (n - i >= VEC_LANES)
        return vf_load(row + i);
    float tail[VEC_LANES] = {0};
    memcpy(tail, row + i, (n - i) * sizeof(float));
    return vf_load(tail);
}

VEC_INLINE void row_store(float *row, uint32_t i, uint32_t n, vf v)
{
    if (n - i >= VEC_LANES) {
        vf_store(row + i, v);
        return;
    }
    float tail[VEC_LANES];
    vf_store(tail, v);
    memcpy(row + i, tail, (n - i) * sizeof(float));
}

// ss = sum of x_i^2 in virtual lane i mod 16 by fma, ascending, lanes folded; r = 1 / sqrt(ss / n + epsilon),
// or a NaN where ss / n is not finite; y_i = (x_i * r) * gain_i.
VEC_INLINE void normalize(const float *x, const float *gain, float *y, uint32_t cols, float epsilon)
{
    vf sum = vf_set1(0);
    for (uint32_t i = 0; i < cols; i += VEC_LANES) {
        // Lanes past the end add fma(0, 0, sum), which changes nothing as sum >= +0.
        vf v = row_load(x, i, cols);
        sum = vf_fma(v, v, sum);
    }
    float mean = vf_fold_sum(sum) / (float)cols;
    float r = 1.0f / vf_sqrt_scalar(mean + epsilon);
    if (f32_bits(mean) >= 0x7F800000u) // squares overflowed: rows of zeros would hide it
        r = __builtin_nanf("");
    for (uint32_t i = 0; i < cols; i += VEC_LANES)
        row_store(y, i, cols, vf_mul(vf_mul(row_load(x, i, cols), vf_set1(r)), row_load(gain, i, cols)));
}

void KERNEL(rmsnorm)(const struct norm_args *a, uint32_t row_begin, uint32_t row_end)
{
    for (uint32_t row = row_begin; row < row_end; row++) {
        const float *x = row_in(a->x, a->x_stride, row);
        float *y = row_out(a->y, a->y_stride, row);
        for (uint32_t i = 0; i < a->heads; i++)
            normalize(x + (size_t)i * a->cols, a->gain, y + (size_t)i * a->cols, a->cols, a->epsilon);
    }
}

// Per group of 32: amax = largest magnitude by integer comparison of the bits; below 2^-100 scale and codes
// are 0; where amax is not finite the scale is a NaN, so that the request's logits show it; else scale = amax
// / 127 and q = rne(x * (127 / amax)).
VEC_INLINE void quantize_group(const float *x, const struct a8 *y, size_t at)
{
    vf low = vf_load(x), high = vf_load(x + VEC_LANES);
    uint32_t amax_bits = (uint32_t)vi_fold_max(vi_max_magnitude(vi_max_magnitude(vi_set1(0), low), high));
    float amax = f32_from_bits(amax_bits);
    if (amax_bits >= 0x7F800000u || amax_bits < 0x0D800000u) { // not finite, or below 2^-100
        memset(y->q[at], 0, GROUP);
        y->scale[at] = y->shift[at] = amax_bits >= 0x7F800000u ? __builtin_nanf("") : 0.0f;
        y->zero[at] = y->half[at] = 0;
        return;
    }
    vf inverse = vf_set1(127.0f / amax);
    vi first = vf_round(vf_mul(low, inverse)), second = vf_round(vf_mul(high, inverse));
    vi_store_s8(y->q[at], first);
    vi_store_s8(y->q[at] + VEC_LANES, second);
    int32_t first_sum = vi_fold_add(first), sum = first_sum + vi_fold_add(second);
    y->scale[at] = amax / 127.0f;
    y->shift[at] = y->scale[at] * (float)sum;
    y->zero[at] = -8 * sum;
    y->half[at] = -8 * first_sum;
}

void KERNEL(quantize)(const struct quantize_args *a, uint32_t row_begin, uint32_t row_end)
{
    ASSERT_HOT(a->cols % GROUP == 0 && row_end <= a->rows);
    const struct a8 y = a8_at(a->y, a->rows, a->cols);
    for (uint32_t row = row_begin; row < row_end; row++) {
        const float *x = row_in(a->x, a->x_stride, row);
        size_t at = a8_index(a->rows, a->cols, 0, row);
        for (uint32_t g = 0; g < a->cols / GROUP; g++, at += a8_tile_rows(a->rows, row))
            quantize_group(x + (size_t)g * GROUP, &y, at);
    }
}

void KERNEL(add)(const struct rows_args *a, uint32_t row_begin, uint32_t row_end)
{
    for (uint32_t row = row_begin; row < row_end; row++) {
        const float *x = row_in(a->a, a->a_stride, row);
        const float *b = row_in(a->b, a->b_stride, row);
        float *y = row_out(a->y, a->y_stride, row);
        for (uint32_t i = 0; i < a->cols; i += VEC_LANES)
            row_store(y, i, a->cols, vf_add(row_load(x, i, a->cols), row_load(b, i, a->cols)));
    }
}

// y = (a / (1 + exp(-z))) * b, where z = a, or for GELU by tanh a * fma(a * a, c3, c1), which is
// 2 sqrt(2 / pi) (a + 0.044715 a^3).
VEC_INLINE void gate_rows(const struct rows_args *a, uint32_t row_begin, uint32_t row_end, bool gelu)
{
    for (uint32_t row = row_begin; row < row_end; row++) {
        const float *gate = row_in(a->a, a->a_stride, row);
        const float *up = row_in(a->b, a->b_stride, row);
        float *y = row_out(a->y, a->y_stride, row);
        for (uint32_t i = 0; i < a->cols; i += VEC_LANES) {
            vf x = row_load(gate, i, a->cols), z = x, one = vf_set1(1.0f);
            if (gelu)
                z = vf_mul(x, vf_fma(vf_mul(x, x), vf_set1(GELU_C3), vf_set1(GELU_C1)));
            vf gated = vf_div(x, vf_add(one, vf_exp(vf_sub(vf_set1(-0.0f), z))));
            row_store(y, i, a->cols, vf_mul(gated, row_load(up, i, a->cols)));
        }
    }
}

void KERNEL(silu_mul)(const struct rows_args *a, uint32_t row_begin, uint32_t row_end)
{
    gate_rows(a, row_begin, row_end, false);
}

void KERNEL(gelu_mul)(const struct rows_args *a, uint32_t row_begin, uint32_t row_end)
{
    gate_rows(a, row_begin, row_end, true);
}

// Code of input k of one lane of a panel of a grouped type, with its zero taken off.
static int32_t panel_code(enum dtype type, const uint8_t *panel, const struct panel_layout *at, uint32_t lane,
                          uint32_t k)
{
    uint32_t group = k / GROUP, vector = k % GROUP / 4, byte = 4 * lane + k % 4;
    const uint8_t *codes = panel_codes(type, panel, group) + byte;
    const uint8_t *high = panel + at->high + (size_t)group * high_bytes(type);
    if (type == DT_Q8_0)
        return (int8_t)codes[64 * vector];
    uint32_t code, quarter = 64 * (vector / 4), shift = 2 * (vector % 4);
    if (code_bytes(type) == 128)
        code = codes[quarter] >> shift & 3;
    else if (has_quarters(type))
        code = (codes[64 * (vector / 2)] >> 4 * (vector % 2) & 15) | (high[quarter + byte] >> shift & 3) << 4;
    else
        code = codes[64 * (vector % 4)] >> (vector < 4 ? 0 : 4) & 15;
    if (high_bit(type) && high[8 * vector + byte / 8] >> byte % 8 & 1)
        code += high_bit(type);
    return has_table(type) ? IQ4_VALUES[code] : (int32_t)code - zero_of(type);
}

// d or m of input k of one lane: f16, times the sub-scale where there is one, exact.
static float panel_scale(enum dtype type, const uint8_t *panel, uint64_t scales, uint64_t subs, uint32_t lane,
                         uint32_t k)
{
    const uint16_t *d = (const uint16_t *)(panel + scales) + lane;
    uint32_t group = k / GROUP, n = subs_of(type);
    if (n == 0)
        return f32_from_f16(d[(size_t)group * PANEL_LANES]);
    uint32_t half = n == 2 ? k % GROUP / (GROUP / 2) : 0;
    return f32_from_f16(d[(size_t)(group / SUPER_GROUPS) * PANEL_LANES]) *
           (float)(int8_t)panel[subs + ((size_t)group * n + half) * PANEL_LANES + lane];
}

// The row as weights: d * code, then + m where the type has a minimum, each rounded; float types exact.
// Then times the scale, rounded.
static void embed_row(const struct embed_args *a, uint32_t id, float *y)
{
    const struct panel_layout at = panel_layout(a->dtype, a->cols);
    const uint8_t *panel = a->w + id / PANEL_LANES * at.bytes;
    uint32_t lane = id % PANEL_LANES;
    const uint16_t *halves = (const uint16_t *)panel;
    for (uint32_t k = 0; k < a->cols; k++) {
        size_t i = (size_t)k * PANEL_LANES + lane;
        switch (a->dtype) {
        case DT_F32:
            y[k] = ((const float *)panel)[i];
            break;
        case DT_F16:
            y[k] = f32_from_f16(halves[i]);
            break;
        case DT_BF16:
            y[k] = f32_from_bf16(halves[i]);
            break;
        default:
            y[k] = panel_scale(a->dtype, panel, at.scales, at.subs, lane, k) *
                   (float)panel_code(a->dtype, panel, &at, lane, k);
            if (has_min(a->dtype))
                y[k] = y[k] + panel_scale(a->dtype, panel, at.mins, at.min_subs, lane, k);
        }
        y[k] = y[k] * a->scale;
    }
}

void KERNEL(embed)(const struct embed_args *a, uint32_t row_begin, uint32_t row_end)
{
    for (uint32_t row = row_begin; row < row_end; row++)
        embed_row(a, a->ids[row], row_out(a->y, a->y_stride, row));
}
