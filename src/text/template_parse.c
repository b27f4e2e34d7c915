#include "text/template_parse.h"

#include <stdarg.h>
#include <stdio.h>

#include "text/template_builtin.h"

// What jinja2 (or transformers) has and this interpreter does not.
static const char *const UNSUPPORTED_TAGS[] = {"call",   "filter",  "with",  "block",      "extends",
                                               "import", "include", "from",  "autoescape", "print",
                                               "do",     "trans",   "debug", "raw",        "pluralize"};

// Names of tags that end a block, the one that closes it first.
static const char *const ENDS_IF[] = {"endif", "elif", "else", NULL};
static const char *const ENDS_ELSE[] = {"endif", NULL};
static const char *const ENDS_FOR[] = {"endfor", "else", NULL};
static const char *const ENDS_FOR_ELSE[] = {"endfor", NULL};
static const char *const ENDS_SET[] = {"endset", NULL};
static const char *const ENDS_MACRO[] = {"endmacro", NULL};
static const char *const ENDS_GENERATION[] = {"endgeneration", NULL};

// ---- shared

void tmpl_parse_fail(struct tmpl_parser *p, enum iso_err code, size_t at, const char *format, ...)
{
    if (p->err)
        return;
    char message[ISO_ERR_TEXT_MAX];
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    p->err = tmpl_fail_at(p->reterr, code, p->t->source, at, "%s", message);
    p->tok.kind = TOK_EOF;
}

void tmpl_parse_advance(struct tmpl_parser *p)
{
    if (p->err)
        return;
    p->err = tmpl_lex_next(&p->lexer, &p->tok, p->reterr);
    if (p->err)
        p->tok.kind = TOK_EOF;
}

bool tmpl_parse_is_name(const struct tmpl_parser *p, const char *name)
{
    return p->tok.kind == TOK_NAME && strv_is(p->tok.text, name);
}

bool tmpl_parse_skip(struct tmpl_parser *p, enum tmpl_token_kind kind)
{
    if (p->tok.kind != kind || p->err)
        return false;
    tmpl_parse_advance(p);
    return true;
}

bool tmpl_parse_skip_name(struct tmpl_parser *p, const char *name)
{
    return tmpl_parse_is_name(p, name) && tmpl_parse_skip(p, TOK_NAME);
}

void tmpl_parse_unexpected(struct tmpl_parser *p, const char *expected)
{
    if (p->tok.kind == TOK_EOF)
        tmpl_parse_fail(p, ISO_E_FORMAT, p->tok.at, "expected %s, got the end of the template", expected);
    else
        tmpl_parse_fail(p, ISO_E_FORMAT, p->tok.at, "expected %s, got '%.*s'", expected,
                        STRV_ARG(p->tok.text));
}

void tmpl_parse_expect(struct tmpl_parser *p, enum tmpl_token_kind kind, const char *what)
{
    if (!tmpl_parse_skip(p, kind))
        tmpl_parse_unexpected(p, what);
}

void tmpl_parse_enter(struct tmpl_parser *p)
{
    if (++p->depth > TMPL_DEPTH_MAX)
        tmpl_parse_fail(p, ISO_E_LIMIT, p->tok.at, "nested deeper than %d", TMPL_DEPTH_MAX);
}

uint32_t tmpl_node_new(struct tmpl_parser *p, enum tmpl_node_kind kind, uint32_t at)
{
    if (p->t->node_count == TMPL_NODES_MAX) {
        tmpl_parse_fail(p, ISO_E_LIMIT, at, "the template has more than %d nodes", TMPL_NODES_MAX);
        return 0;
    }
    uint32_t n = p->t->node_count++;
    *tmpl_node(p, n) = (struct tmpl_node){.kind = (uint8_t)kind, .at = at};
    return n;
}

void tmpl_list_add(struct tmpl_parser *p, struct tmpl_list *list, uint32_t n)
{
    if (list->last)
        tmpl_node(p, list->last)->next = n;
    else
        list->first = n;
    list->last = n;
    list->count++;
}

// ---- statements

static uint32_t parse_statement(struct tmpl_parser *p);

// Statements up to a tag with one of the names `ends`, which is the current token then; to the end of the
// template where `ends` is NULL.
static uint32_t parse_until(struct tmpl_parser *p, const char *const *ends)
{
    struct tmpl_list body = {0};
    while (!p->err) {
        uint32_t at = p->tok.at, n;
        if (p->tok.kind == TOK_DATA) {
            n = tmpl_node_new(p, NODE_DATA, at);
            tmpl_node(p, n)->a = at;
            tmpl_node(p, n)->b = at + (uint32_t)p->tok.text.len;
            tmpl_parse_advance(p);
        } else if (tmpl_parse_skip(p, TOK_PRINT_BEGIN)) {
            n = tmpl_node_new(p, NODE_PRINT, at);
            uint32_t value = tmpl_parse_tuple(p, true, NULL);
            tmpl_node(p, n)->a = value;
            tmpl_parse_expect(p, TOK_PRINT_END, "the end of the print statement");
        } else if (tmpl_parse_skip(p, TOK_BLOCK_BEGIN)) {
            for (const char *const *end = ends; end && *end; end++) {
                if (tmpl_parse_is_name(p, *end))
                    return body.first;
            }
            n = parse_statement(p);
            tmpl_parse_expect(p, TOK_BLOCK_END, "the end of the tag");
        } else {
            if (ends)
                tmpl_parse_fail(p, ISO_E_FORMAT, at, "expected the tag '%s', got the end of the template",
                                ends[0]);
            break;
        }
        tmpl_list_add(p, &body, n);
    }
    return body.first;
}

// The same, after the tag that opens the block is complete.
static uint32_t parse_block(struct tmpl_parser *p, const char *const *ends)
{
    uint32_t depth = p->depth;
    tmpl_parse_enter(p);
    tmpl_parse_skip(p, TOK_COLON); // as in Python, allowed
    tmpl_parse_expect(p, TOK_BLOCK_END, "the end of the tag");
    uint32_t body = parse_until(p, ends);
    p->depth = depth;
    return body;
}

// A block whose names are its own.
static uint32_t parse_scope(struct tmpl_parser *p, const char *const *ends)
{
    p->scopes++;
    uint32_t body = parse_block(p, ends);
    p->scopes--;
    return body;
}

static uint32_t parse_if(struct tmpl_parser *p, uint32_t at)
{
    struct tmpl_list branches = {0};
    bool is_else = false;
    do {
        uint32_t branch = tmpl_node_new(p, NODE_BRANCH, p->tok.at);
        uint32_t test = is_else ? 0 : tmpl_parse_tuple(p, false, NULL);
        uint32_t body = parse_block(p, is_else ? ENDS_ELSE : ENDS_IF);
        tmpl_node(p, branch)->a = test;
        tmpl_node(p, branch)->b = body;
        tmpl_list_add(p, &branches, branch);
        is_else = tmpl_parse_skip_name(p, "else");
    } while (is_else || tmpl_parse_skip_name(p, "elif"));
    tmpl_parse_skip_name(p, "endif");
    uint32_t n = tmpl_node_new(p, NODE_IF, at);
    tmpl_node(p, n)->a = branches.first;
    return n;
}

static uint32_t parse_for(struct tmpl_parser *p, uint32_t at)
{
    p->loops++;
    uint32_t target = tmpl_parse_target(p, false, "in");
    p->loops--;
    if (!tmpl_parse_skip_name(p, "in"))
        tmpl_parse_unexpected(p, "'in'");
    uint32_t iterable = tmpl_parse_tuple(p, false, "recursive");
    uint32_t filter = tmpl_parse_skip_name(p, "if") ? tmpl_parse_expr(p) : 0;
    if (tmpl_parse_is_name(p, "recursive"))
        tmpl_parse_fail(p, ISO_E_UNSUPPORTED, p->tok.at, "recursive loops are not supported");
    uint32_t loop = tmpl_node_new(p, NODE_LOOP, at);
    p->loops++;
    uint32_t body = parse_scope(p, ENDS_FOR);
    p->loops--;
    uint32_t otherwise = tmpl_parse_skip_name(p, "else") ? parse_scope(p, ENDS_FOR_ELSE) : 0;
    tmpl_parse_skip_name(p, "endfor");
    tmpl_node(p, loop)->a = body;
    tmpl_node(p, loop)->b = otherwise;
    uint32_t n = tmpl_node_new(p, NODE_FOR, at);
    *tmpl_node(p, n) =
        (struct tmpl_node){.kind = NODE_FOR, .at = at, .a = target, .b = iterable, .c = filter, .d = loop};
    return n;
}

static uint32_t parse_set(struct tmpl_parser *p, uint32_t at)
{
    uint32_t target = tmpl_parse_target(p, true, NULL);
    bool is_block = p->tok.kind != TOK_ASSIGN;
    uint32_t value;
    if (!is_block) {
        tmpl_parse_advance(p);
        value = tmpl_parse_tuple(p, true, NULL);
    } else {
        if (p->tok.kind == TOK_PIPE)
            tmpl_parse_fail(p, ISO_E_UNSUPPORTED, p->tok.at, "a filter on a set block is not supported");
        value = parse_scope(p, ENDS_SET);
        tmpl_parse_skip_name(p, "endset");
    }
    uint32_t n = tmpl_node_new(p, is_block ? NODE_SET_BLOCK : NODE_SET, at);
    tmpl_node(p, n)->a = target;
    tmpl_node(p, n)->b = value;
    return n;
}

static uint32_t parse_parameters(struct tmpl_parser *p)
{
    struct tmpl_list list = {0};
    bool defaults = false;
    tmpl_parse_expect(p, TOK_LPAREN, "'('");
    while (!p->err && p->tok.kind != TOK_RPAREN) {
        struct tmpl_token name = p->tok;
        tmpl_parse_expect(p, TOK_NAME, "a parameter's name");
        uint32_t n = tmpl_node_new(p, NODE_PARAM, name.at);
        uint32_t value = tmpl_parse_skip(p, TOK_ASSIGN) ? tmpl_parse_expr(p) : 0;
        if (defaults && !value)
            tmpl_parse_fail(p, ISO_E_FORMAT, name.at, "a parameter without a default follows one with");
        defaults = value != 0;
        tmpl_node(p, n)->a = name.at;
        tmpl_node(p, n)->b = name.at + (uint32_t)name.text.len;
        tmpl_node(p, n)->c = value;
        tmpl_list_add(p, &list, n);
        if (list.count > TMPL_ARGS_MAX)
            tmpl_parse_fail(p, ISO_E_LIMIT, name.at, "more than %d parameters", TMPL_ARGS_MAX);
        if (p->tok.kind != TOK_RPAREN)
            tmpl_parse_expect(p, TOK_COMMA, "',' or ')'");
    }
    tmpl_parse_expect(p, TOK_RPAREN, "')'");
    return list.first;
}

static uint32_t parse_macro(struct tmpl_parser *p, uint32_t at)
{
    struct tmpl_token name = p->tok;
    if (p->scopes > 0)
        tmpl_parse_fail(p, ISO_E_UNSUPPORTED, at,
                        "a macro inside a loop, set block or macro is not supported");
    tmpl_parse_expect(p, TOK_NAME, "the macro's name");
    uint32_t parameters = parse_parameters(p), loops = p->loops;
    p->loops = 0;
    uint32_t body = parse_scope(p, ENDS_MACRO);
    p->loops = loops;
    tmpl_parse_skip_name(p, "endmacro");
    uint32_t n = tmpl_node_new(p, NODE_MACRO, at);
    *tmpl_node(p, n) = (struct tmpl_node){.kind = NODE_MACRO,
                                          .at = at,
                                          .a = name.at,
                                          .b = name.at + (uint32_t)name.text.len,
                                          .c = parameters,
                                          .d = body};
    return n;
}

// transformers marks with it what an assistant said. It shows nothing of itself, but its names are its own.
static uint32_t parse_generation(struct tmpl_parser *p, uint32_t at)
{
    uint32_t loops = p->loops;
    p->loops = 0; // break and continue don't lead out
    uint32_t body = parse_scope(p, ENDS_GENERATION);
    p->loops = loops;
    tmpl_parse_skip_name(p, "endgeneration");
    uint32_t n = tmpl_node_new(p, NODE_SCOPE, at);
    tmpl_node(p, n)->a = body;
    return n;
}

static uint32_t parse_statement(struct tmpl_parser *p)
{
    struct tmpl_token tag = p->tok;
    tmpl_parse_expect(p, TOK_NAME, "a tag's name");
    if (p->err)
        return 0;
    if (strv_is(tag.text, "if"))
        return parse_if(p, tag.at);
    if (strv_is(tag.text, "for"))
        return parse_for(p, tag.at);
    if (strv_is(tag.text, "set"))
        return parse_set(p, tag.at);
    if (strv_is(tag.text, "macro"))
        return parse_macro(p, tag.at);
    if (strv_is(tag.text, "generation"))
        return parse_generation(p, tag.at);
    bool is_break = strv_is(tag.text, "break");
    if (is_break || strv_is(tag.text, "continue")) {
        if (p->loops == 0)
            tmpl_parse_fail(p, ISO_E_FORMAT, tag.at, "'%.*s' outside a loop", STRV_ARG(tag.text));
        return tmpl_node_new(p, is_break ? NODE_BREAK : NODE_CONTINUE, tag.at);
    }
    for (size_t i = 0; i < ARRAY_LEN(UNSUPPORTED_TAGS); i++) {
        if (strv_is(tag.text, UNSUPPORTED_TAGS[i]))
            tmpl_parse_fail(p, ISO_E_UNSUPPORTED, tag.at, "the tag '%.*s' is not supported",
                            STRV_ARG(tag.text));
    }
    tmpl_parse_fail(p, ISO_E_FORMAT, tag.at, "unexpected tag '%.*s'", STRV_ARG(tag.text));
    return 0;
}

enum iso_err tmpl_parse(struct tmpl *t, struct iso_errinfo *reterr)
{
    struct tmpl_parser p = {.t = t, .reterr = reterr};
    tmpl_lex_init(&p.lexer, t->source);
    t->node_count = 1; // node 0 is none
    tmpl_parse_advance(&p);
    t->body = parse_until(&p, NULL);
    return p.err;
}
