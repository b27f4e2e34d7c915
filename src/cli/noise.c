#include "cli/noise.h"

#include <string.h>

#include "base/clock.h"

void noise_measure(uint64_t duration_ns, struct noise *ret)
{
    memset(ret, 0, sizeof *ret);
    uint64_t start = clock_now_ns(), before = start, now = start;
    while (now - start < duration_ns) {
        now = clock_now_ns();
        uint64_t gap = now - before;
        hist_record(&ret->gaps, gap);
        if (gap > NOISE_GAP_NS) {
            ret->stolen_ns += gap;
            ret->stolen_gaps++;
        }
        before = now;
    }
    ret->spun_ns = now - start;
}
