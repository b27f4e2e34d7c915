// The checks of gguf.h on bytes in memory, apart from any file: what gguf_open and the fuzz target run.
//
// Pure: no I/O, and the same bytes give the same answer. Memory is one arena for the tables, sized by counts
// that have been checked against the limits and against what the file can hold. Time is linear in the header
// but for sorting the names.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "formats/gguf.h"

// bytes[0..n) are the first bytes of a file of file_bytes (n <= file_bytes). Three outcomes:
// - ISO_OK, *ret_more false: *ret is filled, its views point into `bytes`; gguf_deinit frees what it owns.
// - ISO_OK, *ret_more true: nothing is wrong so far, but the header goes on after n; *ret is untouched.
// - an error, as gguf_open has them.
enum iso_err gguf_parse(const uint8_t *bytes, size_t n, uint64_t file_bytes, struct gguf *ret, bool *ret_more,
                        struct iso_errinfo *reterr) ISO_MUST_USE;

// Order of the tables sorted by name: bytewise, a proper beginning first. As memcmp: < 0, 0, > 0.
int gguf_compare(struct strv a, struct strv b);
