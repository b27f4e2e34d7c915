#include "text/template_lex.h"

#include <stdarg.h>
#include <stdio.h>

#include "base/assert.h"
#include "text/template_text.h"

#define SIGN_NONE 0 // white space control of a tag's end: none, '-' or '+'

static const struct {
    const char *text;
    enum tmpl_token_kind kind;
} OPERATORS[] = {
    // the longer ones first
    {"//", TOK_FLOORDIV}, {"**", TOK_POW},     {"==", TOK_EQ},      {"!=", TOK_NE},    {">=", TOK_GE},
    {"<=", TOK_LE},       {"+", TOK_ADD},      {"-", TOK_SUB},      {"*", TOK_MUL},    {"/", TOK_DIV},
    {"%", TOK_MOD},       {"~", TOK_TILDE},    {"<", TOK_LT},       {">", TOK_GT},     {"=", TOK_ASSIGN},
    {".", TOK_DOT},       {":", TOK_COLON},    {",", TOK_COMMA},    {"|", TOK_PIPE},   {"(", TOK_LPAREN},
    {")", TOK_RPAREN},    {"[", TOK_LBRACKET}, {"]", TOK_RBRACKET}, {"{", TOK_LBRACE}, {"}", TOK_RBRACE},
    {";", TOK_SEMICOLON},
};

enum iso_err tmpl_fail_at(struct iso_errinfo *reterr, enum iso_err code, struct strv source, size_t at,
                          const char *format, ...)
{
    ASSERT(at <= source.len);
    unsigned line = 1;
    size_t line_start = 0;
    for (size_t i = 0; i < at; i++) {
        if (source.ptr[i] == '\n') {
            line++;
            line_start = i + 1;
        }
    }
    char place[ISO_ERR_FIELD_MAX], message[ISO_ERR_TEXT_MAX];
    snprintf(place, sizeof place, "line %u, column %zu", line,
             tmpl_char_count(tmpl_sub(source, line_start, at)) + 1);
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    return iso_fail(reterr, code, at, place, "%s: %s", place, message);
}

void tmpl_lex_init(struct tmpl_lexer *lx, struct strv source)
{
    *lx = (struct tmpl_lexer){.source = source, .tag = TOK_DATA};
}

static bool is_at(const struct tmpl_lexer *lx, size_t at, const char *text)
{
    return at <= lx->source.len && strv_starts(tmpl_sub(lx->source, at, lx->source.len), text);
}

static char char_at(const struct tmpl_lexer *lx, size_t at)
{
    return at < lx->source.len ? lx->source.ptr[at] : '\0';
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static bool is_name_char(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || is_digit(c);
}

static struct tmpl_token token(const struct tmpl_lexer *lx, enum tmpl_token_kind kind, size_t from, size_t to)
{
    return (struct tmpl_token){kind, (uint32_t)from, tmpl_sub(lx->source, from, to)};
}

// ---- outside tags

// Where the tag that ends with `end` at `at` is over: past the white space after "-%}", past one newline
// after "%}" where `trim` says so.
static size_t after_tag(const struct tmpl_lexer *lx, size_t at, char sign, bool trim)
{
    size_t next = at + 2;
    if (sign == '-')
        return tmpl_skip_space(lx->source, next);
    return trim && sign == SIGN_NONE && char_at(lx, next) == '\n' ? next + 1 : next;
}

// Is there, at `at`, a tag of the one word `word` ({%- raw %})? Sets *ret_sign to the sign at its beginning,
// *ret_end to what follows it. Only {% endraw +%} may have a plus and trims a newline.
static bool word_tag(const struct tmpl_lexer *lx, size_t at, const char *word, bool is_end, char *ret_sign,
                     size_t *ret_end)
{
    if (!is_at(lx, at, "{%"))
        return false;
    char sign = char_at(lx, at + 2);
    sign = sign == '-' || sign == '+' ? sign : SIGN_NONE;
    size_t pos = tmpl_skip_space(lx->source, at + 2 + (sign != SIGN_NONE));
    if (!is_at(lx, pos, word))
        return false;
    pos = tmpl_skip_space(lx->source, pos + strlen(word));
    char end_sign = char_at(lx, pos);
    end_sign = end_sign == '-' || (is_end && end_sign == '+') ? end_sign : SIGN_NONE;
    pos += end_sign != SIGN_NONE;
    if (!is_at(lx, pos, "%}"))
        return false;
    *ret_sign = sign;
    *ret_end = after_tag(lx, pos, end_sign, is_end);
    return true;
}

// The text source[from..to) before a tag with `sign` at its beginning, trimmed. `lstrip` where the tag is not
// a print: white space alone between the line's beginning and the tag goes.
static struct strv trim_before(const struct tmpl_lexer *lx, size_t from, size_t to, char sign, bool lstrip)
{
    struct strv text = tmpl_sub(lx->source, from, to);
    if (sign == '-')
        return tmpl_strip(text, false, true);
    if (sign == '+' || !lstrip)
        return text;
    const char *newline = text.len ? memrchr(text.ptr, '\n', text.len) : NULL;
    size_t line = newline ? (size_t)(newline - text.ptr) + 1 : 0;
    bool starts_line = newline || from == 0 || lx->source.ptr[from - 1] == '\n';
    if (starts_line && tmpl_skip_space(text, line) == text.len)
        text.len = line;
    return text;
}

// First "{{", "{%" or "{#" at or after `at`, or the end.
static size_t find_tag(const struct tmpl_lexer *lx, size_t at)
{
    for (; at + 1 < lx->source.len; at++) {
        const char *brace = memchr(lx->source.ptr + at, '{', lx->source.len - 1 - at);
        if (!brace)
            break;
        at = (size_t)(brace - lx->source.ptr);
        char c = brace[1];
        if (c == '{' || c == '%' || c == '#')
            return at;
    }
    return lx->source.len;
}

static enum iso_err skip_comment(struct tmpl_lexer *lx, size_t body, struct iso_errinfo *reterr)
{
    size_t end;
    if (!tmpl_find(lx->source, STRV_LIT("#}"), body, &end))
        return tmpl_fail_at(reterr, ISO_E_FORMAT, lx->source, lx->pos, "the comment has no end");
    char sign = end > body ? lx->source.ptr[end - 1] : SIGN_NONE;
    lx->pos = after_tag(lx, end, sign == '-' || sign == '+' ? sign : SIGN_NONE, true);
    return ISO_OK;
}

// Text up to {% endraw %}; `body` is where it begins.
static enum iso_err lex_raw(struct tmpl_lexer *lx, size_t body, struct tmpl_token *ret,
                            struct iso_errinfo *reterr)
{
    for (size_t at = body; at < lx->source.len; at++) {
        at = find_tag(lx, at);
        char sign;
        size_t end;
        if (at >= lx->source.len || !word_tag(lx, at, "endraw", true, &sign, &end))
            continue;
        *ret = (struct tmpl_token){TOK_DATA, (uint32_t)body, trim_before(lx, body, at, sign, true)};
        lx->pos = end;
        return ISO_OK;
    }
    return tmpl_fail_at(reterr, ISO_E_FORMAT, lx->source, lx->pos, "raw has no endraw");
}

// One step outside tags. *ret may be an empty TOK_DATA, which the caller skips.
static enum iso_err lex_text(struct tmpl_lexer *lx, struct tmpl_token *ret, struct iso_errinfo *reterr)
{
    size_t from = lx->pos, at = find_tag(lx, from);
    if (at == lx->source.len) {
        lx->pos = at;
        *ret = token(lx, from == at ? TOK_EOF : TOK_DATA, from, at);
        return ISO_OK;
    }
    char sign = char_at(lx, at + 2), kind = lx->source.ptr[at + 1];
    sign = sign == '-' || sign == '+' ? sign : SIGN_NONE;
    if (at > from) {
        *ret = (struct tmpl_token){TOK_DATA, (uint32_t)from, trim_before(lx, from, at, sign, kind != '{')};
        lx->pos = at;
        return ISO_OK;
    }
    size_t body = at + 2 + (sign != SIGN_NONE), raw_body;
    char raw_sign;
    if (kind == '#') {
        *ret = token(lx, TOK_DATA, at, at);
        return skip_comment(lx, body, reterr);
    }
    if (word_tag(lx, at, "raw", false, &raw_sign, &raw_body))
        return lex_raw(lx, raw_body, ret, reterr);
    lx->tag = kind == '{' ? TOK_PRINT_BEGIN : TOK_BLOCK_BEGIN;
    lx->pos = body;
    *ret = token(lx, lx->tag, at, body);
    return ISO_OK;
}

// ---- inside tags

// Digits with single underscores between them: where they end, or `at` where there are none.
static size_t skip_digits(const struct tmpl_lexer *lx, size_t at)
{
    while (is_digit(char_at(lx, at)) ||
           (char_at(lx, at) == '_' && is_digit(char_at(lx, at - 1)) && is_digit(char_at(lx, at + 1))))
        at++;
    return at;
}

// Where the exponent (e+10) at `at` ends, or `at`.
static size_t skip_exponent(const struct tmpl_lexer *lx, size_t at)
{
    if ((char_at(lx, at) | 0x20) != 'e')
        return at;
    size_t digits = at + 1 + (char_at(lx, at + 1) == '+' || char_at(lx, at + 1) == '-');
    return is_digit(char_at(lx, digits)) ? skip_digits(lx, digits) : at;
}

static bool is_base_digit(char c, int base)
{
    int value = is_digit(c) ? c - '0' : (c | 0x20) >= 'a' && (c | 0x20) <= 'f' ? (c | 0x20) - 'a' + 10 : 99;
    return value < base;
}

// 0x1F, 0b1, 0o7: where it ends, or `at`.
static size_t skip_based(const struct tmpl_lexer *lx, size_t at)
{
    char mark = char_at(lx, at) == '0' ? (char)(char_at(lx, at + 1) | 0x20) : '\0';
    int base = mark == 'x' ? 16 : mark == 'o' ? 8 : mark == 'b' ? 2 : 0;
    if (base == 0)
        return at;
    size_t pos = at + 2;
    for (;;) {
        size_t digit = pos + (char_at(lx, pos) == '_');
        if (!is_base_digit(char_at(lx, digit), base))
            break;
        pos = digit + 1;
    }
    return pos == at + 2 ? at : pos;
}

static void lex_number(struct tmpl_lexer *lx, size_t at, struct tmpl_token *ret)
{
    size_t end = skip_digits(lx, at);
    bool after_dot = at > 0 && lx->source.ptr[at - 1] == '.'; // x.0.1 subscripts twice
    size_t fraction =
        char_at(lx, end) == '.' && is_digit(char_at(lx, end + 1)) ? skip_digits(lx, end + 1) : end;
    size_t float_end = skip_exponent(lx, fraction);
    enum tmpl_token_kind kind = TOK_INTEGER;
    if (!after_dot && float_end > end) {
        kind = TOK_FLOAT;
        end = float_end;
    } else if (skip_based(lx, at) > at) {
        end = skip_based(lx, at);
    } else if (lx->source.ptr[at] == '0') { // a decimal has no leading zero: 00 is one, 01 is two tokens
        for (end = at + 1;
             char_at(lx, end) == '0' || (char_at(lx, end) == '_' && char_at(lx, end + 1) == '0');)
            end++;
    }
    *ret = token(lx, kind, at, end);
    lx->pos = end;
}

static enum iso_err lex_string(struct tmpl_lexer *lx, size_t at, struct tmpl_token *ret,
                               struct iso_errinfo *reterr)
{
    char quote = lx->source.ptr[at];
    for (size_t pos = at + 1; pos < lx->source.len; pos++) {
        if (lx->source.ptr[pos] == '\\') {
            pos++;
        } else if (lx->source.ptr[pos] == quote) {
            *ret = token(lx, TOK_STRING, at, pos + 1);
            lx->pos = pos + 1;
            return ISO_OK;
        }
    }
    return tmpl_fail_at(reterr, ISO_E_FORMAT, lx->source, at, "the string has no end");
}

static enum iso_err lex_operator(struct tmpl_lexer *lx, size_t at, struct tmpl_token *ret,
                                 struct iso_errinfo *reterr)
{
    size_t row = 0;
    while (row < ARRAY_LEN(OPERATORS) && !is_at(lx, at, OPERATORS[row].text))
        row++;
    if (row == ARRAY_LEN(OPERATORS)) {
        struct strv c = tmpl_sub(lx->source, at, tmpl_char_end(lx->source, at));
        return tmpl_fail_at(reterr, ISO_E_FORMAT, lx->source, at, "unexpected character '%.*s'", STRV_ARG(c));
    }
    enum tmpl_token_kind kind = OPERATORS[row].kind;
    char c = lx->source.ptr[at];
    if (kind == TOK_LPAREN || kind == TOK_LBRACKET || kind == TOK_LBRACE) {
        if (lx->bracket_count == TMPL_DEPTH_MAX)
            return tmpl_fail_at(reterr, ISO_E_LIMIT, lx->source, at, "brackets nest deeper than %d",
                                TMPL_DEPTH_MAX);
        lx->brackets[lx->bracket_count++] = c == '(' ? ')' : c == '[' ? ']' : '}';
    } else if (kind == TOK_RPAREN || kind == TOK_RBRACKET || kind == TOK_RBRACE) {
        if (lx->bracket_count == 0)
            return tmpl_fail_at(reterr, ISO_E_FORMAT, lx->source, at, "unexpected '%c'", c);
        char expected = lx->brackets[--lx->bracket_count];
        if (c != expected)
            return tmpl_fail_at(reterr, ISO_E_FORMAT, lx->source, at, "unexpected '%c', expected '%c'", c,
                                expected);
    }
    lx->pos = at + strlen(OPERATORS[row].text);
    *ret = token(lx, kind, at, lx->pos);
    return ISO_OK;
}

// Is the tag's end at `at`? Moves past it and what it trims.
static bool lex_tag_end(struct tmpl_lexer *lx, size_t at, struct tmpl_token *ret)
{
    bool print = lx->tag == TOK_PRINT_BEGIN;
    char sign = char_at(lx, at);
    sign = sign == '-' || (sign == '+' && !print) ? sign : SIGN_NONE;
    size_t end = at + (sign != SIGN_NONE);
    if (!is_at(lx, end, print ? "}}" : "%}"))
        return false;
    *ret = token(lx, print ? TOK_PRINT_END : TOK_BLOCK_END, at, end + 2);
    lx->pos = after_tag(lx, end, sign, !print);
    lx->tag = TOK_DATA;
    return true;
}

static enum iso_err lex_tag(struct tmpl_lexer *lx, struct tmpl_token *ret, struct iso_errinfo *reterr)
{
    size_t at = tmpl_skip_space(lx->source, lx->pos);
    char c = char_at(lx, at);
    if (at == lx->source.len) {
        lx->pos = at;
        *ret = token(lx, TOK_EOF, at, at);
        return ISO_OK;
    }
    if (lx->bracket_count == 0 && lex_tag_end(lx, at, ret))
        return ISO_OK;
    if (is_digit(c)) {
        lex_number(lx, at, ret);
        return ISO_OK;
    }
    if (is_name_char(c)) {
        size_t end = at;
        while (is_name_char(char_at(lx, end)))
            end++;
        *ret = token(lx, TOK_NAME, at, end);
        lx->pos = end;
        return ISO_OK;
    }
    return c == '\'' || c == '"' ? lex_string(lx, at, ret, reterr) : lex_operator(lx, at, ret, reterr);
}

enum iso_err tmpl_lex_next(struct tmpl_lexer *lx, struct tmpl_token *ret, struct iso_errinfo *reterr)
{
    if (lx->tag != TOK_DATA)
        return lex_tag(lx, ret, reterr);
    for (;;) { // each round moves on, or gives a token that isn't empty text
        struct tmpl_token tok;
        enum iso_err err = lex_text(lx, &tok, reterr);
        if (err)
            return err;
        if (tok.kind != TOK_DATA || tok.text.len > 0) {
            *ret = tok;
            return ISO_OK;
        }
    }
}
