// From logits to a token (numerics.md, rule 11). Order: logit bias, penalties, temperature, top-k, top-p, min-p,
// draw. The same logits, parameters, history and position give the same token on any machine; the random
// number is a function of (seed, choice, position) alone, so nothing has to be remembered between tokens.
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "kernels/kernels.h"

struct logit_bias {
    uint32_t id;
    float bias; // added to the token's logit; -100 to 100
};

#define SAMPLING_BIAS_MAX 512

struct sampling {
    float temperature;       // 0: the largest logit, ties by lower id; else [SAMPLING_TEMPERATURE_MIN, 100]
    float top_p;             // (0, 1]; 1: off
    float min_p;             // [0, 1]; 0: off. Relative to the most probable token
    float repeat_penalty;    // > 0; 1: off. Divides positive and multiplies negative logits of tokens that
                             // occurred
    float presence_penalty;  // -2 to 2; 0: off. Off the logit of tokens that the answer has
    float frequency_penalty; // -2 to 2; 0: off. As often as the answer has them
    uint32_t top_k;          // 0: off
    uint32_t choice;         // index among several answers to one request
    uint64_t seed;
    const struct logit_bias *bias; // [n_bias]; of entries of one token each is added
    uint32_t n_bias;               // at most SAMPLING_BIAS_MAX
};

#define SAMPLING_TEMPERATURE_MIN 1e-3f // below, logits over it could overflow

#define SAMPLING_GREEDY ((struct sampling){.top_p = 1, .repeat_penalty = 1})

// Workspace for a vocabulary of n tokens; tables given by the unit.
struct sampler {
    const struct kernels *kernels;
    uint32_t vocab;
    float *logits;   // [vocab]
    float *p;        // [vocab]
    uint64_t *keys;  // [vocab]
    uint64_t *spare; // [vocab]
    uint32_t *seen;  // [vocab]: number of the call that last saw the token
    uint32_t call;
};

// Bytes of all tables together, each aligned to 64.
uint64_t sampler_bytes(uint32_t vocab);
// `memory` has sampler_bytes, aligned to 64, zeroed.
void sampler_init(struct sampler *s, const struct kernels *kernels, uint32_t vocab, uint8_t *memory);

// True where every parameter is finite and in its range, biased tokens in the vocabulary.
bool sampling_is_valid(const struct sampling *p, uint32_t vocab);

// A sequence so far.
struct sampling_history {
    const uint32_t *tokens; // [n]
    uint32_t n_prompt, n;
};

// The token for absolute position `position`. False where a logit is not finite.
bool sampler_draw(struct sampler *s, const float *logits, const struct sampling *p,
                  const struct sampling_history *history, uint32_t position, uint32_t *ret_id);

// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC'11).
void philox4x32(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]);
