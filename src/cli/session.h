// A model ready to answer: plan, unit, tokenizer, chat template. What generate, chat and bench start from.
#pragma once

#include <stdbool.h>

#include "cli/model_options.h"
#include "plan/plan.h"
#include "text/template.h"
#include "text/tokenizer.h"
#include "unit/account.h"
#include "unit/unit.h"

struct session {
    struct plan plan;
    struct unit *unit;
    struct tokenizer *tokenizer;
    struct tmpl *template; // NULL where the model has none
    struct account account;
    uint32_t threads;
};

// Opens a plan, or compiles a model file into the cache first (progress on standard error unless quiet);
// again where the plan in the cache is damaged.
// Refuses before loading what does not fit --pool. A pool that can't be locked is said on standard error.
enum iso_err session_open(const char *path, const struct compile_flags *compile, const struct run_flags *run,
                          bool quiet, struct session *s, struct iso_errinfo *reterr) ISO_MUST_USE;
void session_close(struct session *s);
// The plan to load for `path` into out[size]: itself, or the cached one of a model file, compiled if it isn't there yet.
enum iso_err session_plan_path(const char *path, const struct compile_flags *flags,
                               const struct run_flags *run, bool quiet, char *out, size_t size,
                               struct iso_errinfo *reterr) ISO_MUST_USE;

// The most text that a prompt may have: generous for the tokens that fit a sequence.
size_t session_text_bytes(const struct plan_limits *limits);
// The most tokens that such a text has: with room for them a prompt that is too long can be counted.
size_t session_prompt_tokens(const struct plan_limits *limits);
// How many threads these flags mean on this machine.
uint32_t session_threads(const struct run_flags *run);
// Writes down in the flags what they mean now. A session pins its caller's thread, so a second one would find it with one CPU.
void session_settle_threads(struct run_flags *run);
