// How probable a token is by a row of logits, and which are most probable: of the logits as the model gives them, before bias,
// penalties and temperature (numerics.md, rule 11).
#pragma once

#include <stdbool.h>
#include <stdint.h>

#define LOGPROBS_TOP_MAX 20
#define LOGPROBS_NONE    UINT32_MAX

struct token_logprob {
    uint32_t id;
    float logprob; // natural logarithm
};

// ret[0] is the token's, ret[1..n_top] those of the n_top (at most LOGPROBS_TOP_MAX) largest logits, descending, of equals the
// lower id first; where the vocabulary has fewer, the rest has id LOGPROBS_NONE. log_sum_exp as unit_log_sum_exp gives it. False
// where it is not finite: ret is unspecified then.
bool logprobs_of(const float *logits, uint32_t vocab, double log_sum_exp, uint32_t token, uint32_t n_top,
                 struct token_logprob *ret);
