// The parts of an answer as a client gets them, gathered as they come, and the JSON made of them.
//
// Not streaming, a reply gathers until the end; streaming, it is emptied into each chunk.
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "serve/language.h"
#include "serve/split.h"
#include "unit/channel.h"

#define REPLY_TEXT_MAX (256 * MIB)

struct reply_call {
    uint32_t index; // among the answer's calls
    bool named;     // its name is part of this reply, not of an earlier chunk
    char name[SPLIT_NAME_MAX + 1];
    struct buf arguments;
};

struct reply {
    struct buf content, reasoning;
    struct reply_call *calls;
    uint32_t n_calls, calls_max;
    json_t *logprobs;   // of chat: a list of tokens; of completions: {"tokens": [], ...}; NULL: none
    size_t text_offset; // of completions: where the next token's text begins
    uint64_t call_seed; // makes the ids of tool calls
};

void reply_init(struct reply *r, uint64_t call_seed);
void reply_deinit(struct reply *r);
// Empties it for the next chunk.
void reply_reset(struct reply *r);
bool reply_is_empty(const struct reply *r);
// Fits split_piece; context is the struct reply.
enum iso_err reply_add(void *context, enum split_kind kind, uint32_t call, struct strv text);

// A token's probabilities into `logprobs`, as chat has them or as completions do. `e` NULL: of a first token, which has none.
bool reply_add_chat_logprob(struct reply *r, const struct language *l, const struct channel_event *e,
                            uint32_t n_top);
bool reply_add_text_logprob(struct reply *r, const struct language *l, uint32_t token,
                            const struct channel_event *e, uint32_t n_top);

// {"role", "content", "reasoning_content", "tool_calls"}; of a chunk only what there is. NULL: no memory.
json_t *reply_message(const struct reply *r);
json_t *reply_delta(const struct reply *r, bool first);
// The logprobs member: the list as the endpoint wraps it, or null.
json_t *reply_logprobs(const struct reply *r, bool chat);
// A token's text as JSON; bytes that are no UTF-8 become U+FFFD.
json_t *reply_token_text(const struct language *l, uint32_t token);
