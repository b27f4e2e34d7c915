// Log-linear histogram of durations: 64 sub-buckets to a power of two, so a percentile is within 1.6% of the
// value. Fixed size, no allocation; recording is a shift and an increment. Not thread-safe.
#pragma once

#include <stdint.h>

#define HIST_SUB_BITS 6
#define HIST_BUCKETS  ((64 - HIST_SUB_BITS + 1) << HIST_SUB_BITS)

struct hist {
    uint64_t count, sum, min, max;
    uint32_t bucket[HIST_BUCKETS];
};

void hist_reset(struct hist *h);
void hist_record(struct hist *h, uint64_t value);
// The smallest recorded value v (to the bucket's upper edge, at most max) with at least `fraction` of all
// values <= v; 0 where nothing is recorded. fraction in [0, 1].
uint64_t hist_quantile(const struct hist *h, double fraction);
uint64_t hist_mean(const struct hist *h);
