// Leaving out KV groups: a KV head, the query heads that read it, and what the output matrix makes of them. Internal to
// compile/, but for struct pruning, which compile.h declares.
#pragma once

#include "compile/compile.h"
#include "graph/ir.h"

// Takes the groups out of the graph: rows of Q, K and V with their biases, columns of the output matrix, and the model's
// numbers of heads. NULL takes none. Before matmuls are fused, after they have their types: ISO_E_UNSUPPORTED where a
// type's blocks of inputs don't end where groups do.
enum iso_err pass_prune(struct graph *g, const struct pruning *pruning,
                        struct iso_errinfo *reterr) ISO_MUST_USE;
