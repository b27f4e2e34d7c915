// Chat templates: an interpreter for the part of Jinja that the templates of language models use, with the
// results of Python's jinja2 as transformers sets it up (trim_blocks, lstrip_blocks, loop controls, an
// immutable sandbox, its tojson and raise_exception).
//
// Language: text, {{ expressions }}, {# comments #}, {% raw %}, if/elif/else, for (filter, else, unpacking,
// loop.*), break, continue, set (names, tuples, namespace attributes, blocks), macro (outside loops).
// Expressions: literals, lists, tuples, dicts, arithmetic, ~, comparison chains, in, and/or/not, conditional,
// attributes, subscripts, slices, calls, filters, tests. Filters, tests, functions and methods: the tables in
// template_builtin.c and template_function.c.
// What jinja2 knows and this doesn't (includes, call blocks, ...) is refused with ISO_E_UNSUPPORTED.
//
// Known differences: integers have 64 bits and overflow is an error, as is a float result that is not finite;
// //, % and ** take whole numbers only; a lone surrogate cannot be written in a string; lower() makes every
// capital sigma a medial one; identifiers are ASCII; a variable is looked up when it is read, so `set` after
// a loop doesn't hide a variable in it.
//
// Ownership: a template copies its source. Rendering only reads the context and keeps nothing of it.
// Threading: an open template is immutable; several threads may render it at once, each into its own buffer.
//
// Everything is bounded: a template or a conversation that passes a limit ends in ISO_E_LIMIT. Both functions
// recurse with the template's nesting and stay below 256 KiB of stack, each macro that is being called adding its own.
#pragma once

#include <jansson.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/num.h"
#include "base/strv.h"

#define TMPL_SOURCE_MAX (256 * KIB) // bytes of a template
#define TMPL_NODES_MAX  65536       // nodes of its syntax tree
#define TMPL_DEPTH_MAX  64          // nesting of expressions and blocks; of a value, made or from the context
#define TMPL_STEPS_MAX  2000000     // of one rendering: a node evaluated, 64 bytes copied or compared
#define TMPL_MEMORY_MAX (64 * MIB)  // for the values of one rendering
#define TMPL_VARS_MAX   256         // variables alive at once
#define TMPL_MACROS_MAX 12          // macros that call each other

struct tmpl;

// Parses `source` (UTF-8). ISO_E_FORMAT on a syntax error, ISO_E_UNSUPPORTED for what is not in the language
// above, ISO_E_LIMIT over a limit. The text names line and column, both from 1, columns in characters, and
// reterr->field does too. Close with tmpl_close.
enum iso_err tmpl_open(struct strv source, struct tmpl **ret, struct iso_errinfo *reterr) ISO_MUST_USE;
// Gives everything back; t may be NULL.
void tmpl_close(struct tmpl *t);

// Appends the rendering of t to *out, whose maximum bounds it. `context` is an object: its members (messages,
// tools, add_generation_prompt, bos_token, ...) are the template's variables. Its text "strftime_now", a time as
// "2026-12-31T23:59:59", is what strftime_now(format) writes; without it that function is not defined. On failure
// *out keeps the length it had. raise_exception(text) in the template ends in ISO_E_FORMAT with that text alone and the
// field "raise_exception"; every other error names line and column as tmpl_open does.
enum iso_err tmpl_render(const struct tmpl *t, const json_t *context, struct buf *out,
                         struct iso_errinfo *reterr) ISO_MUST_USE;
