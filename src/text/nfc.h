// Unicode normalization form C, as Hugging Face `tokenizers` 0.23 computes it: with the combining classes and
// compositions of Unicode 9. The tables are utf8proc's; marks that got their class later are kept apart.
//
// Linear time: utf8proc's own ordering of combining marks takes the square of their number, so marks are
// ordered here by counting. Pure functions over the caller's memory.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/strv.h"

// Bytes of workspace for texts of up to n bytes, 4-byte aligned.
size_t nfc_work_bytes(size_t n);

// Writes the normal form of `text` (valid UTF-8 of at most text_bytes_max bytes) to out[0..max) and its
// length to *ret_n. `work` has nfc_work_bytes(text_bytes_max). ISO_E_LIMIT where the result is longer than
// max.
enum iso_err nfc_normalize(struct strv text, void *work, size_t text_bytes_max, uint8_t *out, size_t max,
                           size_t *ret_n) ISO_MUST_USE;
