#include "text/template_ops.h"

#include <math.h>

#include "base/assert.h"
#include "text/template_builtin.h"
#include "text/template_text.h"
#include "text/template_write.h"

// ---- arithmetic

static const char *const OP_TEXTS[] = {[OP_ADD] = "+",       [OP_SUB] = "-", [OP_MUL] = "*", [OP_DIV] = "/",
                                       [OP_FLOORDIV] = "//", [OP_MOD] = "%", [OP_POW] = "**"};

static enum iso_err fail_overflow(struct tmpl_run *r, enum tmpl_op op)
{
    return tmpl_fail(r, ISO_E_LIMIT, "the result of '%s' has more than 63 bits", OP_TEXTS[op]);
}

static enum iso_err fail_operands(struct tmpl_run *r, enum tmpl_op op, struct tmpl_val a, struct tmpl_val b)
{
    return tmpl_fail(r, ISO_E_FORMAT, "'%s' is not for %s and %s", OP_TEXTS[op], tmpl_kind_name(a.kind),
                     tmpl_kind_name(b.kind));
}

static enum iso_err float_result(struct tmpl_run *r, enum tmpl_op op, double f, struct tmpl_val *ret)
{
    if (!isfinite(f))
        return tmpl_fail(r, ISO_E_NONFINITE, "the result of '%s' is not a finite number", OP_TEXTS[op]);
    *ret = tmpl_float(f);
    return ISO_OK;
}

static enum iso_err float_arith(struct tmpl_run *r, enum tmpl_op op, double a, double b, struct tmpl_val *ret)
{
    switch (op) {
    case OP_ADD:
        return float_result(r, op, a + b, ret);
    case OP_SUB:
        return float_result(r, op, a - b, ret);
    case OP_MUL:
        return float_result(r, op, a * b, ret);
    case OP_DIV:
        if (b == 0)
            return tmpl_fail(r, ISO_E_FORMAT, "division by zero");
        return float_result(r, op, a / b, ret);
    default: // would need libm, whose results are not the same on every machine
        return tmpl_fail(r, ISO_E_UNSUPPORTED, "'%s' is supported for whole numbers only", OP_TEXTS[op]);
    }
}

static bool int_pow(int64_t base, int64_t exponent, int64_t *ret)
{
    int64_t result = 1;
    for (; exponent > 0; exponent >>= 1) {
        if ((exponent & 1) && __builtin_mul_overflow(result, base, &result))
            return false;
        if (exponent > 1 && __builtin_mul_overflow(base, base, &base))
            return false;
    }
    *ret = result;
    return true;
}

static enum iso_err int_arith(struct tmpl_run *r, enum tmpl_op op, int64_t a, int64_t b, struct tmpl_val *ret)
{
    int64_t i = 0;
    bool fits = true;
    switch (op) {
    case OP_ADD:
        fits = !__builtin_add_overflow(a, b, &i);
        break;
    case OP_SUB:
        fits = !__builtin_sub_overflow(a, b, &i);
        break;
    case OP_MUL:
        fits = !__builtin_mul_overflow(a, b, &i);
        break;
    case OP_POW:
        if (b < 0)
            return float_arith(r, op, (double)a, (double)b, ret);
        fits = int_pow(a, b, &i);
        break;
    case OP_FLOORDIV:
    case OP_MOD:
        if (b == 0)
            return tmpl_fail(r, ISO_E_FORMAT, "division by zero");
        if (b == -1) { // the one quotient that C leaves undefined
            fits = op == OP_MOD || !__builtin_sub_overflow(0, a, &i);
            break;
        }
        i = a % b != 0 && (a < 0) != (b < 0);
        i = op == OP_MOD ? a % b + i * b : a / b - i;
        break;
    default:
        return float_arith(r, op, (double)a, (double)b, ret);
    }
    if (!fits)
        return fail_overflow(r, op);
    *ret = tmpl_int(i);
    return ISO_OK;
}

// A string, list or tuple `count` times over.
static enum iso_err repeat(struct tmpl_run *r, struct tmpl_val v, int64_t count, struct tmpl_val *ret)
{
    size_t size = v.kind == VAL_STR ? 1 : sizeof(struct tmpl_val);
    uint64_t total;
    if (count <= 0 || v.len == 0) {
        *ret = v;
        ret->len = 0;
        return ISO_OK;
    }
    if (!num_mul(v.len, (uint64_t)count, &total) || total > UINT32_MAX)
        total = UINT32_MAX; // more than there is memory for
    char *bytes = tmpl_alloc(r, total, size);
    if (!bytes)
        return ISO_E_LIMIT;
    size_t part = v.len * size, whole = total * size;
    memcpy(bytes, v.s, part);
    for (size_t done = part; done < whole; done += num_min(done, whole - done))
        memcpy(bytes + done, bytes, num_min(done, whole - done));
    *ret = v;
    ret->len = (uint32_t)total;
    ret->s = bytes;
    return ISO_OK;
}

static enum iso_err join_lists(struct tmpl_run *r, struct tmpl_val a, struct tmpl_val b, struct tmpl_val *ret)
{
    uint64_t len = (uint64_t)a.len + b.len;
    struct tmpl_val *items = tmpl_alloc(r, len, sizeof *items);
    if (!items)
        return ISO_E_LIMIT;
    if (a.len > 0)
        memcpy(items, a.items, a.len * sizeof *items);
    if (b.len > 0)
        memcpy(items + a.len, b.items, b.len * sizeof *items);
    *ret = (struct tmpl_val){.kind = a.kind, .len = (uint32_t)len, .items = items};
    return ISO_OK;
}

static bool is_sequence(struct tmpl_val v)
{
    return v.kind == VAL_STR || v.kind == VAL_LIST || v.kind == VAL_TUPLE;
}

static bool as_float(struct tmpl_val v, double *ret)
{
    int64_t i = 0;
    if (v.kind != VAL_FLOAT && !tmpl_as_int(v, &i))
        return false;
    *ret = v.kind == VAL_FLOAT ? v.f : (double)i;
    return true;
}

static enum iso_err concat_texts(struct tmpl_run *r, struct tmpl_val a, struct tmpl_val b,
                                 struct tmpl_val *ret)
{
    struct tmpl_val left, right;
    enum iso_err err = tmpl_to_str(r, a, &left);
    if (!err)
        err = tmpl_to_str(r, b, &right);
    return err ? err : tmpl_concat(r, tmpl_strv(left), tmpl_strv(right), ret);
}

enum iso_err tmpl_arith(struct tmpl_run *r, enum tmpl_op op, struct tmpl_val a, struct tmpl_val b,
                        struct tmpl_val *ret)
{
    if (op == OP_CONCAT)
        return concat_texts(r, a, b, ret);
    if (op == OP_MOD && a.kind == VAL_STR)
        return tmpl_fail(r, ISO_E_UNSUPPORTED, "formatting with '%%' is not supported");
    if (a.kind == VAL_UNDEFINED || b.kind == VAL_UNDEFINED)
        return tmpl_fail_undefined(r, a.kind == VAL_UNDEFINED ? a : b);
    int64_t i = 0, j = 0;
    if (tmpl_as_int(a, &i) && tmpl_as_int(b, &j))
        return int_arith(r, op, i, j, ret);
    double x, y;
    if (as_float(a, &x) && as_float(b, &y))
        return float_arith(r, op, x, y, ret);
    if (op == OP_ADD && a.kind == VAL_STR && b.kind == VAL_STR)
        return tmpl_concat(r, tmpl_strv(a), tmpl_strv(b), ret);
    if (op == OP_ADD && a.kind == b.kind && is_sequence(a))
        return join_lists(r, a, b, ret);
    if (op == OP_MUL && is_sequence(a) && tmpl_as_int(b, &i))
        return repeat(r, a, i, ret);
    if (op == OP_MUL && is_sequence(b) && tmpl_as_int(a, &i))
        return repeat(r, b, i, ret);
    return fail_operands(r, op, a, b);
}

enum iso_err tmpl_sign(struct tmpl_run *r, enum tmpl_op op, struct tmpl_val a, struct tmpl_val *ret)
{
    ASSERT(op == OP_ADD || op == OP_SUB);
    int64_t i = 0;
    if (a.kind == VAL_UNDEFINED)
        return tmpl_fail_undefined(r, a);
    if (tmpl_as_int(a, &i))
        return int_arith(r, op, 0, i, ret);
    if (a.kind != VAL_FLOAT)
        return tmpl_fail(r, ISO_E_FORMAT, "'%s' is not for %s", OP_TEXTS[op], tmpl_kind_name(a.kind));
    *ret = tmpl_float(op == OP_SUB ? -a.f : a.f);
    return ISO_OK;
}

// ---- comparison

static enum iso_err contains(struct tmpl_run *r, struct tmpl_val item, struct tmpl_val in, bool *ret)
{
    const struct tmpl_val *items = NULL;
    const struct tmpl_pair *pair = NULL;
    uint32_t len = 0;
    size_t at;
    enum iso_err err;
    switch (in.kind) {
    case VAL_STR:
        if (item.kind != VAL_STR)
            return tmpl_fail(r, ISO_E_FORMAT, "a str object cannot contain %s", tmpl_kind_name(item.kind));
        *ret = tmpl_find(tmpl_strv(in), tmpl_strv(item), 0, &at);
        return tmpl_charge_bytes(r, in.len);
    case VAL_DICT:
        err = tmpl_find_key(r, in.pairs, in.len, item, &pair);
        *ret = !err && pair;
        return err;
    default:
        err = tmpl_iterate(r, in, &items, &len);
    }
    *ret = false;
    for (uint32_t i = 0; i < len && !err && !*ret; i++)
        err = tmpl_equal(r, item, items[i], 0, ret);
    return err;
}

enum iso_err tmpl_compare(struct tmpl_run *r, enum tmpl_op op, struct tmpl_val a, struct tmpl_val b,
                          bool *ret)
{
    int order = 0;
    bool holds = false;
    enum iso_err err;
    if (op == OP_EQ || op == OP_NE) {
        err = tmpl_equal(r, a, b, 0, &holds);
        holds = holds == (op == OP_EQ);
    } else if (op == OP_IN || op == OP_NOT_IN) {
        err = contains(r, a, b, &holds);
        holds = holds == (op == OP_IN);
    } else {
        err = tmpl_order(r, a, b, 0, &order);
        holds = op == OP_LT ? order < 0 : op == OP_LE ? order <= 0 : op == OP_GT ? order > 0 : order >= 0;
    }
    if (!err)
        *ret = holds;
    return err;
}

// ---- attributes and subscripts

static bool loop_attr(const struct tmpl_loop *loop, struct strv name, struct tmpl_val *ret)
{
    uint32_t i = loop->index0, len = loop->len;
    if (strv_is(name, "index"))
        *ret = tmpl_int((int64_t)i + 1);
    else if (strv_is(name, "index0"))
        *ret = tmpl_int(i);
    else if (strv_is(name, "revindex"))
        *ret = tmpl_int((int64_t)len - i);
    else if (strv_is(name, "revindex0"))
        *ret = tmpl_int((int64_t)len - i - 1);
    else if (strv_is(name, "first"))
        *ret = tmpl_bool(i == 0);
    else if (strv_is(name, "last"))
        *ret = tmpl_bool(i + 1 == len);
    else if (strv_is(name, "length"))
        *ret = tmpl_int(len);
    else if (strv_is(name, "depth"))
        *ret = tmpl_int(1); // counts recursive loops only
    else if (strv_is(name, "depth0"))
        *ret = tmpl_int(0);
    else if (strv_is(name, "previtem") && i > 0)
        *ret = loop->items[i - 1];
    else if (strv_is(name, "nextitem") && i + 1 < len)
        *ret = loop->items[i + 1];
    else
        return false;
    return true;
}

// A method or, of a loop or namespace, an attribute.
static enum iso_err own_attr(struct tmpl_run *r, struct tmpl_val v, struct strv name, struct tmpl_val *ret,
                             bool *ret_found)
{
    *ret_found = false;
    if (v.kind == VAL_LOOP) {
        *ret_found = loop_attr(v.loop, name, ret);
        return ISO_OK;
    }
    if (v.kind == VAL_NAMESPACE) {
        const struct tmpl_pair *pair = NULL;
        enum iso_err err = tmpl_find_key(r, v.space->pairs, v.space->len, tmpl_str(name), &pair);
        *ret_found = !err && pair;
        if (*ret_found)
            *ret = pair->value;
        return err;
    }
    const struct tmpl_builtin *methods = tmpl_methods_of(v.kind);
    int row = methods ? tmpl_builtin_find(methods, name) : -1;
    if (row < 0)
        return ISO_OK;
    struct tmpl_val *self = tmpl_alloc(r, 1, sizeof *self);
    if (!self)
        return ISO_E_LIMIT;
    *self = v;
    *ret = (struct tmpl_val){.kind = VAL_METHOD, .sub = (uint8_t)row, .self = self};
    *ret_found = true;
    return ISO_OK;
}

enum iso_err tmpl_attr(struct tmpl_run *r, struct tmpl_val v, struct strv name, struct tmpl_val *ret)
{
    if (v.kind == VAL_UNDEFINED)
        return tmpl_fail_undefined(r, v);
    bool found;
    enum iso_err err = own_attr(r, v, name, ret, &found);
    if (err || found)
        return err;
    const struct tmpl_pair *pair = NULL;
    if (v.kind == VAL_DICT)
        err = tmpl_find_key(r, v.pairs, v.len, tmpl_str(name), &pair);
    if (!err)
        *ret = pair ? pair->value : tmpl_undefined(v.kind, name);
    return err;
}

// Item `index`, from the end where negative; false where there is none.
static bool sequence_item(struct tmpl_val v, int64_t index, struct tmpl_val *ret)
{
    struct strv s = tmpl_strv(v);
    int64_t len = v.kind == VAL_STR ? (int64_t)tmpl_char_count(s) : v.len;
    index += index < 0 ? len : 0;
    if (index < 0 || index >= len)
        return false;
    if (v.kind != VAL_STR) {
        *ret = v.items[index];
        return true;
    }
    size_t at = tmpl_char_offset(s, (size_t)index);
    *ret = tmpl_str(tmpl_sub(s, at, tmpl_char_end(s, at)));
    return true;
}

enum iso_err tmpl_item(struct tmpl_run *r, struct tmpl_val v, struct tmpl_val key, struct tmpl_val *ret)
{
    if (v.kind == VAL_UNDEFINED)
        return tmpl_fail_undefined(r, v);
    enum iso_err err = v.kind == VAL_STR ? tmpl_charge_bytes(r, v.len) : ISO_OK;
    int64_t index = 0;
    bool found = false;
    const struct tmpl_pair *pair = NULL;
    if (!err && is_sequence(v) && tmpl_as_int(key, &index))
        found = sequence_item(v, index, ret);
    else if (!err && v.kind == VAL_DICT && key.kind != VAL_LIST && key.kind != VAL_DICT)
        err = tmpl_find_key(r, v.pairs, v.len, key, &pair);
    if (!err && pair) {
        *ret = pair->value;
        return ISO_OK;
    }
    if (!err && !found && key.kind == VAL_STR)
        err = own_attr(r, v, tmpl_strv(key), ret, &found);
    if (!err && !found)
        *ret = tmpl_undefined(v.kind, key.kind == VAL_STR ? tmpl_strv(key) : (struct strv){0});
    return err;
}

// One end of a slice of `len` items that steps by `step`: Python's clamping. `missing` where it isn't given.
static int64_t slice_end(struct tmpl_val part, int64_t len, int64_t step, int64_t missing)
{
    int64_t index = 0;
    if (!tmpl_as_int(part, &index))
        return missing;
    int64_t low = step < 0 ? -1 : 0, high = step < 0 ? len - 1 : len;
    if (index < 0)
        index = index < -len ? -1 : index + len;
    return index < low ? low : index > high ? high : index;
}

static enum iso_err pick_items(struct tmpl_run *r, struct tmpl_val v, int64_t from, int64_t step,
                               int64_t count, struct tmpl_val *ret)
{
    const struct tmpl_val *items;
    uint32_t len;
    enum iso_err err = tmpl_iterate(r, v, &items, &len);
    if (err)
        return err;
    struct tmpl_val *picked = tmpl_alloc(r, (uint64_t)count, sizeof *picked);
    if (!picked)
        return ISO_E_LIMIT;
    for (int64_t i = 0; i < count; i++)
        picked[i] = items[from + i * step];
    if (v.kind != VAL_STR) {
        *ret = (struct tmpl_val){.kind = v.kind, .len = (uint32_t)count, .items = picked};
        return ISO_OK;
    }
    buf_reset(&r->scratch);
    for (int64_t i = 0; i < count && !err; i++)
        err = tmpl_put(r, &r->scratch, tmpl_strv(picked[i]));
    return err ? err : tmpl_from_scratch(r, ret);
}

enum iso_err tmpl_slice(struct tmpl_run *r, struct tmpl_val v, const struct tmpl_val parts[3],
                        struct tmpl_val *ret)
{
    if (v.kind == VAL_UNDEFINED)
        return tmpl_fail_undefined(r, v);
    if (!is_sequence(v))
        return tmpl_fail(r, ISO_E_FORMAT, "%s has no slices", tmpl_kind_name(v.kind));
    int64_t step = 1, ignored;
    for (int i = 0; i < 3; i++) {
        if (parts[i].kind != VAL_NONE && !tmpl_as_int(parts[i], i == 2 ? &step : &ignored))
            return tmpl_fail(r, ISO_E_FORMAT, "a slice's bound is %s", tmpl_kind_name(parts[i].kind));
    }
    if (step == 0)
        return tmpl_fail(r, ISO_E_FORMAT, "a slice's step is 0");
    enum iso_err err = v.kind == VAL_STR ? tmpl_charge_bytes(r, v.len) : ISO_OK;
    if (err)
        return err;
    int64_t len = v.kind == VAL_STR ? (int64_t)tmpl_char_count(tmpl_strv(v)) : v.len;
    step = step > len ? len + 1 : step < -len ? -len - 1 : step; // as far: past either end
    int64_t from = slice_end(parts[0], len, step, step < 0 ? len - 1 : 0);
    int64_t to = slice_end(parts[1], len, step, step < 0 ? -1 : len);
    int64_t count = step < 0 ? (from - to - step - 1) / -step : (to - from + step - 1) / step;
    count = count < 0 ? 0 : count;
    if (step != 1)
        return pick_items(r, v, from, step, count, ret);
    *ret = v;
    if (v.kind == VAL_STR) {
        size_t start = tmpl_char_offset(tmpl_strv(v), (size_t)from);
        struct strv rest = tmpl_sub(tmpl_strv(v), start, v.len);
        *ret = tmpl_str(tmpl_sub(rest, 0, tmpl_char_offset(rest, (size_t)count)));
    } else {
        ret->len = (uint32_t)count;
        ret->items = count > 0 ? v.items + from : NULL;
    }
    return ISO_OK;
}
