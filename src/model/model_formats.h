// The formats behind model.h. Internal to model/: each function does what that of model.h with its name does.
#pragma once

#include "model/model.h"

// Opens into *m, whose path and arena are set; the caller closes the model where this fails.
enum iso_err model_gguf_open(struct model *m, struct iso_errinfo *reterr) ISO_MUST_USE;
void model_gguf_close(struct model *m);
enum iso_err model_gguf_read(const struct model *m, const struct model_tensor *tensor, uint64_t at, void *dst,
                             size_t n, struct iso_errinfo *reterr) ISO_MUST_USE;
bool model_gguf_has(const struct model *m, enum model_key key);
enum iso_err model_gguf_get_u32(const struct model *m, enum model_key key, uint32_t *ret,
                                struct iso_errinfo *reterr) ISO_MUST_USE;
enum iso_err model_gguf_get_f32(const struct model *m, enum model_key key, float *ret,
                                struct iso_errinfo *reterr) ISO_MUST_USE;
enum iso_err model_gguf_get_str(const struct model *m, enum model_key key, struct strv *ret,
                                struct iso_errinfo *reterr) ISO_MUST_USE;
bool model_gguf_is_set(const struct model *m, enum model_key key, bool or_one);
enum iso_err model_gguf_vocabulary(const struct model *m, struct arena *arena, struct tok_source *ret,
                                   struct iso_errinfo *reterr) ISO_MUST_USE;

// "<arch>.<key>"; false where GGUF has no such key.
bool model_gguf_key(const struct model *m, enum model_key key, char out[MODEL_KEY_TEXT_MAX]);
enum iso_err model_gguf_template(const struct model *m, struct strv *ret, const char **ret_key,
                                 struct iso_errinfo *reterr) ISO_MUST_USE;

enum iso_err model_hf_open(struct model *m, struct iso_errinfo *reterr) ISO_MUST_USE;
void model_hf_close(struct model *m);
enum iso_err model_hf_read(const struct model *m, const struct model_tensor *tensor, uint64_t at, void *dst,
                           size_t n, struct iso_errinfo *reterr) ISO_MUST_USE;
bool model_hf_has(const struct model *m, enum model_key key);
enum iso_err model_hf_get_u32(const struct model *m, enum model_key key, uint32_t *ret,
                              struct iso_errinfo *reterr) ISO_MUST_USE;
enum iso_err model_hf_get_f32(const struct model *m, enum model_key key, float *ret,
                              struct iso_errinfo *reterr) ISO_MUST_USE;
enum iso_err model_hf_get_str(const struct model *m, enum model_key key, struct strv *ret,
                              struct iso_errinfo *reterr) ISO_MUST_USE;
bool model_hf_is_set(const struct model *m, enum model_key key, bool or_one);
enum iso_err model_hf_vocabulary(const struct model *m, struct arena *arena, struct tok_source *ret,
                                 struct iso_errinfo *reterr) ISO_MUST_USE;

enum iso_err model_hf_template(const struct model *m, struct strv *ret, const char **ret_key,
                               struct iso_errinfo *reterr) ISO_MUST_USE;
bool model_hf_key(const struct model *m, enum model_key key, char out[MODEL_KEY_TEXT_MAX]);
bool model_hf_layer_type(const struct model *m, uint32_t layer, struct strv *ret);
const struct json_t *model_hf_config(const struct model *m);
const char *model_hf_file_path(const struct model *m, uint32_t file);
