// What decides a matrix's type: the embedding and the output matrix, which many models have as one, have a width of
// their own, as they are a large part of a small model and answer to errors otherwise than the layers.
#include "compile/passes.h"

#include "graph/ir.h"
#include "kernels/dtype.h"

// The embedding matrix and the output matrix; they may be one.
static void find_heads(const struct graph *g, uint32_t ret[2])
{
    ret[0] = ret[1] = IR_NONE;
    for (uint32_t i = 0; i < g->n_ops; i++) {
        const struct ir_op *op = &g->ops[i];
        if (op->code == IR_EMBED)
            ret[0] = op->in[0].tensor;
        if (op->code == IR_MATMUL && op->out.tensor == g->logits)
            ret[1] = op->in[1].tensor;
    }
}

enum quant widths_head(const struct compile_options *o)
{
    return o->quant_head_given ? o->quant_head : o->quant == QUANT_W4 ? QUANT_W6 : o->quant;
}

enum iso_err pass_widths(struct graph *g, const struct compile_options *options, struct iso_errinfo *reterr)
{
    enum quant head = widths_head(options);
    uint32_t heads[2];
    if (options->quant == QUANT_KEEP && head == QUANT_KEEP)
        return ISO_OK;
    find_heads(g, heads);
    for (uint32_t i = 0; i < g->n_tensors; i++) {
        struct ir_tensor *t = &g->tensors[i];
        if (t->kind != IR_MATRIX)
            continue;
        enum quant quant = i == heads[0] || i == heads[1] ? head : options->quant;
        if (quant == QUANT_KEEP)
            continue;
        enum dtype dtype = quant_dtype(quant);
        if (t->cols % dtype_inputs(dtype))
            return iso_fail(
                reterr, ISO_E_UNSUPPORTED, 0, "quant",
                "tensor \"%.*s\" has %u inputs, no multiple of %u as %s needs; --quant f16 and keep take it",
                STRV_ARG(g->parts[t->part].source->name), t->cols, dtype_inputs(dtype), quant_name(quant));
        t->dtype = dtype;
    }
    return ISO_OK;
}
