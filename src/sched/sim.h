// A unit and its front on a virtual clock: the scheduler's own code, steps that take what the model says times chance.
//
// Pure: the same config, arrivals and seed give the same result. Allocates; one simulation owns what it allocates while it runs.
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "sched/sched.h"

struct sim_arrival {
    uint64_t at_ns;                          // ascending
    uint32_t n_prompt, n_output, max_output; // n_output: how long the answer is in fact, 1 to max_output
    uint64_t deadline_ns, ttft_ns;           // from its arrival; SCHED_NEVER: none
    int32_t priority;
};

enum sim_fate { SIM_SERVED, SIM_QUEUE_FULL, SIM_REFUSED, SIM_FATES };

struct sim_outcome {
    enum sim_fate fate;
    uint64_t first_ns, end_ns; // absolute; of those that were served
    bool missed;               // a deadline that was admitted
};

struct sim_config {
    struct sched_config sched;
    uint32_t queue;
    uint64_t seed;
    struct steptime
        truth; // what steps take, times 1 - noise to 1 + noise; the scheduler learns it, from the model that it is given
    double noise;
};

struct sim_result {
    uint32_t served, queue_full, refused, with_deadline, missed; // with_deadline: of those served
    uint64_t end_ns, steps, rows, output_tokens;
    uint64_t gap_max_ns;  // between two tokens of an answer that was not paused meanwhile
    uint64_t wait_max_ns; // of those without a deadline, from arrival to the first token
    uint32_t slots_max;
};

// `outcomes` [n]. ISO_E_NOMEM.
enum iso_err sim_run(const struct sim_config *config, const struct steptime *model,
                     const struct sim_arrival *arrivals, uint32_t n, struct sim_outcome *outcomes,
                     struct sim_result *ret, struct iso_errinfo *reterr) ISO_MUST_USE;
