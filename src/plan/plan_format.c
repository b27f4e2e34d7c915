#include "plan/plan_format.h"

#include "base/assert.h"
#include "base/num.h"

static const char *const CODE_NAMES[PLAN_CODE_COUNT] = {
#define X(name, text) [PLAN_OP_##name] = text,
    PLAN_OP_LIST(X)
#undef X
};

const char *plan_code_name(uint32_t code)
{
    return code < PLAN_CODE_COUNT ? CODE_NAMES[code] : "?";
}

uint64_t plan_weight_bytes(const struct plan_tensor *t, const struct plan_limits *limits)
{
    switch (t->kind) {
    case PLAN_MATRIX:
        return num_div_up(t->rows, PANEL_LANES) * panel_layout((enum dtype)t->dtype, t->cols).bytes;
    case PLAN_VECTOR:
        return num_align((uint64_t)t->cols * sizeof(float), PANEL_ALIGN);
    default:
        ASSERT(t->kind == PLAN_ANGLES);
        return num_align((uint64_t)limits->max_seq_len * t->cols * sizeof(float), PANEL_ALIGN);
    }
}
