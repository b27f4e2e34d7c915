#include <math.h>
#include <stdlib.h>

#include "base/utf8.h"
#include "text/template_parse.h"
#include "text/template_text.h"

#define NUMBER_CHARS_MAX 400 // of a number literal

uint32_t tmpl_parse_integer(struct tmpl_parser *p)
{
    struct strv s = p->tok.text;
    int base = 10;
    if (s.len > 2 && s.ptr[0] == '0') {
        char mark = (char)(s.ptr[1] | 0x20);
        base = mark == 'x' ? 16 : mark == 'o' ? 8 : mark == 'b' ? 2 : 10;
    }
    int64_t value = 0;
    for (size_t i = base == 10 ? 0 : 2; i < s.len; i++) {
        if (s.ptr[i] == '_')
            continue;
        int digit = s.ptr[i] <= '9' ? s.ptr[i] - '0' : (s.ptr[i] | 0x20) - 'a' + 10;
        if (__builtin_mul_overflow(value, base, &value) || __builtin_add_overflow(value, digit, &value)) {
            tmpl_parse_fail(p, ISO_E_LIMIT, p->tok.at, "the integer has more than 63 bits");
            return 0;
        }
    }
    uint32_t n = tmpl_node_new(p, NODE_INT, p->tok.at);
    tmpl_node(p, n)->i = value;
    tmpl_parse_advance(p);
    return n;
}

uint32_t tmpl_parse_float(struct tmpl_parser *p)
{
    char digits[NUMBER_CHARS_MAX + 1];
    size_t len = 0;
    for (size_t i = 0; i < p->tok.text.len && len < NUMBER_CHARS_MAX; i++) {
        if (p->tok.text.ptr[i] != '_')
            digits[len++] = p->tok.text.ptr[i];
    }
    digits[len] = '\0';
    double value = strtod(digits, NULL);
    if (p->tok.text.len > NUMBER_CHARS_MAX || !isfinite(value)) {
        tmpl_parse_fail(p, ISO_E_LIMIT, p->tok.at, "the number is too long or too large");
        return 0;
    }
    uint32_t n = tmpl_node_new(p, NODE_FLOAT, p->tok.at);
    tmpl_node(p, n)->f = value;
    tmpl_parse_advance(p);
    return n;
}

// The value of `count_max` or fewer (but at least count_min) digits of `base` at s[*at]; moves *at past them.
static bool read_digits(struct strv s, size_t *at, int base, int count_min, int count_max, uint32_t *ret)
{
    uint32_t value = 0;
    int count = 0;
    for (; count < count_max && *at < s.len; count++, (*at)++) {
        char c = s.ptr[*at], lower = (char)(c | 0x20);
        int digit = c >= '0' && c <= '9' ? c - '0' : lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : base;
        if (digit >= base)
            break;
        value = value * (uint32_t)base + (uint32_t)digit;
    }
    *ret = value;
    return count >= count_min;
}

// Appends the character that the escape at s[*at] (after the backslash) stands for, as Python's strings have
// them; moves *at past it. NULL, or what is wrong.
static const char *unescape_one(struct tmpl *t, struct strv s, size_t *at)
{
    static const char LETTERS[] = "abfnrtv\\'\"", VALUES[] = "\a\b\f\n\r\t\v\\'\"";
    char c = s.ptr[*at];
    uint32_t cp = 0;
    const char *letter = c ? strchr(LETTERS, c) : NULL;
    if (c == '\n') {
        (*at)++;
        return NULL;
    }
    if (letter) {
        t->text[t->text_len++] = VALUES[letter - LETTERS];
        (*at)++;
        return NULL;
    }
    if (c >= '0' && c <= '7') {
        read_digits(s, at, 8, 1, 3, &cp);
    } else if (c == 'x' || c == 'u' || c == 'U') {
        (*at)++;
        int digits = c == 'x' ? 2 : c == 'u' ? 4 : 8;
        if (!read_digits(s, at, 16, digits, digits, &cp))
            return "an escape has too few hexadecimal digits";
    } else if (c == 'N' || (uint8_t)c >= 0x80) {
        return "an escape is not supported";
    } else { // not an escape: the backslash stays
        t->text[t->text_len++] = '\\';
        return NULL;
    }
    if (cp > 0x10FFFF || (cp >= 0xD800 && cp <= 0xDFFF))
        return "an escape is not a character";
    t->text_len += (uint32_t)utf8_encode(cp, (uint8_t *)t->text + t->text_len);
    return NULL;
}

// Appends a string token without quotes and escapes to the template's text. No escape is shorter than its
// character in UTF-8, so the text's room, the source's length, suffices.
static void unescape(struct tmpl_parser *p)
{
    struct tmpl *t = p->t;
    struct strv s = tmpl_sub(p->tok.text, 1, p->tok.text.len - 1);
    for (size_t at = 0; at < s.len;) {
        if (s.ptr[at] != '\\') {
            t->text[t->text_len++] = s.ptr[at++];
            continue;
        }
        size_t escape = at++;
        const char *wrong = unescape_one(t, s, &at);
        if (wrong) {
            tmpl_parse_fail(p, ISO_E_FORMAT, p->tok.at + 1 + escape, "%s", wrong);
            return;
        }
    }
}

uint32_t tmpl_parse_strings(struct tmpl_parser *p)
{
    uint32_t n = tmpl_node_new(p, NODE_STR, p->tok.at);
    tmpl_node(p, n)->a = p->t->text_len;
    while (p->tok.kind == TOK_STRING) { // neighbours are one
        unescape(p);
        tmpl_parse_advance(p);
    }
    tmpl_node(p, n)->b = p->t->text_len;
    return n;
}
