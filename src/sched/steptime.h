// How long a step takes: a model that is measured when a unit starts, and follows what steps then take.
//
//     ns = base(rows) + wanted_ns * (wanted - 1) + decode_key_ns * decode_keys + prefill_key_ns * prefill_keys
//
// base is linear between measured numbers of rows. What depends on rows alone (weights are read once, products are of all rows) is
// nearly all of it; `wanted` are rows of logits, keys the stored positions that rows attend to, one row's after the other's. Steps of
// one kind take different times on different days (temperature, neighbours): each point has a factor that follows the mean, and
// `spread` is what one step in a hundred passes, relative to that.
//
// Pure; all in nanoseconds.
#pragma once

#include <stdint.h>

#define STEPTIME_POINTS_MAX 16

struct steptime_load {
    uint32_t rows, wanted; // at least 1 each
    uint64_t decode_keys, prefill_keys;
};

struct steptime_sample {
    struct steptime_load load;
    double ns;
};

struct steptime {
    uint32_t n;
    uint32_t rows[STEPTIME_POINTS_MAX]; // ascending, the first is 1
    double base[STEPTIME_POINTS_MAX], factor[STEPTIME_POINTS_MAX];
    double wanted_ns, decode_key_ns, prefill_key_ns;
    double spread; // at least 1
};

// What is measured of a plan with these limits: the loads of the samples that steptime_init takes, into out[STEPTIME_SAMPLES_MAX].
// Their number.
#define STEPTIME_SAMPLES_MAX (STEPTIME_POINTS_MAX + 3)
uint32_t steptime_loads(uint32_t batch_tokens, uint32_t slots, uint32_t max_seq_len,
                        struct steptime_load *out);
// `samples` are of those loads, in their order.
void steptime_init(struct steptime *s, const struct steptime_sample *samples, uint32_t n);

// The mean, and what it is expected not to pass.
double steptime_mean_ns(const struct steptime *s, struct steptime_load load);
double steptime_bound_ns(const struct steptime *s, struct steptime_load load);
// A step took so long.
void steptime_learn(struct steptime *s, struct steptime_load load, double ns);
