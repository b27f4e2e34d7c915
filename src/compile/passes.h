// The passes between graph and plan. Internal to compile/. Each rewrites what it is given in place or fills
// an output from the arena; none reads weights.
#pragma once

#include "compile/compile.h"
#include "graph/ir.h"

// The width of the embedding and the output matrix that these options mean.
enum quant widths_head(const struct compile_options *options);
// Gives each weight matrix the type that the options ask for. ISO_E_UNSUPPORTED where a matrix can't have it.
enum iso_err pass_widths(struct graph *g, const struct compile_options *options,
                         struct iso_errinfo *reterr) ISO_MUST_USE;

// Matmuls beside each other that read the same columns with weights of one type become one: Q, K, V; gate and
// up.
void pass_fuse(struct graph *g);

// A matmul with grouped weights reads its input as a8 codes: inserts the quantize operations, one for all
// matmuls that read the same columns.
enum iso_err pass_quantize(struct graph *g) ISO_MUST_USE;

// IR to plan tensors and operations, weights' places, activations' places. The header's limits and model are
// set.
enum iso_err pass_lower(const struct graph *g, struct program *p, struct iso_errinfo *reterr) ISO_MUST_USE;
