#include "formats/json_file.h"

#include <stdio.h>

struct extent {
    size_t depth, values; // the most that brackets nest, and that there can be
};

// In and out of strings as JSON has them. It stops where either is over its limit.
static struct extent measure(struct strv text, size_t values_max)
{
    struct extent e = {.values = 1};
    size_t depth = 0;
    bool in_string = false;
    for (size_t i = 0; i < text.len && e.depth <= JSON_DEPTH_MAX && e.values <= values_max; i++) {
        char c = text.ptr[i];
        e.values += !in_string && (c == ',' || c == '{' || c == '[');
        if (in_string) {
            if (c == '\\')
                i++;
            else if (c == '"')
                in_string = false;
        } else if (c == '"') {
            in_string = true;
        } else if (c == '{' || c == '[') {
            if (++depth > e.depth)
                e.depth = depth;
        } else if ((c == '}' || c == ']') && depth > 0) {
            depth--;
        }
    }
    return e;
}

enum iso_err json_parse(struct strv text, json_t **ret, struct iso_errinfo *reterr)
{
    return json_parse_within(text, SIZE_MAX, ret, reterr);
}

enum iso_err json_parse_within(struct strv text, size_t values_max, json_t **ret, struct iso_errinfo *reterr)
{
    struct extent e = measure(text, values_max);
    json_error_t error;
    size_t flags = JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL;
    if (e.values > values_max)
        return iso_fail(reterr, ISO_E_LIMIT, 0, NULL, "the JSON has more than %zu values", values_max);
    if (e.depth > JSON_DEPTH_MAX)
        return iso_fail(reterr, ISO_E_LIMIT, 0, NULL, "the JSON nests deeper than %d", JSON_DEPTH_MAX);
    json_t *parsed = json_loadb(text.ptr, text.len, flags, &error);
    // Real files hold integers like 10^30, which only a double takes.
    if (!parsed && json_error_code(&error) == json_error_numeric_overflow)
        parsed = json_loadb(text.ptr, text.len, flags | JSON_DECODE_INT_AS_REAL, &error);
    if (!parsed)
        return iso_fail(reterr, ISO_E_FORMAT, error.position > 0 ? (uint64_t)error.position : 0, NULL,
                        "malformed JSON in line %d, column %d: %s", error.line, error.column, error.text);
    if (!json_is_object(parsed)) {
        json_decref(parsed);
        return iso_fail(reterr, ISO_E_FORMAT, 0, NULL, "the JSON is no object");
    }
    *ret = parsed;
    return ISO_OK;
}

bool json_whole(const json_t *value, uint64_t max, uint64_t *ret)
{
    double real = json_number_value(value);
    if (!json_is_number(value) || !(real >= 0 && real <= JSON_WHOLE_MAX))
        return false;
    uint64_t whole = json_is_integer(value) ? (uint64_t)json_integer_value(value) : (uint64_t)real;
    if ((double)whole != real || whole > max)
        return false;
    *ret = whole;
    return true;
}

const json_t *json_at(const json_t *object, struct strv path)
{
    while (object && path.len > 0) {
        const char *dot = memchr(path.ptr, '.', path.len);
        size_t n = dot ? (size_t)(dot - path.ptr) : path.len;
        object = json_object_getn(object, path.ptr, n);
        path.ptr += dot ? n + 1 : n;
        path.len -= dot ? n + 1 : n;
    }
    return json_is_null(object) ? NULL : object;
}

json_t *json_with(json_t *list, json_t *item)
{
    if (item && json_array_append_new(list, item) == 0) // which releases the item where it fails
        return list;
    json_decref(list);
    return NULL;
}

json_t *json_having(json_t *object, const char *name, json_t *value)
{
    if (value && json_object_set_new(object, name, value) == 0)
        return object;
    json_decref(object);
    return NULL;
}

static int append(const char *bytes, size_t n, void *context)
{
    return buf_append(context, bytes, n) ? -1 : 0;
}

enum iso_err json_write(const json_t *value, size_t flags, struct buf *out)
{
    return value && json_dump_callback(value, append, out, flags) == 0 ? ISO_OK : ISO_E_NOMEM;
}
