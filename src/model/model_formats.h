// What a format gives to model.h: one table of functions for each. Internal to model/.
#pragma once

#include "model/model.h"

// Each does what the function of model.h with its name does; where a format has no answer the entry says so by its
// result (false, NULL, empty), never by being NULL.
struct model_reader {
    // Opens into *m, whose path and arena are set; the caller closes the model where this fails. Errors start with the
    // path.
    enum iso_err (*open)(struct model *m, struct iso_errinfo *reterr);
    void (*close)(struct model *m);
    // Errors do not start with the path.
    enum iso_err (*read)(const struct model *m, const struct model_tensor *tensor, uint64_t at, void *dst,
                         size_t n, struct iso_errinfo *reterr);
    const char *(*tensor_path)(const struct model *m, const struct model_tensor *tensor);
    void (*key_text)(const struct model *m, enum model_key key, char out[MODEL_KEY_TEXT_MAX]);
    bool (*has)(const struct model *m, enum model_key key);
    enum iso_err (*get_u32)(const struct model *m, enum model_key key, uint32_t *ret,
                            struct iso_errinfo *reterr);
    enum iso_err (*get_f32)(const struct model *m, enum model_key key, float *ret,
                            struct iso_errinfo *reterr);
    enum iso_err (*get_str)(const struct model *m, enum model_key key, struct strv *ret,
                            struct iso_errinfo *reterr);
    bool (*is_set)(const struct model *m, enum model_key key, bool or_one);
    bool (*layer_type)(const struct model *m, uint32_t layer, struct strv *ret);
    const struct json_t *(*config)(const struct model *m);
    enum iso_err (*vocabulary)(const struct model *m, struct arena *arena, struct tok_source *ret,
                               struct iso_errinfo *reterr);
    enum iso_err (*template)(const struct model *m, struct strv *ret, const char **ret_key,
                             struct iso_errinfo *reterr);
};

extern const struct model_reader MODEL_READER_GGUF, MODEL_READER_HF;

// Their vocabularies, in files of their own.
enum iso_err model_gguf_vocabulary(const struct model *m, struct arena *arena, struct tok_source *ret,
                                   struct iso_errinfo *reterr) ISO_MUST_USE;
enum iso_err model_hf_vocabulary(const struct model *m, struct arena *arena, struct tok_source *ret,
                                 struct iso_errinfo *reterr) ISO_MUST_USE;
