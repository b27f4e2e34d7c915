// The tokenizer section of a plan, from a model file's tokenizer.* keys. Internal to compile/.
#pragma once

#include "compile/compile.h"

// Sets the program's tokenizer, chat template and end-of-generation tokens.
enum iso_err vocabulary_build(struct program *p, struct iso_errinfo *reterr) ISO_MUST_USE;
