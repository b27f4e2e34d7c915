// A Hugging Face folder, opened. Internal to model/.
#pragma once

#include <jansson.h>

#include "base/buf.h"
#include "model/model_formats.h"

#define HF_CONFIG_BYTES_MAX    ((uint64_t)4 << 20)
#define HF_TOKENIZER_BYTES_MAX ((uint64_t)256 << 20)
#define HF_TEMPLATE_BYTES_MAX  ((uint64_t)1 << 20)
#define HF_FILES_MAX           1024 // of weights

struct hf_file {
    int fd;
    const char *path;
};

struct hf {
    int folder;
    json_t *config;           // config.json
    json_t *generation;       // generation_config.json, or NULL
    json_t *tokenizer_config; // tokenizer_config.json, or NULL
    struct buf chat_template; // chat_template.jinja; empty where there is none
    struct hf_file *files;    // with weights
    uint32_t n_files;
};

// Reads and parses a JSON file of the folder. Errors start with its name.
enum iso_err hf_read_json(const struct hf *hf, const char *name, uint64_t max, json_t **ret,
                          struct iso_errinfo *reterr) ISO_MUST_USE;
// tokenizer.json to a vocabulary, with what the folder's other files say of its tokens. Copies go into `arena`.
enum iso_err hf_vocabulary(const struct hf *hf, json_t *tokenizer, struct arena *arena,
                           struct tok_source *ret, struct iso_errinfo *reterr) ISO_MUST_USE;
// Opens the weights: m->tensors, hf->files.
enum iso_err hf_open_weights(struct model *m, struct iso_errinfo *reterr) ISO_MUST_USE;
