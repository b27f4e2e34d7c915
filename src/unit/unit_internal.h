// What the files of unit/ share: the unit's memory, its slots, and the batch of a step.
#pragma once

#include "unit/kv.h"
#include "unit/team.h"
#include "unit/unit.h"

struct slot {
    bool used;
    uint64_t arrival;            // order of submission
    struct unit_request request; // prompt is NULL: the ids are in tokens
    struct kv_sequence kv;
    uint32_t *tokens;        // [max_seq_len]: prompt, then what was drawn
    struct logit_bias *bias; // [SAMPLING_BIAS_MAX]
    uint32_t n_tokens;       // known
    uint32_t n_computed;     // leading tokens whose K and V are stored
};

// One row of logits wanted from the step.
struct wanted {
    uint32_t batch_row, slot, position;
};

// The rows of a step: filled by batch_compose, executed, then read by unit_step.
struct batch {
    uint32_t rows, n_wanted;
    uint32_t *ids;         // [batch_tokens]
    uint32_t *slots;       // [batch_tokens]: whose row it is
    struct kv_ref *refs;   // [batch_tokens]
    struct wanted *wanted; // [slots]
};

struct unit {
    const struct plan *plan;
    const struct kernels *kernels;
    uint32_t chunk_tokens;
    bool reuse, locked;
    uint64_t arrivals;
    uint8_t *pool; // start of the mapping: activations, then KV blocks, then tables (this struct first)
    uint64_t pool_bytes;
    uint8_t *arena, *kv_pool;
    struct kv_table kv;
    struct slot *slots; // [slots]
    uint32_t *order;    // [slots]: scratch of batch_compose
    struct batch batch;
    bool *meets;                     // [n_ops]: threads meet after this operation
    const struct plan_op *hidden_op; // writes the rows that the output matrix reads, before they are codes
    float *hidden;                   // [slots][hidden]: copies of them
    struct unit_event *events;       // [slots]
    struct sampler sampler;
    struct team team;
    unit_tap *tap; // NULL: none
    void *tap_context;
};

// Chooses the rows of the next step: decoding sequences first, one row each, then prompt chunks, both in
// order of arrival; never more rows of logits than the plan has slots.
void batch_compose(struct unit *u);

// For each operation of the program: whether threads must meet after it.
void exec_find_meetings(const struct plan *p, bool *ret_meets);

// The operation that writes what the logits are computed from; NULL where a plan has none that writes rows of the model's width.
const struct plan_op *exec_find_hidden(const struct plan *p);

// Runs the plan's program over u->batch on the whole team.
void exec_step(struct unit *u);
