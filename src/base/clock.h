// Monotonic time. Nothing in Isochron reads the wall clock to decide anything.
#pragma once

#include <stdint.h>

// Nanoseconds of CLOCK_MONOTONIC.
uint64_t clock_now_ns(void);
