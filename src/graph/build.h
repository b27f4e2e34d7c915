// From a model file to a graph: one builder per architecture family, found by the file's
// general.architecture.
//
// To add a family: a builder file over the blocks of blocks.h and one row in the table of build.c.
#pragma once

#include "base/arena.h"
#include "base/err.h"
#include "formats/gguf.h"
#include "graph/ir.h"

// Bytes of arena that any graph fits in.
#define GRAPH_ARENA_BYTES ((size_t)32 << 20)

// Builds into *g (graph_init done). Refuses by name: an architecture that has no builder, a parameter out of
// range or not supported, a tensor that is missing, has another shape, or that nothing would use.
enum iso_err graph_build(const struct gguf *file, struct graph *g, struct iso_errinfo *reterr) ISO_MUST_USE;
