#include "unit/team.h"

#include <errno.h>
#include <linux/futex.h>
#include <sched.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/fpenv.h"
#include "base/mem.h"

#define SPINS 4000 // about 50 µs of pauses before a thread sleeps

static void futex(_Atomic uint32_t *word, int op, uint32_t value)
{
    (void)syscall(SYS_futex, word, op, value, NULL, NULL, 0);
}

static void pause_briefly(void)
{
#ifdef __x86_64__
    __builtin_ia32_pause();
#else
    __asm__ volatile("yield");
#endif
}

void team_barrier(struct team *team)
{
    uint32_t generation = atomic_load_explicit(&team->generation, memory_order_acquire);
    if (atomic_fetch_add_explicit(&team->arrived, 1, memory_order_acq_rel) + 1 == team->threads) {
        atomic_store_explicit(&team->arrived, 0, memory_order_relaxed);
        atomic_fetch_add_explicit(&team->generation, 1, memory_order_release);
        if (team->threads > 1)
            futex(&team->generation, FUTEX_WAKE_PRIVATE, INT32_MAX);
        return;
    }
    for (int i = 0; i < SPINS; i++) {
        if (atomic_load_explicit(&team->generation, memory_order_acquire) != generation)
            return;
        pause_briefly();
    }
    while (atomic_load_explicit(&team->generation, memory_order_acquire) == generation)
        futex(&team->generation, FUTEX_WAIT_PRIVATE, generation);
}

struct worker_start {
    struct team *team;
    uint32_t thread;
    _Atomic bool taken;
};

static void *worker(void *argument)
{
    struct worker_start *start = argument;
    struct team *team = start->team;
    uint32_t thread = start->thread;
    atomic_store(&start->taken, true);
    (void)fpenv_enter();
    mem_seal();
    for (;;) {
        team_barrier(team); // a run begins
        if (atomic_load(&team->stopping))
            return NULL;
        team->function(team->context, thread);
        team_barrier(team); // it ends
    }
}

static bool set_cpu(cpu_set_t *set, uint32_t cpu)
{
    CPU_ZERO(set);
    if (cpu >= CPU_SETSIZE)
        return false;
    CPU_SET(cpu, set);
    return true;
}

static enum iso_err no_cpu(uint32_t cpu, struct iso_errinfo *reterr)
{
    return iso_fail(reterr, ISO_E_USAGE, 0, "cpus",
                    "a thread can't run on CPU %u (cpus): this machine may not have it", cpu);
}

// Gives the caller the CPUs back that it had.
static void unpin(struct team *team)
{
    if (team->pinned)
        (void)sched_setaffinity(0, sizeof team->before, &team->before);
    team->pinned = false;
}

static enum iso_err start_worker(struct team *team, uint32_t thread, const uint32_t *cpus, uint32_t n_cpus,
                                 struct iso_errinfo *reterr)
{
    struct worker_start start = {.team = team, .thread = thread};
    pthread_attr_t attributes;
    cpu_set_t set;
    int failed = pthread_attr_init(&attributes); // which allocates nothing in glibc
    if (!failed)
        failed = pthread_attr_setstacksize(&attributes, TEAM_STACK_BYTES);
    if (!failed && n_cpus > 0)
        failed =
            set_cpu(&set, cpus[thread]) ? pthread_attr_setaffinity_np(&attributes, sizeof set, &set) : EINVAL;
    if (!failed)
        failed = pthread_create(&team->handles[thread], &attributes, worker, &start);
    pthread_attr_destroy(&attributes);
    if (failed == EINVAL && n_cpus > 0)
        return no_cpu(cpus[thread], reterr);
    if (failed)
        return iso_fail(reterr, ISO_E_NOMEM, 0, "threads", "starting thread %u failed: %s", thread,
                        strerror(failed));
    while (!atomic_load(&start.taken))
        sched_yield();
    return ISO_OK;
}

// Ends the workers started so far, whose number is team->threads - 1.
void team_close(struct team *team)
{
    if (team->threads == 0)
        return;
    atomic_store(&team->stopping, true);
    team_barrier(team);
    for (uint32_t i = 1; i < team->threads; i++)
        pthread_join(team->handles[i], NULL);
    team->threads = 0;
    unpin(team);
}

enum iso_err team_open(struct team *team, uint32_t threads, const uint32_t *cpus, uint32_t n_cpus,
                       struct iso_errinfo *reterr)
{
    ASSERT(threads > 0 && threads <= TEAM_THREADS_MAX && (n_cpus == 0 || n_cpus >= threads));
    cpu_set_t set;
    memset(team, 0, sizeof *team);
    team->pinned = n_cpus > 0 && sched_getaffinity(0, sizeof team->before, &team->before) == 0;
    if (n_cpus > 0 && (!set_cpu(&set, cpus[0]) || sched_setaffinity(0, sizeof set, &set)))
        return no_cpu(cpus[0], reterr);
    // Workers pass their first barrier only in a run, by when `threads` is final.
    enum iso_err err = ISO_OK;
    team->threads = threads;
    for (uint32_t i = 1; i < threads && !err; i++) {
        err = start_worker(team, i, cpus, n_cpus, reterr);
        if (err) {
            // Those already waiting count on `threads` arrivals: stand in for the missing ones.
            atomic_fetch_add(&team->arrived, threads - i);
            atomic_store(&team->stopping, true);
            team_barrier(team);
            for (uint32_t j = 1; j < i; j++)
                pthread_join(team->handles[j], NULL);
            team->threads = 0;
            unpin(team);
        }
    }
    return err;
}

void team_run(struct team *team, team_function *function, void *context)
{
    team->function = function;
    team->context = context;
    if (team->threads > 1)
        team_barrier(team);
    function(context, 0);
    if (team->threads > 1)
        team_barrier(team);
}
