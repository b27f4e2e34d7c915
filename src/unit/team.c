#include "unit/team.h"

#include <errno.h>
#include <linux/futex.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/fpenv.h"
#include "base/mem.h"

// Pauses before a thread sleeps: a tenth of a millisecond or so where another thread may need this CPU; about a
// millisecond where each has its own, as a CPU that went idle takes long to come back.
#define SPINS         4000
#define SPINS_OWN_CPU 24000

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
        atomic_store_explicit(&team->taken, 0, memory_order_relaxed);
        // In this order, as a thread that goes to sleep first counts itself, then looks at the generation.
        atomic_fetch_add(&team->generation, 1);
        if (atomic_load(&team->sleepers) > 0)
            futex(&team->generation, FUTEX_WAKE_PRIVATE, INT32_MAX);
        return;
    }
    for (uint32_t i = 0; i < team->spins; i++) {
        if (atomic_load_explicit(&team->generation, memory_order_acquire) != generation)
            return;
        pause_briefly();
    }
    atomic_fetch_add(&team->sleepers, 1);
    while (atomic_load(&team->generation) == generation)
        futex(&team->generation, FUTEX_WAIT_PRIVATE, generation);
    atomic_fetch_sub(&team->sleepers, 1);
}

bool team_take(struct team *team, uint32_t items, uint32_t least, uint32_t *ret_begin, uint32_t *ret_end)
{
    uint32_t begin = atomic_load_explicit(&team->taken, memory_order_relaxed), n;
    do {
        if (begin >= items)
            return false;
        n = (items - begin) / (2 * team->threads - 1);
        n = n < least ? least : n;
        n = n < items - begin ? n : items - begin;
    } while (!atomic_compare_exchange_weak_explicit(&team->taken, &begin, begin + n, memory_order_relaxed,
                                                    memory_order_relaxed));
    *ret_begin = begin;
    *ret_end = begin + n;
    return true;
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

// Gives the caller back what it had.
static void restore_caller(struct team *team)
{
    if (team->pinned)
        (void)sched_setaffinity(0, sizeof team->before, &team->before);
    if (team->fifo)
        (void)pthread_setschedparam(pthread_self(), team->policy_before, &team->param_before);
    team->pinned = team->fifo = false;
}

// A number that the kernel shows in a file; false where it does not.
static bool read_setting(const char *path, long long *ret)
{
    FILE *f = fopen(path, "re");
    bool is_read = f && fscanf(f, "%lld", ret) == 1;
    if (f)
        fclose(f);
    return is_read;
}

// A thread that computes for longer than the kernel's share of real time is stopped for the rest of the period:
// a step would be late by that much, which is worse than no real-time scheduling. (Since Linux 6.12 a server for
// other threads takes the place of this limit; it takes at most 5% of a CPU, and only where such threads starve.)
static enum iso_err check_fifo(struct iso_errinfo *reterr)
{
    long long runtime_us, period_us;
    if (!read_setting("/proc/sys/kernel/sched_rt_runtime_us", &runtime_us) ||
        !read_setting("/proc/sys/kernel/sched_rt_period_us", &period_us))
        return iso_fail(reterr, ISO_E_UNSUPPORTED, 0, "sched",
                        "sched fifo: this system does not say what it permits (kernel.sched_rt_runtime_us)");
    if (runtime_us >= 0 && runtime_us < period_us)
        return iso_fail(reterr, ISO_E_UNSUPPORTED, 0, "sched",
                        "sched fifo: this host stops real-time threads after %lld of each %lld us "
                        "(kernel.sched_rt_runtime_us); set it to -1, or leave sched out",
                        runtime_us, period_us);
    return ISO_OK;
}

static enum iso_err make_fifo(struct team *team, struct iso_errinfo *reterr)
{
    struct sched_param lowest = {.sched_priority = sched_get_priority_min(SCHED_FIFO)};
    enum iso_err err = check_fifo(reterr);
    if (err)
        return err;
    int failed = pthread_getschedparam(pthread_self(), &team->policy_before, &team->param_before);
    if (!failed)
        failed = pthread_setschedparam(pthread_self(), SCHED_FIFO, &lowest);
    if (failed)
        return iso_fail(reterr, ISO_E_UNSUPPORTED, 0, "sched",
                        "sched fifo: the system refuses it (%s); it takes CAP_SYS_NICE or an rtprio limit "
                        "(ulimit -r) of at least %d",
                        strerror(failed), lowest.sched_priority);
    team->fifo = true;
    return ISO_OK;
}

// Those that are for the caller, whose waiting they end: all but what a thread brings upon itself.
static sigset_t signals_of_others(void)
{
    static const int OWN[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS, SIGABRT};
    sigset_t set;
    sigfillset(&set);
    for (size_t i = 0; i < sizeof OWN / sizeof OWN[0]; i++)
        sigdelset(&set, OWN[i]);
    return set;
}

static enum iso_err start_worker(struct team *team, uint32_t thread, const struct team_config *config,
                                 struct iso_errinfo *reterr)
{
    struct worker_start start = {.team = team, .thread = thread};
    pthread_attr_t attributes;
    cpu_set_t set;
    sigset_t signals = signals_of_others();
    int failed = pthread_attr_init(&attributes); // which allocates nothing in glibc; scheduling is inherited
    if (!failed)
        failed = pthread_attr_setstacksize(&attributes, TEAM_STACK_BYTES);
    if (!failed)
        failed = pthread_attr_setsigmask_np(&attributes, &signals);
    if (!failed && config->cpus)
        failed = set_cpu(&set, config->cpus[thread])
                     ? pthread_attr_setaffinity_np(&attributes, sizeof set, &set)
                     : EINVAL;
    if (!failed)
        failed = pthread_create(&team->handles[thread], &attributes, worker, &start);
    pthread_attr_destroy(&attributes);
    if (failed == EINVAL && config->cpus)
        return no_cpu(config->cpus[thread], reterr);
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
    restore_caller(team);
}

static bool has_own_cpus(const struct team_config *config)
{
    for (uint32_t i = 0; config->cpus && i < config->threads; i++)
        for (uint32_t j = 0; j < i; j++)
            if (config->cpus[i] == config->cpus[j])
                return false;
    return config->cpus != NULL;
}

// Pins the caller and changes its scheduling.
static enum iso_err set_caller(struct team *team, const struct team_config *config,
                               struct iso_errinfo *reterr)
{
    cpu_set_t set;
    if (config->cpus && sched_getaffinity(0, sizeof team->before, &team->before))
        return iso_fail(reterr, ISO_E_UNSUPPORTED, 0, "cpus",
                        "the CPUs this thread may use can't be read: %s", strerror(errno));
    if (config->cpus && (!set_cpu(&set, config->cpus[0]) || sched_setaffinity(0, sizeof set, &set)))
        return no_cpu(config->cpus[0], reterr);
    team->pinned = config->cpus != NULL;
    return config->fifo ? make_fifo(team, reterr) : ISO_OK;
}

enum iso_err team_open(struct team *team, const struct team_config *config, struct iso_errinfo *reterr)
{
    uint32_t threads = config->threads;
    ASSERT(threads > 0 && threads <= TEAM_THREADS_MAX);
    memset(team, 0, sizeof *team);
    team->spins = has_own_cpus(config) ? SPINS_OWN_CPU : SPINS;
    enum iso_err err = set_caller(team, config, reterr);
    if (err) {
        restore_caller(team);
        return err;
    }
    // Workers pass their first barrier only in a run, by when `threads` is final.
    team->threads = threads;
    for (uint32_t i = 1; i < threads && !err; i++) {
        err = start_worker(team, i, config, reterr);
        if (err) {
            // Those already waiting count on `threads` arrivals: stand in for the missing ones.
            atomic_fetch_add(&team->arrived, threads - i);
            atomic_store(&team->stopping, true);
            team_barrier(team);
            for (uint32_t j = 1; j < i; j++)
                pthread_join(team->handles[j], NULL);
            team->threads = 0;
            restore_caller(team);
        }
    }
    return err;
}

void team_run(struct team *team, team_function *function, void *context)
{
    team->function = function;
    team->context = context;
    team_barrier(team);
    function(context, 0);
    team_barrier(team);
}
