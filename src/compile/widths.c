// What decides a matrix's type: the embedding and the output matrix, which many models have as one, have a width of
// their own, as they are a large part of a small model and answer to errors otherwise than the layers.
#include "compile/passes.h"

#include "graph/ir.h"
#include "kernels/dtype.h"

static bool is_head(const struct graph *g, uint32_t tensor)
{
    for (uint32_t i = 0; i < g->n_ops; i++) {
        const struct ir_op *op = &g->ops[i];
        if ((op->code == IR_EMBED && op->in[0].tensor == tensor) ||
            (op->code == IR_MATMUL && op->out.tensor == g->logits && op->in[1].tensor == tensor))
            return true;
    }
    return false;
}

enum quant widths_head(const struct compile_options *o)
{
    return o->quant_head_given ? o->quant_head : o->quant == QUANT_W4 ? QUANT_W6 : o->quant;
}

enum iso_err pass_widths(struct graph *g, const struct compile_options *options, struct iso_errinfo *reterr)
{
    enum quant head = widths_head(options);
    if (options->quant == QUANT_KEEP && head == QUANT_KEEP)
        return ISO_OK;
    for (uint32_t i = 0; i < g->n_tensors; i++) {
        struct ir_tensor *t = &g->tensors[i];
        if (t->kind != IR_MATRIX)
            continue;
        enum quant quant = is_head(g, i) ? head : options->quant;
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
