// Incremental detokenizer: token ids in, whole UTF-8 characters out.
//
// The text over all pushes and the flush is what Python's bytes.decode("utf-8", errors="replace") makes of
// the tokens' bytes put together. Up to three bytes of an unfinished character are held back. Control,
// unknown and unused tokens, and ids past the vocabulary, give no text.
//
// A small struct without pointers of its own; copy it to fork a stream. The tokenizer must outlive it and is
// only read.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "text/tokenizer.h"

#define DETOK_HELD_MAX 3
// Room for one push: every held byte and every byte of the token may become a U+FFFD of three bytes.
#define DETOK_OUT_MAX   (3 * (DETOK_HELD_MAX + TOK_TOKEN_BYTES_MAX))
#define DETOK_FLUSH_MAX 3

struct detok {
    const struct tokenizer *tokenizer;
    uint8_t held[DETOK_HELD_MAX];
    uint8_t n_held;
};

void detok_init(struct detok *d, const struct tokenizer *t);
// Writes the characters that token `id` completes to out[DETOK_OUT_MAX]; returns their bytes, maybe 0.
size_t detok_push(struct detok *d, uint32_t id, char *out);
// At the end of the stream: U+FFFD where an unfinished character is held. Writes to out[DETOK_FLUSH_MAX].
size_t detok_flush(struct detok *d, char *out);
