#include "base/text_file.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define CHUNK_BYTES 65536

enum iso_err text_file_read(const char *path, size_t max, struct buf *ret, struct iso_errinfo *reterr)
{
    FILE *f = fopen(path, "rbe");
    if (!f)
        return iso_fail(reterr, ISO_E_IO, 0, NULL, "opening failed: %s", strerror(errno));
    enum iso_err err = ISO_OK;
    size_t n = 1;
    buf_init(ret, max);
    while (!err && n > 0) {
        char chunk[CHUNK_BYTES];
        n = fread(chunk, 1, sizeof chunk, f);
        if (n == 0 && ferror(f))
            err = iso_fail(reterr, ISO_E_IO, 0, NULL, "reading failed: %s", strerror(errno));
        else if (n > 0 && buf_append(ret, chunk, n))
            err = iso_fail(reterr, ISO_E_LIMIT, 0, NULL, "the text is over the limit of %zu bytes", max);
    }
    fclose(f);
    if (err)
        buf_deinit(ret);
    return err;
}

enum iso_err text_file_line(FILE *f, struct buf *line, bool *ret_end, struct iso_errinfo *reterr)
{
    enum iso_err err = ISO_OK;
    int c = getc(f);
    *ret_end = c == EOF;
    for (; c != EOF && c != '\n'; c = getc(f))
        if (!err)
            err = buf_append_byte(line, (uint8_t)c);
    if (ferror(f))
        return iso_fail(reterr, ISO_E_IO, 0, NULL, "reading failed: %s", strerror(errno));
    if (err)
        return iso_fail(reterr, err, 0, NULL, "a line is longer than %zu bytes, or memory for it was refused",
                        line->max);
    return ISO_OK;
}
