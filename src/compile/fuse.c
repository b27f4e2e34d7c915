// Why fusing keeps the bytes: each output of a matmul has its own accumulator, so it does not matter which
// outputs are computed by the same operation.
#include "compile/passes.h"

#include <string.h>

#include "base/assert.h"

#define FUSE_MAX 4 // matmuls in one

static bool same_input(const struct ir_op *a, const struct ir_op *b)
{
    return memcmp(&a->in[0], &b->in[0], sizeof a->in[0]) == 0;
}

// How many matmuls from ops[i] on can be one. All but the last must fill their panels.
static uint32_t run_length(const struct graph *g, uint32_t i)
{
    const struct ir_op *first = &g->ops[i];
    if (first->code != IR_MATMUL)
        return 1;
    const struct ir_tensor *w = &g->tensors[first->in[1].tensor];
    uint32_t n = 1;
    while (i + n < g->n_ops && n < FUSE_MAX) {
        const struct ir_op *op = &g->ops[i + n];
        bool fits = op->code == IR_MATMUL && same_input(first, op) &&
                    first->out.tensor != first->in[0].tensor &&
                    g->tensors[op->in[1].tensor].dtype == w->dtype &&
                    (op->in[2].tensor == IR_NONE) == (first->in[2].tensor == IR_NONE) &&
                    g->tensors[op[-1].in[1].tensor].rows % PANEL_LANES == 0;
        if (!fits)
            break;
        n++;
    }
    return n;
}

// One tensor of the parts of `n` operands in[slot], stacked.
static uint32_t stack(struct graph *g, const struct ir_op *ops, uint32_t n, int slot)
{
    struct ir_tensor all = g->tensors[ops[0].in[slot].tensor];
    bool matrix = all.kind == IR_MATRIX;
    all.part = g->n_parts;
    all.n_parts = 0;
    all.rows = 0;
    all.cols = matrix ? all.cols : 0;
    for (uint32_t i = 0; i < n; i++) {
        const struct ir_tensor *t = &g->tensors[ops[i].in[slot].tensor];
        for (uint32_t j = 0; j < t->n_parts; j++)
            graph_add_part(g, g->parts[t->part + j]);
        all.n_parts += t->n_parts;
        if (matrix)
            all.rows += t->rows;
        else
            all.cols += t->cols;
    }
    return graph_add_tensor(g, all);
}

// Where a replaced value's columns went.
struct moved {
    uint32_t from, to, col;
};

static void redirect(struct ir_ref *ref, const struct moved *moved, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        if (ref->tensor == moved[i].from) {
            ref->tensor = moved[i].to;
            ref->col += moved[i].col;
            return;
        }
    }
}

// Replaces ops[i..i+n) by one matmul at i; the others become gaps that the caller closes.
static void fuse_run(struct graph *g, uint32_t i, uint32_t n)
{
    struct ir_op *ops = &g->ops[i];
    struct moved moved[FUSE_MAX];
    uint32_t matrix = stack(g, ops, n, 1);
    uint32_t bias = ops[0].in[2].tensor == IR_NONE ? IR_NONE : stack(g, ops, n, 2);
    uint32_t value = graph_add_value(g, g->tensors[ops[0].out.tensor].kind, DT_F32, g->tensors[matrix].rows);
    uint32_t col = 0;
    for (uint32_t j = 0; j < n; j++) {
        ASSERT(ops[j].out.col == 0 && ops[j].out.cols == g->tensors[ops[j].out.tensor].cols);
        moved[j] = (struct moved){.from = ops[j].out.tensor, .to = value, .col = col};
        col += ops[j].out.cols;
    }
    ops[0].in[1] = ir_whole(g, matrix);
    ops[0].in[2] = bias == IR_NONE ? ir_none() : ir_whole(g, bias);
    ops[0].out = ir_whole(g, value);
    for (uint32_t k = i + n; k < g->n_ops; k++) {
        for (int j = 0; j < IR_IN_MAX; j++)
            redirect(&g->ops[k].in[j], moved, n);
        redirect(&g->ops[k].out, moved, n);
    }
}

void pass_fuse(struct graph *g)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < g->n_ops;) {
        uint32_t n = run_length(g, i);
        if (n > 1)
            fuse_run(g, i, n);
        g->ops[kept++] = g->ops[i];
        i += n;
    }
    g->n_ops = kept;
}
