// A model as its files give it, whichever format they have: parameters by key, tensors by name, the vocabulary. What
// builders and compiler read; nothing here knows what a layer is.
//
// Ownership: model_open owns files and tables until model_close; every view and pointer from here lives as long.
// Read-only afterwards, so any number of threads may use it.
//
// Errors of model_open and model_read start with the path of the file that they are about; those of the getters do
// not, and name the key as that file has it.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/err.h"
#include "base/strv.h"
#include "formats/ggml_types.h"
#include "text/tokenizer.h"

#define MODEL_KEY_TEXT_MAX 96

// clang-format off
// Parameters. In a GGUF file a key is "<architecture>." and the first text; in a Hugging Face config.json it is the
// first of the second text's alternatives that is there and not null ("a.b": b in the object a).
#define MODEL_KEY_LIST(X)                                                                                           \
    X(LAYERS,          "block_count",                       "num_hidden_layers")                                    \
    X(HIDDEN,          "embedding_length",                  "hidden_size")                                          \
    X(FFN,             "feed_forward_length",               "intermediate_size")                                    \
    X(HEADS,           "attention.head_count",              "num_attention_heads")                                  \
    X(KV_HEADS,        "attention.head_count_kv",           "num_key_value_heads")                                  \
    X(HEAD_DIM,        "attention.key_length",              "head_dim")                                             \
    X(VALUE_DIM,       "attention.value_length",            "v_head_dim")                                           \
    X(CONTEXT,         "context_length",                    "max_position_embeddings")                              \
    X(VOCAB,           "vocab_size",                        "vocab_size")                                           \
    X(NORM_EPSILON,    "attention.layer_norm_rms_epsilon",  "rms_norm_eps")                                         \
    X(WINDOW,          "attention.sliding_window",          "sliding_window")                                       \
    X(WINDOW_EVERY,    "attention.sliding_window_pattern",  "sliding_window_pattern|_sliding_window_pattern")       \
    X(USE_WINDOW,      "",                                  "use_sliding_window")                                   \
    X(SCORE_SCALE,     "attention.scale",                   "")                                                     \
    X(QUERY_SCALAR,    "",                                  "query_pre_attn_scalar")                                \
    X(ROPE_DIM,        "rope.dimension_count",              "")                                                     \
    X(ROPE_PART,       "",                                  "partial_rotary_factor|rope_parameters.partial_rotary_factor") \
    X(ROPE_BASE,       "rope.freq_base",                                                                            \
      "rope_theta|rope_parameters.rope_theta|rope_parameters.full_attention.rope_theta")                            \
    X(ROPE_BASE_LOCAL, "rope.freq_base_swa",                                                                        \
      "rope_local_base_freq|rope_parameters.sliding_attention.rope_theta")                                          \
    X(ROPE_SCALING,    "rope.scaling.type",                                                                         \
      "rope_scaling.rope_type|rope_scaling.type|rope_parameters.rope_type|rope_parameters.full_attention.rope_type") \
    X(ROPE_FACTOR,     "rope.scaling.factor",                                                                       \
      "rope_scaling.factor|rope_parameters.factor|rope_parameters.full_attention.factor")                           \
    X(ROPE_LINEAR,     "rope.scale_linear",                 "")                                                     \
    X(ROPE_ORIGINAL,   "rope.scaling.original_context_length",                                                      \
      "rope_scaling.original_max_position_embeddings|rope_parameters.original_max_position_embeddings")             \
    X(ROPE_LOW,        "",                                                                                          \
      "rope_scaling.low_freq_factor|rope_parameters.low_freq_factor")                                               \
    X(ROPE_HIGH,       "",                                                                                          \
      "rope_scaling.high_freq_factor|rope_parameters.high_freq_factor")                                             \
    X(YARN_ATTENTION,  "rope.scaling.attn_factor",                                                                  \
      "rope_scaling.attention_factor|rope_parameters.attention_factor")                                             \
    X(YARN_FAST,       "rope.scaling.yarn_beta_fast",       "rope_scaling.beta_fast|rope_parameters.beta_fast")     \
    X(YARN_SLOW,       "rope.scaling.yarn_beta_slow",       "rope_scaling.beta_slow|rope_parameters.beta_slow")     \
    X(YARN_LOG,        "rope.scaling.yarn_log_multiplier",  "rope_scaling.mscale|rope_parameters.mscale")           \
    X(EXPERTS,         "expert_count",                      "num_experts|num_local_experts")                        \
    X(CLAMP,           "attention.clamp_kqv",               "clip_qkv")                                             \
    X(ALIBI,           "attention.max_alibi_bias",          "alibi")                                                \
    X(SOFTCAP,         "attn_logit_softcapping",            "attn_logit_softcapping")                               \
    X(FINAL_SOFTCAP,   "final_logit_softcapping",           "final_logit_softcapping")                              \
    X(ACTIVATION,      "",                                  "hidden_activation|hidden_act")                         \
    X(TIED,            "",                                  "tie_word_embeddings")
// clang-format on

enum model_key {
#define X(name, gguf, hf) MODEL_##name,
    MODEL_KEY_LIST(X)
#undef X
        MODEL_KEY_COUNT
};

struct model_tensor {
    struct strv name;
    enum ggml_type type; // supported
    uint32_t n_dims;     // 1 to 4
    uint64_t dims[4];    // elements, the contiguous dimension first; 1 from n_dims on
    uint64_t offset;     // of the first byte in its file
    uint64_t bytes;
    uint32_t file; // of a folder's
};

enum model_format { MODEL_GGUF, MODEL_HF };

// Callers read these fields and change none.
struct model {
    enum model_format format;
    const char *path;
    struct strv arch; // as the file has it: "qwen2" in GGUF, "Qwen2ForCausalLM" in config.json
    struct strv name; // for people; may be empty
    struct model_tensor *tensors;
    uint32_t n_tensors;

    const struct model_reader *reader;   // the format's functions
    const struct model_tensor **by_name; // sorted
    struct gguf *gguf;
    struct hf *hf;
    struct arena arena;
};

// A GGUF file, or a folder as Hugging Face has them.
enum iso_err model_open(const char *path, struct model *ret, struct iso_errinfo *reterr) ISO_MUST_USE;
// Safe on a zeroed struct.
void model_close(struct model *m);

const struct model_tensor *model_tensor_find(const struct model *m, const char *name);
// Reads n bytes of a tensor from byte `at` of its data on; at + n is at most tensor->bytes.
enum iso_err model_read(const struct model *m, const struct model_tensor *tensor, uint64_t at, void *dst,
                        size_t n, struct iso_errinfo *reterr) ISO_MUST_USE;
// The path of the file that holds a tensor, for messages.
const char *model_tensor_path(const struct model *m, const struct model_tensor *tensor);

// The key as the file has it; where it has none, the name under which it would be looked for first. Empty where the
// format has no such key.
const char *model_key_text(const struct model *m, enum model_key key, char out[MODEL_KEY_TEXT_MAX]);
bool model_has(const struct model *m, enum model_key key);
// ISO_E_FORMAT where the key is missing or its value has another type or no place in *ret. f32 rounds.
enum iso_err model_get_u32(const struct model *m, enum model_key key, uint32_t *ret,
                           struct iso_errinfo *reterr) ISO_MUST_USE;
enum iso_err model_get_f32(const struct model *m, enum model_key key, float *ret,
                           struct iso_errinfo *reterr) ISO_MUST_USE;
enum iso_err model_get_str(const struct model *m, enum model_key key, struct strv *ret,
                           struct iso_errinfo *reterr) ISO_MUST_USE;
// Whether the key is there with a value other than 0, false, and the number 1 where `or_one`. A text is a value.
bool model_is_set(const struct model *m, enum model_key key, bool or_one);

// What config.json's `layer_types` calls a layer; false where the files have no such list or the layer no entry.
bool model_layer_type(const struct model *m, uint32_t layer, struct strv *ret);

// config.json as it was parsed; NULL where the format has none.
const struct json_t *model_config(const struct model *m);

// The vocabulary, with tables in `arena`.
enum iso_err model_vocabulary(const struct model *m, struct arena *arena, struct tok_source *ret,
                              struct iso_errinfo *reterr) ISO_MUST_USE;
// The chat template's source; empty where there is none. *ret_key (may be NULL): where it comes from.
enum iso_err model_template(const struct model *m, struct strv *ret, const char **ret_key,
                            struct iso_errinfo *reterr) ISO_MUST_USE;
