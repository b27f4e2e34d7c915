// The cache of compiled plans: a model file given to run, chat or bench is compiled once and found again.
//
// A plan's name there is a hash of the file's path and identity (size, time of change, inode), the compile
// options and the program's and the plan's version: whatever changes, the model is compiled anew. Old plans
// are not removed.
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"
#include "compile/compile.h"

// Path of the plan for `model_path` under these options into path[size]; creates the cache folder
// ($XDG_CACHE_HOME or ~/.cache, /isochron/plans). *ret_hit: a plan of this version stands there already.
enum iso_err cache_find(const char *model_path, const struct compile_options *options, char *path,
                        size_t size, bool *ret_hit, struct iso_errinfo *reterr) ISO_MUST_USE;
