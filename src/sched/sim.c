#include "sched/sim.h"

#include <stdlib.h>

#include "base/assert.h"
#include "base/hash.h"
#include "base/num.h"

struct sim {
    const struct sim_config *config;
    const struct sim_arrival *arrivals;
    struct sim_outcome *outcomes;
    struct sim_result *result;
    struct steptime model;
    struct sched_task *tasks, *scratch; // [max], [2 * max]
    uint64_t *last_ns;                  // [max]: of its last token; 0: none since it began to run
    uint32_t n, max;
    uint64_t now_ns, steps, background_ns; // the last start of a task without a deadline
};

static const struct sim_arrival *arrival_of(const struct sim *m, uint32_t i)
{
    return &m->arrivals[m->tasks[i].arrival];
}

static void remove_task(struct sim *m, uint32_t i)
{
    m->n--;
    m->tasks[i] = m->tasks[m->n];
    m->last_ns[i] = m->last_ns[m->n];
}

static uint64_t absolute(uint64_t from, uint64_t after)
{
    return after == SCHED_NEVER ? SCHED_NEVER : from + after;
}

static uint32_t n_running(const struct sim *m)
{
    uint32_t running = 0;
    for (uint32_t i = 0; i < m->n; i++)
        running += m->tasks[i].running;
    return running;
}

static bool is_owed(const struct sim *m)
{
    return sched_is_owed(&m->config->sched, m->tasks, m->n, m->now_ns, m->background_ns);
}

static void start(struct sim *m, uint32_t task, bool owed)
{
    struct sched_task *t = &m->tasks[task];
    t->running = true;
    if (t->deadline_ns != SCHED_NEVER || t->ttft_ns != SCHED_NEVER)
        return;
    t->kept = owed;
    m->background_ns = m->now_ns;
}

// Slots as the scheduler says. In a run of that many moves it would be going in circles.
static void give_slots(struct sim *m)
{
    uint32_t task, moves = 0;
    while (1) {
        bool owed = is_owed(m);
        enum sched_move move =
            sched_next(&m->config->sched, &m->model, m->tasks, m->n, m->now_ns, owed, m->scratch, &task);
        if (move == SCHED_STAY)
            break;
        ASSERT(moves++ <= 4 * m->max && m->tasks[task].running == (move == SCHED_PAUSE));
        m->tasks[task].running = false;
        m->tasks[task].n_computed = 0;
        m->last_ns[task] = 0;
        if (move == SCHED_START)
            start(m, task, owed);
    }
    uint32_t running = n_running(m);
    m->result->slots_max = (uint32_t)num_max(m->result->slots_max, running);
    ASSERT(running <= m->config->sched.slots && (running > 0 || m->n == 0));
}

static void arrive(struct sim *m, uint32_t number)
{
    const struct sim_arrival *a = &m->arrivals[number];
    struct sim_outcome *o = &m->outcomes[number];
    uint64_t end_ns, free_ns;
    *o = (struct sim_outcome){.fate = SIM_QUEUE_FULL, .first_ns = SCHED_NEVER, .end_ns = SCHED_NEVER};
    if (m->n == m->max) {
        m->result->queue_full++;
        return;
    }
    m->last_ns[m->n] = 0;
    m->tasks[m->n] = (struct sched_task){.arrival = number,
                                         .deadline_ns = absolute(a->at_ns, a->deadline_ns),
                                         .ttft_ns = absolute(a->at_ns, a->ttft_ns),
                                         .arrived_ns = m->now_ns,
                                         .priority = a->priority,
                                         .n_prompt = a->n_prompt,
                                         .max_output = a->max_output,
                                         .first_ns = SCHED_NEVER,
                                         .end_ns = SCHED_NEVER};
    m->n++;
    o->fate = SIM_SERVED;
    if (sched_admit(&m->config->sched, &m->model, m->tasks, m->n, m->now_ns, is_owed(m), m->scratch, &end_ns,
                    &free_ns) != SCHED_ADMITTED) {
        o->fate = SIM_REFUSED;
        m->result->refused++;
        m->n--;
    }
}

static void note_token(struct sim *m, uint32_t i)
{
    struct sim_outcome *o = &m->outcomes[m->tasks[i].arrival];
    o->first_ns = num_min(o->first_ns, m->now_ns);
    if (m->last_ns[i] > 0)
        m->result->gap_max_ns = num_max(m->result->gap_max_ns, m->now_ns - m->last_ns[i]);
    m->last_ns[i] = m->now_ns;
    m->result->output_tokens++;
}

static void end_task(struct sim *m, uint32_t i)
{
    const struct sim_arrival *a = arrival_of(m, i);
    struct sim_outcome *o = &m->outcomes[m->tasks[i].arrival];
    o->end_ns = m->now_ns;
    o->missed =
        o->end_ns > absolute(a->at_ns, a->deadline_ns) || o->first_ns > absolute(a->at_ns, a->ttft_ns);
    bool deadline = a->deadline_ns != SCHED_NEVER || a->ttft_ns != SCHED_NEVER;
    m->result->served++;
    m->result->with_deadline += deadline;
    m->result->missed += o->missed;
    if (!deadline)
        m->result->wait_max_ns = num_max(m->result->wait_max_ns, o->first_ns - a->at_ns);
    remove_task(m, i);
}

// Between 1 - noise and 1 + noise.
static double chance(const struct sim *m)
{
    double unit = (double)(hash64_seeded(&m->steps, sizeof m->steps, m->config->seed) >> 11) * 0x1p-53;
    return 1 + m->config->noise * (2 * unit - 1);
}

static void take_step(struct sim *m)
{
    struct steptime_load load;
    (void)sched_compose(&m->config->sched, &m->model, m->tasks, m->n, &load);
    double ns = steptime_mean_ns(&m->config->truth, load) * chance(m);
    m->now_ns += (uint64_t)ns;
    m->steps++;
    m->result->rows += load.rows;
    steptime_learn(&m->model, load, ns);
    for (uint32_t i = m->n; i-- > 0;) {
        struct sched_task *t = &m->tasks[i];
        uint32_t before = t->n_output;
        if (!t->running)
            continue;
        sched_advance(t, 1, m->now_ns);
        if (t->n_output == before)
            continue;
        note_token(m, i);
        if (t->n_output >= arrival_of(m, i)->n_output)
            end_task(m, i);
    }
}

static void run(struct sim *m, uint32_t n)
{
    uint32_t next = 0;
    while (next < n || m->n > 0) {
        uint32_t before = next;
        if (m->n == 0)
            m->now_ns = num_max(m->now_ns, m->arrivals[next].at_ns);
        for (; next < n && m->arrivals[next].at_ns <= m->now_ns; next++)
            arrive(m, next);
        if (next > before || n_running(m) < m->n)
            give_slots(m);
        if (m->n > 0)
            take_step(m);
    }
}

enum iso_err sim_run(const struct sim_config *config, const struct steptime *model,
                     const struct sim_arrival *arrivals, uint32_t n, struct sim_outcome *outcomes,
                     struct sim_result *ret, struct iso_errinfo *reterr)
{
    uint32_t max = config->sched.slots + config->queue;
    *ret = (struct sim_result){0};
    struct sim m = {.config = config,
                    .arrivals = arrivals,
                    .outcomes = outcomes,
                    .result = ret,
                    .model = *model,
                    .max = max,
                    .tasks = calloc(max, sizeof *m.tasks),
                    .scratch = calloc(2 * max, sizeof *m.scratch),
                    .last_ns = calloc(max, sizeof *m.last_ns)};
    enum iso_err err = ISO_OK;
    if (m.tasks && m.scratch && m.last_ns)
        run(&m, n);
    else
        err = iso_fail(reterr, ISO_E_NOMEM, 0, NULL, "the system refused memory for a simulation");
    ret->end_ns = m.now_ns;
    ret->steps = m.steps;
    free(m.tasks);
    free(m.scratch);
    free(m.last_ns);
    return err;
}
