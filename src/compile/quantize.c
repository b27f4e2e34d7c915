#include "compile/passes.h"

#include <string.h>

// The a8 value that holds `ref` since operation `from` of the new list, or IR_NONE: looked for backwards
// until something writes the value that ref lies in.
static uint32_t find_codes(const struct ir_op *ops, uint32_t n, struct ir_ref ref)
{
    while (n > 0) {
        const struct ir_op *op = &ops[--n];
        if (op->code == IR_QUANTIZE && memcmp(&op->in[0], &ref, sizeof ref) == 0)
            return op->out.tensor;
        if (op->out.tensor == ref.tensor)
            return IR_NONE;
    }
    return IR_NONE;
}

enum iso_err pass_quantize(struct graph *g)
{
    struct ir_op *old = g->ops;
    uint32_t n_old = g->n_ops;
    g->ops = arena_array(g->arena, IR_OPS_MAX, sizeof *g->ops);
    if (!g->ops)
        return ISO_E_LIMIT;
    g->n_ops = 0;
    for (uint32_t i = 0; i < n_old; i++) {
        struct ir_op op = old[i];
        if (op.code == IR_MATMUL && dtype_is_grouped(g->tensors[op.in[1].tensor].dtype)) {
            uint32_t codes = find_codes(g->ops, g->n_ops, op.in[0]);
            if (codes == IR_NONE) {
                codes = graph_add_value(g, g->tensors[op.in[0].tensor].kind, DT_A8, op.in[0].cols);
                graph_add_op(g, IR_QUANTIZE, op.in[0], ir_none(), ir_none(), ir_whole(g, codes))->layer =
                    op.layer;
            }
            op.in[0] = ir_whole(g, codes);
        }
        *graph_add_op(g, op.code, op.in[0], op.in[1], op.in[2], op.out) = op;
    }
    return ISO_OK;
}
