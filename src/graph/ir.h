// The intermediate representation: a flat list of typed operations on typed tensors, for language and vision
// alike.
//
// Ownership: a graph lives in the arena given to graph_init and keeps views into the model file it was built
// from, which must outlive it. Not thread-safe. Tensors and operations are referred to by index.
//
// A value has a leading dimension that is known only at run time (rows of a batch) and `cols` f32 or coded
// columns. An operand is a range of columns of a value, so that fused results need no copies. Operations are
// in execution order; an operation may write a value that it also reads (in place).
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/err.h"
#include "model/model.h"
#include "kernels/dtype.h"
#include "kernels/kv_layout.h"

#define IR_LAYERS_MAX  1024
#define IR_VOCAB_MAX   1048576
#define IR_OPS_MAX     (IR_LAYERS_MAX * 24 + 16)
#define IR_TENSORS_MAX (IR_LAYERS_MAX * 32 + 16)
#define IR_PARTS_MAX   (IR_LAYERS_MAX * 32 + 16)
#define IR_IN_MAX      3
#define IR_NONE        UINT32_MAX

enum ir_kind {
    IR_BATCH,  // a value with a row for each token of the step
    IR_LOGITS, // a value with a row for each token whose logits are wanted
    IR_MATRIX, // weights [n][k] of a matmul or embedding, from parts
    IR_VECTOR, // f32 weights [cols], from one part
    IR_ANGLES, // table [positions][2][cols / 2] of cosines and sines, computed
};

// Runs of `unit` rows or columns that are kept of a tensor: number which[0], which[1], ..., ascending.
struct ir_select {
    uint32_t unit, n;
    const uint32_t *which; // [n]
};

// A tensor of the model file, or several stacked along n.
struct ir_part {
    const struct model_tensor *source;
    const struct ir_select *rows, *cols; // NULL: all
    // > 0: rows of each of this many heads are reordered from interleaved rotary pairs (2i, 2i + 1), as GGUF
    // keeps llama's Q and K, to halves (i, i + head_dim / 2), which our rope kernel rotates.
    uint32_t deinterleave_heads;
    bool plus_one; // of vectors: the values are those of the source and 1
};

enum ir_rope_scaling { IR_ROPE_PLAIN, IR_ROPE_LINEAR, IR_ROPE_LLAMA3, IR_ROPE_YARN, IR_ROPE_SCALING_COUNT };

// How the angles of a rotary embedding grow with position (compile/angles.c has the formulas).
struct ir_rope {
    double base;
    enum ir_rope_scaling scaling;
    double factor;                       // linear, llama3, yarn
    double low, high;                    // llama3: bounds of the wavelengths between, as shares of `original`
    double fast, slow;                   // yarn: rotations over `original`
    double attention;                    // yarn: cosines and sines are multiplied by it
    uint32_t original;                   // llama3, yarn: positions that the model was first trained for
    const struct model_tensor *divisors; // F32 [head_dim / 2] of the frequencies, or NULL
};

struct ir_tensor {
    enum ir_kind kind;
    enum dtype dtype;
    uint32_t rows;              // of matrices: n
    uint32_t cols;              // of matrices: k
    uint32_t part, n_parts;     // of matrices and vectors
    const struct ir_rope *rope; // of angles
};

//    code          operands: in[0], in[1], in[2] -> out
#define IR_OP_LIST(X)                                                                                   \
    X(EMBED, "embed")         /* matrix -> batch value; token ids come from the step */                 \
    X(RMSNORM, "rmsnorm")     /* value, vector -> value; as many columns at a time as the vector has */ \
    X(QUANTIZE, "quantize")   /* f32 value -> a8 value */                                               \
    X(MATMUL, "matmul")       /* value, matrix, optional vector (bias) -> value */                      \
    X(ROPE, "rope")           /* value, rope table -> the same value */                                 \
    X(KV_STORE, "kv_store")   /* k value, v value -> nothing: into the KV cache of `layer` */           \
    X(ATTENTION, "attention") /* q value -> value, over the KV cache of `layer` */                      \
    X(ADD, "add")             /* value, value -> value */                                               \
    X(SILU_MUL, "silu_mul")   /* gate value, up value -> value */                                       \
    X(GELU_MUL, "gelu_mul")   /* gate value, up value -> value */                                       \
    X(GATHER, "gather")       /* batch value -> logits value: the rows whose logits are wanted */

enum ir_code {
#define X(name, text) IR_##name,
    IR_OP_LIST(X)
#undef X
        IR_CODE_COUNT
};

struct ir_ref {
    uint32_t tensor; // IR_NONE: no operand
    uint32_t col, cols;
};

struct ir_op {
    enum ir_code code;
    struct ir_ref in[IR_IN_MAX];
    struct ir_ref out;
    uint32_t layer;  // which it belongs to; 0 for those before and after the layers
    float scale;     // attention: of the scores; rmsnorm: epsilon; embed: of the row
    uint32_t window; // attention: the last keys that a query sees, itself among them; 0: all
};

// What the model's files say, checked.
struct ir_model {
    struct strv arch, name;
    uint32_t vocab, hidden, layers, heads, kv_heads, head_dim, ffn, context;
    uint32_t window; // of layers that have one; 0: none has
    float norm_epsilon, attention_scale;
};

struct graph {
    struct arena *arena;
    struct ir_model model;
    struct ir_tensor *tensors;
    struct ir_part *parts;
    struct ir_op *ops;
    uint32_t n_tensors, n_parts, n_ops;
    uint32_t logits; // the tensor that holds the result
};

// Tables in `arena`, empty. ISO_E_LIMIT where the arena is too small.
enum iso_err graph_init(struct graph *g, struct arena *arena) ISO_MUST_USE;

const char *ir_code_name(enum ir_code code);

// The type of weights that a plan holds as a file of this supported type has them.
enum dtype ir_dtype_of(enum ggml_type type);

static inline struct ir_ref ir_none(void)
{
    return (struct ir_ref){.tensor = IR_NONE};
}

// The whole width of a tensor.
struct ir_ref ir_whole(const struct graph *g, uint32_t tensor);

// Append; the limits above are checked by the builders through their own limits on layers, so these can't
// fail.
uint32_t graph_add_value(struct graph *g, enum ir_kind kind, enum dtype dtype, uint32_t cols);
uint32_t graph_add_tensor(struct graph *g, struct ir_tensor tensor);
uint32_t graph_add_part(struct graph *g, struct ir_part part);
struct ir_op *graph_add_op(struct graph *g, enum ir_code code, struct ir_ref in0, struct ir_ref in1,
                           struct ir_ref in2, struct ir_ref out);
