// Pre-tokenizer: cuts text into the pieces that byte pairs are merged within, with the models' own regular
// expressions on PCRE2 (interpreted, no JIT: that would need writable and executable memory). They run over
// one byte for each character, which says of it what they ask (char_class.h).
//
// Ownership: an open pre-tokenizer holds pretok_bytes() of memory, out of which PCRE2 gets all of its own;
// opening runs it once, so that it needs no more later. One thread at a time.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/strv.h"

// Part of the file format (tok_blob.h).
enum pretok_kind {
    PRETOK_GPT2 = 1,
    PRETOK_SMOLLM = 2,
    PRETOK_QWEN2 = 3,
    PRETOK_LLAMA_BPE = 4,
    PRETOK_SENTENCEPIECE = 5,
    PRETOK_SENTENCEPIECE_WORDS = 6,
    PRETOK_TEKKEN = 7,
};

// By the name that GGUF gives it. ISO_E_UNSUPPORTED with the list of known names.
enum iso_err pretok_find(struct strv name, enum pretok_kind *ret, struct iso_errinfo *reterr) ISO_MUST_USE;
// NULL for a number that is no kind.
const char *pretok_name(uint32_t kind);
// Text is brought to NFC first (nfc.h).
bool pretok_normalizes(enum pretok_kind kind);
// Pieces are of characters instead of bytes; nothing is cut, or (words) before each space.
bool pretok_is_sentencepiece(enum pretok_kind kind);
// A piece that is a token as a whole is taken as it is, without merging.
bool pretok_takes_whole(enum pretok_kind kind);

struct pretok;

// Bytes that a pre-tokenizer reserves for texts of up to text_bytes_max bytes.
size_t pretok_bytes(size_t text_bytes_max);
enum iso_err pretok_open(enum pretok_kind kind, size_t text_bytes_max, struct pretok **ret,
                         struct iso_errinfo *reterr) ISO_MUST_USE;
// NULL is allowed.
void pretok_close(struct pretok *p);

// Starts on a text (valid UTF-8, not over text_bytes_max), which must stay as long as pieces are taken.
void pretok_start(struct pretok *p, struct strv text);
// The next piece; an empty one at the end. All pieces in order are the text. ISO_E_LIMIT where PCRE2 stops at
// one of its limits.
enum iso_err pretok_next(struct pretok *p, struct strv *ret_piece, struct iso_errinfo *reterr) ISO_MUST_USE;
