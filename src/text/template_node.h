// The syntax tree of a template: a flat array of nodes that name each other by index. Index 0 is no node. A
// node stands in one place only; lists are linked by `next`. What is left-recursive in the grammar (a + b +
// c, a.b.c, a and b and c) is a list, so the tree is no deeper than the source is nested: TMPL_DEPTH_MAX
// bounds the recursion of whatever walks it.
#pragma once

#include <assert.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/strv.h"
#include "text/template.h"

enum tmpl_node_kind {
    NODE_ABSENT,
    // statements
    NODE_DATA,      // text a..b
    NODE_PRINT,     // expression a
    NODE_IF,        // list a of NODE_BRANCH
    NODE_BRANCH,    // test a (0 for else), statements b
    NODE_FOR,       // target a, iterable b, filter c (0 for none), NODE_LOOP d
    NODE_LOOP,      // statements a, else statements b
    NODE_SET,       // target a, expression b
    NODE_SET_BLOCK, // target a, statements b
    NODE_SCOPE,     // statements a, whose names are their own
    NODE_MACRO,     // name text a..b, list c of NODE_PARAM (0 for none), statements d
    NODE_BREAK,
    NODE_CONTINUE,
    // expressions; a target is a NODE_NAME, NODE_MEMBER or a NODE_TUPLE of targets
    NODE_NONE,
    NODE_BOOL,    // a
    NODE_INT,     // i
    NODE_FLOAT,   // f
    NODE_STR,     // text a..b
    NODE_NAME,    // text a..b
    NODE_MEMBER,  // text a..b: a namespace; text c..d: its attribute (targets only)
    NODE_LIST,    // list a, count b
    NODE_TUPLE,   // list a, count b
    NODE_DICT,    // list a of NODE_PAIR, count b
    NODE_PAIR,    // key a, value b
    NODE_NOT,     // a
    NODE_SIGN,    // op OP_ADD or OP_SUB, operand a
    NODE_AND,     // list a
    NODE_OR,      // list a
    NODE_ARITH,   // first operand a, list b of NODE_OPERAND, from left to right
    NODE_COMPARE, // first operand a, list b of NODE_OPERAND: every neighbouring pair must hold
    NODE_OPERAND, // op, operand a
    NODE_COND,    // test a, value b, else c (0 for none)
    NODE_POSTFIX, // base a, list b of what follows
    // what follows a base
    NODE_ATTR,   // text a..b
    NODE_ITEM,   // key a
    NODE_SLICE,  // from a, to b, step c (each 0 for none)
    NODE_CALL,   // arguments a, count b
    NODE_FILTER, // row op of the table of filters, arguments a, count b
    NODE_TEST,   // row op of the table of tests, arguments a, count b; c: negated
    NODE_KWARG,  // in arguments: text a..b, value c
    NODE_PARAM,  // of a macro: text a..b, default c (0 for none)
};

enum tmpl_op {
    OP_ADD,
    OP_SUB,
    OP_MUL,
    OP_DIV,
    OP_FLOORDIV,
    OP_MOD,
    OP_POW,
    OP_CONCAT,
    OP_EQ,
    OP_NE,
    OP_LT,
    OP_LE,
    OP_GT,
    OP_GE,
    OP_IN,
    OP_NOT_IN,
};

struct tmpl_node {
    uint8_t kind;
    uint8_t op;
    uint32_t at;   // byte offset in the source
    uint32_t next; // in the list it is part of, or 0
    union {
        struct {
            uint32_t a, b, c, d;
        };
        int64_t i;
        double f;
    };
};
static_assert(sizeof(struct tmpl_node) == 32, "a node is half a cache line");

// A text a..b is text[a] to before text[b]: of the source, which comes first, or of a string literal without
// its escapes, which follow.
struct tmpl {
    struct arena arena; // holds all that follows
    struct strv source; // with "\n" as its only line end
    char *text;
    uint32_t text_len;
    struct tmpl_node *nodes;
    uint32_t node_count;
    uint32_t body; // statements
};

static inline struct strv tmpl_text(const struct tmpl *t, uint32_t from, uint32_t to)
{
    return (struct strv){t->text + from, to - from};
}
