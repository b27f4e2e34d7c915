// Proof of what was answered: a digest over everything that decides an answer and the answer itself, and a file that keeps what is
// needed to compute it again. docs/internals/audit.md has the format.
//
// digest = BLAKE2b-256 of: "isochron-answer-1\n", the plan's hash in hexadecimal, "\n", the parameters as compact JSON with sorted
// keys, "\n", the number of prompt tokens and those, the number of output tokens and those (u32, little-endian).
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "serve/answer.h"

#define AUDIT_DIGEST_HEX 65 // 64 digits and a zero
#define AUDIT_LINE_MAX   (64 * MIB)

// The parameters of one answer, and back: *ret has no prompt but room for n_prompt tokens. ISO_E_FORMAT names what is wrong.
json_t *audit_params(const struct answer_spec *s, uint32_t choice); // NULL: no memory
enum iso_err audit_spec(const json_t *params, uint32_t n_prompt, struct answer_spec **ret,
                        uint32_t *ret_choice, struct iso_errinfo *reterr) ISO_MUST_USE;

enum iso_err audit_digest(const char *plan_hash, const json_t *params, const uint32_t *prompt,
                          uint32_t n_prompt, const uint32_t *output, uint32_t n_output,
                          char out[AUDIT_DIGEST_HEX]) ISO_MUST_USE;
// Scales a row to length 1, as embeddings are given. f32[n] both.
void audit_scale_row(const float *row, uint32_t n, float *ret);
// Of an embedding: the parameters are {}, the output is the row's floats.
enum iso_err audit_digest_row(const char *plan_hash, const uint32_t *prompt, uint32_t n_prompt,
                              const float *row, uint32_t n, char out[AUDIT_DIGEST_HEX]) ISO_MUST_USE;

struct audit {
    int fd;      // -1: no audit
    bool tokens; // else digests alone
    bool broken_line;
    char path[4096];
};

// Appends to the file, which is made where it isn't there (mode 0600). ISO_E_IO.
enum iso_err audit_open(const char *path, bool tokens, struct audit *ret,
                        struct iso_errinfo *reterr) ISO_MUST_USE;
// Opens the file anew: it may have been moved away. On an error the old one stays in use.
enum iso_err audit_reopen(struct audit *a, struct iso_errinfo *reterr) ISO_MUST_USE;
void audit_close(struct audit *a);

struct audit_entry {
    const char *request_id, *id, *key, *endpoint, *model, *plan_path, *plan_hash, *finish, *digest;
    const json_t *params; // NULL: an embedding
    const uint32_t *prompt, *output;
    uint32_t n_prompt, n_output;
};
// One line, written at once.
enum iso_err audit_write(struct audit *a, const struct audit_entry *e,
                         struct iso_errinfo *reterr) ISO_MUST_USE;
