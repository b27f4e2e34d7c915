#include "text/template_value.h"

#include <stdarg.h>
#include <stdio.h>

#include "base/assert.h"
#include "text/template_lex.h"
#include "text/template_text.h"

#define BYTES_PER_STEP        64
#define PAIRS_PER_STEP        16 // keys looked at
#define NAMESPACE_FIRST_PAIRS 8

static const char *const KIND_NAMES[] = {
    [VAL_ABSENT] = "nothing",
    [VAL_UNDEFINED] = "undefined",
    [VAL_NONE] = "None",
    [VAL_BOOL] = "bool object",
    [VAL_INT] = "int object",
    [VAL_FLOAT] = "float object",
    [VAL_STR] = "str object",
    [VAL_LIST] = "list object",
    [VAL_TUPLE] = "tuple object",
    [VAL_DICT] = "dict object",
    [VAL_NAMESPACE] = "Namespace object",
    [VAL_LOOP] = "LoopContext object",
    [VAL_FUNCTION] = "function",
    [VAL_METHOD] = "method",
    [VAL_MACRO] = "macro",
};

// ---- the rendering

enum iso_err tmpl_fail(struct tmpl_run *r, enum iso_err code, const char *format, ...)
{
    char message[ISO_ERR_TEXT_MAX];
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    return tmpl_fail_at(r->reterr, code, r->t->source, r->at, "%s", message);
}

enum iso_err tmpl_fail_undefined(struct tmpl_run *r, struct tmpl_val undefined)
{
    ASSERT(undefined.kind == VAL_UNDEFINED);
    if (!undefined.s)
        return tmpl_fail(r, ISO_E_FORMAT, "the %s has no such element", tmpl_kind_name(undefined.sub));
    if (undefined.sub == VAL_ABSENT)
        return tmpl_fail(r, ISO_E_FORMAT, "'%.*s' is undefined", STRV_ARG(tmpl_strv(undefined)));
    return tmpl_fail(r, ISO_E_FORMAT, "'%s' has no attribute '%.*s'", tmpl_kind_name(undefined.sub),
                     STRV_ARG(tmpl_strv(undefined)));
}

enum iso_err tmpl_charge(struct tmpl_run *r, uint64_t steps)
{
    if (steps > TMPL_STEPS_MAX - r->steps)
        return tmpl_fail(r, ISO_E_LIMIT, "the template takes more than %d steps", TMPL_STEPS_MAX);
    r->steps += steps;
    return ISO_OK;
}

enum iso_err tmpl_charge_bytes(struct tmpl_run *r, uint64_t n)
{
    return tmpl_charge(r, n / BYTES_PER_STEP);
}

void *tmpl_alloc(struct tmpl_run *r, uint64_t count, size_t size)
{
    void *p = arena_array(&r->arena, count, size);
    if (!p)
        tmpl_fail(r, ISO_E_LIMIT, "the template's values take more than %d MiB",
                  (int)(TMPL_MEMORY_MAX / MIB));
    return p && !tmpl_charge_bytes(r, count * size) ? p : NULL;
}

enum iso_err tmpl_put(struct tmpl_run *r, struct buf *b, struct strv s)
{
    enum iso_err err = tmpl_charge_bytes(r, s.len);
    if (err)
        return err;
    err = buf_append_strv(b, s);
    if (err == ISO_E_LIMIT)
        return tmpl_fail(r, err, "the text is longer than %zu bytes", b->max);
    return err ? tmpl_fail(r, err, "no memory for the text") : ISO_OK;
}

// ---- values

const char *tmpl_kind_name(uint8_t kind)
{
    ASSERT(kind < ARRAY_LEN(KIND_NAMES));
    return KIND_NAMES[kind];
}

bool tmpl_as_int(struct tmpl_val v, int64_t *ret)
{
    if (v.kind != VAL_INT && v.kind != VAL_BOOL)
        return false;
    *ret = v.kind == VAL_INT ? v.i : v.b;
    return true;
}

bool tmpl_truth(struct tmpl_val v)
{
    switch ((enum tmpl_kind)v.kind) {
    case VAL_ABSENT:
    case VAL_UNDEFINED:
    case VAL_NONE:
        return false;
    case VAL_BOOL:
        return v.b;
    case VAL_INT:
        return v.i != 0;
    case VAL_FLOAT:
        return v.f != 0;
    case VAL_STR:
    case VAL_LIST:
    case VAL_TUPLE:
    case VAL_DICT:
        return v.len > 0;
    case VAL_NAMESPACE:
    case VAL_LOOP:
    case VAL_FUNCTION:
    case VAL_METHOD:
    case VAL_MACRO:
        return true;
    }
    return false;
}

static enum iso_err from_array(struct tmpl_run *r, const json_t *json, int depth, struct tmpl_val *ret)
{
    size_t len = json_array_size(json);
    struct tmpl_val *items = tmpl_alloc(r, len, sizeof *items);
    enum iso_err err = items ? ISO_OK : ISO_E_LIMIT;
    for (size_t i = 0; i < len && !err; i++)
        err = tmpl_from_json(r, json_array_get(json, i), depth + 1, &items[i]);
    if (!err)
        *ret = tmpl_list_of(items, (uint32_t)len); // the arena is smaller than 2^32 items
    return err;
}

static enum iso_err from_object(struct tmpl_run *r, const json_t *json, int depth, struct tmpl_val *ret)
{
    struct tmpl_pair *pairs = tmpl_alloc(r, json_object_size(json), sizeof *pairs);
    enum iso_err err = pairs ? ISO_OK : ISO_E_LIMIT;
    uint32_t len = 0;
    json_t *object =
        (json_t *)(uintptr_t)json; // jansson iterates over a mutable object only; nothing is changed
    for (void *at = json_object_iter(object); at && !err; at = json_object_iter_next(object, at)) {
        struct strv key = {json_object_iter_key(at), json_object_iter_key_len(at)};
        pairs[len].key = tmpl_str(key);
        err = key.len > UINT32_MAX
                  ? tmpl_fail(r, ISO_E_LIMIT, "a key in the context is too long")
                  : tmpl_from_json(r, json_object_iter_value(at), depth + 1, &pairs[len].value);
        len++;
    }
    if (!err)
        *ret = (struct tmpl_val){.kind = VAL_DICT, .len = len, .pairs = pairs};
    return err;
}

enum iso_err tmpl_from_json(struct tmpl_run *r, const json_t *json, int depth, struct tmpl_val *ret)
{
    if (depth > TMPL_DEPTH_MAX)
        return tmpl_fail(r, ISO_E_LIMIT, "the context nests deeper than %d", TMPL_DEPTH_MAX);
    switch (json_typeof(json)) {
    case JSON_OBJECT:
        return from_object(r, json, depth, ret);
    case JSON_ARRAY:
        return from_array(r, json, depth, ret);
    case JSON_STRING:
        if (json_string_length(json) > UINT32_MAX)
            return tmpl_fail(r, ISO_E_LIMIT, "a string in the context is too long");
        *ret = tmpl_str((struct strv){json_string_value(json), json_string_length(json)});
        return ISO_OK;
    case JSON_INTEGER:
        *ret = tmpl_int(json_integer_value(json));
        return ISO_OK;
    case JSON_REAL:
        *ret = tmpl_float(json_real_value(json));
        return ISO_OK;
    case JSON_TRUE:
    case JSON_FALSE:
        *ret = tmpl_bool(json_is_true(json));
        return ISO_OK;
    case JSON_NULL:
        break;
    }
    *ret = (struct tmpl_val){.kind = VAL_NONE};
    return ISO_OK;
}

// Room for `extra` more bytes right behind the newest string, false where something else is there.
static bool lengthen_newest(struct tmpl_run *r, size_t extra)
{
    size_t end = (size_t)(r->string_end - (const char *)r->arena.base);
    if (num_align(end, ARENA_ALIGN) != r->arena.used)
        return false;
    size_t padding = r->arena.used - end;
    return extra <= padding || arena_alloc(&r->arena, extra - padding);
}

enum iso_err tmpl_concat(struct tmpl_run *r, struct strv a, struct strv b, struct tmpl_val *ret)
{
    enum iso_err err = ISO_OK;
    char *s = NULL;
    if (a.len > 0 && a.ptr + a.len == r->string_end && b.len <= UINT32_MAX - a.len &&
        lengthen_newest(r, b.len)) {
        err = tmpl_charge_bytes(r, b.len);
        s = (char *)r->arena.base + (a.ptr - (const char *)r->arena.base);
    } else {
        s = tmpl_alloc(r, a.len + b.len, 1);
        err = s ? ISO_OK : ISO_E_LIMIT;
        if (s && a.len > 0)
            memcpy(s, a.ptr, a.len);
    }
    if (err)
        return err;
    if (b.len > 0)
        memcpy(s + a.len, b.ptr, b.len);
    r->string_end = s + a.len + b.len;
    *ret = tmpl_str((struct strv){s, a.len + b.len});
    return ISO_OK;
}

static enum iso_err iterate_chars(struct tmpl_run *r, struct strv s, const struct tmpl_val **ret_items,
                                  uint32_t *ret_len)
{
    uint32_t len = (uint32_t)tmpl_char_count(s);
    struct tmpl_val *items = tmpl_alloc(r, len, sizeof *items);
    if (!items)
        return ISO_E_LIMIT;
    size_t at = 0;
    for (uint32_t i = 0; i < len; i++) {
        size_t end = tmpl_char_end(s, at);
        items[i] = tmpl_str(tmpl_sub(s, at, end));
        at = end;
    }
    *ret_items = items;
    *ret_len = len;
    return ISO_OK;
}

static enum iso_err iterate_keys(struct tmpl_run *r, struct tmpl_val dict, const struct tmpl_val **ret_items,
                                 uint32_t *ret_len)
{
    struct tmpl_val *items = tmpl_alloc(r, dict.len, sizeof *items);
    if (!items)
        return ISO_E_LIMIT;
    for (uint32_t i = 0; i < dict.len; i++)
        items[i] = dict.pairs[i].key;
    *ret_items = items;
    *ret_len = dict.len;
    return ISO_OK;
}

enum iso_err tmpl_iterate(struct tmpl_run *r, struct tmpl_val v, const struct tmpl_val **ret_items,
                          uint32_t *ret_len)
{
    switch (v.kind) {
    case VAL_UNDEFINED:
        *ret_items = NULL;
        *ret_len = 0;
        return ISO_OK;
    case VAL_STR:
        return iterate_chars(r, tmpl_strv(v), ret_items, ret_len);
    case VAL_LIST:
    case VAL_TUPLE:
        *ret_items = v.items;
        *ret_len = v.len;
        return ISO_OK;
    case VAL_DICT:
        return iterate_keys(r, v, ret_items, ret_len);
    default:
        return tmpl_fail(r, ISO_E_FORMAT, "%s cannot be iterated over", tmpl_kind_name(v.kind));
    }
}

// ---- equality and order

static bool is_number(struct tmpl_val v)
{
    return v.kind == VAL_BOOL || v.kind == VAL_INT || v.kind == VAL_FLOAT;
}

// -1, 0 or 1. A long double holds every int64_t and every double exactly, on all machines we run on.
static int order_numbers(struct tmpl_val a, struct tmpl_val b)
{
    static_assert(__LDBL_MANT_DIG__ >= 64, "integers and floats compare exactly");
    int64_t i = 0;
    long double x = tmpl_as_int(a, &i) ? (long double)i : (long double)a.f;
    long double y = tmpl_as_int(b, &i) ? (long double)i : (long double)b.f;
    return (x > y) - (x < y);
}

static enum iso_err check_depth(struct tmpl_run *r, int depth)
{
    enum iso_err err = tmpl_charge(r, 1);
    if (err || depth <= TMPL_DEPTH_MAX)
        return err;
    return tmpl_fail(r, ISO_E_LIMIT, "a value nests deeper than %d", TMPL_DEPTH_MAX);
}

static enum iso_err equal_dicts(struct tmpl_run *r, struct tmpl_val a, struct tmpl_val b, int depth,
                                bool *ret)
{
    *ret = a.len == b.len;
    for (uint32_t i = 0; i < a.len && *ret; i++) {
        const struct tmpl_pair *pair;
        enum iso_err err = tmpl_find_key(r, b.pairs, b.len, a.pairs[i].key, &pair);
        if (!err && pair)
            err = tmpl_equal(r, a.pairs[i].value, pair->value, depth + 1, ret);
        else
            *ret = false;
        if (err)
            return err;
    }
    return ISO_OK;
}

enum iso_err tmpl_equal(struct tmpl_run *r, struct tmpl_val a, struct tmpl_val b, int depth, bool *ret)
{
    enum iso_err err = check_depth(r, depth);
    if (err)
        return err;
    if (is_number(a) && is_number(b)) {
        *ret = order_numbers(a, b) == 0;
        return ISO_OK;
    }
    *ret = a.kind == b.kind;
    if (!*ret)
        return ISO_OK;
    switch (a.kind) {
    case VAL_STR:
        *ret = strv_equal(tmpl_strv(a), tmpl_strv(b));
        return *ret ? tmpl_charge_bytes(r, a.len) : ISO_OK;
    case VAL_LIST:
    case VAL_TUPLE:
        *ret = a.len == b.len;
        for (uint32_t i = 0; i < a.len && *ret && !err; i++)
            err = tmpl_equal(r, a.items[i], b.items[i], depth + 1, ret);
        return err;
    case VAL_DICT:
        return equal_dicts(r, a, b, depth, ret);
    case VAL_NAMESPACE:
    case VAL_LOOP:
        *ret = a.space == b.space;
        return ISO_OK;
    case VAL_FUNCTION:
        *ret = a.sub == b.sub;
        return ISO_OK;
    case VAL_MACRO:
        *ret = a.node == b.node;
        return ISO_OK;
    case VAL_METHOD:
        return tmpl_fail(r, ISO_E_FORMAT, "methods cannot be compared");
    default: // undefined, None
        return ISO_OK;
    }
}

enum iso_err tmpl_order(struct tmpl_run *r, struct tmpl_val a, struct tmpl_val b, int depth, int *ret)
{
    enum iso_err err = check_depth(r, depth);
    if (err)
        return err;
    if (a.kind == VAL_UNDEFINED || b.kind == VAL_UNDEFINED)
        return tmpl_fail_undefined(r, a.kind == VAL_UNDEFINED ? a : b);
    if (is_number(a) && is_number(b)) {
        *ret = order_numbers(a, b);
        return ISO_OK;
    }
    size_t common = num_min(a.len, b.len);
    if (a.kind == VAL_STR && b.kind == VAL_STR) { // the order of UTF-8 bytes is that of characters
        int order = common > 0 ? memcmp(a.s, b.s, common) : 0;
        *ret = order != 0 ? order : (a.len > b.len) - (a.len < b.len);
        return tmpl_charge_bytes(r, common);
    }
    if (a.kind != b.kind || (a.kind != VAL_LIST && a.kind != VAL_TUPLE))
        return tmpl_fail(r, ISO_E_FORMAT, "%s and %s have no order", tmpl_kind_name(a.kind),
                         tmpl_kind_name(b.kind));
    for (size_t i = 0; i < common; i++) {
        bool equal = false;
        err = tmpl_equal(r, a.items[i], b.items[i], depth + 1, &equal);
        if (err)
            return err;
        if (!equal)
            return tmpl_order(r, a.items[i], b.items[i], depth + 1, ret);
    }
    *ret = (a.len > b.len) - (a.len < b.len);
    return ISO_OK;
}

// ---- dicts and namespaces

enum iso_err tmpl_find_key(struct tmpl_run *r, const struct tmpl_pair *pairs, uint32_t len,
                           struct tmpl_val key, const struct tmpl_pair **ret)
{
    if (key.kind == VAL_LIST || key.kind == VAL_DICT)
        return tmpl_fail(r, ISO_E_FORMAT, "%s cannot be a key", tmpl_kind_name(key.kind));
    enum iso_err err = tmpl_charge(r, len / PAIRS_PER_STEP);
    for (uint32_t i = 0; i < len && !err; i++) {
        bool equal;
        if (key.kind == VAL_STR && pairs[i].key.kind == VAL_STR) {
            equal = strv_equal(tmpl_strv(key), tmpl_strv(pairs[i].key));
            err = key.len == pairs[i].key.len ? tmpl_charge_bytes(r, key.len) : ISO_OK;
        } else {
            err = tmpl_equal(r, key, pairs[i].key, 0, &equal);
        }
        if (!err && equal) {
            *ret = &pairs[i];
            return ISO_OK;
        }
    }
    if (!err)
        *ret = NULL;
    return err;
}

enum iso_err tmpl_set_key(struct tmpl_run *r, struct tmpl_pair *pairs, uint32_t *len, struct tmpl_val key,
                          struct tmpl_val value)
{
    const struct tmpl_pair *found;
    enum iso_err err = tmpl_find_key(r, pairs, *len, key, &found);
    if (err)
        return err;
    if (found)
        pairs[found - pairs].value = value;
    else
        pairs[(*len)++] = (struct tmpl_pair){key, value};
    return ISO_OK;
}

enum iso_err tmpl_set_member(struct tmpl_run *r, struct tmpl_namespace *space, struct tmpl_val key,
                             struct tmpl_val value)
{
    if (space->len == space->capacity) {
        uint32_t capacity = space->capacity ? 2 * space->capacity : NAMESPACE_FIRST_PAIRS;
        struct tmpl_pair *pairs = tmpl_alloc(r, capacity, sizeof *pairs);
        if (!pairs)
            return ISO_E_LIMIT;
        if (space->len > 0)
            memcpy(pairs, space->pairs, space->len * sizeof *pairs);
        space->pairs = pairs;
        space->capacity = capacity;
    }
    return tmpl_set_key(r, space->pairs, &space->len, key, value);
}
