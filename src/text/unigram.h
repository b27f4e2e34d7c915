// SentencePiece's unigram model: of all ways to cut a piece of text into tokens the one whose scores have the greatest sum.
//
// Equal to Hugging Face `tokenizers`, whose Unigram this follows, but for the names of byte and control tokens, which
// it finds in plain text ("<0x41>" becomes the byte's token) and which are ordinary text here: scores and sums are f64; a character that no token
// stands for alone may be the unknown token, for a score 10 below the vocabulary's least; of two cuts with equal sums the
// one that is found first stays, where places are visited in ascending order and from each the shorter token first. Unknown
// characters beside each other are one; they become their bytes' tokens where the vocabulary has all of them.
//
// Time: for each character as many steps as the longest token that begins with what stands there has bytes, at most
// TOK_UNIGRAM_BYTES_MAX.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/strv.h"
#include "text/tok_blob.h"

// Bytes of workspace for pieces of up to n bytes, 8-byte aligned.
size_t unigram_work_bytes(size_t n);

// Writes the ids of `piece` (valid UTF-8, not over the workspace's n bytes) to ids[0..max) and their number to *ret_n.
// False where there are more than max. `v` has scores.
bool unigram_encode(const struct tok_view *v, void *work, struct strv piece, uint32_t *ids, size_t max,
                    size_t *ret_n) ISO_MUST_USE;
