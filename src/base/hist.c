#include "base/hist.h"

#include <string.h>

#include "base/assert.h"

#define SUB_COUNT (1u << HIST_SUB_BITS)

// Values below SUB_COUNT have a bucket each; above, the leading bit picks a row of SUB_COUNT buckets.
static uint32_t hist_index(uint64_t value)
{
    if (value < SUB_COUNT)
        return (uint32_t)value;
    int shift = 63 - __builtin_clzll(value) - HIST_SUB_BITS;
    return ((uint32_t)(shift + 1) << HIST_SUB_BITS) + (uint32_t)((value >> shift) - SUB_COUNT);
}

static uint64_t hist_upper_edge(uint32_t index)
{
    if (index < SUB_COUNT)
        return index;
    uint32_t shift = (index >> HIST_SUB_BITS) - 1;
    uint64_t low = ((uint64_t)SUB_COUNT + index % SUB_COUNT) << shift;
    return low + (((uint64_t)1 << shift) - 1);
}

void hist_reset(struct hist *h)
{
    memset(h, 0, sizeof *h);
}

void hist_record(struct hist *h, uint64_t value)
{
    h->min = h->count == 0 || value < h->min ? value : h->min;
    h->max = value > h->max ? value : h->max;
    h->count++;
    h->sum += value;
    h->bucket[hist_index(value)]++;
}

uint64_t hist_quantile(const struct hist *h, double fraction)
{
    ASSERT(fraction >= 0 && fraction <= 1);
    double want = fraction * (double)h->count;
    uint64_t seen = 0;
    for (uint32_t i = 0; i < HIST_BUCKETS && h->count > 0; i++) {
        seen += h->bucket[i];
        if (h->bucket[i] > 0 && (double)seen >= want) {
            uint64_t edge = hist_upper_edge(i);
            return edge < h->max ? edge : h->max;
        }
    }
    return h->max;
}

uint64_t hist_mean(const struct hist *h)
{
    return h->count ? h->sum / h->count : 0;
}
