// What the front process and a unit process share: one memory file with commands down, events up, and the unit's state.
//
// The front makes it and hands its descriptor to the unit, with an eventfd that the unit rings after it put events. A
// request's prompt and parameters lie in one of `areas` places, which the front gives out; the unit copies them when it
// takes the command. Sizes follow from the plan's limits, so nothing grows. The unit waits where the event ring has no
// room for a step's events: a front that stands still loses nothing.
//
// Each side validates what it takes from the other: indices before they are used, requests as unit_submit does.
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/hash.h"
#include "plan/plan_format.h"
#include "unit/logprobs.h"
#include "unit/ring.h"
#include "unit/team.h"
#include "unit/unit.h"

enum channel_state {
    CHANNEL_STARTING, // the unit loads its plan
    CHANNEL_READY,
    CHANNEL_FAILED, // `failure` says why
    CHANNEL_ENDED,  // it was told to end, and did
};

// How the unit is to be opened; written by the front before the unit starts.
struct channel_config {
    struct hash128 plan_hash; // that the plan must have
    uint64_t pool_bytes_max;
    uint32_t threads, n_cpus; // n_cpus 0: anywhere, else threads
    uint32_t cpus[TEAM_THREADS_MAX];
    uint32_t chunk_tokens;
    bool fifo, no_prefix_reuse;
    int32_t front_pid; // the unit ends where this is not its parent
    uint32_t isa;      // enum isa; ISA_COUNT: the best
};

enum channel_op {
    CHANNEL_SUBMIT, // the request in `area`
    CHANNEL_CANCEL, // the request of `area` and `serial`; nothing where it has ended meanwhile
};

struct channel_command {
    uint32_t op, area;
    uint64_t serial; // of the request; never used twice
};

// A request, as unit_request has it, beside its prompt.
struct channel_request {
    struct sampling sampling; // bias is NULL
    struct logit_bias bias[SAMPLING_BIAS_MAX];
    uint32_t n_prompt, max_output;
    // Most probable tokens wanted with each event (of a scored request beside the prompt's own next token); LOGPROBS_NONE: not even the token's own probability.
    uint32_t n_top;
    uint32_t n_prior;
    bool ignore_eog, score;
    bool embed; // give the hidden row of the last token, by channel_hidden
};

enum channel_event_kind {
    CHANNEL_STARTED, // the request has its slot; `reused` says how much of its prompt was cached
    CHANNEL_TOKEN,
    CHANNEL_REFUSED,   // by unit_submit, with the code in `err`; the area is free
    CHANNEL_CANCELLED, // as asked; the area is free
    CHANNEL_STEP, // a step ended, before the events of what it gave; of no request: serial and area are 0
};

struct channel_event {
    uint64_t serial;
    uint32_t kind, area;
    // As in unit_event, but for scored requests token is the prompt's own next one, where there is one. Where finish is not
    // UNIT_RUNNING the area is free.
    uint32_t token, position, finish;
    uint32_t reused, err;
    uint32_t rows;    // of CHANNEL_STEP: tokens computed
    uint64_t step_ns; // the same: how long it took
    float logprob;    // where wanted
    struct token_logprob top[LOGPROBS_TOP_MAX];
};

// Whether the event ends its request, and its area is free.
static inline bool channel_event_ends(const struct channel_event *e)
{
    return e->kind == CHANNEL_REFUSED || e->kind == CHANNEL_CANCELLED ||
           (e->kind == CHANNEL_TOKEN && e->finish != UNIT_RUNNING);
}

// What the layout follows from.
struct channel_shape {
    struct plan_limits limits;
    uint32_t hidden; // of the model
};

struct channel_shared {
    struct channel_shape shape; // first, as channel_map reads it before it maps
    _Atomic uint32_t state;     // enum channel_state
    _Atomic bool ending;        // set by the front: finish the running step and end
    _Atomic uint32_t doorbell;  // raised by the front after a command; the unit's futex
    struct iso_errinfo failure; // valid once state is CHANNEL_FAILED
    struct channel_config config;
    uint32_t isa;    // enum isa, in use; valid once ready
    bool locked;     // pool and weights are locked in memory; valid once ready
    bool has_hidden; // the plan has rows for embeddings; valid once ready
    _Alignas(64) _Atomic uint64_t steps;
    _Atomic uint64_t step_began_ns; // of the running step; 0: none runs
    _Atomic uint64_t beat_ns;       // when the unit last looked for commands
    struct ring_shared commands, events;
};

struct channel {
    struct channel_shared *shared;
    uint64_t bytes;
    uint32_t areas, max_seq_len;
    struct ring commands, events; // of channel_command, of channel_event
    uint8_t *requests;            // [areas][request_bytes]: a channel_request, its prompt, its hidden row
    uint64_t request_bytes;
};

// How many bytes a channel for a plan has.
uint64_t channel_bytes(const struct channel_shape *shape);
// A new one in a memory file; *ret_fd is the caller's. ISO_E_NOMEM.
enum iso_err channel_create(const struct channel_shape *shape, struct channel *ret, int *ret_fd,
                            struct iso_errinfo *reterr) ISO_MUST_USE;
// Maps one that was created. ISO_E_USAGE where the file is none.
enum iso_err channel_map(int fd, struct channel *ret, struct iso_errinfo *reterr) ISO_MUST_USE;
void channel_unmap(struct channel *c);

// Of an area below c->areas: the request's parameters, and its prompt, u32[max_seq_len].
struct channel_request *channel_request(const struct channel *c, uint32_t area);
uint32_t *channel_prompt(const struct channel *c, uint32_t area);
// f32[hidden]: written by the unit before the event that ends a request with `embed`.
float *channel_hidden(const struct channel *c, uint32_t area);

// Rings the unit, for what is not a command.
void channel_ring(const struct channel *c);
// Puts a command and rings. The ring has room for a submit and a cancel of every area; false: the unit's count of what it has
// taken can't be, and it is to be killed.
bool channel_send(struct channel *c, struct channel_command command) ISO_MUST_USE;
// The unit's: returns when the doorbell is no longer `seen`, after the timeout, or for no reason.
void channel_wait(const struct channel *c, uint32_t seen, uint32_t timeout_ms);
