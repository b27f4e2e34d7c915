// What the builders of language models share: reading parameters, finding tensors by name and shape, and the
// blocks that transformer layers are made of. Internal to graph/.
#pragma once

#include "base/err.h"
#include "formats/gguf.h"
#include "graph/ir.h"

// State of one build. `used` marks the file's tensors that the graph refers to.
struct builder {
    const struct gguf *file;
    struct graph *g;
    bool *used; // [file->n_tensors]
    struct iso_errinfo *reterr;
};

// A family: how its tensors differ from the plain llama.
struct family {
    const char *arch;      // general.architecture, also the prefix of its keys
    bool rope_interleaved; // the file keeps Q and K for interleaved rotary pairs
    enum iso_err (*build)(struct builder *b, const struct family *family);
};

// Reads the common parameters of "<arch>.*" into b->g->model and checks their ranges.
enum iso_err blocks_read_model(struct builder *b, const struct family *family) ISO_MUST_USE;

// A weight matrix [n][k] called `format` (with one %u for the layer). *ret is the tensor's index.
enum iso_err blocks_matrix(struct builder *b, const char *format, uint32_t layer, uint32_t n, uint32_t k,
                           uint32_t deinterleave_heads, uint32_t *ret) ISO_MUST_USE;
// An f32 vector [n]. Where `optional` and the file has none, *ret is IR_NONE.
enum iso_err blocks_vector(struct builder *b, const char *format, uint32_t layer, uint32_t n, bool optional,
                           uint32_t deinterleave_heads, uint32_t *ret) ISO_MUST_USE;

// Refuses the file's first tensor that no block has asked for.
enum iso_err blocks_all_used(struct builder *b) ISO_MUST_USE;

// y = x W^T (+ bias), a new value.
uint32_t blocks_matmul(struct graph *g, uint32_t x, uint32_t matrix, uint32_t bias);
// y = rmsnorm(x) * gain, a new value.
uint32_t blocks_rmsnorm(struct graph *g, uint32_t x, uint32_t gain);
// x = x + y, in place.
void blocks_add(struct graph *g, uint32_t x, uint32_t y);

extern const struct family FAMILY_LLAMA, FAMILY_QWEN2;
