#include "base/err.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/utf8.h"

#define PREFIX_KEPT 96 // bytes of a prefix that are kept however long the sentence is

struct err_row {
    const char *name;
    const char *message;
    int http_status;
    int exit_code;
};

static const struct err_row ERR_ROWS[ISO_ERR_COUNT] = {
#define X(name, message, http, exit_code) {#name, message, http, exit_code},
    ISO_ERR_LIST(X)
#undef X
};

static const struct err_row *err_row(enum iso_err code)
{
    ASSERT(code < ISO_ERR_COUNT);
    return &ERR_ROWS[code];
}

const char *iso_err_name(enum iso_err code)
{
    return err_row(code)->name;
}

const char *iso_err_message(enum iso_err code)
{
    return err_row(code)->message;
}

int iso_err_http_status(enum iso_err code)
{
    return err_row(code)->http_status;
}

int iso_err_exit_code(enum iso_err code)
{
    return err_row(code)->exit_code;
}

// Makes text printable in place: control bytes and bytes outside valid UTF-8 become '?'; a character cut by
// the end of the buffer is dropped.
static void make_printable(char *text)
{
    size_t n = strlen(text);
    for (size_t i = 0; i < n;) {
        uint32_t cp = 0;
        size_t len = utf8_decode((const uint8_t *)text + i, n - i, &cp);
        if (len == 0) {
            if (n - i < UTF8_MAX_BYTES && utf8_is_prefix((const uint8_t *)text + i, n - i)) {
                text[i] = '\0';
                return;
            }
            text[i++] = '?';
            continue;
        }
        if (cp < 0x20 || (cp >= 0x7f && cp < 0xa0))
            memset(text + i, '?', len);
        i += len;
    }
}

void iso_fail_fill(struct iso_errinfo *reterr, enum iso_err code, uint64_t offset, const char *field,
                   const char *format, ...)
{
    ASSERT(code != ISO_OK && code < ISO_ERR_COUNT);
    if (!reterr)
        return;
    reterr->code = code;
    reterr->offset = offset;
    snprintf(reterr->field, sizeof reterr->field, "%s", field ? field : "");
    make_printable(reterr->field);
    va_list args;
    va_start(args, format);
    vsnprintf(reterr->text, sizeof reterr->text, format, args);
    va_end(args);
    make_printable(reterr->text);
}

enum iso_err iso_fail_prefix(struct iso_errinfo *reterr, const char *prefix)
{
    char text[ISO_ERR_TEXT_MAX];
    memcpy(text, reterr->text, sizeof text);
    // Of a long path the beginning goes, so that the file's own name and the sentence stay.
    size_t n = strlen(prefix), room = sizeof text - 1 - strlen(": ");
    size_t sentence = strlen(text) < room - PREFIX_KEPT ? strlen(text) : room - PREFIX_KEPT;
    bool cut = n > room - sentence;
    const char *shown = cut ? prefix + n - (room - sentence - strlen("...")) : prefix;
    snprintf(reterr->text, sizeof reterr->text, "%s%s: %.*s", cut ? "..." : "", shown, (int)sentence, text);
    make_printable(reterr->text);
    return reterr->code;
}
