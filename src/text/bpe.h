// Byte pair merging of one piece of text: while any two neighbours have a merge, the one with the lowest rank
// (then the leftmost) is merged. A heap keeps the candidates, so a piece of n bytes takes O(n log n) however
// it looks.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/strv.h"
#include "text/tok_blob.h"

// Bytes of workspace for pieces of up to n bytes, 8-byte aligned.
size_t bpe_work_bytes(size_t n);

// Writes the ids of `piece` (not over the workspace's n bytes) to ids[0..max) and their number to *ret_n.
// False where there are more than max. The piece is valid UTF-8. A byte (with SentencePiece a character)
// without a token is left out before merging.
bool bpe_encode(const struct tok_view *v, void *work, struct strv piece, uint32_t *ids, size_t max,
                size_t *ret_n) ISO_MUST_USE;
