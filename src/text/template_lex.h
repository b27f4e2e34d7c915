// The template's tokens, one at a time. Inside tags white space and comments are dropped; text outside is
// trimmed here as trim_blocks, lstrip_blocks and the signs in {%- -%} ask, so the parser sees no white space.
//
// The source is valid UTF-8 with "\n" as its only line end; tokens are views into it. Nothing is allocated.
#pragma once

#include <stdint.h>

#include "base/err.h"
#include "base/strv.h"
#include "text/template.h"

enum tmpl_token_kind {
    TOK_EOF,
    TOK_DATA,        // text between tags
    TOK_PRINT_BEGIN, // {{
    TOK_PRINT_END,
    TOK_BLOCK_BEGIN, // {%
    TOK_BLOCK_END,
    TOK_NAME,
    TOK_STRING, // with its quotes and escapes
    TOK_INTEGER,
    TOK_FLOAT,
    // operators
    TOK_ADD,
    TOK_SUB,
    TOK_MUL,
    TOK_DIV,
    TOK_FLOORDIV,
    TOK_MOD,
    TOK_POW,
    TOK_TILDE,
    TOK_EQ,
    TOK_NE,
    TOK_LT,
    TOK_LE,
    TOK_GT,
    TOK_GE,
    TOK_ASSIGN,
    TOK_DOT,
    TOK_COLON,
    TOK_COMMA,
    TOK_SEMICOLON,
    TOK_PIPE,
    TOK_LPAREN,
    TOK_RPAREN,
    TOK_LBRACKET,
    TOK_RBRACKET,
    TOK_LBRACE,
    TOK_RBRACE,
};

struct tmpl_token {
    enum tmpl_token_kind kind;
    uint32_t at; // byte offset in the source
    struct strv text;
};

// May be copied to look ahead.
struct tmpl_lexer {
    struct strv source;
    size_t pos;
    enum tmpl_token_kind tag; // TOK_PRINT_BEGIN or TOK_BLOCK_BEGIN inside a tag, TOK_DATA outside
    uint32_t bracket_count;   // open brackets in this tag: its end isn't looked for inside them
    char brackets[TMPL_DEPTH_MAX];
};

void tmpl_lex_init(struct tmpl_lexer *lx, struct strv source);
// The next token; at the end TOK_EOF, again and again.
enum iso_err tmpl_lex_next(struct tmpl_lexer *lx, struct tmpl_token *ret,
                           struct iso_errinfo *reterr) ISO_MUST_USE;

// Fails with "line L, column C: " and the message; the field is "line L, column C". `at` is a byte offset.
enum iso_err tmpl_fail_at(struct iso_errinfo *reterr, enum iso_err code, struct strv source, size_t at,
                          const char *format, ...) __attribute__((format(printf, 5, 6)));
