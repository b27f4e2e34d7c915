// Errors: one list gives every code its name, message, HTTP status and process exit code.
//
// A function that can fail returns `enum iso_err`. Cold paths take a last argument `struct iso_errinfo
// *reterr`, which on failure holds one clear sentence (what, which field, which limit). Outputs named `ret_*`
// are not touched on failure. Nothing here allocates; an errinfo may live on the stack and needs no cleanup.
#pragma once

#include <stdint.h>

// clang-format off
//       name                 message                                    http  exit
#define ISO_ERR_LIST(X)                                                    \
    X(ISO_OK, "ok", 200, 0)                                                \
    X(ISO_E_USAGE, "wrong arguments", 400, 2)                              \
    X(ISO_E_IO, "input or output failed", 500, 3)                          \
    X(ISO_E_FORMAT, "malformed input", 400, 4)                             \
    X(ISO_E_UNSUPPORTED, "not supported", 400, 5)                          \
    X(ISO_E_NOFIT, "does not fit in the memory given", 503, 6)             \
    X(ISO_E_LIMIT, "over a limit", 413, 7)                                 \
    X(ISO_E_NOMEM, "the system refused memory", 503, 8)                    \
    X(ISO_E_CORRUPT, "checksum mismatch", 500, 9)                          \
    X(ISO_E_VERSION, "made by another version", 400, 10)                   \
    X(ISO_E_NONFINITE, "a value became infinite or not a number", 500, 11) \
    X(ISO_E_BUSY, "no free slot", 503, 12)

enum iso_err {
#define X(name, message, http, exit_code) name,
    ISO_ERR_LIST(X)
#undef X
        ISO_ERR_COUNT
};

#define ISO_ERR_TEXT_MAX  320
#define ISO_ERR_FIELD_MAX 64

struct iso_errinfo {
    enum iso_err code;
    uint64_t offset;               // byte offset in the input the error is about; 0 where there is none
    char field[ISO_ERR_FIELD_MAX]; // the field, tensor, option or position at fault; may be empty
    char text[ISO_ERR_TEXT_MAX];   // the sentence, without a trailing period or newline
};

#define ISO_MUST_USE __attribute__((warn_unused_result))

// The code's identifier ("ISO_E_FORMAT"), general message, HTTP status and exit code.
const char *iso_err_name(enum iso_err code);
const char *iso_err_message(enum iso_err code);
int iso_err_http_status(enum iso_err code);
int iso_err_exit_code(enum iso_err code);

// Fills *reterr (may be NULL) and gives `code`, which is evaluated twice: as a macro it lets the compiler see that the
// result is not ISO_OK where the code is a constant. `field` may be NULL. Text over the limit is cut at a character.
// Control bytes and invalid UTF-8 that came in through arguments are replaced by '?', so a message can be printed.
#define iso_fail(reterr, code, offset, field, ...)                                                            \
    (iso_fail_fill((reterr), (code), (offset), (field), __VA_ARGS__), (enum iso_err)(code))

void iso_fail_fill(struct iso_errinfo *reterr, enum iso_err code, uint64_t offset, const char *field,
                   const char *format, ...) __attribute__((format(printf, 5, 6)));

// Puts "prefix: " before the text of *reterr, e.g. the file's name on the way up. Returns reterr->code.
enum iso_err iso_fail_prefix(struct iso_errinfo *reterr, const char *prefix);
