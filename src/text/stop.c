#include "text/stop.h"

#include <string.h>

#include "base/assert.h"
#include "base/num.h"
#include "base/utf8.h"

static_assert(STOP_HELD_MAX <= UINT8_MAX, "n_held");

// The automaton of Knuth, Morris and Pratt: from `matched` bytes with one more byte c.
static uint16_t advance(const struct stop_string *s, uint16_t matched, uint8_t c)
{
    while (matched > 0 && (matched == s->len || s->bytes[matched] != c))
        matched = s->fallback[matched - 1];
    return s->bytes[matched] == c ? (uint16_t)(matched + 1) : 0;
}

static void string_init(struct stop_string *s, struct strv text)
{
    *s = (struct stop_string){.len = (uint16_t)text.len};
    memcpy(s->bytes, text.ptr, text.len);
    for (uint16_t i = 1; i < s->len; i++)
        s->fallback[i] = advance(s, s->fallback[i - 1], s->bytes[i]);
}

enum iso_err stop_init(struct stop *s, const struct strv *strings, size_t n, struct iso_errinfo *reterr)
{
    if (n > STOP_STRINGS_MAX)
        return iso_fail(reterr, ISO_E_LIMIT, 0, "stop", "there are %zu stop strings, at most %d are allowed",
                        n, STOP_STRINGS_MAX);
    for (size_t i = 0; i < n; i++) {
        if (strings[i].len == 0 || strings[i].len > STOP_BYTES_MAX)
            return iso_fail(reterr, ISO_E_LIMIT, 0, "stop",
                            "stop string %zu has %zu bytes, allowed are 1 to %d", i + 1, strings[i].len,
                            STOP_BYTES_MAX);
        if (!utf8_is_valid((const uint8_t *)strings[i].ptr, strings[i].len))
            return iso_fail(reterr, ISO_E_FORMAT, 0, "stop", "stop string %zu is not valid UTF-8", i + 1);
    }
    s->n_strings = (uint8_t)n;
    s->hit = false;
    s->n_held = 0;
    for (size_t i = 0; i < n; i++)
        string_init(&s->strings[i], strings[i]);
    return ISO_OK;
}

// Feeds one byte to all strings. Returns the length of the longest one now complete, or 0.
static size_t feed(struct stop *s, uint8_t c)
{
    size_t complete = 0;
    for (size_t i = 0; i < s->n_strings; i++) {
        struct stop_string *string = &s->strings[i];
        string->matched = advance(string, string->matched, c);
        if (string->matched == string->len)
            complete = (size_t)num_max(complete, string->len);
    }
    return complete;
}

size_t stop_push(struct stop *s, struct strv text, char *out, bool *ret_hit)
{
    *ret_hit = s->hit;
    if (s->hit || text.len == 0)
        return 0;
    size_t complete = 0, used = 0;
    while (used < text.len && complete == 0)
        complete = feed(s, (uint8_t)text.ptr[used++]);

    // The stream now ends with what was held and text[0..used). Keep back the complete string (to drop it),
    // or the longest beginning of one.
    size_t back = complete;
    for (size_t i = 0; i < s->n_strings && complete == 0; i++)
        back = (size_t)num_max(back, s->strings[i].matched);
    ASSERT(back <= s->n_held + used);
    size_t emit = s->n_held + used - back;
    size_t from_held = (size_t)num_min(emit, s->n_held), from_text = emit - from_held;
    memcpy(out, s->held, from_held);
    memcpy(out + from_held, text.ptr, from_text);
    if (complete > 0) {
        s->n_held = 0;
        *ret_hit = s->hit = true;
        return emit;
    }
    ASSERT(back <= STOP_HELD_MAX);
    size_t held_left = s->n_held - from_held;
    memmove(s->held, s->held + from_held, held_left);
    memcpy(s->held + held_left, text.ptr + from_text, used - from_text);
    s->n_held = (uint8_t)back;
    return emit;
}

size_t stop_flush(struct stop *s, char *out)
{
    size_t n = s->n_held;
    memcpy(out, s->held, n);
    s->n_held = 0;
    for (size_t i = 0; i < s->n_strings; i++)
        s->strings[i].matched = 0;
    return n;
}
