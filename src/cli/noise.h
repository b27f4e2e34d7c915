// The host's own noise floor: what a thread that does nothing but read the clock misses.
#pragma once

#include <stdint.h>

#include "base/hist.h"

struct noise {
    struct hist gaps;     // ns between two readings beside each other
    uint64_t spun_ns;     // how long it spun
    uint64_t stolen_ns;   // sum of gaps over NOISE_GAP_NS: time the thread did not have
    uint64_t stolen_gaps; // their number
};

#define NOISE_GAP_NS 10000 // a gap from which on something else ran

// Spins for that long on the calling thread, where it is pinned.
void noise_measure(uint64_t duration_ns, struct noise *ret);
