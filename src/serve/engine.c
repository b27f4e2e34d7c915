#include "serve/engine.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/num.h"
#include "plan/plan.h"

static const struct plan_limits *limits_of(const struct engine *e)
{
    return &e->language.header.limits;
}

static void set_state(struct engine *e, enum engine_state state)
{
    e->state = state;
    e->config.on_state(e->config.context, e);
}

// ---- The queue ----

static void link_last(struct engine_list *l, struct engine_job *j)
{
    j->next = NULL;
    j->before = l->last;
    *(l->last ? &l->last->next : &l->first) = j;
    l->last = j;
    l->n++;
}

static void link_first(struct engine_list *l, struct engine_job *j)
{
    j->before = NULL;
    j->next = l->first;
    *(l->first ? &l->first->before : &l->last) = j;
    l->first = j;
    l->n++;
}

static void unlink_job(struct engine *e, struct engine_job *j)
{
    struct engine_list *l = &e->lists[j->place];
    *(j->before ? &j->before->next : &l->first) = j->next;
    *(j->next ? &j->next->before : &l->last) = j->before;
    j->next = j->before = NULL;
    l->n--;
}

static void start_job(struct engine *e, struct engine_job *j)
{
    unlink_job(e, j);
    struct unit_request r = j->calls->request(j, e->prompt);
    bool taken = remote_submit(&e->remote, &r, j->n_top, j->embed, ++e->serial, &j->area);
    ASSERT(taken);
    j->place = ENGINE_RUNNING;
    e->jobs[j->area] = j;
    e->n_running++;
    e->kv_blocks[j->area] =
        (uint32_t)num_div_up((uint64_t)r.n_prompt + (r.score ? 0 : r.max_output), KV_BLOCK_TOKENS);
    e->kv_blocks_used += e->kv_blocks[j->area];
}

static void dispatch(struct engine *e)
{
    struct engine_list *waiting = &e->lists[ENGINE_WAITING];
    while (e->state == ENGINE_READY && waiting->first && e->remote.n_free > 0)
        start_job(e, waiting->first);
    if (e->ending && waiting->n + e->lists[ENGINE_PAUSED].n == 0 && e->remote_open &&
        e->remote.n_free == limits_of(e)->slots)
        remote_end(&e->remote);
    if (e->remote_open && e->remote.broken && e->remote.pid > 0) // its end is noticed by its pidfd
        kill(e->remote.pid, SIGKILL);
}

// In no list yet.
static void enter(struct engine *e, struct engine_job *j, enum engine_place place)
{
    ASSERT(!j->engine);
    j->engine = e;
    j->place = place;
}

static void leave(struct engine_job *j)
{
    struct engine *e = j->engine;
    if (!e)
        return;
    if (j->place != ENGINE_RUNNING) {
        unlink_job(e, j);
    } else {
        if (e->remote_open) // it may just have died
            remote_cancel(&e->remote, j->area);
        e->jobs[j->area] = NULL;
    }
    j->engine = NULL;
}

void engine_submit(struct engine *e, struct engine_job *j)
{
    enter(e, j, ENGINE_WAITING);
    link_last(&e->lists[ENGINE_WAITING], j);
    dispatch(e);
}

void engine_resubmit(struct engine *e, struct engine_job *j)
{
    leave(j);
    enter(e, j, ENGINE_WAITING);
    link_first(&e->lists[ENGINE_WAITING], j);
    dispatch(e);
}

void engine_pause(struct engine *e, struct engine_job *j)
{
    leave(j);
    enter(e, j, ENGINE_PAUSED);
    link_last(&e->lists[ENGINE_PAUSED], j);
    dispatch(e);
}

void engine_cancel(struct engine_job *j)
{
    struct engine *e = j->engine;
    leave(j);
    if (e)
        dispatch(e);
}

uint32_t engine_n_waiting(const struct engine *e)
{
    return e->lists[ENGINE_WAITING].n;
}

// ---- What the unit says ----

static void release_area(struct engine *e, uint32_t area)
{
    e->kv_blocks_used -= e->kv_blocks[area];
    e->kv_blocks[area] = 0;
    e->jobs[area] = NULL;
    e->n_running--;
}

static void take_event(struct engine *e, const struct channel_event *event)
{
    if (event->kind == CHANNEL_STEP) {
        e->config.on_step(e->config.context, e, event->step_ns, event->rows);
        return;
    }
    struct engine_job *j = e->jobs[event->area];
    bool ended = channel_event_ends(event);
    if (ended)
        release_area(e, event->area);
    if (!j)
        return; // cancelled
    if (ended)
        j->engine = NULL;
    if (event->kind == CHANNEL_REFUSED)
        j->calls->failed(j, (enum iso_err)event->err, "the unit refused the request");
    else
        j->calls->event(j, event);
}

static void take_events(struct engine *e)
{
    struct channel_event event;
    while (remote_take(&e->remote, &event) == RING_TAKEN)
        take_event(e, &event);
}

static void watch_failure(struct engine *e)
{
    if (e->state != ENGINE_LOADING)
        return;
    if (remote_state(&e->remote) == CHANNEL_READY) {
        e->ready_ns = clock_now_ns();
        set_state(e, ENGINE_READY);
    } else if (remote_state(&e->remote) == CHANNEL_FAILED) {
        e->failure = e->remote.channel.shared->failure;
    }
}

static int on_events(sd_event_source *source, int fd, uint32_t what, void *context)
{
    (void)source, (void)what;
    struct engine *e = context;
    uint64_t count;
    (void)!read(fd, &count, sizeof count);
    watch_failure(e);
    take_events(e);
    dispatch(e);
    return 0;
}

// ---- Start, death, start again ----

static void close_remote(struct engine *e)
{
    e->events = sd_event_source_disable_unref(e->events);
    e->death = sd_event_source_disable_unref(e->death);
    if (e->remote_open)
        remote_close(&e->remote);
    e->remote_open = false;
}

static void fail_jobs(struct engine *e, const char *why)
{
    for (uint32_t i = 0; i < limits_of(e)->slots; i++) {
        struct engine_job *j = e->jobs[i];
        if (e->kv_blocks[i] > 0)
            release_area(e, i);
        if (!j)
            continue;
        j->engine = NULL;
        j->calls->failed(j, ISO_E_BUSY, why);
    }
    for (struct engine_list *l = e->lists; l < e->lists + ENGINE_RUNNING; l++) {
        while (l->first) {
            struct engine_job *j = l->first;
            leave(j);
            j->calls->failed(j, ISO_E_BUSY, why);
        }
    }
    ASSERT(e->n_running == 0 && e->kv_blocks_used == 0);
}

static enum iso_err start_unit(struct engine *e, struct iso_errinfo *reterr);
static void start_later(struct engine *e, bool was_steady);

static int on_restart(sd_event_source *source, uint64_t due_us, void *context)
{
    (void)source, (void)due_us;
    struct engine *e = context;
    struct iso_errinfo error;
    e->restart = sd_event_source_disable_unref(e->restart);
    e->restarts++;
    if (start_unit(e, &error)) {
        e->failure = error; // no process, no memory: there may be some later
        start_later(e, false);
        set_state(e, ENGINE_DOWN);
    } else {
        set_state(e, ENGINE_LOADING);
    }
    return 0;
}

static void start_later(struct engine *e, bool was_steady)
{
    if (was_steady)
        e->pause_ms = 0;
    e->pause_ms =
        e->pause_ms ? (uint32_t)num_min(2 * e->pause_ms, ENGINE_PAUSE_MAX_MS) : ENGINE_PAUSE_FIRST_MS;
    int r = sd_event_add_time_relative(e->config.loop, &e->restart, CLOCK_MONOTONIC, e->pause_ms * 1000ull,
                                       1000, on_restart, e);
    ASSERT(r >= 0);
}

static int on_death(sd_event_source *source, int fd, uint32_t what, void *context)
{
    (void)source, (void)fd, (void)what;
    struct engine *e = context;
    bool as_told = remote_state(&e->remote) == CHANNEL_ENDED || e->killed;
    watch_failure(e);
    take_events(e); // that came before
    bool was_steady =
        e->state == ENGINE_READY && clock_now_ns() - e->ready_ns > (uint64_t)ENGINE_STEADY_MS * 1000000;
    bool never_ready = e->state == ENGINE_LOADING && e->ready_ns == 0;
    bool says_why = remote_state(&e->remote) == CHANNEL_FAILED; // e->failure has it
    int status = remote_reap(&e->remote);
    if (!as_told && !says_why)
        (void)iso_fail(&e->failure, ISO_E_IO, 0, "unit",
                       WIFSIGNALED(status) ? "the unit process was ended by signal %d"
                                           : "the unit process ended with code %d",
                       WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
    close_remote(e);
    e->state = ENGINE_DOWN; // so that nothing is given to it
    fail_jobs(e, "the compute unit ended; try again");
    if (as_told && e->ending) {
        set_state(e, ENGINE_GONE);
    } else if (never_ready || e->ending) {
        set_state(e, ENGINE_FAILED);
    } else {
        start_later(e, was_steady);
        set_state(e, ENGINE_DOWN);
    }
    return 0;
}

static enum iso_err start_unit(struct engine *e, struct iso_errinfo *reterr)
{
    enum iso_err err =
        remote_start(e->config.argv, e->plan_fd, &e->language.header, &e->config.channel, &e->remote, reterr);
    if (err)
        return err;
    e->remote_open = true;
    e->pid = e->remote.pid;
    e->state = ENGINE_LOADING;
    if (sd_event_add_io(e->config.loop, &e->events, e->remote.event_fd, EPOLLIN, on_events, e) < 0 ||
        sd_event_add_io(e->config.loop, &e->death, e->remote.pid_fd, EPOLLIN, on_death, e) < 0) {
        close_remote(e);
        return iso_fail(reterr, ISO_E_NOMEM, 0, NULL, "the system refused to watch the unit");
    }
    return ISO_OK;
}

static enum iso_err does_not_fit(uint64_t total, const char *who, uint64_t given, struct iso_errinfo *reterr)
{
    return iso_fail(reterr, ISO_E_NOFIT, 0, "pool",
                    "%" PRIu64 " bytes are needed and %s %" PRIu64 ", %" PRIu64
                    " too few; `isochron fit` shows what would fit",
                    total, who, given, total - given);
}

static enum iso_err check_account(struct engine *e, uint64_t available, struct iso_errinfo *reterr)
{
    const struct plan_header *h = &e->language.header;
    uint64_t weights = h->sections[PLAN_WEIGHTS].bytes;
    const struct channel_shape shape = {h->limits, h->model.hidden};
    // The front is a process, too.
    e->account =
        account_of(h, weights, num_align(h->file_bytes, PLAN_ALIGN) - weights, e->config.channel.threads,
                   language_bytes(&h->limits) + channel_bytes(&shape) + ACCOUNT_IMAGE_BYTES);
    uint64_t total = account_total(&e->account), pool = e->config.channel.pool_bytes_max;
    if (pool > 0 && total > pool)
        return does_not_fit(total, "the unit's pool has", pool, reterr);
    if (available > 0 && total > available)
        return does_not_fit(total, "this machine has available", available, reterr);
    return ISO_OK;
}

enum iso_err engine_open(const char *path, const struct engine_config *config, uint64_t available_bytes,
                         struct engine **ret, struct iso_errinfo *reterr)
{
    struct engine *e = calloc(1, sizeof *e);
    if (!e)
        return iso_fail(reterr, ISO_E_NOMEM, 0, NULL, "the system refused memory for the engine");
    e->config = *config;
    e->plan_fd = -1;
    enum iso_err err = plan_open_file(path, &e->plan_fd, reterr);
    if (!err)
        err = language_open(e->plan_fd, &e->language, reterr);
    if (!err) {
        e->config.channel.plan_hash = e->language.header.hash;
        e->prompt = calloc(limits_of(e)->max_seq_len, sizeof *e->prompt);
        err = e->prompt ? check_account(e, available_bytes, reterr)
                        : iso_fail(reterr, ISO_E_NOMEM, 0, NULL, "the system refused memory for a prompt");
    }
    if (!err)
        err = start_unit(e, reterr);
    if (err)
        engine_close(e);
    else
        *ret = e;
    return err;
}

void engine_close(struct engine *e)
{
    if (!e)
        return;
    close_remote(e);
    sd_event_source_disable_unref(e->restart);
    language_close(&e->language);
    if (e->plan_fd >= 0)
        close(e->plan_fd);
    free(e->prompt);
    free(e);
}

void engine_end_when_idle(struct engine *e)
{
    e->ending = true;
    if (e->remote_open && e->state == ENGINE_LOADING) { // it looks at nothing until it is ready
        e->killed = true;
        kill(e->remote.pid, SIGKILL);
        return;
    }
    if (e->remote_open) {
        dispatch(e);
        return;
    }
    e->restart = sd_event_source_disable_unref(e->restart);
    set_state(e, ENGINE_GONE);
}
