#include "graph/ir.h"

#include "base/assert.h"

static const char *const CODE_NAMES[IR_CODE_COUNT] = {
#define X(name, text) [IR_##name] = text,
    IR_OP_LIST(X)
#undef X
};

const char *ir_code_name(enum ir_code code)
{
    ASSERT(code < IR_CODE_COUNT);
    return CODE_NAMES[code];
}

enum iso_err graph_init(struct graph *g, struct arena *arena)
{
    *g = (struct graph){.arena = arena, .logits = IR_NONE};
    g->tensors = arena_array(arena, IR_TENSORS_MAX, sizeof *g->tensors);
    g->parts = arena_array(arena, IR_PARTS_MAX, sizeof *g->parts);
    g->ops = arena_array(arena, IR_OPS_MAX, sizeof *g->ops);
    return g->tensors && g->parts && g->ops ? ISO_OK : ISO_E_LIMIT;
}

struct ir_ref ir_whole(const struct graph *g, uint32_t tensor)
{
    ASSERT(tensor < g->n_tensors);
    return (struct ir_ref){.tensor = tensor, .col = 0, .cols = g->tensors[tensor].cols};
}

uint32_t graph_add_tensor(struct graph *g, struct ir_tensor tensor)
{
    ASSERT(g->n_tensors < IR_TENSORS_MAX);
    g->tensors[g->n_tensors] = tensor;
    return g->n_tensors++;
}

uint32_t graph_add_value(struct graph *g, enum ir_kind kind, enum dtype dtype, uint32_t cols)
{
    ASSERT(kind == IR_BATCH || kind == IR_LOGITS);
    return graph_add_tensor(g, (struct ir_tensor){.kind = kind, .dtype = dtype, .cols = cols});
}

uint32_t graph_add_part(struct graph *g, struct ir_part part)
{
    ASSERT(g->n_parts < IR_PARTS_MAX);
    g->parts[g->n_parts] = part;
    return g->n_parts++;
}

struct ir_op *graph_add_op(struct graph *g, enum ir_code code, struct ir_ref in0, struct ir_ref in1,
                           struct ir_ref in2, struct ir_ref out)
{
    ASSERT(g->n_ops < IR_OPS_MAX);
    struct ir_op *op = &g->ops[g->n_ops++];
    *op = (struct ir_op){.code = code, .in = {in0, in1, in2}, .out = out};
    return op;
}
