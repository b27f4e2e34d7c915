// One answer: what its parameters are, and from the tokens that a unit draws to the text that a client reads.
//
// A pure machine: answer_begin, then answer_push with each token in order says how to go on. The same parameters and tokens give
// the same pieces, the same end and the same digest, wherever the tokens come from: the server and `replay` share it.
//
// Ownership: an answer owns its output, and borrows its spec and the language, which outlive it. Bounded by spec's max_output.
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "serve/language.h"
#include "text/detok.h"
#include "text/stop.h"
#include "unit/unit.h"

#define ANSWER_NO_BUDGET UINT32_MAX
// What closes a reasoning that the model did not close.
#define ANSWER_THINK_CLOSING STRV_LIT("\n</think>\n\n")

// All that decides an answer's tokens, beside the plan. Copied, with what it points to, by answer_spec_copy.
struct answer_spec {
    uint32_t *prompt; // [n_prompt]
    uint32_t n_prompt, max_output;
    struct sampling sampling; // bias as below
    struct logit_bias bias[SAMPLING_BIAS_MAX];
    uint32_t n_stop;
    char stop[STOP_STRINGS_MAX][STOP_BYTES_MAX];
    uint16_t stop_bytes[STOP_STRINGS_MAX];
    bool ignore_eog;
    // Of chat: how the text is split. The budget is the most tokens of reasoning.
    bool split;
    enum split_style style; // SPLIT_NONE: no tools were given
    enum split_thinking thinking;
    uint32_t thinking_budget;
    char forced[LANGUAGE_FORCED_MAX]; // the end of the prompt that counts as the text's beginning; "": none
};

enum answer_finish { ANSWER_RUNNING, ANSWER_STOP, ANSWER_LENGTH };
enum answer_next {
    ANSWER_GO_ON,
    ANSWER_END,    // `finish` says why; the unit's request, if it still runs, is to be cancelled
    ANSWER_RESUME, // tokens were put behind the output that the unit did not draw: go on from prompt + output
};

// Text as it comes, in pieces. Without `split` all is SPLIT_CONTENT.
struct answer {
    const struct answer_spec *spec;
    const struct language *language;
    struct detok detok;
    struct stop stop;
    struct split split;
    split_piece *on_piece;
    void *context;
    uint32_t choice;  // among several answers to one prompt; the caller may set it after answer_open
    uint32_t *output; // [n_output]; what ended the generation is not part of it
    uint32_t n_output, output_max;
    uint32_t n_reasoning; // tokens of the output that are
    enum answer_finish finish;
};

// A spec with the defaults: all off, greedy. Room for max tokens of prompt. NULL where memory is refused.
struct answer_spec *answer_spec_new(uint32_t prompt_max);
void answer_spec_free(struct answer_spec *s); // NULL is allowed

// `language` must outlive it. ISO_E_NOMEM, ISO_E_FORMAT (a stop string). *ret_next: ANSWER_GO_ON or ANSWER_RESUME.
enum iso_err answer_open(struct answer *a, const struct answer_spec *spec, const struct language *language,
                         split_piece *on_piece, void *context, enum answer_next *ret_next,
                         struct iso_errinfo *reterr) ISO_MUST_USE;
void answer_close(struct answer *a);
// A token that the unit drew, and what it says of the sequence. After ANSWER_END nothing is pushed any more. ISO_E_NOMEM, or what
// on_piece gave.
enum iso_err answer_push(struct answer *a, uint32_t token, enum unit_finish finish,
                         enum answer_next *ret_next, struct iso_errinfo *reterr) ISO_MUST_USE;
// "stop", "length" or "tool_calls", of one that has ended.
const char *answer_finish_name(const struct answer *a);
// The unit's request that goes on with the answer: prompt is `into`, [n_prompt + n_output] of the spec's and the output's.
struct unit_request answer_request(const struct answer *a, uint32_t *into);
