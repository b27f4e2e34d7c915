// The parser: recursive descent over the lexer's tokens, with jinja2's grammar. template_parse.c has the
// statements, template_expr.c the expressions, template_literal.c numbers and strings.
//
// Errors stick: the first one is kept in `err`, and from then on the current token is TOK_EOF, so every loop
// over tokens ends and nothing needs to check in between. A function that fails returns node 0 or any node.
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "text/template_lex.h"
#include "text/template_node.h"

struct tmpl_parser {
    struct tmpl *t;
    struct tmpl_lexer lexer;
    struct tmpl_token tok; // the current one
    uint32_t depth;
    uint32_t loops;  // how many for bodies are around the current token
    uint32_t scopes; // how many bodies with a scope of their own
    enum iso_err err;
    struct iso_errinfo *reterr;
};

// Statements of the whole template into t->body; t->source, t->text and t->nodes are ready.
enum iso_err tmpl_parse(struct tmpl *t, struct iso_errinfo *reterr) ISO_MUST_USE;

// An expression, with `a if b else c` or without.
uint32_t tmpl_parse_expr(struct tmpl_parser *p);
// One expression or, where commas follow, a tuple. `end` (may be NULL) is a name that ends it, as brackets
// and tag ends do.
uint32_t tmpl_parse_tuple(struct tmpl_parser *p, bool with_cond, const char *end);
// What may stand before "=" or "in": names, tuples of them and, where `members`, namespace attributes.
uint32_t tmpl_parse_target(struct tmpl_parser *p, bool members, const char *end);

// The literal that is the current token; of strings, all that follow each other.
uint32_t tmpl_parse_integer(struct tmpl_parser *p);
uint32_t tmpl_parse_float(struct tmpl_parser *p);
uint32_t tmpl_parse_strings(struct tmpl_parser *p);

// Shared by the three files.
void tmpl_parse_fail(struct tmpl_parser *p, enum iso_err code, size_t at, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
void tmpl_parse_advance(struct tmpl_parser *p);
bool tmpl_parse_is_name(const struct tmpl_parser *p, const char *name);
// Moves past the token where it is that, and says whether it was.
bool tmpl_parse_skip(struct tmpl_parser *p, enum tmpl_token_kind kind);
bool tmpl_parse_skip_name(struct tmpl_parser *p, const char *name);
// The same, failing where it is something else; `what` names it for the message.
void tmpl_parse_expect(struct tmpl_parser *p, enum tmpl_token_kind kind, const char *what);
void tmpl_parse_unexpected(struct tmpl_parser *p, const char *expected);
// Counts one level of nesting; leave it by giving `depth` its old value.
void tmpl_parse_enter(struct tmpl_parser *p);

// A new node at the source offset `at`.
uint32_t tmpl_node_new(struct tmpl_parser *p, enum tmpl_node_kind kind, uint32_t at);
static inline struct tmpl_node *tmpl_node(struct tmpl_parser *p, uint32_t n)
{
    return &p->t->nodes[n];
}

// A list under construction.
struct tmpl_list {
    uint32_t first, last, count;
};
void tmpl_list_add(struct tmpl_parser *p, struct tmpl_list *list, uint32_t n);
