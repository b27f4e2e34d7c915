#include "text/template_text.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <utf8proc.h>

#include "base/assert.h"
#include "base/utf8.h"

#define FLOAT_DIGITS_MAX 17 // significant digits that tell any two doubles apart
#define FLOAT_FIXED_LOW  -4 // decimal exponents that Python writes without an "e"
#define FLOAT_FIXED_HIGH 16
#define CASE_CHARS_MAX   4 // one character becomes at most three in another case

static bool is_continuation(char byte)
{
    return ((uint8_t)byte & 0xC0) == 0x80;
}

size_t tmpl_space_at(struct strv s, size_t at)
{
    if (at >= s.len)
        return 0;
    uint8_t first = (uint8_t)s.ptr[at];
    if (first < 0x80)
        return first == ' ' || (first >= '\t' && first <= '\r') || (first >= 0x1C && first <= 0x1F);
    uint32_t cp = 0;
    size_t n = utf8_decode((const uint8_t *)s.ptr + at, s.len - at, &cp);
    if (n == 0)
        return 0;
    bool space = cp == 0x85 || cp == 0xA0 || cp == 0x1680 || (cp >= 0x2000 && cp <= 0x200A) || cp == 0x2028 ||
                 cp == 0x2029 || cp == 0x202F || cp == 0x205F || cp == 0x3000;
    return space ? n : 0;
}

size_t tmpl_skip_space(struct strv s, size_t at)
{
    for (size_t n; (n = tmpl_space_at(s, at)) > 0;)
        at += n;
    return at;
}

struct strv tmpl_strip(struct strv s, bool left, bool right)
{
    size_t from = left ? tmpl_skip_space(s, 0) : 0;
    size_t to = s.len;
    while (right && to > from) {
        size_t start = tmpl_char_start(s, to);
        if (tmpl_space_at(s, start) != to - start)
            break;
        to = start;
    }
    return tmpl_sub(s, from, to);
}

size_t tmpl_char_count(struct strv s)
{
    size_t count = s.len > 0;
    for (size_t i = 1; i < s.len; i++)
        count += !is_continuation(s.ptr[i]);
    return count;
}

size_t tmpl_char_end(struct strv s, size_t at)
{
    ASSERT(at < s.len);
    do {
        at++;
    } while (at < s.len && is_continuation(s.ptr[at]));
    return at;
}

size_t tmpl_char_start(struct strv s, size_t at)
{
    ASSERT(at > 0 && at <= s.len);
    do {
        at--;
    } while (at > 0 && is_continuation(s.ptr[at]));
    return at;
}

size_t tmpl_char_offset(struct strv s, size_t index)
{
    size_t at = 0;
    for (size_t i = 0; i < index && at < s.len; i++)
        at = tmpl_char_end(s, at);
    return at;
}

bool tmpl_find(struct strv s, struct strv needle, size_t from, size_t *ret_at)
{
    ASSERT(from <= s.len);
    if (needle.len > s.len - from)
        return false;
    const char *hit = needle.len ? memmem(s.ptr + from, s.len - from, needle.ptr, needle.len) : s.ptr + from;
    if (!hit)
        return false;
    *ret_at = (size_t)(hit - s.ptr);
    return true;
}

bool tmpl_is_printable(uint32_t cp)
{
    if (cp == ' ')
        return true;
    switch (utf8proc_category((utf8proc_int32_t)cp)) {
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS:
        return false;
    default:
        return true;
    }
}

// cp in upper case. utf8proc maps one character to one; where Unicode's mapping is longer (ß to SS), it is
// the upper case of each character of the case folding, except for capitals, which stay as they are.
static size_t upper_char(uint32_t cp, uint32_t out[CASE_CHARS_MAX])
{
    utf8proc_int32_t folded[CASE_CHARS_MAX];
    int boundclass = 0;
    utf8proc_ssize_t n =
        utf8proc_decompose_char((utf8proc_int32_t)cp, folded, CASE_CHARS_MAX, UTF8PROC_CASEFOLD, &boundclass);
    if (n < 2 || n > CASE_CHARS_MAX || utf8proc_category((utf8proc_int32_t)cp) == UTF8PROC_CATEGORY_LU) {
        out[0] = (uint32_t)utf8proc_toupper((utf8proc_int32_t)cp);
        return 1;
    }
    for (utf8proc_ssize_t i = 0; i < n; i++)
        out[i] = (uint32_t)utf8proc_toupper(folded[i]);
    return (size_t)n;
}

static size_t lower_char(uint32_t cp, uint32_t out[CASE_CHARS_MAX])
{
    if (cp == 0x130) { // dotted capital I: the only one with a longer lower case
        out[0] = 'i';
        out[1] = 0x307;
        return 2;
    }
    out[0] = (uint32_t)utf8proc_tolower((utf8proc_int32_t)cp);
    return 1;
}

enum iso_err tmpl_change_case(struct buf *b, struct strv s, bool upper)
{
    for (size_t at = 0; at < s.len;) {
        uint32_t cp = 0, changed[CASE_CHARS_MAX];
        size_t n = utf8_decode((const uint8_t *)s.ptr + at, s.len - at, &cp);
        enum iso_err err = n == 0 ? buf_append_byte(b, (uint8_t)s.ptr[at]) : ISO_OK;
        size_t count = n == 0 ? 0 : upper ? upper_char(cp, changed) : lower_char(cp, changed);
        for (size_t i = 0; i < count && !err; i++) {
            uint8_t bytes[UTF8_MAX_BYTES];
            err = buf_append(b, bytes, utf8_encode(changed[i], bytes));
        }
        if (err)
            return err;
        at += n == 0 ? 1 : n;
    }
    return ISO_OK;
}

size_t tmpl_float_text(double f, char out[TMPL_FLOAT_BYTES])
{
    if (!isfinite(f))
        return (size_t)snprintf(out, TMPL_FLOAT_BYTES, "%s", isnan(f) ? "nan" : f < 0 ? "-inf" : "inf");

    char text[TMPL_FLOAT_BYTES];
    int digits = 1;
    for (; digits < FLOAT_DIGITS_MAX; digits++) {
        snprintf(text, sizeof text, "%.*e", digits - 1, f);
        if (strtod(text, NULL) == f)
            break;
    }
    snprintf(text, sizeof text, "%.*e", digits - 1, f);
    int exponent = (int)strtol(strchr(text, 'e') + 1, NULL, 10);
    if (exponent < FLOAT_FIXED_LOW || exponent >= FLOAT_FIXED_HIGH)
        return (size_t)snprintf(out, TMPL_FLOAT_BYTES, "%s", text);
    int decimals = digits - 1 - exponent;
    return (size_t)snprintf(out, TMPL_FLOAT_BYTES, "%.*f", decimals < 1 ? 1 : decimals, f);
}
