// Values of a rendering, and the rendering's state: its memory, its count of steps, its error.
//
// A value is 16 bytes; strings and items live in the rendering's arena, in the template's text or in the
// context, all of which outlive it, and are never changed once a value shows them (only a namespace is
// mutable). So values are copied freely and nothing is freed before the end. Values may nest to any depth by
// way of a namespace: whatever walks them counts its depth and fails past TMPL_DEPTH_MAX.
#pragma once

#include <assert.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/buf.h"
#include "text/template_node.h"

enum tmpl_kind {
    VAL_ABSENT, // no value: an argument that was not given
    VAL_UNDEFINED,
    VAL_NONE,
    VAL_BOOL,
    VAL_INT,
    VAL_FLOAT,
    VAL_STR,
    VAL_LIST,
    VAL_TUPLE,
    VAL_DICT,
    VAL_NAMESPACE,
    VAL_LOOP,
    VAL_FUNCTION,
    VAL_METHOD,
    VAL_MACRO,
};

struct tmpl_pair;
struct tmpl_namespace;
struct tmpl_loop;

struct tmpl_val {
    uint8_t kind;
    uint8_t sub; // undefined: the kind of what lacks it, VAL_ABSENT for a variable; function, method: its row
    uint32_t len; // bytes of a string or of an undefined's name, items, pairs
    union {
        bool b;
        int64_t i;
        double f;
        const char *s; // NULL in an undefined: an element without a name
        const struct tmpl_val *items;
        const struct tmpl_pair *pairs;
        struct tmpl_namespace *space;
        const struct tmpl_loop *loop;
        const struct tmpl_val *self; // of a method
        uint32_t node;               // of a macro
    };
};
static_assert(sizeof(struct tmpl_val) == 16, "values are passed in two registers");

struct tmpl_pair {
    struct tmpl_val key, value;
};

struct tmpl_namespace {
    struct tmpl_pair *pairs;
    uint32_t len, capacity;
};

struct tmpl_loop {
    const struct tmpl_val *items;
    uint32_t len, index0;
};

struct tmpl_binding {
    struct strv name;
    struct tmpl_val value;
};

struct tmpl_run {
    const struct tmpl *t;
    struct arena arena;
    struct buf scratch; // where a string of unknown length is built
    struct buf *out;    // where statements write: the caller's buffer or a set block's
    struct tmpl_val context;
    struct tmpl_binding *vars; // innermost scope last
    uint32_t var_count;
    uint32_t scope_start; // first variable of the innermost scope
    uint32_t scopes;      // open ones
    uint32_t outermost;   // variables of the template itself, outside all scopes
    uint32_t hidden_end;  // in a macro: those from `outermost` to here are its caller's
    uint32_t macros;      // being called
    uint32_t at;          // source offset that an error names
    uint64_t steps;
    const char *string_end; // end of the newest string in the arena, which concatenation may lengthen
    struct iso_errinfo *reterr;
};

// ---- the rendering

// Fails at r->at, in the form of tmpl_fail_at.
enum iso_err tmpl_fail(struct tmpl_run *r, enum iso_err code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
// Fails as an undefined value does when it is used.
enum iso_err tmpl_fail_undefined(struct tmpl_run *r, struct tmpl_val undefined);
// Counts steps; ISO_E_LIMIT past TMPL_STEPS_MAX.
enum iso_err tmpl_charge(struct tmpl_run *r, uint64_t steps) ISO_MUST_USE;
// Counts the steps of touching n bytes.
enum iso_err tmpl_charge_bytes(struct tmpl_run *r, uint64_t n) ISO_MUST_USE;
// Zeroed memory, with the steps of filling it counted. NULL past either limit: the error, ISO_E_LIMIT, is
// filled in.
void *tmpl_alloc(struct tmpl_run *r, uint64_t count, size_t size) ISO_MUST_USE;
// Appends to b and counts the steps.
enum iso_err tmpl_put(struct tmpl_run *r, struct buf *b, struct strv s) ISO_MUST_USE;

// ---- values

static inline struct tmpl_val tmpl_undefined(uint8_t owner, struct strv name)
{
    return (struct tmpl_val){.kind = VAL_UNDEFINED, .sub = owner, .len = (uint32_t)name.len, .s = name.ptr};
}
static inline struct tmpl_val tmpl_bool(bool b)
{
    return (struct tmpl_val){.kind = VAL_BOOL, .b = b};
}
static inline struct tmpl_val tmpl_int(int64_t i)
{
    return (struct tmpl_val){.kind = VAL_INT, .i = i};
}
static inline struct tmpl_val tmpl_float(double f)
{
    return (struct tmpl_val){.kind = VAL_FLOAT, .f = f};
}
// A view: the bytes must outlive the rendering.
static inline struct tmpl_val tmpl_str(struct strv s)
{
    return (struct tmpl_val){.kind = VAL_STR, .len = (uint32_t)s.len, .s = s.ptr};
}
static inline struct tmpl_val tmpl_list_of(const struct tmpl_val *items, uint32_t len)
{
    return (struct tmpl_val){.kind = VAL_LIST, .len = len, .items = items};
}
static inline struct strv tmpl_strv(struct tmpl_val v)
{
    return (struct strv){v.s, v.len};
}

// The kind's name in messages: jinja2's where it has one.
const char *tmpl_kind_name(uint8_t kind);
// A whole number, as which Python's True and False count too.
bool tmpl_as_int(struct tmpl_val v, int64_t *ret);
// Python's truth.
bool tmpl_truth(struct tmpl_val v);

// The context, or a part of it; strings stay views into it.
enum iso_err tmpl_from_json(struct tmpl_run *r, const json_t *json, int depth,
                            struct tmpl_val *ret) ISO_MUST_USE;
// a followed by b, at a's place where a is the newest string.
enum iso_err tmpl_concat(struct tmpl_run *r, struct strv a, struct strv b, struct tmpl_val *ret) ISO_MUST_USE;
// What iterating over v gives: items, keys, characters, nothing for undefined.
enum iso_err tmpl_iterate(struct tmpl_run *r, struct tmpl_val v, const struct tmpl_val **ret_items,
                          uint32_t *ret_len) ISO_MUST_USE;

// Python's == (depth: 0 from outside).
enum iso_err tmpl_equal(struct tmpl_run *r, struct tmpl_val a, struct tmpl_val b, int depth,
                        bool *ret) ISO_MUST_USE;
// Python's order of numbers, strings, lists and tuples: negative, 0 or positive. Other kinds have none.
enum iso_err tmpl_order(struct tmpl_run *r, struct tmpl_val a, struct tmpl_val b, int depth,
                        int *ret) ISO_MUST_USE;
// The value of `key` among pairs, NULL where it isn't there. Fails for a key that cannot be hashed.
enum iso_err tmpl_find_key(struct tmpl_run *r, const struct tmpl_pair *pairs, uint32_t len,
                           struct tmpl_val key, const struct tmpl_pair **ret) ISO_MUST_USE;
// Adds a pair, or gives the key its new value. `pairs` has room for one more.
enum iso_err tmpl_set_key(struct tmpl_run *r, struct tmpl_pair *pairs, uint32_t *len, struct tmpl_val key,
                          struct tmpl_val value) ISO_MUST_USE;
// The same for a namespace, which grows.
enum iso_err tmpl_set_member(struct tmpl_run *r, struct tmpl_namespace *space, struct tmpl_val key,
                             struct tmpl_val value) ISO_MUST_USE;
