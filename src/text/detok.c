#include "text/detok.h"

#include <string.h>

#include "base/assert.h"
#include "base/utf8.h"

static_assert(DETOK_HELD_MAX == UTF8_MAX_BYTES - 1, "all but the last byte of a character");

void detok_init(struct detok *d, const struct tokenizer *t)
{
    *d = (struct detok){.tokenizer = t};
}

size_t detok_push(struct detok *d, uint32_t id, char *out)
{
    ASSERT(d->n_held <= DETOK_HELD_MAX);
    enum tok_type type = tok_type_of(d->tokenizer, id);
    if (type != TOK_TYPE_NORMAL && type != TOK_TYPE_USER_DEFINED && type != TOK_TYPE_BYTE)
        return 0;
    struct strv piece = tok_piece(d->tokenizer, id);
    ASSERT(piece.len <= TOK_TOKEN_BYTES_MAX);
    uint8_t s[DETOK_HELD_MAX + TOK_TOKEN_BYTES_MAX];
    size_t n = d->n_held + piece.len;
    memcpy(s, d->held, d->n_held);
    memcpy(s + d->n_held, piece.ptr, piece.len);

    size_t i = 0, n_out = 0;
    while (i < n && !utf8_is_prefix(s + i, n - i)) {
        uint32_t cp = UTF8_REPLACEMENT;
        size_t used = utf8_decode(s + i, n - i, &cp);
        if (used == 0)
            used = utf8_invalid_length(s + i, n - i);
        n_out += utf8_encode(cp, (uint8_t *)out + n_out);
        i += used;
    }
    d->n_held = (uint8_t)(n - i);
    memcpy(d->held, s + i, n - i);
    return n_out;
}

size_t detok_flush(struct detok *d, char *out)
{
    bool unfinished = d->n_held > 0;
    d->n_held = 0;
    return unfinished ? utf8_encode(UTF8_REPLACEMENT, (uint8_t *)out) : 0;
}
