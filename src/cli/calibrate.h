// Running a model on a text to see how the inputs of its matmuls go together.
#pragma once

#include "cli/model_options.h"
#include "compile/compile.h"

#define CALIBRATE_TOKENS_DEFAULT 8192

// Compiles the model with f16 weights, without the heads of `pruning` (NULL: with all), into the cache, runs it on the
// text in windows of 512 tokens, at most `tokens_max` of it, and fills *ret. Release it with calibrate_free. The same model and text give the same sums on any machine.
enum iso_err calibrate(const char *model_path, const char *text_path, uint32_t tokens_max,
                       const struct pruning *pruning, bool quiet, struct calibration *ret,
                       struct iso_errinfo *reterr) ISO_MUST_USE;
void calibrate_free(struct calibration *c);
