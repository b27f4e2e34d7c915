// The scheduler on a virtual clock, under seeded random loads: no admitted deadline is missed, nobody starves, everything ends, a second
// run gives the same.
//   tool_sim SEED RUNS [bug]      the seeds from SEED on; bug: with the planted one
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/hash.h"
#include "sched/sim.h"

#define ARRIVALS_MAX 400
#define MS           UINT64_C(1000000)

struct random {
    uint64_t seed, n;
};

static double unit(struct random *r)
{
    r->n++;
    return (double)(hash64_seeded(&r->n, sizeof r->n, r->seed) >> 11) * 0x1p-53;
}

static uint32_t between(struct random *r, uint32_t least, uint32_t most)
{
    return least + (uint32_t)(unit(r) * (double)(most - least + 1));
}

struct load {
    struct sim_config config;
    struct steptime model;
    struct sim_arrival arrivals[ARRIVALS_MAX];
    uint32_t n;
};

// Some machine, some model: a step of one row takes 1 to 50 ms.
static void make_model(struct random *r, struct load *l)
{
    struct steptime_load loads[STEPTIME_SAMPLES_MAX];
    struct steptime_sample samples[STEPTIME_SAMPLES_MAX];
    uint32_t batch = 16u << between(r, 0, 4), slots = between(r, 1, 8);
    uint32_t n = steptime_loads(batch, slots, 4096, loads);
    double fixed = (1 + 49 * unit(r)) * 1e6, row = fixed * (0.01 + 0.1 * unit(r)),
           logits = fixed * 0.05 * unit(r);
    double key = fixed / 4096 * unit(r);
    for (uint32_t i = 0; i < n; i++)
        samples[i] = (struct steptime_sample){
            loads[i], fixed + row * loads[i].rows + logits * (loads[i].wanted - 1) +
                          key * (double)loads[i].decode_keys + key / 8 * (double)loads[i].prefill_keys};
    steptime_init(&l->model, samples, n);
    l->config.truth = l->model;
    for (uint32_t i = 0; i < l->model.n; i++) // what was measured is not quite what is
        l->model.factor[i] = 1 + 0.04 * unit(r);
    l->config.sched =
        (struct sched_config){.slots = slots, .batch_tokens = batch, .stretch = 1.8, .age_ns = 5000 * MS};
}

static void make_arrivals(struct random *r, struct load *l, double share)
{
    double step = steptime_mean_ns(&l->model, (struct steptime_load){.rows = 1, .wanted = 1});
    double pause = step * (double)between(r, 1, 60);
    uint64_t at = 0;
    l->n = between(r, 10, ARRIVALS_MAX);
    for (uint32_t i = 0; i < l->n; i++) {
        at += unit(r) < 0.2 ? 0 : (uint64_t)(2 * pause * unit(r));
        struct sim_arrival *a = &l->arrivals[i];
        uint32_t max = between(r, 1, 120);
        *a = (struct sim_arrival){.at_ns = at,
                                  .n_prompt = unit(r) < 0.1 ? between(r, 500, 3000) : between(r, 1, 200),
                                  .max_output = max,
                                  .n_output = unit(r) < 0.5 ? max : between(r, 1, max),
                                  .deadline_ns = SCHED_NEVER,
                                  .ttft_ns = SCHED_NEVER,
                                  .priority = (int32_t)between(r, 0, 3) - 1};
        if (unit(r) < share)
            a->deadline_ns = (uint64_t)(step * max * (1 + 4 * unit(r)) + step * between(r, 1, 100));
        if (unit(r) < share / 2)
            a->ttft_ns = (uint64_t)(step * between(r, 1, 60));
    }
}

static void make(struct load *l, uint64_t seed)
{
    struct random r = {seed, 0};
    *l = (struct load){.config = {.seed = seed, .noise = 0.08}};
    make_model(&r, l);
    l->config.queue = between(&r, 0, 32);
    make_arrivals(&r, l, unit(&r));
}

static void fail(uint64_t seed, const char *what)
{
    printf("seed %" PRIu64 ": %s; again by: tool_sim %" PRIu64 " 1\n", seed, what, seed);
    exit(1);
}

static struct sim_result run(struct load *l, struct sim_outcome *outcomes)
{
    struct sim_result r;
    struct iso_errinfo e;
    ASSERT(sim_run(&l->config, &l->model, l->arrivals, l->n, outcomes, &r, &e) == ISO_OK);
    return r;
}

static struct sim_result sums;

static void check(uint64_t seed, bool bug)
{
    static struct load l;
    static struct sim_outcome outcomes[ARRIVALS_MAX], again[ARRIVALS_MAX];
    make(&l, seed);
    l.config.sched.planted_bug = bug;
    struct sim_result r = run(&l, outcomes), twice = run(&l, again);
    if (memcmp(&r, &twice, sizeof r) != 0 || memcmp(outcomes, again, l.n * sizeof *outcomes) != 0)
        fail(seed, "a second run differs");
    if (r.served + r.refused + r.queue_full != l.n)
        fail(seed, "a request is lost");
    for (uint32_t i = 0; i < l.n; i++)
        if (outcomes[i].fate == SIM_SERVED &&
            (outcomes[i].end_ns == SCHED_NEVER || outcomes[i].first_ns > outcomes[i].end_ns))
            fail(seed, "an answer never ended");
    if (r.slots_max > l.config.sched.slots)
        fail(seed, "more run than there are slots");
    if (r.missed > 0)
        fail(seed, "an admitted deadline was missed");
    sums.served += r.served;
    sums.with_deadline += r.with_deadline;
    sums.refused += r.refused;
    sums.queue_full += r.queue_full;
}

int main(int argc, char **argv)
{
    if (argc < 3)
        return 2;
    uint64_t seed = strtoull(argv[1], NULL, 10), runs = strtoull(argv[2], NULL, 10);
    for (uint64_t i = 0; i < runs; i++)
        check(seed + i, argc > 3);
    printf("%" PRIu64 " runs: %" PRIu32 " served, %" PRIu32 " of them with a deadline, %" PRIu32
           " refused, %" PRIu32 " found the queue full\n",
           runs, sums.served, sums.with_deadline, sums.refused, sums.queue_full);
    return 0;
}
