// Text as Python's str sees it, on UTF-8 bytes: white space, characters, case, numbers' spelling. Pure
// functions. A character is a byte that does not continue another, with the continuation bytes after it, so
// bytes that are not valid UTF-8 are counted too and nothing reads past the end.
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/strv.h"

#define TMPL_FLOAT_BYTES 32 // enough for any float's text and a zero

static inline struct strv tmpl_sub(struct strv s, size_t from, size_t to)
{
    return (struct strv){s.ptr + from, to - from};
}

// Bytes of the white space character (str.isspace) at s[at], or 0 where there is none.
size_t tmpl_space_at(struct strv s, size_t at);
// First position at or after `at` that is not white space.
size_t tmpl_skip_space(struct strv s, size_t at);
// s without white space at its ends.
struct strv tmpl_strip(struct strv s, bool left, bool right);

size_t tmpl_char_count(struct strv s);
// Where the character at s[at] ends; where the one before s[at] starts (at > 0).
size_t tmpl_char_end(struct strv s, size_t at);
size_t tmpl_char_start(struct strv s, size_t at);
// Byte offset of character `index`, or s.len where there are not so many.
size_t tmpl_char_offset(struct strv s, size_t index);
// First needle in s at or after `from`; an empty needle is found at `from`.
bool tmpl_find(struct strv s, struct strv needle, size_t from, size_t *ret_at);

// str.isprintable of one character.
bool tmpl_is_printable(uint32_t cp);
// Appends s in upper or lower case (Unicode's full mapping but for the final sigma).
enum iso_err tmpl_change_case(struct buf *b, struct strv s, bool upper) ISO_MUST_USE;

// The shortest text that reads back as f, spelled as Python's repr does; returns its length.
size_t tmpl_float_text(double f, char out[TMPL_FLOAT_BYTES]);
