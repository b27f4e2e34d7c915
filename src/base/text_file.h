// Text files and streams: whole, or line by line.
#pragma once

#include <stdbool.h>
#include <stdio.h>

#include "base/buf.h"
#include "base/err.h"

// Release *ret with buf_deinit. ISO_E_IO, ISO_E_LIMIT where it has more than `max` bytes; the caller names the path.
enum iso_err text_file_read(const char *path, size_t max, struct buf *ret,
                            struct iso_errinfo *reterr) ISO_MUST_USE;
// Appends the next line, without its end, to the buffer. *ret_end: there is none. Of one over the buffer's maximum (ISO_E_LIMIT) the
// rest is passed over; ISO_E_NOMEM, ISO_E_IO.
enum iso_err text_file_line(FILE *f, struct buf *line, bool *ret_end,
                            struct iso_errinfo *reterr) ISO_MUST_USE;
