// A unit: executes a plan on its own fixed pool, a continuous batch of sequences, one step at a time.
//
// Memory: unit_open maps one pool (activations, KV blocks, tables), touches it, starts the threads and is
// ready; after that nothing is allocated. What does not fit is refused before anything is loaded or mapped.
// Threading: one caller at a time. Ownership: the plan must outlive the unit.
//
// The way of a request: unit_submit reserves a slot and all KV blocks it can ever need (prompt + max_output),
// so it never fails for memory later; unit_step computes tokens; the event that carries a finish frees the
// slot; unit_cancel frees it earlier. What else runs, how the prompt is cut into chunks, and what of it was
// reused change no byte of any logits.
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "kernels/kernels.h"
#include "plan/plan.h"
#include "unit/sampler.h"

struct unit;

struct unit_config {
    const struct kernels *kernels; // NULL: kernels_best()
    uint32_t threads;              // 1 to TEAM_THREADS_MAX, the caller's included
    const uint32_t *cpus;          // thread i runs on cpus[i]; NULL: anywhere
    bool fifo;                     // real-time scheduling (team.h says when it is refused)
    uint64_t pool_bytes_max;       // the account's sum may not pass it; 0: no limit but the machine's
    uint64_t extra_bytes;  // of the pool, for what the process holds beside the unit (the account's rows)
    uint32_t chunk_tokens; // most prompt tokens of one sequence in a step; 0: as many as the plan's batch
    bool no_prefix_reuse;
};

struct unit_request {
    const uint32_t *prompt;   // [n_prompt], each < vocab; copied
    uint32_t n_prompt;        // at least 1
    uint32_t max_output;      // at least 1; n_prompt + max_output at most the plan's max_seq_len
    struct sampling sampling; // its biases are copied
    uint32_t
        n_prior; // of the prompt, the last tokens that count as output for penalties: an answer that goes on
    bool ignore_eog; // go on past tokens that end a generation
    bool score; // teacher forcing: an event with logits for each prompt position, no output; max_output is
                // ignored
};

enum unit_finish {
    UNIT_RUNNING,
    UNIT_EOG,       // the token ends the generation; it is part of the event but not of the answer
    UNIT_LENGTH,    // max_output reached
    UNIT_SCORED,    // the last prompt position of a scored request
    UNIT_NONFINITE, // a logit is not finite: no token; the request ended with ISO_E_NONFINITE
};

struct unit_event {
    uint32_t slot;
    uint32_t token;    // drawn; of scored requests the most probable
    uint32_t position; // absolute, of the token whose logits these are; the drawn one stands at position + 1
    uint32_t row;      // for unit_logits
    enum unit_finish finish;
};

struct unit_result {
    const struct unit_event *events; // [n], at most one a slot, but for scored requests
    uint32_t n;
    uint32_t rows; // tokens computed in the step; 0: there was nothing to do
};

// ISO_E_NOFIT with the numbers, before loading, where the account passes pool_bytes_max; ISO_E_NOMEM;
// ISO_E_USAGE.
enum iso_err unit_open(const struct plan *plan, const struct unit_config *config, struct unit **ret,
                       struct iso_errinfo *reterr) ISO_MUST_USE;
void unit_close(struct unit *u);

// ISO_E_BUSY: all slots are taken. ISO_E_LIMIT: prompt and output don't fit a slot (both numbers in the
// message). ISO_E_USAGE: a token or parameter out of range. *ret_reused (may be NULL): prompt tokens that
// were cached.
enum iso_err unit_submit(struct unit *u, const struct unit_request *request, uint32_t *ret_slot,
                         uint32_t *ret_reused, struct iso_errinfo *reterr) ISO_MUST_USE;
// Called by every thread before it takes its part of a matmul: the inputs of all rows, f32 or codes as the plan has them.
// `number` counts the program's matmuls. It may read the rows until it returns, and must not change them.
typedef void unit_tap(void *context, uint32_t number, const void *x, uint64_t stride, uint32_t rows,
                      uint32_t cols, uint32_t thread);
// For calibration. NULL: none. Not while a step runs.
void unit_set_tap(struct unit *u, unit_tap *tap, void *context);
// Frees the slot; does nothing where it is free already.
void unit_cancel(struct unit *u, uint32_t slot);

// Computes one step: a token for every sequence that is decoding, then prompt chunks in order of arrival, as
// many as the batch holds. The result is valid until the next call on the unit.
struct unit_result unit_step(struct unit *u);

// The logits of a row of the last step's events, f32[vocab].
const float *unit_logits(const struct unit *u, uint32_t row);
// What the output matrix read for that row, f32[hidden]: the sequence's state after its last token, as the model's last
// norm leaves it. NULL where the plan computes its logits from something else.
const float *unit_hidden(const struct unit *u, uint32_t row);
bool unit_has_hidden(const struct unit *u);
// log sum exp over the vocabulary, and the log probability of one token, of such a row.
double unit_log_sum_exp(const struct unit *u, uint32_t row);

const struct plan *unit_plan(const struct unit *u);
const struct kernels *unit_kernels(const struct unit *u);
// False where pool and weights could not be locked in memory (memlock limit): they may then be swapped.
bool unit_is_locked(const struct unit *u);
// Bytes that unit_open maps for these: activations, KV blocks and tables, each rounded to pages.
uint64_t unit_pool_bytes(const struct plan_header *h);
// The tables' part of it.
uint64_t unit_table_bytes(const struct plan_header *h);
