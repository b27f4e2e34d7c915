#include "cli/sizing.h"

#include "base/assert.h"
#include "base/num.h"
#include "cli/session.h"
#include "plan/arena_layout.h"
#include "plan/plan.h"
#include "plan/plan_check.h"
#include "text/tokenizer.h"

// Tables of any plan, and twice the check's scratch: once for the check, once for each layout.
#define SIZING_ARENA_BYTES                                                                   \
    (PLAN_TENSORS_MAX * sizeof(struct plan_tensor) + PLAN_OPS_MAX * sizeof(struct plan_op) + \
     2 * PLAN_CHECK_SCRATCH_BYTES)

enum iso_err sizing_open(const char *path, const struct compile_flags *flags, struct sizing *ret,
                         struct iso_errinfo *reterr)
{
    struct sizing s = {0};
    if (arena_init(&s.arena, SIZING_ARENA_BYTES))
        return iso_fail(reterr, ISO_E_NOMEM, 0, NULL, "the system refused memory");
    enum iso_err err;
    if (plan_is_plan(path)) {
        struct plan_op *ops = NULL;
        err = plan_peek_program(path, &s.arena, &s.header, &s.tensors, &ops, reterr);
        if (!err)
            err = compile_flags_widths_agree(flags, &s.header.limits, reterr);
        if (err)
            iso_fail_prefix(reterr, path);
        s.ops = ops;
        s.other_bytes = err ? 0 : s.header.file_bytes - s.header.sections[PLAN_WEIGHTS].bytes;
    } else {
        err = program_open(path, &flags->options, &s.program, reterr);
        s.header = s.program.header;
        s.tensors = s.program.tensors;
        s.ops = s.program.ops;
        s.other_bytes = err ? 0 : program_other_bytes(&s.program);
    }
    s.tables_used = s.arena.used;
    if (err)
        sizing_close(&s);
    else
        *ret = s;
    return err;
}

void sizing_close(struct sizing *s)
{
    program_close(&s->program);
    arena_deinit(&s->arena);
}

struct account sizing_account(struct sizing *s, const struct plan_limits *limits, uint32_t threads)
{
    struct plan_header h = s->header;
    uint64_t weights = 0;
    h.limits = *limits;
    h.limits.batch_tokens = (uint32_t)num_max(limits->batch_tokens, limits->slots);
    for (uint32_t i = 0; i < h.n_tensors; i++)
        if (s->tensors[i].kind != PLAN_BATCH && s->tensors[i].kind != PLAN_LOGITS)
            weights += plan_weight_bytes(&s->tensors[i], &h.limits);
    enum iso_err err =
        arena_layout(s->tensors, h.n_tensors, s->ops, h.n_ops, &h.limits, &s->arena, &h.arena_bytes);
    ASSERT(!err); // the arena has room for it by its size
    s->arena.used = s->tables_used;
    // The file ends with the weights, so its last page is not rounded by the sections before.
    uint64_t file = num_align(s->other_bytes + weights, PLAN_ALIGN);
    return account_of(&h, weights, file - weights, threads, tok_runtime_bytes(session_text_bytes(&h.limits)));
}

// The largest value in [1, most] whose account fits, by bisection: an account only grows with it.
// `field` points into *limits.
static uint32_t largest(struct sizing *s, const struct plan_limits *limits, uint32_t *field, uint32_t least,
                        uint32_t most, uint32_t threads, uint64_t pool_bytes)
{
    uint32_t fits = 0;
    while (least <= most) {
        *field = least + (most - least) / 2;
        struct account a = sizing_account(s, limits, threads);
        if (account_total(&a) <= pool_bytes) {
            fits = *field;
            least = *field + 1;
        } else {
            most = *field - 1;
        }
    }
    return fits;
}

uint32_t sizing_largest_seq(struct sizing *s, const struct plan_limits *limits, uint32_t threads,
                            uint64_t pool_bytes)
{
    struct plan_limits l = *limits;
    return largest(s, &l, &l.max_seq_len, 2, s->header.model.context, threads, pool_bytes);
}

uint32_t sizing_largest_slots(struct sizing *s, const struct plan_limits *limits, uint32_t threads,
                              uint64_t pool_bytes)
{
    struct plan_limits l = *limits;
    return largest(s, &l, &l.slots, 1, PLAN_SLOTS_MAX, threads, pool_bytes);
}
