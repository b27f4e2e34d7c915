// A request's body, checked: what clients of OpenAI's API may say, with its types and ranges.
//
// A parameter that is null counts as not given. One that the endpoint doesn't know is left aside and listed in `ignored`; one of
// the wrong type or range is refused with ISO_E_USAGE or ISO_E_UNSUPPORTED, its name in reterr->field.
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/strv.h"
#include "serve/answer.h"
#include "unit/logprobs.h"

#define PARAMS_VALUES_MAX   262144 // of a body's JSON
#define PARAMS_MESSAGES_MAX 4096
#define PARAMS_TOOLS_MAX    128
#define PARAMS_CHOICES_MAX  64 // n
#define PARAMS_PROMPTS_MAX  64 // of one request
#define PARAMS_IGNORED_MAX  512

enum params_endpoint {
    PARAMS_CHAT = 1,
    PARAMS_COMPLETIONS = 2,
    PARAMS_BATCH = 4,
    PARAMS_EMBEDDINGS = 8,
    PARAMS_TOKENIZE = 16,
    PARAMS_DETOKENIZE = 32
};
enum params_tools { TOOLS_AUTO, TOOLS_NONE, TOOLS_REQUIRED, TOOLS_NAMED };

struct params {
    const json_t *body;
    struct strv model;                                // ptr NULL: not given
    const json_t *messages, *tools, *template_kwargs; // NULL: not given
    const json_t *prompt; // also `input`, `content`, `tokens`: text or tokens, or a list of them
    enum params_tools tool_choice;
    const char *tool_name;   // of TOOLS_NAMED
    struct answer_spec base; // all but prompt, and seed where seed_given is false
    bool seed_given;
    uint32_t max_tokens; // 0: not given
    uint32_t n;
    uint32_t n_top; // LOGPROBS_NONE: no log probabilities
    bool stream, include_usage, echo, max_tokens_is_zero, max_tokens_given;
    bool base64;             // of embeddings
    bool add_special_tokens; // of tokenize and completions
    bool with_pieces;
    char ignored[PARAMS_IGNORED_MAX]; // names, with ", " between them
};

// Views into `body`, which must outlive *ret.
enum iso_err params_read(const json_t *body, enum params_endpoint endpoint, struct params *ret,
                         struct iso_errinfo *reterr) ISO_MUST_USE;
