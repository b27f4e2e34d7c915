// What the builders of language models share: finding tensors by name and shape, and the blocks that transformer
// layers are made of. Internal to graph/.
#pragma once

#include "base/err.h"
#include "graph/ir.h"
#include "model/model.h"

// State of one build. `used` marks the model's tensors that the graph refers to.
struct builder {
    const struct model *model;
    const struct family *family;
    struct graph *g;
    bool *used; // [model->n_tensors]
    struct iso_errinfo *reterr;
};

enum family_window {
    WINDOW_NONE, // a file that asks for one is refused
    WINDOW_ALL,  // of all layers, where the file has one
    WINDOW_MIXED // of layers that the builder names
};

// A family: what its files say otherwise than the plain llama's.
struct family {
    const char *arch;        // general.architecture in GGUF
    const char *hf_class;    // in the `architectures` of config.json; NULL: none
    const char *hf_ffn_norm; // Hugging Face's name of a layer's "ffn_norm"; NULL: as llama's
    bool rope_interleaved;   // GGUF files keep Q and K for interleaved rotary pairs
    bool norm_plus_one;      // Hugging Face's files keep the norms' gains less 1
    bool qk_norm;            // Q and K are normalized head by head
    const char *activation;  // what config.json must call it: "silu"
    enum family_window window;
    enum iso_err (*build)(struct builder *b);
};

// Reads the common parameters into b->g->model and checks their ranges (params.c).
enum iso_err blocks_read_model(struct builder *b) ISO_MUST_USE;
// The rotary embedding that the files describe.
enum iso_err blocks_read_rope(struct builder *b, struct ir_rope *ret) ISO_MUST_USE;
// The window of a layer, 0 where it has none: as the files list their layers, else the model's where `windowed`.
enum iso_err blocks_layer_window(struct builder *b, uint32_t layer, bool windowed,
                                 uint32_t *ret) ISO_MUST_USE;
// A key as a number in [min, max]; `fallback` where it is missing and fallback is not 0.
enum iso_err blocks_u32(struct builder *b, enum model_key key, uint32_t min, uint32_t max, uint32_t fallback,
                        uint32_t *ret) ISO_MUST_USE;
enum iso_err blocks_f32(struct builder *b, enum model_key key, float min, float max, float fallback,
                        float *ret) ISO_MUST_USE;

// Names are those of GGUF, with one %u for the layer; what they are called elsewhere is looked up.
bool blocks_has(const struct builder *b, const char *format, uint32_t layer);
// A weight matrix [n][k]. *ret is the tensor's index.
enum iso_err blocks_matrix(struct builder *b, const char *format, uint32_t layer, uint32_t n, uint32_t k,
                           uint32_t deinterleave_heads, uint32_t *ret) ISO_MUST_USE;
// A bias [n].
enum iso_err blocks_vector(struct builder *b, const char *format, uint32_t layer, uint32_t n,
                           uint32_t deinterleave_heads, uint32_t *ret) ISO_MUST_USE;
// A norm's gains [n].
enum iso_err blocks_gain(struct builder *b, const char *format, uint32_t layer, uint32_t n,
                         uint32_t *ret) ISO_MUST_USE;
// A tensor of n floats that becomes no weight of its own.
enum iso_err blocks_floats(struct builder *b, const char *format, uint32_t layer, uint32_t n,
                           const struct model_tensor **ret) ISO_MUST_USE;
// A table of angles.
enum iso_err blocks_angles(struct builder *b, const struct ir_rope *rope, uint32_t *ret) ISO_MUST_USE;

// Refuses the first tensor that no block has asked for.
enum iso_err blocks_all_used(struct builder *b) ISO_MUST_USE;

struct attention_weights {
    uint32_t q, k, v, out;
    uint32_t bias_q, bias_k, bias_v; // IR_NONE where there is none
    uint32_t q_norm, k_norm;         // IR_NONE where the family has none
};

struct ffn_weights {
    uint32_t gate, up, down;
};

enum iso_err blocks_find_attention(struct builder *b, uint32_t layer,
                                   struct attention_weights *ret) ISO_MUST_USE;
enum iso_err blocks_find_ffn(struct builder *b, uint32_t layer, struct ffn_weights *ret) ISO_MUST_USE;

// y = x W^T (+ bias), a new value.
uint32_t blocks_matmul(struct graph *g, uint32_t x, uint32_t matrix, uint32_t bias);
// y = rmsnorm(x) * gain, a new value.
uint32_t blocks_rmsnorm(struct graph *g, uint32_t x, uint32_t gain);
// x = x + y, in place.
void blocks_add(struct graph *g, uint32_t x, uint32_t y);
// q, k, v = h Wq, h Wk, h Wv (+ b); q and k normalized by head where the weights say so, then rotated; k and v
// stored; attention(q) Wo, a new value.
uint32_t blocks_attention(struct graph *g, const struct attention_weights *w, uint32_t h, uint32_t angles,
                          uint32_t window);
// (act(h Wgate) * (h Wup)) Wdown, a new value. `act_mul` is IR_SILU_MUL or IR_GELU_MUL.
uint32_t blocks_ffn(struct graph *g, const struct ffn_weights *w, uint32_t h, enum ir_code act_mul);

// The vocabulary's size, the embedding of the step's tokens times `scale`: *ret_x is the value that layers work on.
enum iso_err blocks_begin(struct builder *b, float scale, uint32_t *ret_embedding,
                          uint32_t *ret_x) ISO_MUST_USE;
// Marks the operations from `first_op` on as the layer's.
void blocks_end_layer(struct graph *g, uint32_t first_op, uint32_t layer);
// logits = rmsnorm(x of wanted rows) Whead; Whead may be the embedding.
enum iso_err blocks_end(struct builder *b, uint32_t embedding, uint32_t x) ISO_MUST_USE;

// The builders, a file each.
enum iso_err llama_build(struct builder *b) ISO_MUST_USE;
enum iso_err gemma3_build(struct builder *b) ISO_MUST_USE;
