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
    team_function *function;
    void *context;
    pthread_t handles[TEAM_THREADS_MAX];
    bool pinned; // the caller was, so its earlier CPUs are given back at the end
    cpu_set_t before;
    atomic_bool stopping;
    _Alignas(64) _Atomic uint32_t generation; // of the barrier; also the futex
    _Alignas(64) _Atomic uint32_t arrived;
};

// Starts threads - 1 threads. Thread i is pinned to cpus[i] where n_cpus > 0 (then n_cpus >= threads); the
// caller's own pinning becomes cpus[0]. *team must stay where it is. ISO_E_NOMEM, or ISO_E_USAGE where a CPU
// does not exist.
enum iso_err team_open(struct team *team, uint32_t threads, const uint32_t *cpus, uint32_t n_cpus,
                       struct iso_errinfo *reterr) ISO_MUST_USE;
void team_close(struct team *team);

// function(context, thread) on every thread; returns when all have.
void team_run(struct team *team, team_function *function, void *context);
// Inside a run: returns when every thread has called it.
void team_barrier(struct team *team);

// The share [*ret_begin, *ret_end) of items that one thread takes.
static inline void team_share(uint32_t items, uint32_t threads, uint32_t thread, uint32_t *ret_begin,
                              uint32_t *ret_end)
{
    *ret_begin = (uint32_t)((uint64_t)items * thread / threads);
    *ret_end = (uint32_t)((uint64_t)items * (thread + 1) / threads);
}
