// A model's folder: files opened by name, none of which may lie elsewhere.
//
// A name has no slash; "..", a symbolic link that leads out of the folder, and a file with a second name (a hard link,
// which may lie anywhere) are refused, so that a folder from a stranger reads nothing but itself.
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"

// *ret is a descriptor to close. ISO_E_IO.
enum iso_err folder_open(const char *path, int *ret, struct iso_errinfo *reterr) ISO_MUST_USE;
bool folder_has(int folder, const char *name);
// A regular file to read. *ret is a descriptor to close. Errors start with the name: ISO_E_IO, ISO_E_FORMAT (a name or
// a link that leads out).
enum iso_err folder_open_file(int folder, const char *name, int *ret, uint64_t *ret_bytes,
                              struct iso_errinfo *reterr) ISO_MUST_USE;
// Appends a whole file of at most `max` bytes.
enum iso_err folder_read(int folder, const char *name, uint64_t max, struct buf *out,
                         struct iso_errinfo *reterr) ISO_MUST_USE;
