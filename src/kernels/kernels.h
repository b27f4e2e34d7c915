// The table of kernels: every operation that computes a result, once per ISA.
//
// Each result is defined by docs/internals/numerics.md; the plain C entry ("c") is its executable form and
// every other ISA equals it bit for bit. All functions are pure over the caller's memory, allocate nothing,
// and may run in several threads at once on disjoint ranges. Work is divided only over outputs and rows
// (`begin` and `end` count the items named with each function), never over terms of a sum. Callers run inside
// fpenv_enter (base/fpenv.h).
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/dtype.h"
#include "kernels/kv_layout.h"

enum isa { ISA_C, ISA_AVX2, ISA_AVX512, ISA_AMX, ISA_NEON, ISA_COUNT };

// y[rows][n] = x[rows][k] W^T (+ bias). Items: panels of 16 outputs.
struct matmul_args {
    const uint8_t *w;  // panels (dtype.h)
    const float *bias; // [n] or NULL; added after the sum
    const void *x;     // struct a8 of these rows for grouped types, else float[rows][k]
    float *y;          // [rows], row stride y_stride
    uint64_t x_stride; // bytes; of float rows
    uint64_t y_stride; // bytes
    uint32_t rows, n, k;
};

struct norm_args {
    const float *x;              // [rows][heads * cols]
    const float *gain;           // [cols]
    float *y;                    // [rows][heads * cols]; may be x
    uint64_t x_stride, y_stride; // bytes
    uint32_t heads, cols;        // each head is normalized by itself
    float epsilon;
};

struct rows_args { // element-wise operations: y from a and b, or from a alone
    const float *a, *b;
    void *y;
    uint64_t a_stride, b_stride, y_stride; // bytes
    uint32_t cols;
};

struct quantize_args {
    const float *x;    // [rows][cols]
    void *y;           // struct a8 of `rows` rows of cols inputs
    uint64_t x_stride; // bytes
    uint32_t rows, cols;
};

// Where a row's sequence keeps its KV blocks, and the row's absolute position in it.
struct kv_ref {
    const uint32_t *blocks; // block numbers of the sequence; position p lies in blocks[p / KV_BLOCK_TOKENS]
    uint32_t position;
};

struct rope_args {
    float *x;                  // [rows], heads * head_dim values from here are rotated in place
    uint64_t x_stride;         // bytes
    const float *table;        // [positions][2][head_dim / 2]: cosines, then sines
    const struct kv_ref *rows; // for their positions
    uint32_t heads, head_dim;
};

struct kv_store_args {
    const float *k, *v;          // [rows][kv_heads * head_dim]
    uint64_t k_stride, v_stride; // bytes
    uint8_t *pool;               // block 0
    struct kv_layout layout;
    uint32_t layer;
    const struct kv_ref *rows;
};

// Items: kv_head * n_rows + row. Each computes all query heads of its KV head. Neighbouring rows of one sequence
// (equal `blocks`) share what they load.
struct attention_args {
    const float *q;              // [rows][heads * head_dim]
    float *y;                    // [rows][heads * head_dim]
    uint64_t q_stride, y_stride; // bytes
    const uint8_t *pool;         // block 0
    struct kv_layout layout;
    uint32_t layer;
    uint32_t heads;  // a multiple of layout.kv_heads
    uint32_t window; // a query sees this many keys at most, the last ones; 0: all
    float scale;
    uint32_t n_rows;
    const struct kv_ref *rows; // [n_rows]
};

struct embed_args {
    const uint8_t *w; // panels of the embedding matrix [vocab][cols]
    enum dtype dtype;
    const uint32_t *ids; // [rows], each < vocab
    float *y;
    uint64_t y_stride; // bytes
    uint32_t cols;
    float scale; // of the row
};

#define FIT_BLOCK 1024 // inputs whose errors are weighed against each other

// Weights of one panel to codes of a type that has no sub-scales and no minimum: Q8_0, W6, Q4_0, IQ4_NL.
struct fit_args {
    enum dtype dtype;
    uint32_t k;
    const float *w;          // [k][16]: of each input the 16 outputs; magnitudes below 2^40
    const float *importance; // [k], each from 2^-30 to 2^30: D, how much an error in this input counts
    const float
        *feedback; // [k][FIT_BLOCK]: U^T, where U_ik of input k and the i-th input of its block; NULL: none
    uint8_t (*code)[PANEL_LANES]
                   [GROUP];     // [k / 32]: of each output; unsigned, with the type's zero, or signed bytes
    uint16_t (*d)[PANEL_LANES]; // [k / 32]: f16 scales
};

// to[k][l] += sum over rows of x_k x_l, for the inputs l of k's block up to k, or a few more.
struct products_args {
    const float *x;      // [rows][cols]
    uint64_t x_stride;   // bytes
    uint32_t rows, cols; // cols a multiple of 32
    float *to;           // [cols][FIT_BLOCK]
};

struct kernels {
    const char *name; // "c", "avx2", "avx512", "amx", "neon"

    void (*matmul[DT_COUNT])(const struct matmul_args *a, uint32_t panel_begin, uint32_t panel_end);
    // RMSNorm: y = x * (1 / sqrt(mean(x^2) + epsilon)) * gain. Items: rows.
    void (*rmsnorm)(const struct norm_args *a, uint32_t row_begin, uint32_t row_end);
    // Activations to codes. Items: rows.
    void (*quantize)(const struct quantize_args *a, uint32_t row_begin, uint32_t row_end);
    // y = a + b. Items: rows.
    void (*add)(const struct rows_args *a, uint32_t row_begin, uint32_t row_end);
    // y = silu(a) * b. Items: rows.
    void (*silu_mul)(const struct rows_args *a, uint32_t row_begin, uint32_t row_end);
    // y = gelu(a) * b, by tanh. Items: rows.
    void (*gelu_mul)(const struct rows_args *a, uint32_t row_begin, uint32_t row_end);
    // Rotary embedding, halves paired (i, i + head_dim / 2). Items: rows.
    void (*rope)(const struct rope_args *a, uint32_t row_begin, uint32_t row_end);
    // Items: rows.
    void (*kv_store)(const struct kv_store_args *a, uint32_t row_begin, uint32_t row_end);
    void (*attention)(const struct attention_args *a, uint32_t item_begin, uint32_t item_end);
    // Items: rows.
    void (*embed)(const struct embed_args *a, uint32_t row_begin, uint32_t row_end);

    // The compiler's: codes and scales of small error (fit.c says which). Items: blocks of FIT_BLOCK inputs.
    void (*fit)(const struct fit_args *a, uint32_t block_begin, uint32_t block_end);
    // Items: inputs k.
    void (*products)(const struct products_args *a, uint32_t k_begin, uint32_t k_end);

    // Over a vocabulary x[n]: the maximum in the defined order; false where a value is not finite (*ret_max
    // untouched).
    bool (*vocab_max)(const float *x, uint32_t n, float *ret_max);
    // sum of exp(x[i] - max), chunks of 4,096 folded in ascending order.
    float (*vocab_sum_exp)(const float *x, uint32_t n, float max);
    // y[i] = exp(x[i] - max).
    void (*exp_shifted)(const float *x, uint32_t n, float max, float *y);
};

// The table of an ISA, or NULL where this build has none or this machine can't run it. Asking for amx asks the
// kernel for the tiles, for the whole process and for good; it then keeps 8 KiB for each thread that has used them.
const struct kernels *kernels_get(enum isa isa);
// The fastest that this machine can run; never NULL.
const struct kernels *kernels_best(void);
// Looks up a name; false where it is none.
bool isa_from_name(const char *name, enum isa *ret);
const char *isa_name(enum isa isa);
