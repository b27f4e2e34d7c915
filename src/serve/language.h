// What the front knows of a plan: its header, its tokenizer, its chat template, and how its model writes reasoning and tool
// calls. Read from the plan's file alone, without the weights.
//
// Ownership: a struct language owns what it holds. One thread: encoding uses one workspace.
#pragma once

#include <jansson.h>

#include "base/arena.h"
#include "base/buf.h"
#include "base/hash.h"
#include "plan/plan_format.h"
#include "serve/split.h"
#include "text/template.h"
#include "text/tokenizer.h"

#define LANGUAGE_RENDERED_MAX  (64 * MIB)
#define LANGUAGE_FORCED_MAX    1024
#define LANGUAGE_ARGUMENTS_MAX 65536 // values in the arguments of an earlier tool call

struct language {
    struct plan_header header;
    char hash[HASH_HEX_BYTES]; // the plan's
    struct arena arena;
    struct tokenizer *tokenizer;
    struct tmpl *template; // NULL: the model has none
    uint32_t *ids;         // [ids_max]: the last encoding's
    size_t ids_max;
    enum split_style style;
    bool template_has_tools; // else tools are described in the system message
    bool thinks;             // its answers may begin with <think>
    uint32_t call_marker;    // the control token that begins tool calls in this style; TOK_NONE: none
};

// ISO_E_FORMAT, ISO_E_CORRUPT, ISO_E_VERSION, ISO_E_NOMEM. The file stays the caller's.
enum iso_err language_open(int fd, struct language *ret, struct iso_errinfo *reterr) ISO_MUST_USE;
void language_close(struct language *l);
// Bytes it takes beside the plan's tokenizer and template.
uint64_t language_bytes(const struct plan_limits *limits);

// Fills in how the model writes, from its template's source and the tokenizer that *l has.
void language_find_style(struct language *l, struct strv template);

// Tokens of a text into l->ids. ISO_E_LIMIT where the text is longer than any that could fit a sequence.
enum iso_err language_encode(struct language *l, struct strv text, enum tok_mode mode, bool edges,
                             uint32_t *ret_n, struct iso_errinfo *reterr) ISO_MUST_USE;

// A conversation as the template has it.
struct language_chat {
    const json_t *messages; // as OpenAI's API has them, checked
    const json_t *tools;    // NULL: none
    const json_t *more;     // variables of the template (chat_template_kwargs); NULL: none
    const char *now;        // as tmpl_render has it
};
// Renders it, with the beginning of an answer, into *text. ISO_E_UNSUPPORTED where there is no template; ISO_E_FORMAT where the
// template refuses the conversation.
enum iso_err language_render(struct language *l, const struct language_chat *chat, struct buf *text,
                             struct iso_errinfo *reterr) ISO_MUST_USE;
// Whether an answer after this rendered text begins within the reasoning, may begin with it, or has none.
enum split_thinking language_thinking(const struct language *l, struct strv rendered);

// How a tool call to `name` begins (NULL: to any) in the model's way of writing, into out[LANGUAGE_FORCED_MAX]. Its length.
size_t language_call_beginning(const struct language *l, const char *name, char *out);
