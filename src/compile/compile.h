// From a model file to a plan file: build the graph, run the passes, pack the weights, write.
//
// The way: graph_build → pass_fuse → pass_quantize → lower → (pack, angles) → emit. Everything but the
// weights lives in one arena; weights stream through one panel's worth of buffer, so memory does not grow
// with the model.
#pragma once

#include "base/arena.h"
#include "base/err.h"
#include "model/model.h"
#include "kernels/kernels.h"
#include "plan/plan_format.h"

#define COMPILE_MAX_SEQ_LEN_DEFAULT  4096 // or the model's context where that is shorter
#define COMPILE_SLOTS_DEFAULT        1
#define COMPILE_BATCH_TOKENS_DEFAULT 128

struct compile_options {
    uint32_t max_seq_len;         // 0: the default
    uint32_t max_seq_len_default; // 0: COMPILE_MAX_SEQ_LEN_DEFAULT; cut to the model's context
    uint32_t slots;               // 0: the default
    uint32_t batch_tokens;        // 0: the default, or `slots` where that is more
    enum kv_type kv_type;
    enum quant quant; // of the layers' matrices
    bool
        quant_head_given; // else the embedding and the output matrix have w6 where `quant` is w4, and the same elsewhere
    enum quant quant_head;
    uint32_t threads; // that pack; 0: one for each CPU the process may use. No result depends on it
    const struct calibration *calibration; // NULL: none
    const struct pruning *pruning;         // NULL: none; must outlive the program, unchanged
    const char *lora;                      // folder of an adapter that is merged into the weights; NULL: none
};

// How the inputs of matmuls go together, as measured by running the model: a row for each matmul of the program, in order.
// The program must be that of the same model with all matrices of one type.
struct calibration {
    uint32_t n;
    const struct calibration_row {
        uint32_t cols;
        const float *
            products; // [cols][FIT_BLOCK]: sums of x_k x_l over what was run, l the inputs of k's block up to k
    } * rows;
};

// Which KV groups go: of each layer as many, as the blocks of the KV cache have all layers alike.
struct pruning {
    uint32_t layers, kv_heads, heads; // of the model; heads: that read a KV head
    uint32_t kept;                    // KV heads in each layer
    uint32_t *which;                  // [layers][kept], ascending
    double *worth;                    // [layers][kv_heads]: its share of what the layer's attention adds
};

// How many go: `share` of each layer's, to the nearest whole number, but one stays; for the time being the last ones.
// ISO_E_USAGE where that is none, ISO_E_UNSUPPORTED where a layer has but one. Errors of both functions start with the path.
// Release it with pruning_close.
enum iso_err pruning_open(const char *model_path, float share, struct pruning *ret,
                          struct iso_errinfo *reterr) ISO_MUST_USE;
// Called with work done so far and in all; may be NULL.
typedef void compile_progress(void *context, uint64_t done, uint64_t total);
// Which: those of least worth by the calibration, which is one of the model with f16 weights.
enum iso_err pruning_choose(struct pruning *p, const char *model_path, const struct calibration *calibration,
                            compile_progress *progress, void *context,
                            struct iso_errinfo *reterr) ISO_MUST_USE;
// Safe on a zeroed struct.
void pruning_close(struct pruning *p);

// A program with everything but weights: what `fit` needs to know. Owns the opened model file and an arena;
// release with program_close.
struct ir_part;
struct ir_rope;
struct lora;
struct program {
    struct plan_header header; // complete but for hashes and section places
    struct plan_tensor *tensors;
    struct plan_op *ops;
    const struct ir_part *parts; // of tensors: part_of[i] is the first of n_parts_of[i]
    uint32_t *part_of, *n_parts_of;
    const struct ir_rope **rope_of;             // of angles
    const struct calibration_row **products_of; // of matrices: NULL where not calibrated
    uint32_t threads;
    struct lora *lora;
    uint64_t weights_bytes;
    uint8_t *tokenizer; // section bytes
    uint64_t tokenizer_bytes;
    struct strv chat_template;
    struct model model;
    struct arena arena;
};

// Reads the model and compiles the program. Errors start with the path. ISO_E_UNSUPPORTED names what is not
// supported and what is; ISO_E_USAGE an option that the model rules out (max_seq_len over the model's
// context).
enum iso_err program_open(const char *model_path, const struct compile_options *options, struct program *ret,
                          struct iso_errinfo *reterr) ISO_MUST_USE;
void program_close(struct program *p);

// Bytes of the plan that program_write would write, beside the weights section.
uint64_t program_other_bytes(const struct program *p);

// What program_write would say of the path before it begins: that no file can be made there, or that the space is too small.
enum iso_err program_check_target(const struct program *p, const char *plan_path,
                                  struct iso_errinfo *reterr) ISO_MUST_USE;
// Packs the weights and writes the plan: whole under plan_path, or not at all. Progress is in bytes of weights. Errors start with the path of
// the file that they are about. ISO_E_NONFINITE names a tensor that holds a NaN or infinite value.
enum iso_err program_write(struct program *p, const char *plan_path, compile_progress *progress,
                           void *context, struct iso_errinfo *reterr) ISO_MUST_USE;
