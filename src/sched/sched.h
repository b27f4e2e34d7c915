// Who computes next: order, admission by deadline, slots, and how much of prompts a step takes. Pure: no clock, no I/O, no allocation;
// what it is given decides, and ties are broken by order of arrival. The server and the simulator drive the same code.
//
// A task is one answer. Steps can't be interrupted; every running task that is decoding has a row in each step, and prompts share what
// is left, in order, as far as those that decode keep their time between tokens (sched_prompt_rows).
//
// Order: tasks with a deadline by the time they must be served by (earliest deadline first); then the others, by priority (lower first).
// Then by arrival.
//
// A deadline that is admitted is kept: a task is admitted only where a forecast, in which every step takes what it is expected not to
// pass and every answer is as long as it may be, has it and all that were admitted in time. Tasks without a deadline get what is left:
// they start where no admitted deadline suffers, and are paused for one. Nor does one with a deadline start before the time that was forecast
// when it was admitted but where a new forecast has all in time: started early, as another's answer was short, it would slow those beside it
// at a time when they were to be alone. So that they don't starve, one of them is owed a start where
// none has started for age_ns: then the one that came first is next, no further deadline is admitted until it runs, and it is not paused.
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "sched/steptime.h"

#define SCHED_NEVER UINT64_MAX

struct sched_config {
    uint32_t slots, batch_tokens;
    double
        stretch; // a step with prompts takes at most so many times what it takes without, while others decode; above 1
    uint64_t age_ns;      // after which a start is owed
    uint32_t planted_bug; // for tests of the tests alone; 0
};

struct sched_task {
    uint64_t arrival;              // number; no two have the same
    uint64_t deadline_ns, ttft_ns; // of the whole answer, of its first token; SCHED_NEVER
    uint64_t arrived_ns;
    int32_t priority;
    uint32_t n_prompt, max_output;
    uint32_t n_output; // tokens of the answer that there are
    uint32_t
        n_computed; // leading tokens of prompt and output whose K and V are stored; of one that doesn't run 0
    uint64_t
        start_ns; // of one with a deadline that waits: it was admitted to start then, not before; 0 of one that arrives
    bool running;
    bool kept; // it started as owed: it isn't paused
    // Of a forecast: when it would start, have its first token and its end; SCHED_NEVER: not within it, and of what is given to the functions.
    uint64_t began_ns, first_ns, end_ns;
    uint32_t chunk; // of a forecast: rows in the step at hand
};

// Whether a is served before b.
bool sched_before(const struct sched_task *a, const struct sched_task *b);
// Whether a start is owed to those without a deadline that wait; the last one was at since_ns.
bool sched_is_owed(const struct sched_config *c, const struct sched_task *tasks, uint32_t n, uint64_t now_ns,
                   uint64_t since_ns);

// Most prompt tokens that a step may take beside so many decoding sequences with so many keys together: at least one, where the batch
// has room.
uint32_t sched_prompt_rows(const struct sched_config *c, const struct steptime *s, uint32_t n_decoding,
                           uint64_t decode_keys);

// The next step of those that run: each one's rows into its chunk, what the step is in *ret; how many of its kind follow one another
// until a prompt or an answer ends.
uint64_t sched_compose(const struct sched_config *c, const struct steptime *s, struct sched_task *tasks,
                       uint32_t n, struct steptime_load *ret);
// The task after so many steps with its chunk, the last of which ended now.
void sched_advance(struct sched_task *t, uint64_t steps, uint64_t now_ns);

// What would become of the tasks from now on: fills began_ns, first_ns and end_ns. `all`: those without a deadline that wait start too where there
// is a slot; else they are left aside. The tasks are used up: give a copy.
void sched_forecast(const struct sched_config *c, const struct steptime *s, struct sched_task *tasks,
                    uint32_t n, uint64_t now_ns, bool all);

enum sched_verdict {
    SCHED_ADMITTED,
    SCHED_LATE,  // its own deadline can't be met
    SCHED_HARMS, // it would make an admitted one miss its own
    SCHED_OWED,  // others have waited too long
};
// Whether tasks[n - 1], which has arrived, is admitted beside the others; where it is, start_ns of those that wait is set. *ret_end_ns: when it would end as things are, *ret_free_ns:
// when the first of those before it would. `scratch`: [2 * n].
enum sched_verdict sched_admit(const struct sched_config *c, const struct steptime *s,
                               struct sched_task *tasks, uint32_t n, uint64_t now_ns, bool owed,
                               struct sched_task *scratch, uint64_t *ret_end_ns, uint64_t *ret_free_ns);

enum sched_move { SCHED_STAY, SCHED_START, SCHED_PAUSE };
// What to do next with *ret_task: ask again until it says SCHED_STAY. One that starts as it is owed is to be kept. `scratch`: [2 * n].
enum sched_move sched_next(const struct sched_config *c, const struct steptime *s,
                           const struct sched_task *tasks, uint32_t n, uint64_t now_ns, bool owed,
                           struct sched_task *scratch, uint32_t *ret_task);
