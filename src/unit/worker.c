#include "unit/worker.h"

#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/num.h"
#include "kernels/kernels.h"
#include "plan/plan.h"
#include "unit/channel.h"
#include "unit/unit.h"

#define IDLE_BEAT_MS 100 // how often an idle unit shows that it lives
#define ROOM_WAIT_MS 1   // between looks at a ring of events that is full

// What the worker knows of a unit's slot.
struct job {
    bool used;
    uint64_t serial;
    uint32_t area, n_top;
    uint32_t n_prompt; // of a scored request, else 0
    bool embed;
};

struct worker {
    struct plan plan;
    struct channel channel;
    struct unit *unit;
    struct job jobs[PLAN_SLOTS_MAX];
    bool rang;
};

static void put(struct worker *w, const struct channel_event *event)
{
    bool room = ring_put(&w->channel.events, event);
    ASSERT(room); // looked at before what puts events
    w->rang = true;
}

// Tells the front that there are events.
static void ring_front(struct worker *w)
{
    const uint64_t one = 1;
    if (w->rang)
        (void)!write(WORKER_FD_EVENTS, &one, sizeof one);
    w->rang = false;
}

static enum iso_err submit(struct worker *w, const struct channel_command *c, uint32_t *ret_reused)
{
    const struct channel_request *r = channel_request(&w->channel, c->area);
    struct unit_request request = {.prompt = channel_prompt(&w->channel, c->area),
                                   .n_prompt = r->n_prompt,
                                   .max_output = r->max_output,
                                   .n_prior = r->n_prior,
                                   .sampling = r->sampling,
                                   .ignore_eog = r->ignore_eog,
                                   .score = r->score};
    request.sampling.bias = r->bias;
    uint32_t slot;
    enum iso_err err = ISO_E_USAGE;
    if (r->n_top <= LOGPROBS_TOP_MAX || r->n_top == LOGPROBS_NONE)
        err = unit_submit(w->unit, &request, &slot, ret_reused, NULL);
    if (!err)
        w->jobs[slot] =
            (struct job){true, c->serial, c->area, r->n_top, r->score ? r->n_prompt : 0, r->embed};
    return err;
}

static void cancel(struct worker *w, const struct channel_command *c)
{
    for (uint32_t i = 0; i < w->channel.areas; i++) {
        struct job *job = &w->jobs[i];
        if (!job->used || job->serial != c->serial)
            continue;
        unit_cancel(w->unit, i);
        put(w, &(struct channel_event){.kind = CHANNEL_CANCELLED, .serial = job->serial, .area = job->area});
        job->used = false;
    }
}

static void obey(struct worker *w, const struct channel_command *c)
{
    struct channel_event event = {.serial = c->serial, .area = c->area};
    if (c->area >= w->channel.areas)
        return;
    if (c->op == CHANNEL_CANCEL)
        cancel(w, c);
    if (c->op == CHANNEL_SUBMIT) {
        event.err = submit(w, c, &event.reused);
        event.kind = event.err ? CHANNEL_REFUSED : CHANNEL_STARTED;
        put(w, &event);
    }
}

// Events for everything that can happen until the next look: an answer to each command, a step, one of each slot.
static bool has_room(const struct worker *w)
{
    return ring_room(&w->channel.events) >= w->channel.commands.capacity + w->channel.areas + 1;
}

static void tell(struct worker *w, const struct unit_event *e)
{
    struct job *job = &w->jobs[e->slot];
    struct channel_event event = {.kind = CHANNEL_TOKEN,
                                  .serial = job->serial,
                                  .area = job->area,
                                  .token = e->token,
                                  .position = e->position,
                                  .finish = e->finish};
    struct token_logprob list[1 + LOGPROBS_TOP_MAX];
    if (e->position + 1 < job->n_prompt && event.finish != UNIT_NONFINITE)
        event.token = (uint32_t)num_min(channel_prompt(&w->channel, job->area)[e->position + 1],
                                        w->plan.header->model.vocab - 1);
    if (job->n_top != LOGPROBS_NONE && e->finish != UNIT_NONFINITE &&
        logprobs_of(unit_logits(w->unit, e->row), w->plan.header->model.vocab,
                    unit_log_sum_exp(w->unit, e->row), event.token, job->n_top, list)) {
        event.logprob = list[0].logprob;
        memcpy(event.top, list + 1, job->n_top * sizeof *list);
    }
    const float *hidden = unit_hidden(w->unit, e->row);
    if (job->embed && hidden)
        memcpy(channel_hidden(&w->channel, job->area), hidden, w->plan.header->model.hidden * sizeof *hidden);
    put(w, &event);
    if (e->finish != UNIT_RUNNING)
        job->used = false;
}

// One step. False where there was nothing to do.
static bool step(struct worker *w)
{
    struct channel_shared *shared = w->channel.shared;
    uint64_t began = clock_now_ns();
    atomic_store_explicit(&shared->step_began_ns, began, memory_order_relaxed);
    struct unit_result r = unit_step(w->unit);
    atomic_store_explicit(&shared->step_began_ns, 0, memory_order_relaxed);
    if (r.rows == 0)
        return false;
    put(w, &(struct channel_event){.kind = CHANNEL_STEP, .rows = r.rows, .step_ns = clock_now_ns() - began});
    for (uint32_t i = 0; i < r.n; i++)
        tell(w, &r.events[i]);
    atomic_fetch_add_explicit(&shared->steps, 1, memory_order_relaxed);
    return true;
}

static void serve(struct worker *w)
{
    struct channel_shared *shared = w->channel.shared;
    enum ring_taken taken = RING_EMPTY;
    while (!atomic_load(&shared->ending) && taken != RING_BROKEN) {
        struct channel_command command;
        uint32_t seen = atomic_load(&shared->doorbell);
        atomic_store_explicit(&shared->beat_ns, clock_now_ns(), memory_order_relaxed);
        if (!has_room(w)) {
            usleep(ROOM_WAIT_MS * 1000);
            continue;
        }
        while ((taken = ring_take(&w->channel.commands, &command)) == RING_TAKEN)
            obey(w, &command);
        bool worked = step(w);
        ring_front(w);
        if (!worked && !atomic_load(&shared->ending))
            channel_wait(&w->channel, seen, IDLE_BEAT_MS);
    }
}

static enum iso_err open_unit(struct worker *w, struct iso_errinfo *reterr)
{
    const struct channel_config *config = &w->channel.shared->config;
    struct unit_config unit = {.kernels = config->isa == ISA_COUNT ? kernels_best() : NULL,
                               .threads = config->threads,
                               .cpus = config->n_cpus ? config->cpus : NULL,
                               .fifo = config->fifo,
                               .pool_bytes_max = config->pool_bytes_max,
                               .extra_bytes = w->channel.bytes,
                               .chunk_tokens = config->chunk_tokens,
                               .no_prefix_reuse = config->no_prefix_reuse};
    if (config->isa < ISA_COUNT)
        unit.kernels = kernels_get((enum isa)config->isa);
    if (!unit.kernels || unit.threads == 0 || unit.threads > TEAM_THREADS_MAX)
        return iso_fail(reterr, ISO_E_USAGE, 0, "unit",
                        "no unit has this instruction set and number of threads");
    enum iso_err err = plan_load_fd(WORKER_FD_PLAN, NULL, NULL, &w->plan, reterr);
    if (err)
        return err;
    if (!hash128_equal(config->plan_hash, w->plan.header->hash) ||
        memcmp(&w->channel.shared->shape.limits, &w->plan.header->limits, sizeof w->plan.header->limits) !=
            0 ||
        w->channel.shared->shape.hidden != w->plan.header->model.hidden)
        return iso_fail(reterr, ISO_E_CORRUPT, 0, "plan", "the plan changed while it was being loaded");
    return unit_open(&w->plan, &unit, &w->unit, reterr);
}

// Those to the whole process group are the front's to answer; it ends this process through the channel.
static void ignore_signals(void)
{
    static const int FOR_ALL[] = {SIGINT, SIGTERM, SIGHUP};
    const struct sigaction ignore = {.sa_handler = SIG_IGN};
    for (size_t i = 0; i < sizeof FOR_ALL / sizeof FOR_ALL[0]; i++)
        sigaction(FOR_ALL[i], &ignore, NULL);
}

enum iso_err worker_run(struct iso_errinfo *reterr)
{
    static struct worker w;
    ignore_signals();
    enum iso_err err = channel_map(WORKER_FD_CHANNEL, &w.channel, reterr);
    if (err)
        return err;
    struct channel_shared *shared = w.channel.shared;
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) || getppid() != shared->config.front_pid)
        return iso_fail(reterr, ISO_E_USAGE, 0, "unit", "the process that started this unit is gone");
    err = open_unit(&w, reterr);
    if (err) {
        shared->failure = *reterr;
    } else {
        enum isa isa;
        shared->isa = isa_from_name(unit_kernels(w.unit)->name, &isa) ? isa : ISA_COUNT;
        shared->locked = unit_is_locked(w.unit);
        shared->has_hidden = unit_has_hidden(w.unit);
    }
    atomic_store(&shared->state, err ? CHANNEL_FAILED : CHANNEL_READY);
    w.rang = true;
    ring_front(&w);
    if (!err) {
        serve(&w);
        atomic_store(&shared->state, CHANNEL_ENDED);
    }
    unit_close(w.unit);
    plan_close(&w.plan);
    channel_unmap(&w.channel);
    return err;
}
