#include "base/utf8.h"

#include "base/assert.h"

// What a first byte announces: length in bytes and the range of the second byte (Unicode 15, table 3-7).
struct lead {
    uint8_t len;
    uint8_t second_min, second_max;
};

static struct lead utf8_lead(uint8_t b)
{
    if (b < 0x80)
        return (struct lead){1, 0, 0};
    if (b < 0xC2 || b > 0xF4)
        return (struct lead){0, 0, 0};
    if (b < 0xE0)
        return (struct lead){2, 0x80, 0xBF};
    if (b < 0xF0)
        return (struct lead){3, b == 0xE0 ? 0xA0 : 0x80, b == 0xED ? 0x9F : 0xBF};
    return (struct lead){4, b == 0xF0 ? 0x90 : 0x80, b == 0xF4 ? 0x8F : 0xBF};
}

// How many of the first bytes of s[0..n) fit the beginning of one character.
static size_t utf8_fitting(const uint8_t *s, size_t n, struct lead lead)
{
    size_t i = 1;
    for (; i < lead.len && i < n; i++) {
        uint8_t low = i == 1 ? lead.second_min : 0x80;
        uint8_t high = i == 1 ? lead.second_max : 0xBF;
        if (s[i] < low || s[i] > high)
            break;
    }
    return i;
}

size_t utf8_decode(const uint8_t *s, size_t n, uint32_t *ret_cp)
{
    if (n == 0)
        return 0;
    struct lead lead = utf8_lead(s[0]);
    if (lead.len == 0 || utf8_fitting(s, n, lead) != lead.len)
        return 0;
    static const uint8_t FIRST_MASK[UTF8_MAX_BYTES + 1] = {0, 0x7F, 0x1F, 0x0F, 0x07};
    uint32_t cp = s[0] & FIRST_MASK[lead.len];
    for (size_t i = 1; i < lead.len; i++)
        cp = cp << 6 | (s[i] & 0x3Fu);
    *ret_cp = cp;
    return lead.len;
}

size_t utf8_encode(uint32_t cp, uint8_t *out)
{
    ASSERT(cp <= 0x10FFFF && (cp < 0xD800 || cp > 0xDFFF));
    if (cp < 0x80) {
        out[0] = (uint8_t)cp;
        return 1;
    }
    size_t len = cp < 0x800 ? 2 : cp < 0x10000 ? 3 : 4;
    static const uint8_t FIRST_BITS[UTF8_MAX_BYTES + 1] = {0, 0, 0xC0, 0xE0, 0xF0};
    for (size_t i = len - 1; i > 0; i--) {
        out[i] = (uint8_t)(0x80 | (cp & 0x3F));
        cp >>= 6;
    }
    out[0] = (uint8_t)(FIRST_BITS[len] | cp);
    return len;
}

bool utf8_is_prefix(const uint8_t *s, size_t n)
{
    if (n == 0)
        return false;
    struct lead lead = utf8_lead(s[0]);
    return n < lead.len && utf8_fitting(s, n, lead) == n;
}

size_t utf8_invalid_length(const uint8_t *s, size_t n)
{
    ASSERT(n > 0);
    struct lead lead = utf8_lead(s[0]);
    return lead.len == 0 ? 1 : utf8_fitting(s, n, lead);
}

size_t utf8_valid_length(const uint8_t *s, size_t n)
{
    size_t at = 0, length = 1;
    uint32_t cp;
    for (; at < n && length > 0; at += length)
        length = utf8_decode(s + at, n - at, &cp);
    return at;
}

bool utf8_is_valid(const uint8_t *s, size_t n)
{
    return utf8_valid_length(s, n) == n;
}
