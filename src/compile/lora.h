// A LoRA adapter as PEFT writes it: adapter_config.json and adapter_model.safetensors in a folder, whose files are
// confined to it as a model's are. Internal to compile/. For a weight matrix W[n][k] of a Hugging Face folder it holds A[r][k] and B[n][r];
// the adapted matrix is W + s B A, s = alpha / r, or alpha / sqrt(r) where use_rslora is set.
//
// Format: https://github.com/huggingface/peft, LoraConfig, and the names
// base_model.model.<name of the module>.lora_A.weight. Refused: DoRA, biases, modules saved whole, ranks or alphas of single
// modules, fan_in_fan_out, and what has no place in the model.
#pragma once

#include "base/err.h"
#include "compile/compile.h"
#include "model/model.h"

#define LORA_RANK_MAX 1024

struct lora;

// Reads the adapter of model `m`, a Hugging Face folder; its numbers are held as f32. Errors name the folder's file. Close
// with lora_close.
enum iso_err lora_open(const char *path, const struct model *m, struct lora **ret,
                       struct iso_errinfo *reterr) ISO_MUST_USE;
// NULL is allowed.
void lora_close(struct lora *l);

// Whether the adapter changes this tensor of its model. l may be NULL.
bool lora_has(const struct lora *l, const struct model_tensor *t);
// Adds s B[row] A to the k values of a row of the tensor: f32, the r products of each value in ascending order, then times
// s. Does nothing where the adapter has nothing of the tensor.
void lora_add(const struct lora *l, const struct model_tensor *t, uint64_t row, float *values);
// The first changed tensor that no matrix of the program is made of; NULL where there is none.
const struct model_tensor *lora_unused(const struct lora *l, const struct program *p);
