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
#include "text/detok.h"
#include "unit/channel.h"

#define REPLY_TEXT_MAX  (256 * MIB)
#define REPLY_PROBS_MAX 131072 // log probabilities of a whole answer, the top ones with it

struct reply_call {
    uint32_t index; // among the answer's calls
    bool named;     // its name is part of this reply, not of an earlier chunk
    char name[SPLIT_NAME_MAX + 1];
    struct buf arguments;
};

// A token, how probable it was, and which others were. Kept so and not as JSON, which takes five times as much.
struct reply_prob {
    uint32_t token;
    bool known;           // not of a text's first token, which has none
    uint32_t text_offset; // characters of text before it
    float logprob;
    uint32_t n_top;
    struct token_logprob top[LOGPROBS_TOP_MAX];
};

struct reply {
    struct buf content, reasoning;
    struct buf probs; // of struct reply_prob
    struct detok detok;
    uint32_t characters; // of the tokens that were added to probs, over all chunks
    struct reply_call *calls;
    uint32_t n_calls, calls_max;
    uint64_t call_seed; // makes the ids of tool calls
};

void reply_init(struct reply *r, const struct tokenizer *t, uint64_t call_seed);
void reply_deinit(struct reply *r);
// Empties it for the next chunk.
void reply_reset(struct reply *r);
bool reply_is_empty(const struct reply *r);
// Fits split_piece; context is the struct reply.
enum iso_err reply_add(void *context, enum split_kind kind, uint32_t call, struct strv text);

// The event's token, or of a text's first one (`e` NULL) the token alone.
enum iso_err reply_add_prob(struct reply *r, uint32_t token, const struct channel_event *e,
                            uint32_t n_top) ISO_MUST_USE;

// {"role", "content", "reasoning_content", "tool_calls"}; of a chunk only what there is. NULL: no memory.
json_t *reply_message(const struct reply *r);
json_t *reply_delta(const struct reply *r, bool first);
// The logprobs member, as chat has it or as completions do; null where there are none.
json_t *reply_logprobs(const struct reply *r, const struct language *l, bool chat);
// A token's text as JSON; bytes that are no UTF-8 become U+FFFD.
json_t *reply_token_text(const struct language *l, uint32_t token);
