// The plan file, byte for byte: what compile writes and unit executes.
//
// Little-endian; all offsets from the file's start; no pointers, so it can be mapped anywhere. A header of
// fixed size, then sections in the order of enum plan_section_id, each at the next multiple of PLAN_ALIGN
// with zeros between; the last ends the file. Same input, same options, same version: same bytes on any
// machine. A change of this file or of a numeric rule changes PLAN_VERSION.
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/hash.h"
#include "kernels/dtype.h"
#include "kernels/kv_layout.h"

#define PLAN_MAGIC      "ISOPLAN\n"
#define PLAN_VERSION    6
#define PLAN_ALIGN      4096
#define PLAN_NAME_BYTES 64 // of names in the header and of a tensor, with the terminating zero
#define PLAN_EOG_MAX    8
#define PLAN_IN_MAX     3
#define PLAN_NONE       UINT32_MAX

// Limits that a plan is checked against before anything is sized by it.
#define PLAN_TENSORS_MAX      65536
#define PLAN_OPS_MAX          32768
#define PLAN_VOCAB_MAX        1048576
#define PLAN_COLS_MAX         2097152 // columns of a value or matrix, also outputs of a matrix
#define PLAN_LAYERS_MAX       1024
#define PLAN_HEADS_MAX        1024
#define PLAN_SEQ_MAX          4194304 // tokens of one slot
#define PLAN_SLOTS_MAX        1024
#define PLAN_BATCH_TOKENS_MAX 8192
#define PLAN_EMBED_SCALE_MAX  65536.0f
#define PLAN_FILE_MAX         ((uint64_t)1 << 44)
#define PLAN_ARENA_MAX        ((uint64_t)1 << 44)

enum plan_section_id {
    PLAN_TENSORS,   // struct plan_tensor[n_tensors]
    PLAN_OPS,       // struct plan_op[n_ops]
    PLAN_TOKENIZER, // text/tokenizer.h says what
    PLAN_TEMPLATE,  // the chat template's source; empty where the model has none
    PLAN_WEIGHTS,   // panels, vectors and tables, each aligned to PANEL_ALIGN
    PLAN_SECTION_COUNT
};

struct plan_section {
    uint64_t offset, bytes;
    struct hash128 hash; // of the section's bytes
};

// What the model is. Names are zero-terminated UTF-8 without control characters, cut to fit, zeros after.
struct plan_model {
    char arch[PLAN_NAME_BYTES];
    char name[PLAN_NAME_BYTES];
    uint32_t vocab, hidden, layers, heads, kv_heads, head_dim, ffn;
    uint32_t context; // tokens the model was trained for
};

// What weight matrices were given when the plan was compiled.
//    name  text   type of weights
#define QUANT_LIST(X)                                              \
    X(KEEP, "keep", DT_COUNT) /* as the model's files have them */ \
    X(F16, "f16", DT_F16)                                          \
    X(W8, "w8", DT_Q8_0)                                           \
    X(W6, "w6", DT_W6)                                             \
    X(W4, "w4", DT_IQ4_NL)

enum quant {
#define X(name, text, dtype) QUANT_##name,
    QUANT_LIST(X)
#undef X
        QUANT_COUNT
};

// What the plan was compiled for.
struct plan_limits {
    uint32_t max_seq_len;  // tokens of a slot, prompt and output together
    uint32_t slots;        // sequences at once, also the most rows of logits in a step
    uint32_t batch_tokens; // the most tokens in a step
    uint32_t kv_type;      // enum kv_type
    uint32_t quant;        // enum quant, of the layers' matrices
    uint32_t quant_head;   // the same, of the embedding and the output matrix
};

struct plan_header {
    char magic[8];
    uint32_t version;
    uint32_t header_bytes; // sizeof(struct plan_header)
    uint64_t file_bytes;
    struct plan_section sections[PLAN_SECTION_COUNT];
    struct plan_model model;
    struct plan_limits limits;
    uint64_t arena_bytes; // activations; the tensors' offsets lie below it
    uint32_t n_tensors, n_ops;
    uint32_t logits; // the tensor that holds the result
    uint32_t n_eog;  // tokens that end a generation
    uint32_t eog[PLAN_EOG_MAX];
    struct hash128 hash; // of all bytes before this field; names the plan
};

enum plan_kind {
    PLAN_BATCH,  // value: batch_tokens rows
    PLAN_LOGITS, // value: slots rows
    PLAN_MATRIX, // panels
    PLAN_VECTOR, // f32[cols]
    PLAN_ANGLES, // f32[max_seq_len][2][cols / 2], cosines and sines
    PLAN_KIND_COUNT
};

struct plan_tensor {
    char name[PLAN_NAME_BYTES]; // of weights, for people; empty for values
    uint32_t kind;              // enum plan_kind
    uint32_t dtype;             // enum dtype
    uint32_t rows;              // of matrices: outputs; else 0
    uint32_t cols;              // of matrices: inputs
    uint64_t offset;            // of values: in the arena; of others: in the weights section
    uint64_t bytes;             // occupied there
};

struct plan_ref {
    uint32_t tensor; // PLAN_NONE: no operand
    uint32_t col, cols;
};

//    code           operands
#define PLAN_OP_LIST(X)       \
    X(EMBED, "embed")         \
    X(RMSNORM, "rmsnorm")     \
    X(QUANTIZE, "quantize")   \
    X(MATMUL, "matmul")       \
    X(ROPE, "rope")           \
    X(KV_STORE, "kv_store")   \
    X(ATTENTION, "attention") \
    X(ADD, "add")             \
    X(SILU_MUL, "silu_mul")   \
    X(GELU_MUL, "gelu_mul")   \
    X(GATHER, "gather")

enum plan_code {
#define X(name, text) PLAN_OP_##name,
    PLAN_OP_LIST(X)
#undef X
        PLAN_CODE_COUNT
};

// in and out as with the graph's operation of the same name (ARCHITECTURE.md lists them).
struct plan_op {
    uint32_t code; // enum plan_code
    uint32_t layer;
    struct plan_ref in[PLAN_IN_MAX];
    struct plan_ref out;
    float scale;     // attention: of the scores; rmsnorm: epsilon; embed: of the rows; else 0
    uint32_t window; // attention: the last keys that a query sees, itself among them, or 0 for all; else 0
};

_Static_assert(sizeof(struct plan_section) == 32, "plan layout");
_Static_assert(sizeof(struct plan_model) == 160, "plan layout");
_Static_assert(sizeof(struct plan_limits) == 24, "plan layout");
_Static_assert(sizeof(struct plan_header) == 24 + 160 + 160 + 24 + 8 + 16 + 32 + 16, "plan layout");
_Static_assert(sizeof(struct plan_tensor) == 96, "plan layout");
_Static_assert(sizeof(struct plan_op) == 64, "plan layout");
_Static_assert(PLAN_ALIGN % PANEL_ALIGN == 0, "sections keep the panels' alignment");
_Static_assert((uint64_t)PLAN_SEQ_MAX / KV_BLOCK_TOKENS * PLAN_SLOTS_MAX <= UINT32_MAX / 2,
               "KV blocks have 32-bit numbers");
_Static_assert((uint64_t)2 * PLAN_LAYERS_MAX * PLAN_HEADS_MAX * KV_BLOCK_TOKENS * KV_HEAD_DIM_MAX * 2 <=
                   INT64_MAX / ((uint64_t)PLAN_SEQ_MAX / KV_BLOCK_TOKENS * PLAN_SLOTS_MAX),
               "the size of no KV pool overflows");

const char *plan_code_name(uint32_t code);
const char *quant_name(uint32_t quant);
// Looks up a name; false where it is none.
bool quant_from_name(const char *name, enum quant *ret);
// The type of weights, DT_COUNT where it is the file's.
enum dtype quant_dtype(enum quant quant);

// True where a name is as struct plan_model says.
bool plan_name_is_valid(const char name[PLAN_NAME_BYTES]);

// Bytes of one row of a value. The dtype is f32 or a8; cols is at most PLAN_COLS_MAX.
static inline uint64_t plan_row_bytes(uint32_t dtype, uint32_t cols)
{
    return dtype == DT_A8 ? (uint64_t)cols / GROUP * A8_GROUP_BYTES : (uint64_t)cols * sizeof(float);
}

// The most rows of a value under these limits.
static inline uint32_t plan_rows_max(uint32_t kind, const struct plan_limits *limits)
{
    return kind == PLAN_LOGITS ? limits->slots : limits->batch_tokens;
}

// Bytes that weights of this shape take in the weights section.
uint64_t plan_weight_bytes(const struct plan_tensor *t, const struct plan_limits *limits);

static inline struct kv_layout plan_kv_layout(const struct plan_header *h)
{
    return (struct kv_layout){.type = (enum kv_type)h->limits.kv_type,
                              .layers = h->model.layers,
                              .kv_heads = h->model.kv_heads,
                              .head_dim = h->model.head_dim};
}

// KV blocks of one slot, and of all.
static inline uint32_t plan_slot_blocks(const struct plan_limits *limits)
{
    return (limits->max_seq_len + KV_BLOCK_TOKENS - 1) / KV_BLOCK_TOKENS;
}

static inline uint64_t plan_kv_blocks(const struct plan_limits *limits)
{
    return (uint64_t)plan_slot_blocks(limits) * limits->slots;
}
