// JSON that comes from outside, parsed by jansson after a scan that bounds its depth (jansson recurses).
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/strv.h"

#define JSON_DEPTH_MAX 64
#define JSON_WHOLE_MAX ((uint64_t)1 << 53)

// Parses exactly one object. ISO_E_FORMAT names the line, ISO_E_LIMIT the depth. Duplicate keys are refused. The
// caller frees *ret with json_decref.
enum iso_err json_parse(struct strv text, json_t **ret, struct iso_errinfo *reterr) ISO_MUST_USE;
// The same where the text has at most values_max values (ISO_E_LIMIT), as each takes many times its text's memory.
enum iso_err json_parse_within(struct strv text, size_t values_max, json_t **ret,
                               struct iso_errinfo *reterr) ISO_MUST_USE;

// A number that is whole, not negative and not over max, at most JSON_WHOLE_MAX. False where it is none; NULL is none.
bool json_whole(const json_t *value, uint64_t max, uint64_t *ret);

// A value by a path "a.b.c" of object keys, or NULL where there is none or it is null.
const json_t *json_at(const json_t *object, struct strv path);

// The list with the item behind, the object with the member; both are taken. NULL where memory was refused or one of them is NULL: so
// what is built step by step is whole or not there, and json_pack's "o" carries the NULL on.
json_t *json_with(json_t *list, json_t *item);
json_t *json_having(json_t *object, const char *name, json_t *value);
// Appends a value's text to the buffer; flags as json_dumps has them. ISO_E_NOMEM also where value is NULL.
enum iso_err json_write(const json_t *value, size_t flags, struct buf *out) ISO_MUST_USE;

static inline struct strv json_strv(const json_t *string)
{
    return (struct strv){json_string_value(string), json_string_length(string)};
}
