#include "text/template_builtin.h"

#include <string.h>

#include "base/assert.h"
#include "text/template_ops.h"
#include "text/template_string.h"
#include "text/template_text.h"
#include "text/template_write.h"

#define JSON_INDENT_MAX 64 // columns a level

// ---- filters

static enum iso_err filter_length(struct tmpl_run *r, struct tmpl_val self, const struct tmpl_args *args,
                                  struct tmpl_val *ret)
{
    (void)args;
    switch (self.kind) {
    case VAL_STR:
        *ret = tmpl_int((int64_t)tmpl_char_count(tmpl_strv(self)));
        return tmpl_charge_bytes(r, self.len);
    case VAL_UNDEFINED:
        *ret = tmpl_int(0);
        return ISO_OK;
    case VAL_LIST:
    case VAL_TUPLE:
    case VAL_DICT:
        *ret = tmpl_int(self.len);
        return ISO_OK;
    case VAL_LOOP:
        *ret = tmpl_int(self.loop->len);
        return ISO_OK;
    default:
        return tmpl_fail(r, ISO_E_FORMAT, "%s has no length", tmpl_kind_name(self.kind));
    }
}

static enum iso_err filter_default(struct tmpl_run *r, struct tmpl_val self, const struct tmpl_args *args,
                                   struct tmpl_val *ret)
{
    (void)r;
    struct tmpl_val otherwise = args->values[0], falsy_too = args->values[1];
    bool missing = self.kind == VAL_UNDEFINED || (tmpl_truth(falsy_too) && !tmpl_truth(self));
    if (!missing)
        *ret = self;
    else
        *ret = otherwise.kind == VAL_ABSENT ? tmpl_str(STRV_LIT("")) : otherwise;
    return ISO_OK;
}

static enum iso_err filter_join(struct tmpl_run *r, struct tmpl_val self, const struct tmpl_args *args,
                                struct tmpl_val *ret)
{
    struct tmpl_val between = tmpl_str(STRV_LIT("")), attribute = args->values[1];
    const struct tmpl_val *items;
    uint32_t len;
    if (attribute.kind != VAL_ABSENT && attribute.kind != VAL_NONE)
        return tmpl_fail(r, ISO_E_UNSUPPORTED, "join's attribute is not supported");
    enum iso_err err = tmpl_iterate(r, self, &items, &len);
    if (!err && args->values[0].kind != VAL_ABSENT)
        err = tmpl_to_str(r, args->values[0], &between);
    if (err)
        return err;
    buf_reset(&r->scratch);
    for (uint32_t i = 0; i < len && !err; i++) {
        err = i > 0 ? tmpl_put(r, &r->scratch, tmpl_strv(between)) : ISO_OK;
        if (!err)
            err = tmpl_charge(r, 1);
        if (!err)
            err = tmpl_write_str(r, &r->scratch, items[i]);
    }
    return err ? err : tmpl_from_scratch(r, ret);
}

static enum iso_err json_separators(struct tmpl_run *r, struct tmpl_val v, struct tmpl_json_style *style)
{
    if ((v.kind != VAL_LIST && v.kind != VAL_TUPLE) || v.len != 2 || v.items[0].kind != VAL_STR ||
        v.items[1].kind != VAL_STR)
        return tmpl_fail(r, ISO_E_FORMAT, "tojson's separators must be two strings");
    style->between_items = tmpl_strv(v.items[0]);
    style->after_key = tmpl_strv(v.items[1]);
    return ISO_OK;
}

static enum iso_err filter_tojson(struct tmpl_run *r, struct tmpl_val self, const struct tmpl_args *args,
                                  struct tmpl_val *ret)
{
    static const char SPACES[JSON_INDENT_MAX + 1] =
        "                                                                ";
    struct tmpl_val ascii = args->values[0], indent = args->values[1], separators = args->values[2];
    struct tmpl_json_style style = {.between_items = STRV_LIT(", "), .after_key = STRV_LIT(": ")};
    int64_t columns = 0;
    enum iso_err err = ISO_OK;
    if (tmpl_truth(ascii) || tmpl_truth(args->values[3]))
        return tmpl_fail(r, ISO_E_UNSUPPORTED, "tojson's ensure_ascii and sort_keys are not supported");
    if (indent.kind != VAL_ABSENT && indent.kind != VAL_NONE) {
        style.lines = true;
        style.between_items = STRV_LIT(",");
        if (indent.kind == VAL_STR)
            style.indent = tmpl_strv(indent);
        else if (!tmpl_as_int(indent, &columns) || columns > JSON_INDENT_MAX)
            return tmpl_fail(r, ISO_E_FORMAT, "tojson's indent must be a number up to %d", JSON_INDENT_MAX);
        else
            style.indent = (struct strv){SPACES, columns > 0 ? (size_t)columns : 0};
    }
    if (separators.kind != VAL_ABSENT && separators.kind != VAL_NONE)
        err = json_separators(r, separators, &style);
    buf_reset(&r->scratch);
    if (!err)
        err = tmpl_write_json(r, &r->scratch, self, &style);
    return err ? err : tmpl_from_scratch(r, ret);
}

static enum iso_err filter_list(struct tmpl_run *r, struct tmpl_val self, const struct tmpl_args *args,
                                struct tmpl_val *ret)
{
    (void)args;
    const struct tmpl_val *items;
    uint32_t len;
    enum iso_err err = tmpl_iterate(r, self, &items, &len);
    if (!err)
        *ret = tmpl_list_of(items, len);
    return err;
}

static enum iso_err filter_string(struct tmpl_run *r, struct tmpl_val self, const struct tmpl_args *args,
                                  struct tmpl_val *ret)
{
    (void)args;
    return tmpl_to_str(r, self, ret);
}

// The first item (from_end: the last), undefined where there is none.
static enum iso_err end_item(struct tmpl_run *r, struct tmpl_val self, bool from_end, struct tmpl_val *ret)
{
    const struct tmpl_val *items;
    uint32_t len;
    enum iso_err err = tmpl_iterate(r, self, &items, &len);
    if (!err)
        *ret = len == 0 ? tmpl_undefined(self.kind, STRV_LIT("item")) : items[from_end ? len - 1 : 0];
    return err;
}

static enum iso_err filter_first(struct tmpl_run *r, struct tmpl_val self, const struct tmpl_args *args,
                                 struct tmpl_val *ret)
{
    (void)args;
    return end_item(r, self, false, ret);
}

static enum iso_err filter_last(struct tmpl_run *r, struct tmpl_val self, const struct tmpl_args *args,
                                struct tmpl_val *ret)
{
    (void)args;
    return end_item(r, self, true, ret);
}

// Whether an item's attribute passes the test that args names from the second on; without one, whether it is true.
static enum iso_err attr_passes(struct tmpl_run *r, struct tmpl_val item, const struct tmpl_args *args,
                                bool *ret)
{
    struct tmpl_val value, passes;
    enum iso_err err = tmpl_item(r, item, args->values[0], &value);
    if (err)
        return err;
    passes = value;
    if (args->count > 1) {
        struct tmpl_args rest = {.count = args->count - 2};
        int row =
            args->values[1].kind == VAL_STR ? tmpl_builtin_find(tmpl_tests, tmpl_strv(args->values[1])) : -1;
        if (row < 0)
            return tmpl_fail(r, ISO_E_UNSUPPORTED, "there is no such test for attributes");
        memcpy(rest.values, args->values + 2, rest.count * sizeof *rest.values);
        memcpy(rest.names, args->names + 2, rest.count * sizeof *rest.names);
        err = tmpl_builtin_call(r, &tmpl_tests[row], value, &rest, &passes);
    }
    if (!err)
        *ret = tmpl_truth(passes);
    return err;
}

static enum iso_err pick_by_attr(struct tmpl_run *r, struct tmpl_val self, const struct tmpl_args *args,
                                 bool keep, struct tmpl_val *ret)
{
    const struct tmpl_val *items;
    uint32_t len, n = 0;
    if (args->count == 0 || args->values[0].kind != VAL_STR ||
        memchr(args->values[0].s, '.', args->values[0].len))
        return tmpl_fail(r, ISO_E_UNSUPPORTED, "the attribute to select by must be one name");
    enum iso_err err = tmpl_iterate(r, self, &items, &len);
    struct tmpl_val *kept = err ? NULL : tmpl_alloc(r, len, sizeof *kept);
    if (!kept)
        return err ? err : ISO_E_LIMIT;
    for (uint32_t i = 0; i < len && !err; i++) {
        bool passes = false;
        err = tmpl_charge(r, 1);
        if (!err)
            err = attr_passes(r, items[i], args, &passes);
        if (!err && passes == keep)
            kept[n++] = items[i];
    }
    if (!err)
        *ret = tmpl_list_of(kept, n);
    return err;
}

static enum iso_err filter_selectattr(struct tmpl_run *r, struct tmpl_val self, const struct tmpl_args *args,
                                      struct tmpl_val *ret)
{
    return pick_by_attr(r, self, args, true, ret);
}

static enum iso_err filter_rejectattr(struct tmpl_run *r, struct tmpl_val self, const struct tmpl_args *args,
                                      struct tmpl_val *ret)
{
    return pick_by_attr(r, self, args, false, ret);
}

const struct tmpl_builtin tmpl_filters[] = {
    {"count", filter_length, 0, false, {NULL}},
    {"d", filter_default, 0, false, {"default_value", "boolean"}},
    {"default", filter_default, 0, false, {"default_value", "boolean"}},
    {"first", filter_first, 0, false, {NULL}},
    {"join", filter_join, 0, false, {"d", "attribute"}},
    {"last", filter_last, 0, false, {NULL}},
    {"length", filter_length, 0, false, {NULL}},
    {"list", filter_list, 0, false, {NULL}},
    {"lower", tmpl_filter_lower, 0, false, {NULL}},
    {"rejectattr", filter_rejectattr, 0, true, {NULL}},
    {"replace", tmpl_filter_replace, 2, false, {"old", "new", "count"}},
    {"selectattr", filter_selectattr, 0, true, {NULL}},
    {"string", filter_string, 0, false, {NULL}},
    {"tojson", filter_tojson, 0, false, {"ensure_ascii", "indent", "separators", "sort_keys"}},
    {"trim", tmpl_filter_trim, 0, false, {"chars"}},
    {"upper", tmpl_filter_upper, 0, false, {NULL}},
    {.name = NULL},
};

// ---- tests

#define TEST(name, holds)                                                                                \
    static enum iso_err test_##name(struct tmpl_run *r, struct tmpl_val v, const struct tmpl_args *args, \
                                    struct tmpl_val *ret)                                                \
    {                                                                                                    \
        (void)r;                                                                                         \
        (void)args;                                                                                      \
        *ret = tmpl_bool(holds);                                                                         \
        return ISO_OK;                                                                                   \
    }

TEST(boolean, v.kind == VAL_BOOL)
TEST(defined, v.kind != VAL_UNDEFINED)
TEST(false, v.kind == VAL_BOOL && !v.b)
TEST(iterable, v.kind == VAL_UNDEFINED || (v.kind >= VAL_STR && v.kind <= VAL_DICT) || v.kind == VAL_LOOP)
TEST(mapping, v.kind == VAL_DICT)
TEST(none, v.kind == VAL_NONE)
TEST(number, v.kind == VAL_BOOL || v.kind == VAL_INT || v.kind == VAL_FLOAT)
TEST(string, v.kind == VAL_STR)
TEST(true, v.kind == VAL_BOOL && v.b)
TEST(undefined, v.kind == VAL_UNDEFINED)

static enum iso_err test_equalto(struct tmpl_run *r, struct tmpl_val v, const struct tmpl_args *args,
                                 struct tmpl_val *ret)
{
    bool equal = false;
    enum iso_err err = tmpl_equal(r, v, args->values[0], 0, &equal);
    if (!err)
        *ret = tmpl_bool(equal);
    return err;
}

static enum iso_err test_in(struct tmpl_run *r, struct tmpl_val v, const struct tmpl_args *args,
                            struct tmpl_val *ret)
{
    bool is_in = false;
    enum iso_err err = tmpl_compare(r, OP_IN, v, args->values[0], &is_in);
    if (!err)
        *ret = tmpl_bool(is_in);
    return err;
}

const struct tmpl_builtin tmpl_tests[] = {
    {"==", test_equalto, 1, false, {""}},
    {"boolean", test_boolean, 0, false, {NULL}},
    {"defined", test_defined, 0, false, {NULL}},
    {"eq", test_equalto, 1, false, {""}},
    {"equalto", test_equalto, 1, false, {""}},
    {"false", test_false, 0, false, {NULL}},
    {"in", test_in, 1, false, {""}},
    {"iterable", test_iterable, 0, false, {NULL}},
    {"mapping", test_mapping, 0, false, {NULL}},
    {"none", test_none, 0, false, {NULL}},
    {"number", test_number, 0, false, {NULL}},
    {"string", test_string, 0, false, {NULL}},
    {"true", test_true, 0, false, {NULL}},
    {"undefined", test_undefined, 0, false, {NULL}},
    {.name = NULL},
};

// ---- methods of dicts; those of strings are in template_string.c

static enum iso_err method_get(struct tmpl_run *r, struct tmpl_val self, const struct tmpl_args *args,
                               struct tmpl_val *ret)
{
    const struct tmpl_pair *pair;
    enum iso_err err = tmpl_find_key(r, self.pairs, self.len, args->values[0], &pair);
    if (err)
        return err;
    *ret = pair ? pair->value : args->values[1];
    if (ret->kind == VAL_ABSENT)
        ret->kind = VAL_NONE;
    return ISO_OK;
}

enum { KEYS = 1, VALUES = 2 };

static enum iso_err list_pairs(struct tmpl_run *r, struct tmpl_val dict, int what, struct tmpl_val *ret)
{
    int each = what == (KEYS | VALUES) ? 2 : 1;
    struct tmpl_val *parts = tmpl_alloc(r, (uint64_t)dict.len * (uint64_t)each, sizeof *parts);
    struct tmpl_val *items = parts ? tmpl_alloc(r, dict.len, sizeof *items) : NULL;
    if (!items)
        return ISO_E_LIMIT;
    for (uint32_t i = 0; i < dict.len; i++) {
        struct tmpl_val *part = parts + (size_t)i * (size_t)each;
        part[0] = what == VALUES ? dict.pairs[i].value : dict.pairs[i].key;
        part[each - 1] = what == KEYS ? dict.pairs[i].key : dict.pairs[i].value;
        items[i] = each == 1 ? part[0] : (struct tmpl_val){.kind = VAL_TUPLE, .len = 2, .items = part};
    }
    *ret = tmpl_list_of(items, dict.len);
    return ISO_OK;
}

static enum iso_err method_items(struct tmpl_run *r, struct tmpl_val self, const struct tmpl_args *args,
                                 struct tmpl_val *ret)
{
    (void)args;
    return list_pairs(r, self, KEYS | VALUES, ret);
}

static enum iso_err method_keys(struct tmpl_run *r, struct tmpl_val self, const struct tmpl_args *args,
                                struct tmpl_val *ret)
{
    (void)args;
    return list_pairs(r, self, KEYS, ret);
}

static enum iso_err method_values(struct tmpl_run *r, struct tmpl_val self, const struct tmpl_args *args,
                                  struct tmpl_val *ret)
{
    (void)args;
    return list_pairs(r, self, VALUES, ret);
}

// A parameter named "" cannot be given by keyword.
static const struct tmpl_builtin DICT_METHODS[] = {
    {"get", method_get, 1, false, {"", ""}},
    {"items", method_items, 0, false, {NULL}},
    {"keys", method_keys, 0, false, {NULL}},
    {"values", method_values, 0, false, {NULL}},
    {.name = NULL},
};

// ---- calls

const struct tmpl_builtin *tmpl_methods_of(uint8_t kind)
{
    return kind == VAL_STR ? tmpl_string_methods : kind == VAL_DICT ? DICT_METHODS : NULL;
}

int tmpl_builtin_find(const struct tmpl_builtin *table, struct strv name)
{
    for (int i = 0; table[i].name; i++) {
        if (strv_is(name, table[i].name))
            return i;
    }
    return -1;
}

static int find_param(const struct tmpl_builtin *row, struct strv name)
{
    for (int i = 0; i < TMPL_PARAMS_MAX && row->params[i]; i++) {
        if (strv_is(name, row->params[i]))
            return i;
    }
    return -1;
}

enum iso_err tmpl_builtin_call(struct tmpl_run *r, const struct tmpl_builtin *row, struct tmpl_val self,
                               const struct tmpl_args *args, struct tmpl_val *ret)
{
    ASSERT(args->count <= TMPL_ARGS_MAX);
    if (row->variadic)
        return row->call(r, self, args, ret);
    struct tmpl_args bound = {.count = args->count};
    for (uint32_t i = 0; i < args->count; i++) {
        bool positional = !args->names[i].ptr;
        int param = positional ? (int)i : find_param(row, args->names[i]);
        if (positional && (i >= TMPL_PARAMS_MAX || !row->params[i]))
            return tmpl_fail(r, ISO_E_FORMAT, "'%s' has too many arguments", row->name);
        if (param < 0)
            return tmpl_fail(r, ISO_E_FORMAT, "'%s' has no parameter '%.*s'", row->name,
                             STRV_ARG(args->names[i]));
        if (bound.values[param].kind != VAL_ABSENT)
            return tmpl_fail(r, ISO_E_FORMAT, "'%s' has its parameter '%s' twice", row->name,
                             row->params[param]);
        bound.values[param] = args->values[i];
    }
    for (int i = 0; i < row->required; i++) {
        if (bound.values[i].kind == VAL_ABSENT)
            return tmpl_fail(r, ISO_E_FORMAT, "'%s' has too few arguments", row->name);
    }
    return row->call(r, self, &bound, ret);
}
