// Stop strings: watches a stream of text for the first place where one of them is complete.
//
// Text that may be the beginning of a stop string is held back, so a stop string is never emitted in part,
// wherever tokens end. The stream stops at the first byte that completes any of them (the longest one that
// ends there), however the text is cut into pushes. Each byte costs amortized constant time for each string.
//
// A fixed struct of about 12 KiB, no allocation.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/strv.h"

#define STOP_STRINGS_MAX 16
#define STOP_BYTES_MAX   256
#define STOP_HELD_MAX    (STOP_BYTES_MAX - 1)

struct stop_string {
    uint8_t bytes[STOP_BYTES_MAX];
    uint16_t fallback[STOP_BYTES_MAX]; // of the first i + 1 bytes: length of the longest proper border
    uint16_t len;
    uint16_t matched; // bytes of it that the stream now ends with
};

struct stop {
    struct stop_string strings[STOP_STRINGS_MAX];
    uint8_t n_strings;
    bool hit;
    uint8_t n_held;
    char held[STOP_HELD_MAX];
};

// Takes n strings (0 is allowed). Refused: more than STOP_STRINGS_MAX, an empty one, one over STOP_BYTES_MAX
// or one that isn't UTF-8 (so that what is emitted ends between characters).
enum iso_err stop_init(struct stop *s, const struct strv *strings, size_t n,
                       struct iso_errinfo *reterr) ISO_MUST_USE;
// Writes what may be emitted now to out[text.len + STOP_HELD_MAX], returns its bytes. *ret_hit: a stop string
// was completed; what was emitted is all before it, the rest of the text is dropped, as is all later text.
size_t stop_push(struct stop *s, struct strv text, char *out, bool *ret_hit);
// At the end of the stream: what is still held, to out[STOP_HELD_MAX]; returns its bytes. Nothing after a
// hit.
size_t stop_flush(struct stop *s, char *out);
