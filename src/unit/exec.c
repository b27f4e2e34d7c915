// Executing a program: one pass over its operations, the whole team on each, a barrier after those whose results
// another thread needs.
#include "unit/unit_internal.h"

#include <string.h>

#include "base/assert.h"
#include "base/num.h"

#define ROWS_TOGETHER 8
#define PANELS_LEAST  4 // a kernel computes two at a time, and asks for the weights of the next
#define QUERY_PARTS   8 // for each thread; smaller ones share fewer keys

struct exec {
    struct unit *u;
    uint32_t batch_rows, logits_rows;
};

static const struct plan_tensor *tensor_of(const struct exec *e, struct plan_ref ref)
{
    return &e->u->plan->tensors[ref.tensor];
}

static uint32_t rows_of(const struct exec *e, struct plan_ref ref)
{
    return tensor_of(e, ref)->kind == PLAN_LOGITS ? e->logits_rows : e->batch_rows;
}

// First row of an operand that is a value.
static void *value_at(const struct exec *e, struct plan_ref ref)
{
    return e->u->arena + tensor_of(e, ref)->offset + (uint64_t)ref.col * sizeof(float);
}

static uint64_t stride_of(const struct exec *e, struct plan_ref ref)
{
    const struct plan_tensor *t = tensor_of(e, ref);
    return plan_row_bytes(t->dtype, t->cols);
}

static const void *weight_at(const struct exec *e, struct plan_ref ref)
{
    return e->u->plan->weights + tensor_of(e, ref)->offset;
}

static void run_matmul(const struct exec *e, const struct plan_op *op, uint32_t begin, uint32_t end)
{
    const struct plan_tensor *w = tensor_of(e, op->in[1]);
    struct matmul_args a = {.w = weight_at(e, op->in[1]),
                            .bias = op->in[2].tensor == PLAN_NONE ? NULL : weight_at(e, op->in[2]),
                            .x = value_at(e, op->in[0]),
                            .y = value_at(e, op->out),
                            .x_stride = stride_of(e, op->in[0]),
                            .y_stride = stride_of(e, op->out),
                            .rows = rows_of(e, op->out),
                            .n = w->rows,
                            .k = w->cols};
    e->u->kernels->matmul[w->dtype](&a, begin, end);
}

static void run_rmsnorm(const struct exec *e, const struct plan_op *op, uint32_t begin, uint32_t end)
{
    struct norm_args a = {.x = value_at(e, op->in[0]),
                          .gain = weight_at(e, op->in[1]),
                          .y = value_at(e, op->out),
                          .x_stride = stride_of(e, op->in[0]),
                          .y_stride = stride_of(e, op->out),
                          .heads = op->out.cols / op->in[1].cols,
                          .cols = op->in[1].cols,
                          .epsilon = op->scale};
    e->u->kernels->rmsnorm(&a, begin, end);
}

static void run_quantize(const struct exec *e, const struct plan_op *op, uint32_t begin, uint32_t end)
{
    struct quantize_args a = {.x = value_at(e, op->in[0]),
                              .y = value_at(e, op->out),
                              .x_stride = stride_of(e, op->in[0]),
                              .rows = rows_of(e, op->out),
                              .cols = op->out.cols};
    e->u->kernels->quantize(&a, begin, end);
}

// add, silu_mul, gelu_mul.
static void run_rows(const struct exec *e, const struct plan_op *op, uint32_t begin, uint32_t end)
{
    const struct kernels *k = e->u->kernels;
    struct rows_args a = {.a = value_at(e, op->in[0]),
                          .y = value_at(e, op->out),
                          .a_stride = stride_of(e, op->in[0]),
                          .y_stride = stride_of(e, op->out),
                          .cols = op->out.cols};
    if (op->in[1].tensor != PLAN_NONE) {
        a.b = value_at(e, op->in[1]);
        a.b_stride = stride_of(e, op->in[1]);
    }
    if (op->code == PLAN_OP_ADD)
        k->add(&a, begin, end);
    else
        (op->code == PLAN_OP_SILU_MUL ? k->silu_mul : k->gelu_mul)(&a, begin, end);
}

static void run_embed(const struct exec *e, const struct plan_op *op, uint32_t begin, uint32_t end)
{
    const struct plan_tensor *w = tensor_of(e, op->in[0]);
    struct embed_args a = {.w = weight_at(e, op->in[0]),
                           .dtype = (enum dtype)w->dtype,
                           .ids = e->u->batch.ids,
                           .y = value_at(e, op->out),
                           .y_stride = stride_of(e, op->out),
                           .cols = w->cols,
                           .scale = op->scale};
    e->u->kernels->embed(&a, begin, end);
}

static void run_rope(const struct exec *e, const struct plan_op *op, uint32_t begin, uint32_t end)
{
    uint32_t head_dim = e->u->plan->header->model.head_dim;
    struct rope_args a = {.x = value_at(e, op->out),
                          .x_stride = stride_of(e, op->out),
                          .table = weight_at(e, op->in[1]),
                          .rows = e->u->batch.refs,
                          .heads = op->out.cols / head_dim,
                          .head_dim = head_dim};
    e->u->kernels->rope(&a, begin, end);
}

static void run_kv_store(const struct exec *e, const struct plan_op *op, uint32_t begin, uint32_t end)
{
    struct kv_store_args a = {.k = value_at(e, op->in[0]),
                              .v = value_at(e, op->in[1]),
                              .k_stride = stride_of(e, op->in[0]),
                              .v_stride = stride_of(e, op->in[1]),
                              .pool = e->u->kv_pool,
                              .layout = plan_kv_layout(e->u->plan->header),
                              .layer = op->layer,
                              .rows = e->u->batch.refs};
    e->u->kernels->kv_store(&a, begin, end);
}

static void run_attention(const struct exec *e, const struct plan_op *op, uint32_t begin, uint32_t end)
{
    const struct plan_header *h = e->u->plan->header;
    struct attention_args a = {.q = value_at(e, op->in[0]),
                               .y = value_at(e, op->out),
                               .q_stride = stride_of(e, op->in[0]),
                               .y_stride = stride_of(e, op->out),
                               .pool = e->u->kv_pool,
                               .layout = plan_kv_layout(h),
                               .layer = op->layer,
                               .heads = h->model.heads,
                               .window = op->window,
                               .scale = op->scale,
                               .n_rows = e->batch_rows,
                               .rows = e->u->batch.refs};
    e->u->kernels->attention(&a, begin, end);
}

static void run_gather(const struct exec *e, const struct plan_op *op, uint32_t begin, uint32_t end)
{
    const uint8_t *from = value_at(e, op->in[0]);
    uint8_t *to = value_at(e, op->out);
    for (uint32_t i = begin; i < end; i++)
        memcpy(to + i * stride_of(e, op->out),
               from + e->u->batch.wanted[i].batch_row * stride_of(e, op->in[0]),
               op->out.cols * sizeof(float));
}

// These rows' memory may be the logits' a moment later.
static void keep_hidden(const struct exec *e, const struct plan_op *op, uint32_t begin, uint32_t end)
{
    uint32_t cols = op->out.cols;
    const uint8_t *from = value_at(e, op->out);
    for (uint32_t i = begin; i < end; i++)
        memcpy(e->u->hidden + (uint64_t)i * cols, from + i * stride_of(e, op->out), cols * sizeof(float));
}

static void run_op(const struct exec *e, const struct plan_op *op, uint32_t begin, uint32_t end)
{
    switch ((enum plan_code)op->code) {
    case PLAN_OP_EMBED:
        run_embed(e, op, begin, end);
        break;
    case PLAN_OP_RMSNORM:
        run_rmsnorm(e, op, begin, end);
        break;
    case PLAN_OP_QUANTIZE:
        run_quantize(e, op, begin, end);
        break;
    case PLAN_OP_ADD:
    case PLAN_OP_SILU_MUL:
    case PLAN_OP_GELU_MUL:
        run_rows(e, op, begin, end);
        break;
    case PLAN_OP_MATMUL:
        run_matmul(e, op, begin, end);
        break;
    case PLAN_OP_ROPE:
        run_rope(e, op, begin, end);
        break;
    case PLAN_OP_KV_STORE:
        run_kv_store(e, op, begin, end);
        break;
    case PLAN_OP_ATTENTION:
        run_attention(e, op, begin, end);
        break;
    case PLAN_OP_GATHER:
        run_gather(e, op, begin, end);
        break;
    case PLAN_CODE_COUNT:
        ASSERT(!"plan_check refuses other codes");
    }
    if (op == e->u->hidden_op)
        keep_hidden(e, op, begin, end);
}

// What the threads divide: panels of a matmul, queries of a KV head for attention, else rows. Taking fewer than
// *ret_least at a time is not worth it.
static uint32_t items_of(const struct exec *e, const struct plan_op *op, uint32_t *ret_least)
{
    uint32_t items = rows_of(e, op->code == PLAN_OP_KV_STORE ? op->in[0] : op->out);
    *ret_least = 1;
    if (op->code == PLAN_OP_MATMUL) {
        items = (tensor_of(e, op->in[1])->rows + PANEL_LANES - 1) / PANEL_LANES;
        *ret_least = PANELS_LEAST;
    } else if (op->code == PLAN_OP_ATTENTION) {
        items *= e->u->plan->header->model.kv_heads;
        *ret_least = items / (QUERY_PARTS * e->u->team.threads) + 1;
    }
    return items;
}

// Operations up to the next meeting: a few rows through all of them, then the next few, so that what one writes
// is still in the cache when another reads it.
static void run_together(const struct exec *e, const struct plan_op *ops, uint32_t n)
{
    uint32_t least, items = items_of(e, ops, &least), begin, end;
    while (team_take(&e->u->team, items, least, &begin, &end)) {
        if (n == 1)
            run_op(e, ops, begin, end);
        for (; n > 1 && begin < end; begin += ROWS_TOGETHER)
            for (uint32_t i = 0; i < n; i++)
                run_op(e, &ops[i], begin, (uint32_t)num_min(begin + ROWS_TOGETHER, end));
    }
}

static void call_tap(const struct exec *e, const struct plan_op *op, uint32_t number, uint32_t thread)
{
    e->u->tap(e->u->tap_context, number, value_at(e, op->in[0]), stride_of(e, op->in[0]), rows_of(e, op->out),
              op->in[0].cols, thread);
}

static void run_program(void *context, uint32_t thread)
{
    const struct exec *e = context;
    uint32_t matmuls = 0;
    const struct plan *plan = e->u->plan;
    for (uint32_t first = 0, last; first < plan->header->n_ops; first = last) {
        last = first + 1;
        while (last < plan->header->n_ops && !e->u->meets[last - 1])
            last++;
        if (e->u->tap && plan->ops[first].code == PLAN_OP_MATMUL)
            call_tap(e, &plan->ops[first], matmuls++, thread);
        run_together(e, plan->ops + first, last - first);
        if (last < plan->header->n_ops)
            team_barrier(&e->u->team);
    }
}

// An operation whose rows are computed each from the same row of its operands: a thread takes its rows through
// all such operations that follow each other.
static bool is_by_row(const struct plan_op *op)
{
    switch ((enum plan_code)op->code) {
    case PLAN_OP_EMBED:
    case PLAN_OP_RMSNORM:
    case PLAN_OP_QUANTIZE:
    case PLAN_OP_ADD:
    case PLAN_OP_SILU_MUL:
    case PLAN_OP_GELU_MUL:
    case PLAN_OP_ROPE:
    case PLAN_OP_KV_STORE:
        return true;
    default:
        return false;
    }
}

static uint32_t rows_kind(const struct plan *p, const struct plan_op *op)
{
    return p->tensors[op->code == PLAN_OP_KV_STORE ? op->in[0].tensor : op->out.tensor].kind;
}

// Two operands that are different values in overlapping memory.
static bool is_clash(const struct plan *p, struct plan_ref a, struct plan_ref b)
{
    if (a.tensor == PLAN_NONE || b.tensor == PLAN_NONE || a.tensor == b.tensor)
        return false;
    const struct plan_tensor *x = &p->tensors[a.tensor], *y = &p->tensors[b.tensor];
    return x->kind < PLAN_MATRIX && y->kind < PLAN_MATRIX && x->offset < y->offset + y->bytes &&
           y->offset < x->offset + x->bytes;
}

// Whether a thread may go on from `earlier` to `later` while others are still at `earlier`.
static bool may_run_on(const struct plan *p, const struct plan_op *earlier, const struct plan_op *later)
{
    if (!is_by_row(earlier) || !is_by_row(later) || rows_kind(p, earlier) != rows_kind(p, later))
        return false;
    bool clash = is_clash(p, earlier->out, later->out);
    for (int i = 0; i < PLAN_IN_MAX; i++)
        clash = clash || is_clash(p, earlier->in[i], later->out) || is_clash(p, earlier->out, later->in[i]);
    return !clash;
}

void exec_find_meetings(const struct plan *p, bool *ret_meets)
{
    uint32_t n = p->header->n_ops, first = 0; // since the last meeting
    for (uint32_t i = 0; i + 1 < n; i++) {
        ret_meets[i] = false;
        for (uint32_t j = first; j <= i; j++)
            ret_meets[i] = ret_meets[i] || !may_run_on(p, &p->ops[j], &p->ops[i + 1]);
        if (ret_meets[i])
            first = i + 1;
    }
    ret_meets[n - 1] = false; // the end of the run is one
}

// The last operation before `end` that writes the tensor; plan_check has seen that there is one.
static const struct plan_op *writer_of(const struct plan *p, uint32_t tensor, const struct plan_op *end)
{
    const struct plan_op *op = end - 1;
    while (op > p->ops && op->out.tensor != tensor)
        op--;
    return op;
}

const struct plan_op *exec_find_hidden(const struct plan *p)
{
    const struct plan_op *op = writer_of(p, p->header->logits, p->ops + p->header->n_ops);
    op = writer_of(p, op->in[0].tensor, op);
    if (op->code == PLAN_OP_QUANTIZE)
        op = writer_of(p, op->in[0].tensor, op);
    const struct plan_tensor *t = &p->tensors[op->out.tensor];
    bool whole = t->kind == PLAN_LOGITS && t->dtype == DT_F32 && op->out.cols == p->header->model.hidden;
    return whole && is_by_row(op) ? op : NULL;
}

void exec_step(struct unit *u)
{
    struct exec e = {.u = u, .batch_rows = u->batch.rows, .logits_rows = u->batch.n_wanted};
    team_run(&u->team, run_program, &e);
}
