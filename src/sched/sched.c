#include "sched/sched.h"

#include <string.h>

#include "base/assert.h"
#include "base/num.h"

#define NONE UINT32_MAX

// ---- Order ----

static bool has_deadline(const struct sched_task *t)
{
    return t->deadline_ns != SCHED_NEVER || t->ttft_ns != SCHED_NEVER;
}

static uint64_t due_ns(const struct sched_task *t)
{
    return t->n_output == 0 ? num_min(t->deadline_ns, t->ttft_ns) : t->deadline_ns;
}

bool sched_before(const struct sched_task *a, const struct sched_task *b)
{
    bool deadline = has_deadline(a);
    if (deadline != has_deadline(b))
        return deadline;
    if (deadline && due_ns(a) != due_ns(b))
        return due_ns(a) < due_ns(b);
    if (!deadline && a->priority != b->priority)
        return a->priority < b->priority;
    return a->arrival < b->arrival;
}

bool sched_is_owed(const struct sched_config *c, const struct sched_task *tasks, uint32_t n, uint64_t now_ns,
                   uint64_t since_ns)
{
    for (uint32_t i = 0; i < n; i++)
        if (!tasks[i].running && !has_deadline(&tasks[i]) &&
            now_ns - num_max(tasks[i].arrived_ns, since_ns) >= c->age_ns)
            return true;
    return false;
}

// ---- A step ----

uint32_t sched_prompt_rows(const struct sched_config *c, const struct steptime *s, uint32_t n_decoding,
                           uint64_t decode_keys)
{
    ASSERT(n_decoding <= c->batch_tokens);
    uint32_t room = c->batch_tokens - n_decoding;
    if (n_decoding == 0 || room == 0)
        return room;
    struct steptime_load load = {.rows = n_decoding, .wanted = n_decoding, .decode_keys = decode_keys};
    double most = c->stretch * steptime_mean_ns(s, load);
    uint32_t least = 1; // fits or is what is taken anyway; `most` rows don't fit
    uint32_t over = room + 1;
    while (over - least > 1) {
        uint32_t rows = least + (over - least) / 2;
        load.rows = n_decoding + rows;
        if (steptime_mean_ns(s, load) <= most)
            least = rows;
        else
            over = rows;
    }
    return least;
}

static uint32_t known(const struct sched_task *t)
{
    return t->n_prompt + t->n_output;
}

static bool is_decoding(const struct sched_task *t)
{
    return t->running && t->n_output > 0 && t->n_computed + 1 == known(t);
}

// Rows for those that decode.
static uint64_t add_decoding(struct sched_task *tasks, uint32_t n, struct steptime_load *load)
{
    uint64_t steps = UINT64_MAX;
    for (uint32_t i = 0; i < n; i++) {
        struct sched_task *t = &tasks[i];
        t->chunk = is_decoding(t);
        if (!t->chunk)
            continue;
        load->rows++;
        load->wanted++;
        load->decode_keys += t->n_computed;
        steps = num_min(steps, t->max_output - t->n_output);
    }
    return steps;
}

// The first in order of the prompts that have no rows yet.
static struct sched_task *next_prompt(struct sched_task *tasks, uint32_t n)
{
    struct sched_task *best = NULL;
    for (uint32_t i = 0; i < n; i++) {
        struct sched_task *t = &tasks[i];
        if (t->running && t->chunk == 0 && (!best || sched_before(t, best)))
            best = t;
    }
    return best;
}

uint64_t sched_compose(const struct sched_config *c, const struct steptime *s, struct sched_task *tasks,
                       uint32_t n, struct steptime_load *ret)
{
    struct steptime_load load = {0};
    struct sched_task *t;
    uint64_t steps = add_decoding(tasks, n, &load);
    uint32_t n_decoding = load.rows, left = sched_prompt_rows(c, s, n_decoding, load.decode_keys);
    uint32_t room = c->batch_tokens - n_decoding;
    while (left > 0 && (t = next_prompt(tasks, n))) {
        uint32_t rest = known(t) - t->n_computed;
        t->chunk =
            (uint32_t)(rest <= left + left / 8 && rest <= room ? rest : num_min(rest, left)); // no crumbs
        left -= (uint32_t)num_min(t->chunk, left);
        room -= t->chunk;
        load.rows += t->chunk;
        load.wanted += t->chunk == rest;
        load.prefill_keys += (uint64_t)t->chunk * (t->n_computed + t->chunk / 2);
        steps = num_min(steps, rest / t->chunk);
        if (n_decoding == 0 && has_deadline(t)) // nothing bounds the step's time, and this one is waited for
            break;
    }
    load.wanted = (uint32_t)num_max(load.wanted, 1); // the measured steps have one
    *ret = load;
    return steps;
}

void sched_advance(struct sched_task *t, uint64_t steps, uint64_t now_ns)
{
    bool decoding = is_decoding(t);
    t->n_computed += t->chunk * (uint32_t)steps;
    if (decoding)
        t->n_output += (uint32_t)steps;
    else if (t->chunk > 0 && t->n_computed == known(t))
        t->n_output++;
    if (t->n_output > 0)
        t->first_ns = num_min(t->first_ns, now_ns);
    if (t->n_output >= t->max_output) {
        t->end_ns = now_ns;
        t->running = false;
    }
}

// ---- Forecast ----

// The tasks of a forecast, as it goes.
struct forecast {
    const struct sched_config *c;
    const struct steptime *s;
    struct sched_task *tasks;
    uint32_t n;
    uint64_t now_ns;
    bool all;
};

static bool has_ended(const struct sched_task *t)
{
    return t->end_ns != SCHED_NEVER;
}

static bool yields(const struct sched_task *t)
{
    return t->running && !has_deadline(t) && !t->kept;
}

// In which order those that wait get slots: as they were admitted to.
static bool starts_before(const struct sched_task *a, const struct sched_task *b)
{
    if (has_deadline(a) && has_deadline(b) && a->start_ns != b->start_ns)
        return a->start_ns < b->start_ns;
    return sched_before(a, b);
}

// The next in order of those that wait, after one of them (NONE: the first). NONE: there is none.
static uint32_t next_waiting(const struct sched_task *tasks, uint32_t n, uint32_t after)
{
    uint32_t best = NONE;
    for (uint32_t i = 0; i < n; i++)
        if (!tasks[i].running && !has_ended(&tasks[i]) &&
            (after == NONE || starts_before(&tasks[after], &tasks[i])) &&
            (best == NONE || starts_before(&tasks[i], &tasks[best])))
            best = i;
    return best;
}

// The last in order of those that run and may be paused.
static uint32_t last_yielding(const struct sched_task *tasks, uint32_t n)
{
    uint32_t last = NONE;
    for (uint32_t i = 0; i < n; i++)
        if (yields(&tasks[i]) && (last == NONE || sched_before(&tasks[last], &tasks[i])))
            last = i;
    return last;
}

static uint32_t n_running(const struct sched_task *tasks, uint32_t n)
{
    uint32_t running = 0;
    for (uint32_t i = 0; i < n; i++)
        running += tasks[i].running;
    return running;
}

static void pause(struct sched_task *t)
{
    t->running = false;
    t->n_computed = 0;
}

// When the next step of those that run ends. Until then nothing starts: what is to start before may do so now.
static uint64_t step_end_ns(const struct sched_config *c, const struct steptime *s, struct sched_task *tasks,
                            uint32_t n, uint64_t now_ns)
{
    struct steptime_load load;
    if (n_running(tasks, n) == 0)
        return now_ns;
    (void)sched_compose(c, s, tasks, n, &load);
    return now_ns + (uint64_t)steptime_bound_ns(s, load);
}

static uint32_t next_released(const struct forecast *f)
{
    uint64_t by_ns = step_end_ns(f->c, f->s, f->tasks, f->n, f->now_ns);
    uint32_t next = next_waiting(f->tasks, f->n, NONE);
    while (next != NONE && f->tasks[next].start_ns > by_ns)
        next = next_waiting(f->tasks, f->n, next);
    return next;
}

// Gives slots to those that come first; one with a deadline takes the slot of one that yields.
static void fill_slots(struct forecast *f)
{
    uint32_t running = n_running(f->tasks, f->n), next;
    while ((next = next_released(f)) != NONE) {
        bool deadline = has_deadline(&f->tasks[next]);
        uint32_t last = deadline ? last_yielding(f->tasks, f->n) : NONE;
        if ((!deadline && !f->all) || (running >= f->c->slots && last == NONE))
            return;
        if (running >= f->c->slots) {
            pause(&f->tasks[last]);
            running--;
        }
        f->tasks[next].running = true;
        f->tasks[next].began_ns = f->now_ns;
        running++;
    }
}

// When the next one that waits may start.
static uint64_t next_start(const struct forecast *f)
{
    uint64_t at = SCHED_NEVER;
    for (uint32_t i = 0; i < f->n; i++)
        if (!f->tasks[i].running && !has_ended(&f->tasks[i]) && f->tasks[i].start_ns > f->now_ns)
            at = num_min(at, f->tasks[i].start_ns);
    return at;
}

static void take_steps(struct forecast *f)
{
    struct steptime_load load;
    uint64_t steps = sched_compose(f->c, f->s, f->tasks, f->n, &load), start = next_start(f);
    if (start != SCHED_NEVER)
        steps = num_min(steps, (uint64_t)((double)(start - f->now_ns) / steptime_bound_ns(f->s, load)) + 1);
    for (uint32_t i = 0; i < f->n; i++) { // sequences grow: as if all were as long as in the middle
        const struct sched_task *t = &f->tasks[i];
        uint64_t keys = t->running ? (uint64_t)t->chunk * t->chunk * (steps / 2) : 0;
        *(is_decoding(t) ? &load.decode_keys : &load.prefill_keys) += keys;
    }
    f->now_ns += (uint64_t)(steptime_bound_ns(f->s, load) * (double)steps) + 1;
    for (uint32_t i = 0; i < f->n; i++)
        if (f->tasks[i].running)
            sched_advance(&f->tasks[i], steps, f->now_ns);
}

void sched_forecast(const struct sched_config *c, const struct steptime *s, struct sched_task *tasks,
                    uint32_t n, uint64_t now_ns, bool all)
{
    struct forecast f = {c, s, tasks, n, now_ns, all};
    for (uint32_t i = 0; i < n; i++) {
        tasks[i].began_ns = tasks[i].end_ns = SCHED_NEVER;
        tasks[i].first_ns = tasks[i].n_output > 0 ? now_ns : SCHED_NEVER;
    }
    while (1) {
        fill_slots(&f);
        if (n_running(tasks, n) > 0)
            take_steps(&f);
        else if (next_start(&f) != SCHED_NEVER)
            f.now_ns = next_start(&f);
        else
            break;
    }
}

// ---- Admission ----

static bool is_late(const struct sched_task *t)
{
    return t->end_ns > t->deadline_ns || t->first_ns > t->ttft_ns;
}

static bool any_late(const struct sched_task *tasks, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (is_late(&tasks[i]))
            return true;
    return false;
}

// Whether one of the tasks is late, and by more than in the other forecast.
static bool is_worse(const struct sched_task *tasks, const struct sched_task *other, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (is_late(&tasks[i]) &&
            (tasks[i].end_ns > other[i].end_ns || tasks[i].first_ns > other[i].first_ns))
            return true;
    return false;
}

// `yielding`: with those that may be paused; else they are.
static void copy(struct sched_task *to, const struct sched_task *from, uint32_t n, bool yielding)
{
    memcpy(to, from, n * sizeof *to);
    for (uint32_t i = 0; i < n && !yielding; i++)
        if (yields(&to[i]))
            pause(&to[i]);
}

static uint64_t first_end_ns(const struct sched_task *tasks, uint32_t n)
{
    uint64_t first = SCHED_NEVER;
    for (uint32_t i = 0; i < n; i++)
        first = num_min(first, tasks[i].end_ns);
    return first;
}

static enum sched_verdict verdict(const struct sched_config *c, const struct steptime *s,
                                  const struct sched_task *tasks, uint32_t n, uint64_t now_ns,
                                  struct sched_task *scratch)
{
    if (is_late(&scratch[n - 1]))
        return SCHED_LATE;
    if (c->planted_bug || !any_late(scratch, n - 1))
        return SCHED_ADMITTED;
    struct sched_task *without = scratch + n;
    copy(without, tasks, n - 1, false);
    sched_forecast(c, s, without, n - 1, now_ns, false);
    return is_worse(scratch, without, n - 1) ? SCHED_HARMS : SCHED_ADMITTED;
}

enum sched_verdict sched_admit(const struct sched_config *c, const struct steptime *s,
                               struct sched_task *tasks, uint32_t n, uint64_t now_ns, bool owed,
                               struct sched_task *scratch, uint64_t *ret_end_ns, uint64_t *ret_free_ns)
{
    bool deadline = has_deadline(&tasks[n - 1]);
    copy(scratch, tasks, n, !deadline);
    for (uint32_t i = 0; i < n; i++)
        scratch[i].start_ns = 0; // planned anew
    sched_forecast(c, s, scratch, n, now_ns, !deadline);
    *ret_end_ns = scratch[n - 1].end_ns;
    *ret_free_ns = first_end_ns(scratch, n - 1);
    if (!deadline)
        return SCHED_ADMITTED;
    enum sched_verdict v = owed ? SCHED_OWED : verdict(c, s, tasks, n, now_ns, scratch);
    for (uint32_t i = 0; i < n && v == SCHED_ADMITTED; i++)
        if (!tasks[i].running && has_deadline(&tasks[i]))
            tasks[i].start_ns = scratch[i].began_ns;
    return v;
}

// ---- Slots ----

// Whether an admitted deadline is missed, or by more, because those run that may be paused, and task i with them (NONE: none more).
static bool harms(const struct sched_config *c, const struct steptime *s, const struct sched_task *tasks,
                  uint32_t n, uint64_t now_ns, bool owed, struct sched_task *scratch, uint32_t i)
{
    struct sched_task *with = scratch, *without = scratch + n;
    copy(with, tasks, n, true);
    if (i != NONE) {
        with[i].running = true;
        with[i].kept = owed;
    }
    sched_forecast(c, s, with, n, now_ns, false);
    if (!any_late(with, n))
        return false;
    copy(without, tasks, n, false);
    sched_forecast(c, s, without, n, now_ns, false);
    return is_worse(with, without, n);
}

// Whether task i, which has a deadline, may start: it was to, or all are in time if it does.
static bool may_start(const struct sched_config *c, const struct steptime *s, const struct sched_task *tasks,
                      uint32_t n, uint64_t now_ns, struct sched_task *scratch, uint32_t i)
{
    copy(scratch, tasks, n, true);
    if (n_running(scratch, n) == c->slots)
        pause(&scratch[last_yielding(scratch, n)]);
    if (tasks[i].start_ns <= step_end_ns(c, s, scratch, n, now_ns))
        return true;
    scratch[i].running = true;
    sched_forecast(c, s, scratch, n, now_ns, false);
    return !any_late(scratch, n);
}

static uint32_t first_arrived(const struct sched_task *tasks, uint32_t n)
{
    uint32_t first = NONE;
    for (uint32_t i = 0; i < n; i++)
        if (!tasks[i].running && !has_deadline(&tasks[i]) &&
            (first == NONE || tasks[i].arrival < tasks[first].arrival))
            first = i;
    return first;
}

// The one that may start now. NONE: there is none.
static uint32_t next_start_of(const struct sched_config *c, const struct steptime *s,
                              const struct sched_task *tasks, uint32_t n, uint64_t now_ns, bool owed,
                              struct sched_task *scratch)
{
    uint32_t first = next_waiting(tasks, n, NONE), next = first;
    for (; next != NONE && has_deadline(&tasks[next]); next = next_waiting(tasks, n, next))
        if (may_start(c, s, tasks, n, now_ns, scratch, next))
            return next;
    if (owed)
        next = first_arrived(tasks, n);
    if (next != NONE && !harms(c, s, tasks, n, now_ns, owed, scratch, next))
        return next;
    return n_running(tasks, n) == 0 ? first : NONE; // nobody is there to be slowed
}

enum sched_move sched_next(const struct sched_config *c, const struct steptime *s,
                           const struct sched_task *tasks, uint32_t n, uint64_t now_ns, bool owed,
                           struct sched_task *scratch, uint32_t *ret_task)
{
    uint32_t last = last_yielding(tasks, n);
    if (last != NONE && harms(c, s, tasks, n, now_ns, false, scratch, NONE)) {
        *ret_task = last;
        return SCHED_PAUSE;
    }
    bool full = n_running(tasks, n) == c->slots;
    if (full && last == NONE)
        return SCHED_STAY;
    uint32_t next = next_start_of(c, s, tasks, n, now_ns, owed && !full, scratch);
    if (next == NONE || (full && !has_deadline(&tasks[next])))
        return SCHED_STAY;
    *ret_task = full ? last : next;
    return full ? SCHED_PAUSE : SCHED_START;
}
