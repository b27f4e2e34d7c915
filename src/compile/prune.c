// What a group is worth: of what attention adds to the residual stream, how much comes from it. With a the group's part of
// the attention's result and W the columns of the output matrix that read it, the mean square of W a is the sum over W's
// rows w of w H w^T, H the mean of a a^T, which the calibration measured. Heads of a group are taken one by one, and
// where a head lies in two blocks of the calibration, its halves.
#include "compile/prune.h"

#include <float.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/num.h"
#include "compile/block.h"
#include "compile/pack.h"
#include "compile/workers.h"

// Options of the program that a calibration is about.
static const struct compile_options F16 = {.quant = QUANT_F16};

enum iso_err pruning_open(const char *model_path, float share, struct pruning *ret,
                          struct iso_errinfo *reterr)
{
    struct program p;
    enum iso_err err = program_open(model_path, &F16, &p, reterr);
    if (err)
        return err;
    struct pruning r = {.layers = p.header.model.layers, .kv_heads = p.header.model.kv_heads};
    r.heads = p.header.model.heads / r.kv_heads;
    program_close(&p);
    double wanted = (double)share * r.kv_heads;
    uint32_t removed =
        (uint32_t)num_min((uint64_t)wanted + (wanted - (uint64_t)wanted > 0.5), r.kv_heads - 1);
    r.kept = r.kv_heads - removed;
    if (r.kv_heads == 1)
        err = iso_fail(reterr, ISO_E_UNSUPPORTED, 0, "prune-heads",
                       "the model has one KV head in each layer: none can go");
    else if (removed == 0)
        err = iso_fail(reterr, ISO_E_USAGE, 0, "prune-heads",
                       "--prune-heads %g of the %" PRIu32 " KV heads in each layer is none; %.2g takes one",
                       (double)share, r.kv_heads, 1.0 / r.kv_heads);
    if (!err) {
        r.which = calloc((size_t)r.layers * r.kept, sizeof *r.which);
        r.worth = calloc((size_t)r.layers * r.kv_heads, sizeof *r.worth);
        if (!r.which || !r.worth)
            err = iso_fail(reterr, ISO_E_NOMEM, 0, NULL, "the system refused memory to compile");
        for (uint32_t i = 0; i < r.layers * r.kept && !err; i++)
            r.which[i] = i % r.kept;
    }
    if (err) {
        pruning_close(&r);
        return iso_fail_prefix(reterr, model_path);
    }
    *ret = r;
    return ISO_OK;
}

void pruning_close(struct pruning *p)
{
    free(p->which);
    free(p->worth);
    *p = (struct pruning){0};
}

struct scoring {
    const struct program *p;
    struct pruning *pruning;
    uint32_t *out; // [layers] the output matrix of each
    compile_progress *progress;
    void *context;
};

// Adds w H w^T of each head to the worth of its group.
static void add_row(const struct calibration_row *c, const float *w, uint32_t head_dim, uint32_t heads,
                    double *worth)
{
    for (uint32_t k = 0; k < c->cols; k++) {
        uint32_t head = k / head_dim, block = k / FIT_BLOCK * FIT_BLOCK;
        uint32_t first = (uint32_t)num_max(head * head_dim, block);
        const float *h = c->products + (uint64_t)k * FIT_BLOCK;
        double sum = 0.5 * (double)h[k - block] * (double)w[k];
        for (uint32_t l = first; l < k; l++)
            sum += (double)h[l - block] * (double)w[l];
        worth[head / heads] += 2 * sum * (double)w[k];
    }
}

// Buffer: the worth of each group, then a row as f32, then as the file has it.
static enum iso_err score_layer(void *context, uint32_t layer, uint8_t *buffer, struct iso_errinfo *reterr)
{
    const struct scoring *s = context;
    const struct program *p = s->p;
    uint32_t id = s->out[layer];
    const struct model_tensor *t = p->parts[p->part_of[id]].source;
    const struct ggml_type_info *info = ggml_type_info(t->type);
    uint64_t cols = t->dims[0], bytes = cols / info->block_elements * info->block_bytes;
    double *worth = (double *)buffer;
    float *row = (float *)(worth + s->pruning->kv_heads);
    uint8_t *raw = (uint8_t *)(row + cols);
    memset(worth, 0, s->pruning->kv_heads * sizeof *worth);
    for (uint64_t n = 0; n < t->dims[1]; n++) {
        enum iso_err err = pack_read_blocks(p, t, n * bytes, raw, bytes, reterr);
        if (err)
            return err;
        block_values(t->type, raw, cols, row);
        add_row(p->products_of[id], row, p->header.model.head_dim, s->pruning->heads, worth);
    }
    return ISO_OK;
}

// The groups of most worth, of two alike the lower one, in ascending order.
static enum iso_err choose(void *context, uint32_t layer, const uint8_t *buffer, struct iso_errinfo *reterr)
{
    const struct scoring *s = context;
    struct pruning *r = s->pruning;
    const double *worth = (const double *)buffer;
    uint32_t *which = r->which + (uint64_t)layer * r->kept, n = 0;
    double total = 0;
    // A NaN would be neither better nor worse than another.
    for (uint32_t i = 0; i < r->kv_heads; i++)
        if (!(worth[i] >= -DBL_MAX && worth[i] <= DBL_MAX))
            return iso_fail(reterr, ISO_E_NONFINITE, 0, "prune-heads",
                            "%s: what KV head %" PRIu32 " of layer %" PRIu32 " adds overflows",
                            s->p->model.path, i, layer);
    for (uint32_t i = 0; i < r->kv_heads; i++) {
        uint32_t better = 0;
        for (uint32_t j = 0; j < r->kv_heads; j++)
            better += worth[j] > worth[i] || (worth[j] == worth[i] && j < i); // NOLINT: equal is equal
        if (better < r->kept)
            which[n++] = i;
        total += worth[i];
    }
    for (uint32_t i = 0; i < r->kv_heads; i++)
        r->worth[(uint64_t)layer * r->kv_heads + i] = total > 0 ? worth[i] / total : 0;
    if (s->progress)
        s->progress(s->context, layer + 1, r->layers);
    return ISO_OK;
}

// The matrix that reads the attention's result, of each layer.
static void find_outputs(const struct program *p, uint32_t *ret)
{
    uint32_t attention = PLAN_NONE, layer = 0;
    for (uint32_t i = 0; i < p->header.model.layers; i++)
        ret[i] = PLAN_NONE;
    for (uint32_t i = 0; i < p->header.n_ops; i++) {
        const struct plan_op *op = &p->ops[i];
        if (op->code == PLAN_OP_ATTENTION) {
            attention = op->out.tensor;
            layer = op->layer;
        } else if (op->code == PLAN_OP_MATMUL && op->in[0].tensor == attention && op->layer == layer) {
            ret[layer] = op->in[1].tensor;
        }
    }
    for (uint32_t i = 0; i < p->header.model.layers; i++)
        ASSERT(ret[i] != PLAN_NONE && p->products_of[ret[i]]); // every layer has attention
}

enum iso_err pruning_choose(struct pruning *r, const char *model_path, const struct calibration *calibration,
                            compile_progress *progress, void *context, struct iso_errinfo *reterr)
{
    struct compile_options options = F16;
    struct program p;
    struct workers *workers = NULL;
    options.calibration = calibration;
    enum iso_err err = program_open(model_path, &options, &p, reterr);
    if (err)
        return err;
    struct scoring s = {.p = &p, .pruning = r, .progress = progress, .context = context};
    uint64_t cols = (uint64_t)p.header.model.heads * p.header.model.head_dim;
    uint64_t bytes = r->kv_heads * sizeof(double) + cols * 2 * sizeof(float);
    if (p.header.model.layers != r->layers || p.header.model.kv_heads != r->kv_heads)
        err = iso_fail(reterr, ISO_E_FORMAT, 0, NULL, "%s: the model changed while it was calibrated",
                       model_path);
    s.out = arena_array(&p.arena, r->layers, sizeof *s.out);
    if (!err && !s.out)
        err = iso_fail(reterr, ISO_E_LIMIT, 0, NULL, "%s: the program is too large for the compiler's memory",
                       model_path);
    if (!err)
        err = workers_open(workers_usable(), bytes, &workers, reterr);
    if (!err) {
        find_outputs(&p, s.out);
        err = workers_run(workers, r->layers, score_layer, choose, &s, reterr);
    }
    workers_close(workers);
    program_close(&p);
    return err;
}

// The matmul that writes, or reads, a value.
static struct ir_op *find_matmul(struct graph *g, uint32_t out, uint32_t in)
{
    for (uint32_t i = 0; i < g->n_ops; i++) {
        struct ir_op *op = &g->ops[i];
        if (op->code == IR_MATMUL && (op->out.tensor == out || op->in[0].tensor == in))
            return op;
    }
    ASSERT(!"attention reads what matmuls wrote, and a matmul reads what it writes");
    return NULL;
}

// The outputs of the matmul that computes a value.
static void keep_rows(struct graph *g, uint32_t value, const struct ir_select *select)
{
    const struct ir_op *op = find_matmul(g, value, IR_NONE);
    struct ir_tensor *matrix = &g->tensors[op->in[1].tensor];
    matrix->rows = g->tensors[value].cols = select->n * select->unit;
    g->parts[matrix->part].rows = select;
    if (op->in[2].tensor == IR_NONE)
        return;
    struct ir_tensor *bias = &g->tensors[op->in[2].tensor];
    bias->cols = matrix->rows;
    g->parts[bias->part].rows = select;
}

// The inputs of the matmul that reads a value.
static enum iso_err keep_cols(struct graph *g, uint32_t value, const struct ir_select *select,
                              struct iso_errinfo *reterr)
{
    const struct ir_op *op = find_matmul(g, IR_NONE, value);
    struct ir_tensor *matrix = &g->tensors[op->in[1].tensor];
    struct ir_part *part = &g->parts[matrix->part];
    uint32_t inputs = dtype_inputs(matrix->dtype);
    if (select->unit % inputs)
        return iso_fail(reterr, ISO_E_UNSUPPORTED, 0, "prune-heads",
                        "a KV group is %" PRIu32 " inputs of tensor \"%.*s\", no multiple of %" PRIu32
                        " as its type %s needs; %s takes it",
                        select->unit, STRV_ARG(part->source->name), inputs, dtype_info(matrix->dtype)->name,
                        select->unit % GROUP ? "--quant f16" : "--quant w8, w6, w4 or f16");
    matrix->cols = g->tensors[value].cols = select->n * select->unit;
    part->cols = select;
    return ISO_OK;
}

static const struct ir_select *make_select(struct graph *g, uint32_t unit, const struct pruning *r,
                                           uint32_t layer)
{
    struct ir_select *s = arena_alloc(g->arena, sizeof *s);
    if (s)
        *s = (struct ir_select){.unit = unit, .n = r->kept, .which = r->which + (uint64_t)layer * r->kept};
    return s;
}

// Before fusing, operands are whole values.
static void set_widths(struct graph *g)
{
    for (uint32_t i = 0; i < g->n_ops; i++) {
        struct ir_op *op = &g->ops[i];
        for (int j = 0; j < IR_IN_MAX; j++)
            if (op->in[j].tensor != IR_NONE)
                op->in[j].cols = g->tensors[op->in[j].tensor].cols;
        if (op->out.tensor != IR_NONE)
            op->out.cols = g->tensors[op->out.tensor].cols;
    }
}

enum iso_err pass_prune(struct graph *g, const struct pruning *r, struct iso_errinfo *reterr)
{
    struct ir_model *m = &g->model;
    enum iso_err err = ISO_OK;
    if (!r)
        return ISO_OK;
    if (r->layers != m->layers || r->kv_heads != m->kv_heads)
        return iso_fail(reterr, ISO_E_USAGE, 0, "prune-heads",
                        "the choice of heads is that for another model");
    for (uint32_t i = 0; i < g->n_ops && !err; i++) {
        const struct ir_op *op = &g->ops[i];
        if (op->code != IR_KV_STORE && op->code != IR_ATTENTION)
            continue;
        uint32_t heads = op->code == IR_ATTENTION ? r->heads : 1;
        const struct ir_select *select = make_select(g, heads * m->head_dim, r, op->layer);
        if (!select)
            return iso_fail(reterr, ISO_E_LIMIT, 0, NULL, "the graph is too large for the compiler's memory");
        keep_rows(g, op->in[0].tensor, select);
        if (op->code == IR_KV_STORE)
            keep_rows(g, op->in[1].tensor, select);
        else
            err = keep_cols(g, op->out.tensor, select, reterr);
    }
    set_widths(g);
    m->kv_heads = r->kept;
    m->heads = r->kept * r->heads;
    return err;
}
