// Values as text: Python's str() and repr(), and json.dumps as transformers' tojson calls it
// (ensure_ascii=False). All appends to *b count steps; nesting past TMPL_DEPTH_MAX fails.
#pragma once

#include "text/template_value.h"

// str(v) to the end of b.
enum iso_err tmpl_write_str(struct tmpl_run *r, struct buf *b, struct tmpl_val v) ISO_MUST_USE;
// str(v) as a value; v itself where it is a string.
enum iso_err tmpl_to_str(struct tmpl_run *r, struct tmpl_val v, struct tmpl_val *ret) ISO_MUST_USE;
// What was built in r->scratch as a value.
enum iso_err tmpl_from_scratch(struct tmpl_run *r, struct tmpl_val *ret) ISO_MUST_USE;

struct tmpl_json_style {
    bool lines;         // a line for each item, indented by `indent` for each level
    struct strv indent; // views that outlive the call
    struct strv between_items, after_key;
};

enum iso_err tmpl_write_json(struct tmpl_run *r, struct buf *b, struct tmpl_val v,
                             const struct tmpl_json_style *style) ISO_MUST_USE;
