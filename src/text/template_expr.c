#include "text/template_parse.h"

#include "text/template_builtin.h"

// The operators that take two operands, level by level: a level's operands are of the next one.
static const struct {
    enum tmpl_token_kind kind;
    enum tmpl_op op;
    int level;
} BINARY[] = {
    {TOK_ADD, OP_ADD, 0}, {TOK_SUB, OP_SUB, 0}, {TOK_TILDE, OP_CONCAT, 1},      {TOK_MUL, OP_MUL, 2},
    {TOK_DIV, OP_DIV, 2}, {TOK_MOD, OP_MOD, 2}, {TOK_FLOORDIV, OP_FLOORDIV, 2}, {TOK_POW, OP_POW, 3},
};
#define BINARY_LEVELS 4

static uint32_t parse_name(struct tmpl_parser *p, bool members)
{
    struct tmpl_token name = p->tok;
    tmpl_parse_advance(p);
    bool is_true = strv_is(name.text, "true") || strv_is(name.text, "True");
    if (is_true || strv_is(name.text, "false") || strv_is(name.text, "False")) {
        uint32_t n = tmpl_node_new(p, NODE_BOOL, name.at);
        tmpl_node(p, n)->a = is_true;
        return n;
    }
    if (strv_is(name.text, "none") || strv_is(name.text, "None"))
        return tmpl_node_new(p, NODE_NONE, name.at);

    bool member = members && tmpl_parse_skip(p, TOK_DOT);
    uint32_t n = tmpl_node_new(p, member ? NODE_MEMBER : NODE_NAME, name.at);
    tmpl_node(p, n)->a = name.at;
    tmpl_node(p, n)->b = name.at + (uint32_t)name.text.len;
    if (member) {
        tmpl_node(p, n)->c = p->tok.at;
        tmpl_node(p, n)->d = p->tok.at + (uint32_t)p->tok.text.len;
        tmpl_parse_expect(p, TOK_NAME, "an attribute's name");
    }
    return n;
}

static uint32_t parse_list(struct tmpl_parser *p)
{
    uint32_t n = tmpl_node_new(p, NODE_LIST, p->tok.at);
    struct tmpl_list items = {0};
    tmpl_parse_advance(p);
    while (!p->err && p->tok.kind != TOK_RBRACKET) {
        tmpl_list_add(p, &items, tmpl_parse_expr(p));
        if (p->tok.kind != TOK_RBRACKET)
            tmpl_parse_expect(p, TOK_COMMA, "',' or ']'");
    }
    tmpl_parse_expect(p, TOK_RBRACKET, "']'");
    tmpl_node(p, n)->a = items.first;
    tmpl_node(p, n)->b = items.count;
    return n;
}

static uint32_t parse_dict(struct tmpl_parser *p)
{
    uint32_t n = tmpl_node_new(p, NODE_DICT, p->tok.at);
    struct tmpl_list pairs = {0};
    tmpl_parse_advance(p);
    while (!p->err && p->tok.kind != TOK_RBRACE) {
        uint32_t pair = tmpl_node_new(p, NODE_PAIR, p->tok.at);
        uint32_t key = tmpl_parse_expr(p);
        tmpl_parse_expect(p, TOK_COLON, "':'");
        uint32_t value = tmpl_parse_expr(p);
        tmpl_node(p, pair)->a = key;
        tmpl_node(p, pair)->b = value;
        tmpl_list_add(p, &pairs, pair);
        if (p->tok.kind != TOK_RBRACE)
            tmpl_parse_expect(p, TOK_COMMA, "',' or '}'");
    }
    tmpl_parse_expect(p, TOK_RBRACE, "'}'");
    tmpl_node(p, n)->a = pairs.first;
    tmpl_node(p, n)->b = pairs.count;
    return n;
}

static uint32_t parse_parentheses(struct tmpl_parser *p)
{
    uint32_t at = p->tok.at;
    tmpl_parse_advance(p);
    uint32_t n =
        p->tok.kind == TOK_RPAREN ? tmpl_node_new(p, NODE_TUPLE, at) : tmpl_parse_tuple(p, true, NULL);
    tmpl_parse_expect(p, TOK_RPAREN, "')'");
    return n;
}

static uint32_t parse_primary(struct tmpl_parser *p, bool members)
{
    switch (p->tok.kind) {
    case TOK_NAME:
        return parse_name(p, members);
    case TOK_STRING:
        return tmpl_parse_strings(p);
    case TOK_INTEGER:
        return tmpl_parse_integer(p);
    case TOK_FLOAT:
        return tmpl_parse_float(p);
    case TOK_LPAREN:
        return parse_parentheses(p);
    case TOK_LBRACKET:
        return parse_list(p);
    case TOK_LBRACE:
        return parse_dict(p);
    default:
        tmpl_parse_unexpected(p, "an expression");
        return 0;
    }
}

// ---- what follows a primary: attributes, subscripts, calls, filters, tests

// Is the current name followed by "=", as a keyword argument's is?
static bool is_keyword(struct tmpl_parser *p)
{
    struct tmpl_lexer ahead = p->lexer;
    struct tmpl_token tok;
    return p->tok.kind == TOK_NAME && !tmpl_lex_next(&ahead, &tok, NULL) && tok.kind == TOK_ASSIGN;
}

// Arguments in parentheses, into `owner`.
static void parse_arguments(struct tmpl_parser *p, uint32_t owner)
{
    struct tmpl_list args = {0};
    bool keywords = false;
    tmpl_parse_expect(p, TOK_LPAREN, "'('");
    while (!p->err && p->tok.kind != TOK_RPAREN) {
        struct tmpl_token name = p->tok;
        if (name.kind == TOK_MUL || name.kind == TOK_POW) {
            tmpl_parse_fail(p, ISO_E_UNSUPPORTED, name.at, "unpacked arguments are not supported");
        } else if (is_keyword(p)) {
            keywords = true;
            tmpl_parse_advance(p);
            tmpl_parse_advance(p);
            uint32_t kwarg = tmpl_node_new(p, NODE_KWARG, name.at);
            tmpl_node(p, kwarg)->a = name.at;
            tmpl_node(p, kwarg)->b = name.at + (uint32_t)name.text.len;
            uint32_t value = tmpl_parse_expr(p);
            tmpl_node(p, kwarg)->c = value;
            tmpl_list_add(p, &args, kwarg);
        } else if (keywords) {
            tmpl_parse_fail(p, ISO_E_FORMAT, name.at, "a positional argument follows a keyword argument");
        } else {
            tmpl_list_add(p, &args, tmpl_parse_expr(p));
        }
        if (p->tok.kind != TOK_RPAREN)
            tmpl_parse_expect(p, TOK_COMMA, "',' or ')'");
    }
    if (args.count > TMPL_ARGS_MAX)
        tmpl_parse_fail(p, ISO_E_LIMIT, tmpl_node(p, owner)->at, "more than %d arguments", TMPL_ARGS_MAX);
    tmpl_parse_expect(p, TOK_RPAREN, "')'");
    tmpl_node(p, owner)->a = args.first;
    tmpl_node(p, owner)->b = args.count;
}

static uint32_t parse_dot(struct tmpl_parser *p)
{
    uint32_t at = p->tok.at;
    tmpl_parse_advance(p);
    if (p->tok.kind == TOK_INTEGER) {
        uint32_t n = tmpl_node_new(p, NODE_ITEM, at);
        uint32_t key = tmpl_parse_integer(p);
        tmpl_node(p, n)->a = key;
        return n;
    }
    uint32_t n = tmpl_node_new(p, NODE_ATTR, at);
    tmpl_node(p, n)->a = p->tok.at;
    tmpl_node(p, n)->b = p->tok.at + (uint32_t)p->tok.text.len;
    tmpl_parse_expect(p, TOK_NAME, "an attribute's name");
    return n;
}

// [key] or [from:to:step]
static uint32_t parse_subscript(struct tmpl_parser *p)
{
    uint32_t at = p->tok.at, parts[3] = {0};
    int colons = 0;
    tmpl_parse_advance(p);
    do {
        if (p->tok.kind != TOK_COLON && p->tok.kind != TOK_RBRACKET)
            parts[colons] = tmpl_parse_expr(p);
    } while (colons < 2 && tmpl_parse_skip(p, TOK_COLON) && ++colons);
    if (colons == 0 && !parts[0])
        tmpl_parse_unexpected(p, "a subscript");
    tmpl_parse_expect(p, TOK_RBRACKET, "']'");
    uint32_t n = tmpl_node_new(p, colons ? NODE_SLICE : NODE_ITEM, at);
    tmpl_node(p, n)->a = parts[0];
    tmpl_node(p, n)->b = parts[1];
    tmpl_node(p, n)->c = parts[2];
    return n;
}

static uint32_t parse_call(struct tmpl_parser *p)
{
    uint32_t n = tmpl_node_new(p, NODE_CALL, p->tok.at);
    parse_arguments(p, n);
    return n;
}

// A filter's or test's row in its table, by the name that is the current token.
static uint8_t parse_row(struct tmpl_parser *p, const struct tmpl_builtin *table, const char *what)
{
    struct tmpl_token name = p->tok;
    tmpl_parse_expect(p, TOK_NAME, what);
    int row = p->err ? 0 : tmpl_builtin_find(table, name.text);
    if (row < 0) {
        tmpl_parse_fail(p, ISO_E_UNSUPPORTED, name.at, "there is no %s '%.*s'", what, STRV_ARG(name.text));
        return 0;
    }
    return (uint8_t)row;
}

static uint32_t parse_filter(struct tmpl_parser *p)
{
    uint32_t n = tmpl_node_new(p, NODE_FILTER, p->tok.at);
    tmpl_parse_advance(p);
    tmpl_node(p, n)->op = parse_row(p, tmpl_filters, "filter");
    if (p->tok.kind == TOK_LPAREN)
        parse_arguments(p, n);
    return n;
}

static uint32_t parse_postfix(struct tmpl_parser *p, uint32_t base, bool with_filters);

static uint32_t parse_test(struct tmpl_parser *p)
{
    uint32_t n = tmpl_node_new(p, NODE_TEST, p->tok.at);
    tmpl_parse_advance(p);
    tmpl_node(p, n)->c = tmpl_parse_skip_name(p, "not");
    tmpl_node(p, n)->op = parse_row(p, tmpl_tests, "test");
    bool is_word = p->tok.kind == TOK_NAME;
    if (p->tok.kind == TOK_LPAREN) {
        parse_arguments(p, n);
    } else if (is_word && tmpl_parse_is_name(p, "is")) {
        tmpl_parse_fail(p, ISO_E_FORMAT, p->tok.at, "tests cannot be chained with 'is'");
    } else if ((is_word && !tmpl_parse_is_name(p, "else") && !tmpl_parse_is_name(p, "or") &&
                !tmpl_parse_is_name(p, "and")) ||
               p->tok.kind == TOK_STRING || p->tok.kind == TOK_INTEGER || p->tok.kind == TOK_FLOAT ||
               p->tok.kind == TOK_LBRACKET || p->tok.kind == TOK_LBRACE) {
        uint32_t arg = parse_postfix(p, parse_primary(p, false), false);
        tmpl_node(p, n)->a = arg;
        tmpl_node(p, n)->b = 1;
    }
    return n;
}

// base.attribute[subscript](call) and then, `with_filters`, |filter and "is test".
static uint32_t parse_postfix(struct tmpl_parser *p, uint32_t base, bool with_filters)
{
    uint32_t at = p->tok.at;
    struct tmpl_list list = {0};
    for (;;) {
        if (p->tok.kind == TOK_DOT)
            tmpl_list_add(p, &list, parse_dot(p));
        else if (p->tok.kind == TOK_LBRACKET)
            tmpl_list_add(p, &list, parse_subscript(p));
        else if (p->tok.kind == TOK_LPAREN)
            tmpl_list_add(p, &list, parse_call(p));
        else
            break;
    }
    while (with_filters) {
        if (p->tok.kind == TOK_PIPE)
            tmpl_list_add(p, &list, parse_filter(p));
        else if (tmpl_parse_is_name(p, "is"))
            tmpl_list_add(p, &list, parse_test(p));
        else if (p->tok.kind == TOK_LPAREN)
            tmpl_list_add(p, &list, parse_call(p));
        else
            break;
    }
    if (list.count == 0)
        return base;
    uint32_t n = tmpl_node_new(p, NODE_POSTFIX, at);
    tmpl_node(p, n)->a = base;
    tmpl_node(p, n)->b = list.first;
    return n;
}

// ---- operators

static uint32_t parse_unary(struct tmpl_parser *p, bool with_filters)
{
    uint32_t at = p->tok.at, depth = p->depth, n;
    bool minus = p->tok.kind == TOK_SUB;
    if (minus || p->tok.kind == TOK_ADD) {
        tmpl_parse_enter(p);
        tmpl_parse_advance(p);
        uint32_t operand = parse_unary(p, false);
        n = tmpl_node_new(p, NODE_SIGN, at);
        tmpl_node(p, n)->op = minus ? OP_SUB : OP_ADD;
        tmpl_node(p, n)->a = operand;
    } else {
        n = parse_primary(p, false);
    }
    n = parse_postfix(p, n, with_filters);
    p->depth = depth;
    return n;
}

// Adds the operand to `first`'s list, making `first` a node of that kind before the first one.
static uint32_t add_operand(struct tmpl_parser *p, enum tmpl_node_kind kind, uint32_t first, uint32_t at,
                            struct tmpl_list *list, enum tmpl_op op, uint32_t operand)
{
    uint32_t n = tmpl_node_new(p, NODE_OPERAND, at);
    tmpl_node(p, n)->op = (uint8_t)op;
    tmpl_node(p, n)->a = operand;
    tmpl_list_add(p, list, n);
    if (list->count > 1)
        return first;
    uint32_t whole = tmpl_node_new(p, kind, at);
    tmpl_node(p, whole)->a = first;
    tmpl_node(p, whole)->b = n;
    return whole;
}

static int binary_row(const struct tmpl_parser *p, int level)
{
    for (size_t i = 0; i < ARRAY_LEN(BINARY); i++) {
        if (BINARY[i].kind == p->tok.kind && BINARY[i].level == level)
            return (int)i;
    }
    return -1;
}

static uint32_t parse_binary(struct tmpl_parser *p, int level)
{
    if (level == BINARY_LEVELS)
        return parse_unary(p, true);
    uint32_t n = parse_binary(p, level + 1);
    struct tmpl_list operands = {0};
    for (int row; (row = binary_row(p, level)) >= 0;) {
        uint32_t at = p->tok.at;
        tmpl_parse_advance(p);
        uint32_t operand = parse_binary(p, level + 1);
        n = add_operand(p, NODE_ARITH, n, at, &operands, BINARY[row].op, operand);
    }
    return n;
}

// The comparison at the current token, which is passed; false where there is none.
static bool skip_comparison(struct tmpl_parser *p, enum tmpl_op *ret)
{
    static const struct {
        enum tmpl_token_kind kind;
        enum tmpl_op op;
    } ROWS[] = {{TOK_EQ, OP_EQ}, {TOK_NE, OP_NE}, {TOK_LT, OP_LT},
                {TOK_LE, OP_LE}, {TOK_GT, OP_GT}, {TOK_GE, OP_GE}};
    for (size_t i = 0; i < ARRAY_LEN(ROWS); i++) {
        if (tmpl_parse_skip(p, ROWS[i].kind)) {
            *ret = ROWS[i].op;
            return true;
        }
    }
    *ret = OP_IN;
    if (tmpl_parse_skip_name(p, "in"))
        return true;
    struct tmpl_lexer ahead = p->lexer;
    struct tmpl_token tok;
    if (!tmpl_parse_is_name(p, "not") || tmpl_lex_next(&ahead, &tok, NULL) || tok.kind != TOK_NAME ||
        !strv_is(tok.text, "in"))
        return false;
    tmpl_parse_advance(p);
    tmpl_parse_advance(p);
    *ret = OP_NOT_IN;
    return true;
}

static uint32_t parse_compare(struct tmpl_parser *p)
{
    uint32_t n = parse_binary(p, 0);
    struct tmpl_list operands = {0};
    uint32_t at = p->tok.at;
    for (enum tmpl_op op; skip_comparison(p, &op); at = p->tok.at) {
        uint32_t operand = parse_binary(p, 0);
        n = add_operand(p, NODE_COMPARE, n, at, &operands, op, operand);
    }
    return n;
}

static uint32_t parse_not(struct tmpl_parser *p)
{
    uint32_t at = p->tok.at, depth = p->depth;
    if (!tmpl_parse_skip_name(p, "not"))
        return parse_compare(p);
    tmpl_parse_enter(p);
    uint32_t operand = parse_not(p);
    p->depth = depth;
    uint32_t n = tmpl_node_new(p, NODE_NOT, at);
    tmpl_node(p, n)->a = operand;
    return n;
}

// a and b and c, or a or b or c.
static uint32_t parse_logic(struct tmpl_parser *p, const char *word, enum tmpl_node_kind kind,
                            uint32_t (*parse_part)(struct tmpl_parser *p))
{
    uint32_t at = p->tok.at, first = parse_part(p);
    if (!tmpl_parse_is_name(p, word))
        return first;
    struct tmpl_list parts = {0};
    tmpl_list_add(p, &parts, first);
    while (tmpl_parse_skip_name(p, word))
        tmpl_list_add(p, &parts, parse_part(p));
    uint32_t n = tmpl_node_new(p, kind, at);
    tmpl_node(p, n)->a = parts.first;
    return n;
}

static uint32_t parse_and(struct tmpl_parser *p)
{
    return parse_logic(p, "and", NODE_AND, parse_not);
}

static uint32_t parse_or(struct tmpl_parser *p)
{
    return parse_logic(p, "or", NODE_OR, parse_and);
}

uint32_t tmpl_parse_expr(struct tmpl_parser *p)
{
    uint32_t depth = p->depth;
    tmpl_parse_enter(p);
    uint32_t n = parse_or(p);
    for (int ifs = 0; tmpl_parse_is_name(p, "if"); ifs++) {
        uint32_t at = p->tok.at;
        tmpl_parse_advance(p);
        if (ifs > 0)
            tmpl_parse_enter(p); // `a if b if c` nests to the left
        uint32_t test = parse_or(p);
        uint32_t otherwise = tmpl_parse_skip_name(p, "else") ? tmpl_parse_expr(p) : 0;
        uint32_t cond = tmpl_node_new(p, NODE_COND, at);
        *tmpl_node(p, cond) =
            (struct tmpl_node){.kind = NODE_COND, .at = at, .a = test, .b = n, .c = otherwise};
        n = cond;
    }
    p->depth = depth;
    return n;
}

// ---- tuples and targets

static bool is_tuple_end(const struct tmpl_parser *p, const char *end)
{
    return p->tok.kind == TOK_PRINT_END || p->tok.kind == TOK_BLOCK_END || p->tok.kind == TOK_RPAREN ||
           (end && tmpl_parse_is_name(p, end));
}

// `first` is the tuple's first item; a comma follows.
static uint32_t parse_rest(struct tmpl_parser *p, uint32_t first, const char *end,
                           uint32_t (*parse_item)(struct tmpl_parser *p))
{
    uint32_t at = p->tok.at;
    struct tmpl_list items = {0};
    tmpl_list_add(p, &items, first);
    while (tmpl_parse_skip(p, TOK_COMMA) && !is_tuple_end(p, end))
        tmpl_list_add(p, &items, parse_item(p));
    uint32_t n = tmpl_node_new(p, NODE_TUPLE, at);
    tmpl_node(p, n)->a = items.first;
    tmpl_node(p, n)->b = items.count;
    return n;
}

uint32_t tmpl_parse_tuple(struct tmpl_parser *p, bool with_cond, const char *end)
{
    uint32_t (*parse_item)(struct tmpl_parser * p) = with_cond ? tmpl_parse_expr : parse_or;
    uint32_t n = parse_item(p);
    return p->tok.kind == TOK_COMMA ? parse_rest(p, n, end, parse_item) : n;
}

static uint32_t parse_target_name(struct tmpl_parser *p)
{
    return parse_primary(p, false);
}

static uint32_t parse_target_member(struct tmpl_parser *p)
{
    return parse_primary(p, true);
}

// Fails unless values can be assigned to n. The parser has bounded how deep tuples nest.
static void check_target(struct tmpl_parser *p, uint32_t n)
{
    const struct tmpl_node *node = tmpl_node(p, n);
    if (node->kind == NODE_TUPLE) {
        for (uint32_t item = node->a; item && !p->err; item = tmpl_node(p, item)->next)
            check_target(p, item);
    } else if (node->kind == NODE_NAME && strv_is(tmpl_text(p->t, node->a, node->b), "loop") &&
               p->loops > 0) {
        tmpl_parse_fail(p, ISO_E_FORMAT, node->at, "'loop' cannot be assigned to in a loop");
    } else if (node->kind != NODE_NAME && node->kind != NODE_MEMBER) {
        tmpl_parse_fail(p, ISO_E_FORMAT, node->at, "this cannot be assigned to");
    }
}

uint32_t tmpl_parse_target(struct tmpl_parser *p, bool members, const char *end)
{
    uint32_t (*parse_item)(struct tmpl_parser * p) = members ? parse_target_member : parse_target_name;
    uint32_t n = parse_item(p);
    if (p->tok.kind == TOK_COMMA)
        n = parse_rest(p, n, end, parse_item);
    if (!p->err)
        check_target(p, n);
    return n;
}
