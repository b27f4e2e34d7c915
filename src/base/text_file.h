// A whole text file from the command line.
#pragma once

#include "base/buf.h"
#include "base/err.h"

// Release *ret with buf_deinit. ISO_E_IO, ISO_E_LIMIT where it has more than `max` bytes; the caller names the path.
enum iso_err text_file_read(const char *path, size_t max, struct buf *ret,
                            struct iso_errinfo *reterr) ISO_MUST_USE;
