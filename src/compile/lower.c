#include "compile/passes.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/num.h"
#include "plan/arena_layout.h"

static uint32_t plan_kind_of(enum ir_kind kind)
{
    static const uint32_t KINDS[] = {[IR_BATCH] = PLAN_BATCH,
                                     [IR_LOGITS] = PLAN_LOGITS,
                                     [IR_MATRIX] = PLAN_MATRIX,
                                     [IR_VECTOR] = PLAN_VECTOR,
                                     [IR_ANGLES] = PLAN_ANGLES};
    return KINDS[kind];
}

static uint32_t plan_code_of(enum ir_code code)
{
    static const uint32_t CODES[IR_CODE_COUNT] = {
#define X(name, text) [IR_##name] = PLAN_OP_##name,
        IR_OP_LIST(X)
#undef X
    };
    return CODES[code];
}

// Only tensors that an operation still refers to get a place; `ids` maps IR indices to plan indices.
static void number_tensors(const struct graph *g, uint32_t *ids, uint32_t *ret_n)
{
    for (uint32_t i = 0; i < g->n_tensors; i++)
        ids[i] = IR_NONE;
    for (uint32_t i = 0; i < g->n_ops; i++) {
        for (int j = 0; j < IR_IN_MAX; j++)
            if (g->ops[i].in[j].tensor != IR_NONE)
                ids[g->ops[i].in[j].tensor] = 0;
        if (g->ops[i].out.tensor != IR_NONE)
            ids[g->ops[i].out.tensor] = 0;
    }
    uint32_t n = 0;
    for (uint32_t i = 0; i < g->n_tensors; i++)
        if (ids[i] == 0)
            ids[i] = n++;
    *ret_n = n;
}

// "blk.0.attn_q.weight+attn_k.weight" for a fused matrix: the first part whole, of the others the end.
static void name_tensor(const struct graph *g, const struct ir_tensor *t, char name[PLAN_NAME_BYTES])
{
    size_t at = 0;
    if (t->kind == IR_ANGLES)
        snprintf(name, PLAN_NAME_BYTES, "rope");
    for (uint32_t i = 0; i < t->n_parts; i++) {
        struct strv s = g->parts[t->part + i].source->name;
        size_t skip = 0;
        for (size_t j = 0, dots = 0; i > 0 && j < s.len && dots < 2; j++)
            if (s.ptr[j] == '.' && ++dots == 2)
                skip = j + 1;
        int n = snprintf(name + at, PLAN_NAME_BYTES - at, "%s%.*s", i ? "+" : "", (int)(s.len - skip),
                         s.ptr + skip);
        at = num_min(at + (size_t)n, PLAN_NAME_BYTES - 1);
    }
}

static void lower_tensors(const struct graph *g, const uint32_t *ids, struct program *p)
{
    uint64_t at = 0;
    for (uint32_t i = 0; i < g->n_tensors; i++) {
        const struct ir_tensor *t = &g->tensors[i];
        if (ids[i] == IR_NONE)
            continue;
        struct plan_tensor *out = &p->tensors[ids[i]];
        *out = (struct plan_tensor){.kind = plan_kind_of(t->kind), .dtype = t->dtype, .cols = t->cols};
        p->part_of[ids[i]] = t->part;
        p->n_parts_of[ids[i]] = t->n_parts;
        p->rope_of[ids[i]] = t->rope;
        if (t->kind == IR_BATCH || t->kind == IR_LOGITS)
            continue;
        out->rows = t->kind == IR_MATRIX ? t->rows : 0;
        name_tensor(g, t, out->name);
        out->offset = at;
        out->bytes = plan_weight_bytes(out, &p->header.limits);
        at += out->bytes;
    }
    p->weights_bytes = at;
}

static struct plan_ref lower_ref(struct ir_ref ref, const uint32_t *ids)
{
    if (ref.tensor == IR_NONE)
        return (struct plan_ref){.tensor = PLAN_NONE};
    return (struct plan_ref){.tensor = ids[ref.tensor], .col = ref.col, .cols = ref.cols};
}

static void lower_ops(const struct graph *g, const uint32_t *ids, struct program *p)
{
    for (uint32_t i = 0; i < g->n_ops; i++) {
        const struct ir_op *op = &g->ops[i];
        struct plan_op *out = &p->ops[i];
        *out = (struct plan_op){.code = plan_code_of(op->code),
                                .layer = op->layer,
                                .out = lower_ref(op->out, ids),
                                .scale = op->scale,
                                .window = op->window};
        for (int j = 0; j < PLAN_IN_MAX; j++)
            out->in[j] = lower_ref(op->in[j], ids);
    }
}

enum iso_err pass_lower(const struct graph *g, struct program *p, struct iso_errinfo *reterr)
{
    struct plan_header *h = &p->header;
    uint32_t *ids = arena_array(&p->arena, g->n_tensors, sizeof *ids);
    if (ids)
        number_tensors(g, ids, &h->n_tensors);
    h->n_ops = g->n_ops;
    if (h->n_tensors > PLAN_TENSORS_MAX || h->n_ops > PLAN_OPS_MAX)
        return iso_fail(reterr, ISO_E_LIMIT, 0, NULL,
                        "the program has %" PRIu32 " tensors and %" PRIu32
                        " operations; the limits are %d and %d",
                        h->n_tensors, h->n_ops, PLAN_TENSORS_MAX, PLAN_OPS_MAX);
    p->tensors = arena_array(&p->arena, h->n_tensors, sizeof *p->tensors);
    p->part_of = arena_array(&p->arena, h->n_tensors, sizeof *p->part_of);
    p->n_parts_of = arena_array(&p->arena, h->n_tensors, sizeof *p->n_parts_of);
    p->rope_of = arena_array(&p->arena, h->n_tensors, sizeof *p->rope_of);
    p->ops = arena_array(&p->arena, h->n_ops, sizeof *p->ops);
    enum iso_err err = ISO_E_LIMIT;
    if (ids && p->tensors && p->part_of && p->n_parts_of && p->rope_of && p->ops) {
        p->parts = g->parts;
        lower_tensors(g, ids, p);
        lower_ops(g, ids, p);
        h->logits = ids[g->logits];
        err =
            arena_layout(p->tensors, h->n_tensors, p->ops, h->n_ops, &h->limits, &p->arena, &h->arena_bytes);
    }
    return err ? iso_fail(reterr, err, 0, NULL, "the program is too large for the compiler's memory")
               : ISO_OK;
}
