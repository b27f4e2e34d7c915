// A chat: the messages so far and their tokens through the model's own template.
#pragma once

#include <jansson.h>

#include "cli/session.h"

struct conversation {
    struct session *session;
    json_t *messages; // [{"role", "content"}]
    uint32_t *ids;    // [session_prompt_tokens]: workspace
};

// ISO_E_UNSUPPORTED where the model has no chat template. `system` may be NULL.
enum iso_err conversation_open(struct session *s, const char *system, struct conversation *ret,
                               struct iso_errinfo *reterr) ISO_MUST_USE;
void conversation_close(struct conversation *c);
// Forgets all messages but the system's.
void conversation_reset(struct conversation *c);

// Adds a message; text that is no UTF-8 has its bad bytes replaced by U+FFFD. Drop takes the last one back.
enum iso_err conversation_add(struct conversation *c, const char *role, struct strv text,
                              struct iso_errinfo *reterr) ISO_MUST_USE;
void conversation_drop_last(struct conversation *c);
// The tokens of the whole conversation with the beginning of an answer, in c->ids; they may be more than fit
// a sequence. ISO_E_LIMIT where the text is longer than any that could fit.
enum iso_err conversation_tokens(struct conversation *c, uint32_t *ret_n,
                                 struct iso_errinfo *reterr) ISO_MUST_USE;
