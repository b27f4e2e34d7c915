#include "text/template_write.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "base/utf8.h"
#include "text/template_text.h"

#define NUMBER_BYTES 32 // an int64_t or a float, and a zero
#define ESCAPE_BYTES 12 // \U0010ffff and a zero

static enum iso_err check_depth(struct tmpl_run *r, int depth)
{
    enum iso_err err = tmpl_charge(r, 1);
    if (err || depth <= TMPL_DEPTH_MAX)
        return err;
    return tmpl_fail(r, ISO_E_LIMIT, "a value nests deeper than %d", TMPL_DEPTH_MAX);
}

static enum iso_err put_text(struct tmpl_run *r, struct buf *b, const char *text)
{
    return tmpl_put(r, b, strv_from(text));
}

static enum iso_err put_int(struct tmpl_run *r, struct buf *b, int64_t i)
{
    char text[NUMBER_BYTES];
    snprintf(text, sizeof text, "%" PRId64, i);
    return put_text(r, b, text);
}

static enum iso_err put_float(struct tmpl_run *r, struct buf *b, double f)
{
    char text[TMPL_FLOAT_BYTES];
    tmpl_float_text(f, text);
    return put_text(r, b, text);
}

// ---- str and repr

// How repr writes a character that it doesn't write as it is.
static void repr_escape(uint32_t cp, char quote, char out[ESCAPE_BYTES])
{
    if (cp == '\n' || cp == '\r' || cp == '\t')
        snprintf(out, ESCAPE_BYTES, "\\%c", cp == '\n' ? 'n' : cp == '\r' ? 'r' : 't');
    else if (cp == '\\' || cp == (uint32_t)quote)
        snprintf(out, ESCAPE_BYTES, "\\%c", (char)cp);
    else
        snprintf(out, ESCAPE_BYTES, cp < 0x100 ? "\\x%02x" : cp < 0x10000 ? "\\u%04x" : "\\U%08x", cp);
}

static enum iso_err write_quoted(struct tmpl_run *r, struct buf *b, struct strv s)
{
    size_t at;
    bool single = tmpl_find(s, STRV_LIT("'"), 0, &at), twofold = tmpl_find(s, STRV_LIT("\""), 0, &at);
    char quote = single && !twofold ? '"' : '\'';
    enum iso_err err = tmpl_put(r, b, (struct strv){&quote, 1});
    size_t plain = 0; // start of what was not written yet
    for (size_t i = 0; i < s.len && !err;) {
        uint32_t cp = 0xFFFD;
        size_t n = utf8_decode((const uint8_t *)s.ptr + i, s.len - i, &cp);
        n = n ? n : 1;
        if (cp != '\\' && cp != (uint32_t)quote && tmpl_is_printable(cp)) {
            i += n;
            continue;
        }
        char escape[ESCAPE_BYTES];
        repr_escape(cp, quote, escape);
        err = tmpl_put(r, b, tmpl_sub(s, plain, i));
        if (!err)
            err = put_text(r, b, escape);
        plain = i += n;
    }
    if (!err)
        err = tmpl_put(r, b, tmpl_sub(s, plain, s.len));
    return err ? err : tmpl_put(r, b, (struct strv){&quote, 1});
}

static enum iso_err write_repr(struct tmpl_run *r, struct buf *b, struct tmpl_val v, int depth);

static enum iso_err write_pairs(struct tmpl_run *r, struct buf *b, const struct tmpl_pair *pairs,
                                uint32_t len, int depth)
{
    enum iso_err err = put_text(r, b, "{");
    for (uint32_t i = 0; i < len && !err; i++) {
        if (i > 0)
            err = put_text(r, b, ", ");
        if (!err)
            err = write_repr(r, b, pairs[i].key, depth + 1);
        if (!err)
            err = put_text(r, b, ": ");
        if (!err)
            err = write_repr(r, b, pairs[i].value, depth + 1);
    }
    return err ? err : put_text(r, b, "}");
}

static enum iso_err write_items(struct tmpl_run *r, struct buf *b, struct tmpl_val v, int depth)
{
    bool tuple = v.kind == VAL_TUPLE;
    enum iso_err err = put_text(r, b, tuple ? "(" : "[");
    for (uint32_t i = 0; i < v.len && !err; i++) {
        if (i > 0)
            err = put_text(r, b, ", ");
        if (!err)
            err = write_repr(r, b, v.items[i], depth + 1);
    }
    return err ? err : put_text(r, b, !tuple ? "]" : v.len == 1 ? ",)" : ")");
}

static enum iso_err write_loop(struct tmpl_run *r, struct buf *b, const struct tmpl_loop *loop)
{
    char text[2 * NUMBER_BYTES];
    snprintf(text, sizeof text, "<LoopContext %" PRIu32 "/%" PRIu32 ">", loop->index0 + 1, loop->len);
    return put_text(r, b, text);
}

static enum iso_err write_repr(struct tmpl_run *r, struct buf *b, struct tmpl_val v, int depth)
{
    enum iso_err err = check_depth(r, depth);
    if (err)
        return err;
    switch ((enum tmpl_kind)v.kind) {
    case VAL_STR:
        return write_quoted(r, b, tmpl_strv(v));
    case VAL_UNDEFINED:
        return put_text(r, b, "Undefined");
    case VAL_NONE:
        return put_text(r, b, "None");
    case VAL_BOOL:
        return put_text(r, b, v.b ? "True" : "False");
    case VAL_INT:
        return put_int(r, b, v.i);
    case VAL_FLOAT:
        return put_float(r, b, v.f);
    case VAL_LIST:
    case VAL_TUPLE:
        return write_items(r, b, v, depth);
    case VAL_DICT:
        return write_pairs(r, b, v.pairs, v.len, depth);
    case VAL_NAMESPACE:
        err = put_text(r, b, "<Namespace ");
        if (!err)
            err = write_pairs(r, b, v.space->pairs, v.space->len, depth);
        return err ? err : put_text(r, b, ">");
    case VAL_LOOP:
        return write_loop(r, b, v.loop);
    case VAL_ABSENT:
    case VAL_FUNCTION:
    case VAL_METHOD:
    case VAL_MACRO:
        break;
    }
    return tmpl_fail(r, ISO_E_FORMAT, "a %s cannot be printed", tmpl_kind_name(v.kind));
}

enum iso_err tmpl_write_str(struct tmpl_run *r, struct buf *b, struct tmpl_val v)
{
    if (v.kind == VAL_STR)
        return tmpl_put(r, b, tmpl_strv(v));
    return v.kind == VAL_UNDEFINED ? ISO_OK : write_repr(r, b, v, 0);
}

enum iso_err tmpl_from_scratch(struct tmpl_run *r, struct tmpl_val *ret)
{
    return tmpl_concat(r, (struct strv){0}, buf_strv(&r->scratch), ret);
}

enum iso_err tmpl_to_str(struct tmpl_run *r, struct tmpl_val v, struct tmpl_val *ret)
{
    if (v.kind == VAL_STR) {
        *ret = v;
        return ISO_OK;
    }
    buf_reset(&r->scratch);
    enum iso_err err = tmpl_write_str(r, &r->scratch, v);
    return err ? err : tmpl_from_scratch(r, ret);
}

// ---- JSON

static enum iso_err write_json_string(struct tmpl_run *r, struct buf *b, struct strv s)
{
    static const char LETTERS[] = "\"\\\n\r\t\f\b", ESCAPES[] = "\"\\nrtfb";
    enum iso_err err = put_text(r, b, "\"");
    size_t plain = 0; // start of what was not written yet
    for (size_t i = 0; i < s.len && !err; i++) {
        uint8_t c = (uint8_t)s.ptr[i];
        const char *letter = c ? strchr(LETTERS, c) : NULL;
        if (c >= 0x20 && !letter)
            continue;
        char escape[ESCAPE_BYTES];
        if (letter)
            snprintf(escape, sizeof escape, "\\%c", ESCAPES[letter - LETTERS]);
        else
            snprintf(escape, sizeof escape, "\\u%04x", c);
        err = tmpl_put(r, b, tmpl_sub(s, plain, i));
        if (!err)
            err = put_text(r, b, escape);
        plain = i + 1;
    }
    if (!err)
        err = tmpl_put(r, b, tmpl_sub(s, plain, s.len));
    return err ? err : put_text(r, b, "\"");
}

static enum iso_err write_json_float(struct tmpl_run *r, struct buf *b, double f)
{
    if (isfinite(f))
        return put_float(r, b, f);
    return put_text(r, b, isnan(f) ? "NaN" : f < 0 ? "-Infinity" : "Infinity");
}

static enum iso_err write_json_key(struct tmpl_run *r, struct buf *b, struct tmpl_val key)
{
    if (key.kind == VAL_STR)
        return write_json_string(r, b, tmpl_strv(key));
    if (key.kind == VAL_TUPLE || key.kind > VAL_STR || key.kind == VAL_UNDEFINED)
        return tmpl_fail(r, ISO_E_FORMAT, "%s cannot be a key in JSON", tmpl_kind_name(key.kind));
    enum iso_err err = put_text(r, b, "\"");
    if (!err && key.kind == VAL_INT)
        err = put_int(r, b, key.i);
    else if (!err && key.kind == VAL_FLOAT)
        err = write_json_float(r, b, key.f);
    else if (!err)
        err = put_text(r, b, key.kind == VAL_NONE ? "null" : key.b ? "true" : "false");
    return err ? err : put_text(r, b, "\"");
}

static enum iso_err write_json_newline(struct tmpl_run *r, struct buf *b, const struct tmpl_json_style *style,
                                       int depth)
{
    if (!style->lines)
        return ISO_OK;
    enum iso_err err = put_text(r, b, "\n");
    for (int i = 0; i < depth && !err; i++)
        err = tmpl_put(r, b, style->indent);
    return err;
}

static enum iso_err write_json_value(struct tmpl_run *r, struct buf *b, struct tmpl_val v,
                                     const struct tmpl_json_style *style, int depth);

static enum iso_err write_json_items(struct tmpl_run *r, struct buf *b, struct tmpl_val v,
                                     const struct tmpl_json_style *style, int depth)
{
    bool dict = v.kind == VAL_DICT;
    enum iso_err err = put_text(r, b, dict ? "{" : "[");
    for (uint32_t i = 0; i < v.len && !err; i++) {
        if (i > 0)
            err = tmpl_put(r, b, style->between_items);
        if (!err)
            err = write_json_newline(r, b, style, depth + 1);
        if (!err && dict)
            err = write_json_key(r, b, v.pairs[i].key);
        if (!err && dict)
            err = tmpl_put(r, b, style->after_key);
        if (!err)
            err = write_json_value(r, b, dict ? v.pairs[i].value : v.items[i], style, depth + 1);
    }
    if (!err && v.len > 0)
        err = write_json_newline(r, b, style, depth);
    return err ? err : put_text(r, b, dict ? "}" : "]");
}

static enum iso_err write_json_value(struct tmpl_run *r, struct buf *b, struct tmpl_val v,
                                     const struct tmpl_json_style *style, int depth)
{
    enum iso_err err = check_depth(r, depth);
    if (err)
        return err;
    switch (v.kind) {
    case VAL_NONE:
        return put_text(r, b, "null");
    case VAL_BOOL:
        return put_text(r, b, v.b ? "true" : "false");
    case VAL_INT:
        return put_int(r, b, v.i);
    case VAL_FLOAT:
        return write_json_float(r, b, v.f);
    case VAL_STR:
        return write_json_string(r, b, tmpl_strv(v));
    case VAL_LIST:
    case VAL_TUPLE:
    case VAL_DICT:
        return write_json_items(r, b, v, style, depth);
    default:
        return tmpl_fail(r, ISO_E_FORMAT, "%s has no form in JSON", tmpl_kind_name(v.kind));
    }
}

enum iso_err tmpl_write_json(struct tmpl_run *r, struct buf *b, struct tmpl_val v,
                             const struct tmpl_json_style *style)
{
    return write_json_value(r, b, v, style, 0);
}
