#include "unit/ring.h"

#include <string.h>

#include "base/assert.h"

static uint8_t *record_at(const struct ring *r, uint32_t count)
{
    return r->records + (uint64_t)(count & (r->capacity - 1)) * r->record_bytes;
}

uint32_t ring_room(const struct ring *r)
{
    uint32_t put = atomic_load_explicit(&r->shared->put, memory_order_relaxed);
    uint32_t taken = atomic_load_explicit(&r->shared->taken, memory_order_acquire);
    return put - taken <= r->capacity ? r->capacity - (put - taken) : 0;
}

bool ring_put(struct ring *r, const void *record)
{
    ASSERT((r->capacity & (r->capacity - 1)) == 0);
    if (ring_room(r) == 0)
        return false;
    uint32_t put = atomic_load_explicit(&r->shared->put, memory_order_relaxed);
    memcpy(record_at(r, put), record, r->record_bytes);
    atomic_store_explicit(&r->shared->put, put + 1, memory_order_release);
    return true;
}

enum ring_taken ring_take(struct ring *r, void *ret_record)
{
    uint32_t taken = atomic_load_explicit(&r->shared->taken, memory_order_relaxed);
    uint32_t put = atomic_load_explicit(&r->shared->put, memory_order_acquire);
    if (put == taken)
        return RING_EMPTY;
    if (put - taken > r->capacity)
        return RING_BROKEN;
    memcpy(ret_record, record_at(r, taken), r->record_bytes);
    atomic_store_explicit(&r->shared->taken, taken + 1, memory_order_release);
    return RING_TAKEN;
}
