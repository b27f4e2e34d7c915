#include "plan/arena_layout.h"

#include "base/assert.h"
#include "base/num.h"

// Operations by index from the first that touches a value to the last; first > last: never used.
struct lifetime {
    uint32_t first, last;
};

static void touch(struct lifetime *life, struct plan_ref ref, uint32_t op)
{
    if (ref.tensor == PLAN_NONE)
        return;
    struct lifetime *l = &life[ref.tensor];
    l->first = op < l->first ? op : l->first;
    l->last = op;
}

static bool is_value(const struct plan_tensor *t)
{
    return t->kind == PLAN_BATCH || t->kind == PLAN_LOGITS;
}

// Values placed and alive at the moment, in ascending order of offset. Few: a layer has about ten.
struct alive {
    uint32_t *tensor;
    uint32_t n;
};

static void drop_dead(struct alive *alive, const struct lifetime *life, uint32_t op)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < alive->n; i++)
        if (life[alive->tensor[i]].last >= op)
            alive->tensor[kept++] = alive->tensor[i];
    alive->n = kept;
}

// Puts `id` into the lowest gap that holds it.
static void place(struct alive *alive, struct plan_tensor *tensors, uint32_t id)
{
    uint64_t at = 0;
    uint32_t slot = 0;
    for (; slot < alive->n; slot++) {
        const struct plan_tensor *t = &tensors[alive->tensor[slot]];
        if (t->offset - at >= tensors[id].bytes)
            break;
        at = t->offset + t->bytes;
    }
    tensors[id].offset = at;
    for (uint32_t i = alive->n; i > slot; i--)
        alive->tensor[i] = alive->tensor[i - 1];
    alive->tensor[slot] = id;
    alive->n++;
}

enum iso_err arena_layout(struct plan_tensor *tensors, uint32_t n_tensors, const struct plan_op *ops,
                          uint32_t n_ops, const struct plan_limits *limits, struct arena *scratch,
                          uint64_t *ret_bytes)
{
    struct lifetime *life = arena_array(scratch, n_tensors, sizeof *life);
    struct alive alive = {.tensor = arena_array(scratch, (uint64_t)n_tensors + 1, sizeof *alive.tensor)};
    if (!life || !alive.tensor)
        return ISO_E_LIMIT;
    for (uint32_t i = 0; i < n_tensors; i++)
        life[i] = (struct lifetime){.first = UINT32_MAX};
    for (uint32_t i = 0; i < n_ops; i++) {
        for (int j = 0; j < PLAN_IN_MAX; j++)
            touch(life, ops[i].in[j], i);
        touch(life, ops[i].out, i);
    }
    uint64_t end = 0;
    for (uint32_t i = 0; i < n_ops; i++) {
        uint32_t id = ops[i].out.tensor;
        if (id == PLAN_NONE || life[id].first != i)
            continue;
        struct plan_tensor *t = &tensors[id];
        ASSERT(is_value(t));
        drop_dead(&alive, life, i);
        t->bytes = num_align(plan_row_bytes(t->dtype, t->cols) * plan_rows_max(t->kind, limits), PANEL_ALIGN);
        place(&alive, tensors, id);
        end = num_max(end, t->offset + t->bytes);
    }
    *ret_bytes = end;
    return ISO_OK;
}
