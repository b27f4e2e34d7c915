#include "plan/plan_check.h"

#include <inttypes.h>
#include <stddef.h>
#include <string.h>

#include "base/num.h"
#include "plan/arena_layout.h"

static enum iso_err check_range(const char *field, uint64_t value, uint64_t min, uint64_t max,
                                struct iso_errinfo *reterr)
{
    if (value >= min && value <= max)
        return ISO_OK;
    return iso_fail(reterr, ISO_E_FORMAT, 0, field,
                    "the plan's %s is %" PRIu64 "; allowed is %" PRIu64 " to %" PRIu64, field, value, min,
                    max);
}

static enum iso_err check_numbers(const struct plan_header *h, struct iso_errinfo *reterr)
{
    const struct plan_model *m = &h->model;
    const struct plan_limits *l = &h->limits;
    const struct {
        const char *field;
        uint64_t value, min, max;
    } ROWS[] = {
        {"vocab", m->vocab, 1, PLAN_VOCAB_MAX},
        {"hidden", m->hidden, 1, PLAN_COLS_MAX},
        {"layers", m->layers, 1, PLAN_LAYERS_MAX},
        {"heads", m->heads, 1, PLAN_HEADS_MAX},
        {"kv_heads", m->kv_heads, 1, m->heads},
        {"head_dim", m->head_dim, 16, KV_HEAD_DIM_MAX},
        {"ffn", m->ffn, 1, PLAN_COLS_MAX},
        {"context", m->context, 2, PLAN_SEQ_MAX},
        {"max_seq_len", l->max_seq_len, 2, m->context},
        {"slots", l->slots, 1, PLAN_SLOTS_MAX},
        {"batch_tokens", l->batch_tokens, 1, PLAN_BATCH_TOKENS_MAX},
        {"kv_type", l->kv_type, 0, KV_TYPE_COUNT - 1},
        {"quant", l->quant, 0, QUANT_COUNT - 1},
        {"quant_head", l->quant_head, 0, QUANT_COUNT - 1},
        {"arena_bytes", h->arena_bytes, 1, PLAN_ARENA_MAX},
        {"n_tensors", h->n_tensors, 1, PLAN_TENSORS_MAX},
        {"n_ops", h->n_ops, 1, PLAN_OPS_MAX},
        {"logits", h->logits, 0, (uint64_t)h->n_tensors - 1},
        {"n_eog", h->n_eog, 0, PLAN_EOG_MAX},
        {"head_dim modulo 16", m->head_dim % 16, 0, 0},
        {"heads modulo kv_heads", m->kv_heads ? m->heads % m->kv_heads : 1, 0, 0},
        {"batch_tokens less slots", (uint64_t)l->batch_tokens - l->slots, 0, PLAN_BATCH_TOKENS_MAX},
    };
    enum iso_err err = ISO_OK;
    for (size_t i = 0; i < ARRAY_LEN(ROWS) && !err; i++)
        err = check_range(ROWS[i].field, ROWS[i].value, ROWS[i].min, ROWS[i].max, reterr);
    for (uint32_t i = 0; i < h->n_eog && !err; i++)
        err = check_range("eog token", h->eog[i], 0, (uint64_t)m->vocab - 1, reterr);
    return err;
}

static enum iso_err check_name(const char *field, const char name[PLAN_NAME_BYTES],
                               struct iso_errinfo *reterr)
{
    if (!plan_name_is_valid(name))
        return iso_fail(reterr, ISO_E_FORMAT, 0, field,
                        "a %s name in the plan is no terminated UTF-8 text without control characters",
                        field);
    return ISO_OK;
}

static enum iso_err check_sections(const struct plan_header *h, uint64_t file_bytes,
                                   struct iso_errinfo *reterr)
{
    uint64_t at = sizeof *h;
    for (int i = 0; i < PLAN_SECTION_COUNT; i++) {
        const struct plan_section *s = &h->sections[i];
        uint64_t offset = num_align(at, PLAN_ALIGN);
        if (s->offset != offset || offset > file_bytes || s->bytes > file_bytes - offset)
            return iso_fail(reterr, ISO_E_FORMAT, s->offset, "sections",
                            "section %d of the plan (%" PRIu64 " bytes at %" PRIu64
                            ") is not in its place or goes past the end of the file (%" PRIu64 " bytes)",
                            i, s->bytes, s->offset, file_bytes);
        at = offset + s->bytes;
    }
    if (at != file_bytes)
        return iso_fail(reterr, ISO_E_FORMAT, at, "sections",
                        "the plan's sections end at byte %" PRIu64 " and the file at %" PRIu64, at,
                        file_bytes);
    if (h->sections[PLAN_TENSORS].bytes != (uint64_t)h->n_tensors * sizeof(struct plan_tensor) ||
        h->sections[PLAN_OPS].bytes != (uint64_t)h->n_ops * sizeof(struct plan_op))
        return iso_fail(reterr, ISO_E_FORMAT, 0, "sections",
                        "the plan's tables do not have the size of their %" PRIu32 " tensors and %" PRIu32
                        " operations",
                        h->n_tensors, h->n_ops);
    return ISO_OK;
}

enum iso_err plan_check_header(const struct plan_header *h, uint64_t file_bytes, struct iso_errinfo *reterr)
{
    if (file_bytes < sizeof *h || memcmp(h->magic, PLAN_MAGIC, sizeof h->magic) != 0)
        return iso_fail(reterr, ISO_E_FORMAT, 0, "magic", "this is no Isochron plan");
    if (h->version != PLAN_VERSION || h->header_bytes != sizeof *h)
        return iso_fail(reterr, ISO_E_VERSION, 8, "version",
                        "the plan has version %" PRIu32
                        "; this program executes version %d: compile the model again",
                        h->version, PLAN_VERSION);
    if (!hash128_equal(h->hash, hash128(h, offsetof(struct plan_header, hash))))
        return iso_fail(reterr, ISO_E_CORRUPT, 0, "header", "the plan's header does not match its checksum");
    if (h->file_bytes != file_bytes || file_bytes > PLAN_FILE_MAX)
        return iso_fail(reterr, ISO_E_FORMAT, 16, "file_bytes",
                        "the plan says it has %" PRIu64 " bytes and the file has %" PRIu64, h->file_bytes,
                        file_bytes);
    enum iso_err err = check_name("architecture", h->model.arch, reterr);
    if (!err)
        err = check_name("model", h->model.name, reterr);
    if (!err)
        err = check_numbers(h, reterr);
    return err ? err : check_sections(h, file_bytes, reterr);
}

static enum iso_err bad_tensor(uint32_t i, const char *what, struct iso_errinfo *reterr)
{
    return iso_fail(reterr, ISO_E_FORMAT, 0, "tensors", "tensor %" PRIu32 " of the plan has %s", i, what);
}

static enum iso_err check_tensor(const struct plan_header *h, const struct plan_tensor *t, uint32_t i,
                                 struct iso_errinfo *reterr)
{
    enum iso_err err = check_name("tensor", t->name, reterr);
    if (err)
        return err;
    if (t->kind >= PLAN_KIND_COUNT || t->dtype >= DT_COUNT)
        return bad_tensor(i, "an unknown kind or type", reterr);
    if (t->cols == 0 || t->cols > PLAN_COLS_MAX || t->rows > PLAN_COLS_MAX ||
        t->cols % dtype_inputs((enum dtype)t->dtype))
        return bad_tensor(i, "an impossible shape", reterr);
    if (t->kind == PLAN_BATCH || t->kind == PLAN_LOGITS) {
        if (t->rows || (t->dtype != DT_F32 && t->dtype != DT_A8))
            return bad_tensor(i, "a type that values do not have", reterr);
        return ISO_OK; // its place is checked by computing the arena's layout anew
    }
    if (t->kind == PLAN_MATRIX ? t->rows == 0 || t->dtype == DT_A8 : t->rows != 0 || t->dtype != DT_F32)
        return bad_tensor(i, "a type or shape that weights of its kind do not have", reterr);
    uint64_t bytes = plan_weight_bytes(t, &h->limits), section = h->sections[PLAN_WEIGHTS].bytes;
    if (t->offset % PANEL_ALIGN || t->bytes != bytes || t->offset > section || bytes > section - t->offset)
        return bad_tensor(i, "a place outside the weights section", reterr);
    return ISO_OK;
}

// State of the walk over the operations.
struct walk {
    const struct plan_header *h;
    const struct plan_tensor *tensors;
    const struct plan_op *op;
    bool *written; // [n_tensors]
    bool stored[PLAN_LAYERS_MAX];
};

// True where the operand is a range of columns of a tensor of this kind and type.
static bool is_operand(const struct walk *w, struct plan_ref ref, uint32_t kind, uint32_t dtype)
{
    if (ref.tensor >= w->h->n_tensors)
        return false;
    const struct plan_tensor *t = &w->tensors[ref.tensor];
    return t->kind == kind && t->dtype == dtype && ref.cols > 0 && ref.col <= t->cols &&
           ref.cols <= t->cols - ref.col && (dtype != DT_A8 || (ref.col == 0 && ref.cols == t->cols));
}

static bool is_value(const struct walk *w, struct plan_ref ref, uint32_t kind)
{
    return is_operand(w, ref, kind, DT_F32);
}

static bool is_read(const struct walk *w, struct plan_ref ref, uint32_t kind)
{
    return is_value(w, ref, kind) && w->written[ref.tensor];
}

// A whole weight tensor. Angles and vectors have cols; matrices are compared by the caller.
static bool is_weight(const struct walk *w, struct plan_ref ref, uint32_t kind)
{
    if (ref.tensor >= w->h->n_tensors)
        return false;
    const struct plan_tensor *t = &w->tensors[ref.tensor];
    return t->kind == kind && ref.col == 0 && ref.cols == t->cols;
}

static bool is_none(struct plan_ref ref)
{
    return ref.tensor == PLAN_NONE;
}

// Element-wise in place is fine; overlapping but different columns of one value are not.
static bool may_alias(struct plan_ref in, struct plan_ref out)
{
    return in.tensor != out.tensor || (in.col == out.col && in.cols == out.cols) ||
           in.col + in.cols <= out.col || out.col + out.cols <= in.col;
}

// What the rows of the result are: of the batch, or those whose logits are wanted. PLAN_KIND_COUNT, which no
// operand is, where the result is no value.
static uint32_t result_kind(const struct walk *w)
{
    uint32_t id = w->op->out.tensor;
    if (id >= w->h->n_tensors)
        return PLAN_KIND_COUNT;
    uint32_t kind = w->tensors[id].kind;
    return kind == PLAN_BATCH || kind == PLAN_LOGITS ? kind : PLAN_KIND_COUNT;
}

static bool matmul_is_right(const struct walk *w)
{
    const struct plan_op *op = w->op;
    if (!is_weight(w, op->in[1], PLAN_MATRIX))
        return false;
    const struct plan_tensor *matrix = &w->tensors[op->in[1].tensor];
    uint32_t kind = result_kind(w);
    uint32_t in_type = dtype_is_grouped((enum dtype)matrix->dtype) ? DT_A8 : DT_F32;
    return is_operand(w, op->in[0], kind, in_type) && w->written[op->in[0].tensor] &&
           is_value(w, op->out, kind) && op->in[0].cols == matrix->cols && op->out.cols == matrix->rows &&
           op->in[0].tensor != op->out.tensor &&
           (is_none(op->in[2]) || (is_weight(w, op->in[2], PLAN_VECTOR) && op->in[2].cols == matrix->rows));
}

// Operations that work on rows of either kind take the kind of their result.
static bool rows_op_is_right(const struct walk *w)
{
    const struct plan_op *op = w->op;
    uint32_t kind = result_kind(w);
    if (!is_read(w, op->in[0], kind) || op->in[0].cols != op->out.cols || !is_none(op->in[2]))
        return false;
    switch (op->code) {
    case PLAN_OP_RMSNORM:
        return is_value(w, op->out, kind) && is_weight(w, op->in[1], PLAN_VECTOR) &&
               op->in[0].cols % op->in[1].cols == 0 && op->scale > 0 && op->scale < 1 &&
               may_alias(op->in[0], op->out);
    case PLAN_OP_QUANTIZE:
        return is_operand(w, op->out, kind, DT_A8) && is_none(op->in[1]);
    default: // add, silu_mul, gelu_mul
        return is_value(w, op->out, kind) && is_read(w, op->in[1], kind) && op->in[1].cols == op->out.cols &&
               may_alias(op->in[0], op->out) && may_alias(op->in[1], op->out);
    }
}

static bool op_is_right(const struct walk *w)
{
    const struct plan_op *op = w->op;
    const struct plan_model *m = &w->h->model;
    uint32_t q_cols = m->heads * m->head_dim, kv_cols = m->kv_heads * m->head_dim;
    if (op->layer >= m->layers || (op->window != 0 && op->code != PLAN_OP_ATTENTION))
        return false;
    switch (op->code) {
    case PLAN_OP_EMBED:
        return is_weight(w, op->in[0], PLAN_MATRIX) && w->tensors[op->in[0].tensor].rows == m->vocab &&
               is_none(op->in[1]) && is_none(op->in[2]) && is_value(w, op->out, PLAN_BATCH) &&
               op->out.cols == op->in[0].cols && op->scale >= 1 && op->scale <= PLAN_EMBED_SCALE_MAX;
    case PLAN_OP_MATMUL:
        return matmul_is_right(w);
    case PLAN_OP_ROPE:
        return is_read(w, op->in[0], PLAN_BATCH) && memcmp(&op->in[0], &op->out, sizeof op->out) == 0 &&
               is_weight(w, op->in[1], PLAN_ANGLES) && op->in[1].cols == m->head_dim &&
               op->out.cols % m->head_dim == 0 && is_none(op->in[2]);
    case PLAN_OP_KV_STORE:
        return is_read(w, op->in[0], PLAN_BATCH) && is_read(w, op->in[1], PLAN_BATCH) && is_none(op->in[2]) &&
               is_none(op->out) && op->in[0].cols == kv_cols && op->in[1].cols == kv_cols &&
               !w->stored[op->layer];
    case PLAN_OP_ATTENTION:
        return w->stored[op->layer] && is_read(w, op->in[0], PLAN_BATCH) && is_none(op->in[1]) &&
               is_none(op->in[2]) && is_value(w, op->out, PLAN_BATCH) && op->in[0].cols == q_cols &&
               op->out.cols == q_cols && op->in[0].tensor != op->out.tensor && op->scale > 0 &&
               op->scale <= 1;
    case PLAN_OP_GATHER:
        return is_read(w, op->in[0], PLAN_BATCH) && is_none(op->in[1]) && is_none(op->in[2]) &&
               is_value(w, op->out, PLAN_LOGITS) && op->in[0].cols == op->out.cols;
    case PLAN_OP_RMSNORM:
    case PLAN_OP_QUANTIZE:
    case PLAN_OP_ADD:
    case PLAN_OP_SILU_MUL:
    case PLAN_OP_GELU_MUL:
        return rows_op_is_right(w);
    default:
        return false;
    }
}

// The places of values must be those that the layout computes anew.
static enum iso_err check_arena(const struct plan_header *h, const struct plan_tensor *tensors,
                                const struct plan_op *ops, struct arena *scratch, struct iso_errinfo *reterr)
{
    struct plan_tensor *copy = arena_array(scratch, h->n_tensors, sizeof *copy);
    uint64_t bytes = 0;
    if (!copy)
        return iso_fail(reterr, ISO_E_LIMIT, 0, NULL, "the plan's check needs more scratch memory");
    memcpy(copy, tensors, h->n_tensors * sizeof *copy);
    enum iso_err err = arena_layout(copy, h->n_tensors, ops, h->n_ops, &h->limits, scratch, &bytes);
    if (err)
        return iso_fail(reterr, err, 0, NULL, "the plan's check needs more scratch memory");
    if (bytes != h->arena_bytes)
        return iso_fail(reterr, ISO_E_FORMAT, 0, "arena_bytes",
                        "the plan's arena has %" PRIu64 " bytes where its values need %" PRIu64,
                        h->arena_bytes, bytes);
    for (uint32_t i = 0; i < h->n_tensors; i++)
        if (copy[i].offset != tensors[i].offset || copy[i].bytes != tensors[i].bytes)
            return bad_tensor(i, "another place in the arena than its lifetime gives", reterr);
    return ISO_OK;
}

// A value's first write must be of all its columns: what is left out would be read as whatever lay there.
static bool writes_whole(const struct walk *w)
{
    struct plan_ref out = w->op->out;
    return is_none(out) || w->written[out.tensor] || out.cols == w->tensors[out.tensor].cols;
}

// Executes the operations in thought: what each reads must have been written by one before.
static enum iso_err check_ops(struct walk *w, const struct plan_op *ops, struct iso_errinfo *reterr)
{
    for (uint32_t i = 0; i < w->h->n_ops; i++) {
        w->op = &ops[i];
        if (!op_is_right(w) || !writes_whole(w))
            return iso_fail(reterr, ISO_E_FORMAT, 0, "operations",
                            "operation %" PRIu32 " of the plan (%s) has operands that do not fit together", i,
                            plan_code_name(ops[i].code));
        if (!is_none(ops[i].out))
            w->written[ops[i].out.tensor] = true;
        if (ops[i].code == PLAN_OP_KV_STORE)
            w->stored[ops[i].layer] = true;
    }
    return ISO_OK;
}

enum iso_err plan_check_program(const struct plan_header *h, const struct plan_tensor *tensors,
                                const struct plan_op *ops, struct arena *scratch, struct iso_errinfo *reterr)
{
    enum iso_err err = ISO_OK;
    for (uint32_t i = 0; i < h->n_tensors && !err; i++)
        err = check_tensor(h, &tensors[i], i, reterr);
    if (err)
        return err;
    struct walk w = {.h = h, .tensors = tensors, .written = arena_array(scratch, h->n_tensors, sizeof(bool))};
    if (!w.written)
        return iso_fail(reterr, ISO_E_LIMIT, 0, NULL, "the plan's check needs more scratch memory");
    err = check_ops(&w, ops, reterr);
    if (err)
        return err;
    for (uint32_t i = 0; i < h->n_tensors; i++)
        if ((tensors[i].kind == PLAN_BATCH || tensors[i].kind == PLAN_LOGITS) && !w.written[i])
            return bad_tensor(i, "no operation that computes it", reterr);
    // Computed last, since the arena's layout reuses the place of a value after its last operation.
    const struct plan_tensor *logits = &tensors[h->logits];
    if (logits->kind != PLAN_LOGITS || logits->dtype != DT_F32 || logits->cols != h->model.vocab ||
        ops[h->n_ops - 1].out.tensor != h->logits)
        return bad_tensor(h->logits, "not the shape of logits, or the last operation does not compute it",
                          reterr);
    return check_arena(h, tensors, ops, scratch, reterr);
}
