// One answer: submit a prompt, step the unit, turn tokens into text, stop where asked, keep the times.
#pragma once

#include <argp.h>
#include <jansson.h>
#include <stdbool.h>

#include "base/buf.h"
#include "base/hist.h"
#include "cli/session.h"
#include "text/stop.h"

#define GENERATION_MAX_TOKENS_DEFAULT 256

// What --temperature and the like said.
struct sampling_flags {
    uint32_t max_tokens; // 0: not given
    struct sampling sampling;
    struct strv stop[STOP_STRINGS_MAX];
    uint32_t n_stop;
};

// Child for argp; its input is a struct sampling_flags, set to sampling_flags_default() before.
extern const struct argp SAMPLING_ARGP;
struct sampling_flags sampling_flags_default(void);

enum finish { FINISH_STOP, FINISH_LENGTH, FINISH_INTERRUPTED };

struct generation {
    struct buf text; // the whole answer
    uint32_t prompt_tokens, cached_tokens, output_tokens;
    enum finish finish;
    uint64_t ttft_ns;        // from submitting to the first token
    uint64_t decode_ns;      // from the first token to the last
    struct hist inter_token; // ns between tokens
};

// Called with each piece of text as it comes; may be NULL. False where it could not be written, with errno:
// the answer ends with ISO_E_IO.
typedef bool generation_text(void *context, struct strv text);

// Answers the prompt; `ret` is filled (release with generation_deinit). `interrupted`, where not NULL, is
// looked at after each step. max_tokens as far as the sequence has room: a request for more than fits is
// refused with both numbers, and where no number was given the default is cut to what fits.
enum iso_err generation_run(struct session *s, const uint32_t *prompt, uint32_t n_prompt,
                            const struct sampling_flags *flags, generation_text *on_text, void *context,
                            const volatile int *interrupted, struct generation *ret,
                            struct iso_errinfo *reterr) ISO_MUST_USE;
void generation_deinit(struct generation *g);

// The table that ends a demo, to standard output; and the same as JSON members of a new object, with the
// text.
void generation_print_stats(const struct generation *g, const struct session *s);
json_t *generation_json(const struct generation *g, const struct session *s,
                        const struct sampling_flags *flags);
