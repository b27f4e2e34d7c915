// Operators on values: arithmetic, comparison, attributes, subscripts and slices, with Python's results.
#pragma once

#include "text/template_value.h"

// a op b for OP_ADD to OP_CONCAT. ISO_E_LIMIT where an integer passes 64 bits, ISO_E_NONFINITE where a float
// becomes infinite or not a number.
enum iso_err tmpl_arith(struct tmpl_run *r, enum tmpl_op op, struct tmpl_val a, struct tmpl_val b,
                        struct tmpl_val *ret) ISO_MUST_USE;
// +a (OP_ADD) or -a (OP_SUB).
enum iso_err tmpl_sign(struct tmpl_run *r, enum tmpl_op op, struct tmpl_val a,
                       struct tmpl_val *ret) ISO_MUST_USE;
// a op b for OP_EQ to OP_NOT_IN.
enum iso_err tmpl_compare(struct tmpl_run *r, enum tmpl_op op, struct tmpl_val a, struct tmpl_val b,
                          bool *ret) ISO_MUST_USE;

// v.name: a method, else an item. Undefined where there is neither; fails where v is undefined.
enum iso_err tmpl_attr(struct tmpl_run *r, struct tmpl_val v, struct strv name,
                       struct tmpl_val *ret) ISO_MUST_USE;
// v[key]: an item, else a method; undefined and failing as above.
enum iso_err tmpl_item(struct tmpl_run *r, struct tmpl_val v, struct tmpl_val key,
                       struct tmpl_val *ret) ISO_MUST_USE;
// v[from:to:step]; parts not given are VAL_NONE.
enum iso_err tmpl_slice(struct tmpl_run *r, struct tmpl_val v, const struct tmpl_val parts[3],
                        struct tmpl_val *ret) ISO_MUST_USE;
