// A team of threads that run one function together, and the barrier they meet at.
//
// The caller of team_run is thread 0; the others are started by team_open, pinned, and wait between runs. A
// barrier spins briefly, then sleeps on a futex: the only system call in a step. Every thread computes in the
// defined floating-point environment. One caller at a time.
#pragma once

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

#define TEAM_THREADS_MAX 64
#define TEAM_STACK_BYTES ((uint64_t)256 << 10) // of each thread but the caller
// What a thread touches of its stack (the kernels' depth is fixed): 8 KiB, and the 41 of attention's struct
// query_tile, which is the largest; and 7 to spare.
#define TEAM_STACK_USED_BYTES ((uint64_t)56 << 10)

typedef void team_function(void *context, uint32_t thread);

struct team {
    uint32_t threads;
    uint32_t spins; // of a barrier before it sleeps
    team_function *function;
    void *context;
    pthread_t handles[TEAM_THREADS_MAX];
    bool pinned; // the caller was, so its earlier CPUs are given back at the end
    cpu_set_t before;
    bool fifo; // the caller's scheduling was changed, so it is given back too
    int policy_before;
    struct sched_param param_before;
    atomic_bool stopping;
    _Alignas(64) _Atomic uint32_t generation; // of the barrier; also the futex
    _Alignas(64) _Atomic uint32_t arrived;
    _Alignas(64) _Atomic uint32_t taken; // items since the barrier
    _Alignas(64) _Atomic uint32_t sleepers;
};

struct team_config {
    uint32_t threads;     // 1 to TEAM_THREADS_MAX, the caller included
    const uint32_t *cpus; // [threads]: thread i is pinned to cpus[i], the caller too; NULL: not pinned
    bool fifo;            // real-time scheduling (SCHED_FIFO) at the lowest priority, the caller too
};

// Starts threads - 1 threads. *team must stay where it is. The caller gets its CPUs and scheduling back in
// team_close, which it must call itself. Signals go to the caller, never to the threads. ISO_E_NOMEM; ISO_E_USAGE where a CPU does not exist; for fifo
// ISO_E_UNSUPPORTED where the host permits it not, or only for a part of each second.
enum iso_err team_open(struct team *team, const struct team_config *config,
                       struct iso_errinfo *reterr) ISO_MUST_USE;
void team_close(struct team *team);

// function(context, thread) on every thread; returns when all have.
void team_run(struct team *team, team_function *function, void *context);
// Inside a run: returns when every thread has called it.
void team_barrier(struct team *team);

// Inside a run: takes [*ret_begin, *ret_end) of `items`, the next that no thread has taken since the last barrier, at
// least `least` where so many are left (the same items and least on every thread); false when none is left. Parts get
// smaller towards the end, so that a thread whose CPU is slow or busy with something else leaves more to the others.
bool team_take(struct team *team, uint32_t items, uint32_t least, uint32_t *ret_begin, uint32_t *ret_end);
