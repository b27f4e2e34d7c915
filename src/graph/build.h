// From a model's files to a graph: one builder per architecture family, found by what the files say they are.
//
// To add a family: a row in the table of build.c; where its layers are built otherwise than a builder has it, a file
// over the blocks of blocks.h; a key that it reads, in the list of model/model.h.
#pragma once

#include "base/arena.h"
#include "base/err.h"
#include "graph/ir.h"
#include "model/model.h"

// Bytes of arena that any graph fits in.
#define GRAPH_ARENA_BYTES ((size_t)32 << 20)

// Builds into *g (graph_init done). Refuses by name: an architecture that has no builder, a parameter out of
// range or not supported, a tensor that is missing, has another shape, or that nothing would use.
enum iso_err graph_build(const struct model *model, struct graph *g, struct iso_errinfo *reterr) ISO_MUST_USE;
