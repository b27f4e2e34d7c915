#include "plan/plan_format.h"

#include <string.h>

#include "base/assert.h"
#include "base/num.h"
#include "base/utf8.h"

static const char *const CODE_NAMES[PLAN_CODE_COUNT] = {
#define X(name, text) [PLAN_OP_##name] = text,
    PLAN_OP_LIST(X)
#undef X
};

const char *plan_code_name(uint32_t code)
{
    return code < PLAN_CODE_COUNT ? CODE_NAMES[code] : "?";
}

static const struct {
    const char *name;
    enum dtype dtype;
} QUANTS[QUANT_COUNT] = {
#define X(id, text, type) [QUANT_##id] = {text, type},
    QUANT_LIST(X)
#undef X
};

const char *quant_name(uint32_t quant)
{
    return quant < QUANT_COUNT ? QUANTS[quant].name : "?";
}

bool quant_from_name(const char *name, enum quant *ret)
{
    for (int i = 0; i < QUANT_COUNT; i++)
        if (strcmp(QUANTS[i].name, name) == 0) {
            *ret = (enum quant)i;
            return true;
        }
    return false;
}

enum dtype quant_dtype(enum quant quant)
{
    return QUANTS[quant].dtype;
}

bool plan_name_is_valid(const char name[PLAN_NAME_BYTES])
{
    size_t n = strnlen(name, PLAN_NAME_BYTES), len = 0;
    for (size_t i = 0; i < n; i += len) {
        uint32_t cp = 0;
        len = utf8_decode((const uint8_t *)name + i, n - i, &cp);
        if (len == 0 || cp < 0x20 || (cp >= 0x7F && cp < 0xA0))
            return false;
    }
    for (size_t i = n; i < PLAN_NAME_BYTES; i++)
        if (name[i] != '\0')
            return false;
    return n < PLAN_NAME_BYTES;
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
