#include "text/template_string.h"

#include "text/template_text.h"
#include "text/template_write.h"

// ---- case

static enum iso_err change_case(struct tmpl_run *r, struct tmpl_val v, bool upper, struct tmpl_val *ret)
{
    struct tmpl_val text;
    enum iso_err err = tmpl_to_str(r, v, &text);
    if (!err)
        err = tmpl_charge(r, text.len / 4); // slower than a copy
    if (err)
        return err;
    buf_reset(&r->scratch);
    err = tmpl_change_case(&r->scratch, tmpl_strv(text), upper);
    return err ? tmpl_fail(r, err, "no room for a string") : tmpl_from_scratch(r, ret);
}

enum iso_err tmpl_filter_lower(struct tmpl_run *r, struct tmpl_val self, const struct tmpl_args *args,
                               struct tmpl_val *ret)
{
    (void)args;
    return change_case(r, self, false, ret);
}

enum iso_err tmpl_filter_upper(struct tmpl_run *r, struct tmpl_val self, const struct tmpl_args *args,
                               struct tmpl_val *ret)
{
    (void)args;
    return change_case(r, self, true, ret);
}

// ---- strip

// s without the characters of `chars` at its ends.
static enum iso_err strip_chars(struct tmpl_run *r, struct strv s, struct strv chars, bool left, bool right,
                                struct tmpl_val *ret)
{
    size_t from = 0, to = s.len, found;
    enum iso_err err = ISO_OK;
    for (; left && from < to && !err; from = tmpl_char_end(s, from)) {
        err = tmpl_charge(r, 1 + chars.len / 64);
        if (!tmpl_find(chars, tmpl_sub(s, from, tmpl_char_end(s, from)), 0, &found))
            break;
    }
    for (; right && to > from && !err; to = tmpl_char_start(s, to)) {
        err = tmpl_charge(r, 1 + chars.len / 64);
        if (!tmpl_find(chars, tmpl_sub(s, tmpl_char_start(s, to), to), 0, &found))
            break;
    }
    *ret = tmpl_str(tmpl_sub(s, from, to));
    return err;
}

static enum iso_err strip(struct tmpl_run *r, struct tmpl_val text, struct tmpl_val chars, bool left,
                          bool right, struct tmpl_val *ret)
{
    if (chars.kind == VAL_STR)
        return strip_chars(r, tmpl_strv(text), tmpl_strv(chars), left, right, ret);
    if (chars.kind != VAL_ABSENT && chars.kind != VAL_NONE)
        return tmpl_fail(r, ISO_E_FORMAT, "the characters to strip are %s", tmpl_kind_name(chars.kind));
    *ret = tmpl_str(tmpl_strip(tmpl_strv(text), left, right));
    return tmpl_charge_bytes(r, text.len);
}

enum iso_err tmpl_filter_trim(struct tmpl_run *r, struct tmpl_val self, const struct tmpl_args *args,
                              struct tmpl_val *ret)
{
    struct tmpl_val text;
    enum iso_err err = tmpl_to_str(r, self, &text);
    return err ? err : strip(r, text, args->values[0], true, true, ret);
}

static enum iso_err method_strip(struct tmpl_run *r, struct tmpl_val self, const struct tmpl_args *args,
                                 struct tmpl_val *ret)
{
    return strip(r, self, args->values[0], true, true, ret);
}

static enum iso_err method_lstrip(struct tmpl_run *r, struct tmpl_val self, const struct tmpl_args *args,
                                  struct tmpl_val *ret)
{
    return strip(r, self, args->values[0], true, false, ret);
}

static enum iso_err method_rstrip(struct tmpl_run *r, struct tmpl_val self, const struct tmpl_args *args,
                                  struct tmpl_val *ret)
{
    return strip(r, self, args->values[0], false, true, ret);
}

// ---- replace

// Appends s to the scratch buffer with the first `count` of `old` replaced, all where it is negative. An
// empty `old` is found before every character and at the end.
static enum iso_err replace(struct tmpl_run *r, struct strv s, struct strv old, struct strv new,
                            int64_t count)
{
    enum iso_err err = ISO_OK;
    size_t done = 0, from = 0, at = 0; // done: what is written; from: where to look next
    for (; count != 0 && from <= s.len && !err && tmpl_find(s, old, from, &at); count -= count > 0) {
        err = tmpl_charge(r, 1);
        if (!err)
            err = tmpl_put(r, &r->scratch, tmpl_sub(s, done, at));
        if (!err)
            err = tmpl_put(r, &r->scratch, new);
        done = at + old.len;
        from = old.len > 0 ? done : at < s.len ? tmpl_char_end(s, at) : s.len + 1;
    }
    return err ? err : tmpl_put(r, &r->scratch, tmpl_sub(s, done, s.len));
}

enum iso_err tmpl_filter_replace(struct tmpl_run *r, struct tmpl_val self, const struct tmpl_args *args,
                                 struct tmpl_val *ret)
{
    struct tmpl_val text, old, new, limit = args->values[2];
    int64_t count = -1;
    enum iso_err err = tmpl_to_str(r, self, &text);
    if (!err)
        err = tmpl_to_str(r, args->values[0], &old);
    if (!err)
        err = tmpl_to_str(r, args->values[1], &new);
    if (!err && limit.kind != VAL_ABSENT && limit.kind != VAL_NONE && !tmpl_as_int(limit, &count))
        err = tmpl_fail(r, ISO_E_FORMAT, "replace's count is %s", tmpl_kind_name(limit.kind));
    if (err)
        return err;
    buf_reset(&r->scratch);
    err = replace(r, tmpl_strv(text), tmpl_strv(old), tmpl_strv(new), count);
    return err ? err : tmpl_from_scratch(r, ret);
}

// The filter takes any value's text, the method strings only.
static enum iso_err method_replace(struct tmpl_run *r, struct tmpl_val self, const struct tmpl_args *args,
                                   struct tmpl_val *ret)
{
    for (int i = 0; i < 2; i++)
        if (args->values[i].kind != VAL_STR)
            return tmpl_fail(r, ISO_E_FORMAT, "a string cannot replace %s",
                             tmpl_kind_name(args->values[i].kind));
    if (args->values[2].kind == VAL_NONE)
        return tmpl_fail(r, ISO_E_FORMAT, "replace's count is %s", tmpl_kind_name(VAL_NONE));
    return tmpl_filter_replace(r, self, args, ret);
}

// ---- startswith, endswith

static bool has_end(struct strv s, struct strv part, bool start)
{
    return part.len <= s.len &&
           strv_equal(start ? tmpl_sub(s, 0, part.len) : tmpl_sub(s, s.len - part.len, s.len), part);
}

// Does `self` have the string, or one of the tuple of strings, at its start or end?
static enum iso_err match_end(struct tmpl_run *r, struct tmpl_val self, struct tmpl_val parts, bool start,
                              struct tmpl_val *ret)
{
    const struct tmpl_val *items = parts.kind == VAL_TUPLE ? parts.items : &parts;
    uint32_t len = parts.kind == VAL_TUPLE ? parts.len : 1;
    bool found = false;
    for (uint32_t i = 0; i < len && !found; i++) {
        if (items[i].kind != VAL_STR)
            return tmpl_fail(r, ISO_E_FORMAT, "a string cannot start or end with %s",
                             tmpl_kind_name(items[i].kind));
        found = has_end(tmpl_strv(self), tmpl_strv(items[i]), start);
        enum iso_err err = tmpl_charge(r, 1 + items[i].len / 64);
        if (err)
            return err;
    }
    *ret = tmpl_bool(found);
    return ISO_OK;
}

static enum iso_err method_startswith(struct tmpl_run *r, struct tmpl_val self, const struct tmpl_args *args,
                                      struct tmpl_val *ret)
{
    return match_end(r, self, args->values[0], true, ret);
}

static enum iso_err method_endswith(struct tmpl_run *r, struct tmpl_val self, const struct tmpl_args *args,
                                    struct tmpl_val *ret)
{
    return match_end(r, self, args->values[0], false, ret);
}

// ---- split

struct splitter {
    struct strv s, separator; // an empty separator is white space of any length
    size_t at;
    int64_t left; // splits still allowed, negative for all
    bool done;
};

static bool next_word(struct splitter *sp, struct strv *ret)
{
    size_t from = tmpl_skip_space(sp->s, sp->at), to = from;
    if (from == sp->s.len)
        return false;
    if (sp->left == 0) {
        to = sp->s.len;
    } else {
        while (to < sp->s.len && tmpl_space_at(sp->s, to) == 0)
            to = tmpl_char_end(sp->s, to);
    }
    *ret = tmpl_sub(sp->s, from, to);
    sp->at = to;
    sp->left -= sp->left > 0;
    return true;
}

static bool next_part(struct splitter *sp, struct strv *ret)
{
    if (sp->separator.len == 0)
        return next_word(sp, ret);
    if (sp->done)
        return false;
    size_t to = sp->s.len;
    sp->done = sp->left == 0 || !tmpl_find(sp->s, sp->separator, sp->at, &to);
    *ret = tmpl_sub(sp->s, sp->at, to);
    sp->at = to + sp->separator.len;
    sp->left -= sp->left > 0;
    return true;
}

static enum iso_err method_split(struct tmpl_run *r, struct tmpl_val self, const struct tmpl_args *args,
                                 struct tmpl_val *ret)
{
    struct tmpl_val separator = args->values[0], limit = args->values[1];
    struct splitter start = {.s = tmpl_strv(self), .left = -1};
    if (separator.kind == VAL_STR && separator.len > 0)
        start.separator = tmpl_strv(separator);
    else if (separator.kind != VAL_ABSENT && separator.kind != VAL_NONE)
        return tmpl_fail(r, ISO_E_FORMAT, "split's separator is %s",
                         separator.kind == VAL_STR ? "empty" : tmpl_kind_name(separator.kind));
    if (limit.kind != VAL_ABSENT && !tmpl_as_int(limit, &start.left))
        return tmpl_fail(r, ISO_E_FORMAT, "split's maxsplit is %s", tmpl_kind_name(limit.kind));

    struct strv part;
    uint32_t len = 0;
    for (struct splitter sp = start; next_part(&sp, &part);)
        len++;
    struct tmpl_val *items = tmpl_charge_bytes(r, self.len) ? NULL : tmpl_alloc(r, len, sizeof *items);
    if (!items)
        return ISO_E_LIMIT;
    struct splitter sp = start;
    for (uint32_t i = 0; i < len && next_part(&sp, &part); i++)
        items[i] = tmpl_str(part);
    *ret = tmpl_list_of(items, len);
    return ISO_OK;
}

// A parameter named "" cannot be given by keyword.
const struct tmpl_builtin tmpl_string_methods[] = {
    {"endswith", method_endswith, 1, false, {""}},     {"lower", tmpl_filter_lower, 0, false, {NULL}},
    {"lstrip", method_lstrip, 0, false, {""}},         {"replace", method_replace, 2, false, {"", "", ""}},
    {"rstrip", method_rstrip, 0, false, {""}},         {"split", method_split, 0, false, {"sep", "maxsplit"}},
    {"startswith", method_startswith, 1, false, {""}}, {"strip", method_strip, 0, false, {""}},
    {"upper", tmpl_filter_upper, 0, false, {NULL}},    {.name = NULL},
};
