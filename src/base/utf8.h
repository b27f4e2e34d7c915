// UTF-8 as in RFC 3629: no overlong forms, no surrogates, at most U+10FFFF. Pure functions over caller's
// bytes.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define UTF8_MAX_BYTES   4
#define UTF8_REPLACEMENT 0xFFFDu

// Decodes the character at the start of s[0..n). Returns its length in bytes, or 0 where the bytes are not
// one whole valid character (*ret_cp untouched).
size_t utf8_decode(const uint8_t *s, size_t n, uint32_t *ret_cp);

// Encodes cp (a valid scalar value) into out[UTF8_MAX_BYTES]; returns its length.
size_t utf8_encode(uint32_t cp, uint8_t *out);

// True where s[0..n) is a proper, incomplete beginning of a valid character (0 < n < its length).
bool utf8_is_prefix(const uint8_t *s, size_t n);

// Length of the invalid run at the start of s[0..n), which holds no valid character there: the "maximal
// subpart" of the Unicode standard (chapter 3.9), which one U+FFFD replaces. At least 1.
size_t utf8_invalid_length(const uint8_t *s, size_t n);

// How many bytes are valid from the start on.
size_t utf8_valid_length(const uint8_t *s, size_t n);
bool utf8_is_valid(const uint8_t *s, size_t n);
