// A ring of records of one size between two processes: one puts, one takes.
//
// It lives in memory that both map, so it holds counts and no pointers; each side keeps a struct ring of its own that
// points into its mapping. The counts run on and wrap. Neither side trusts the other: a count that can't be (a process
// that went astray has written it) is told, not followed.
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct ring_shared {
    _Alignas(64) _Atomic uint32_t put;   // records put so far; of the one who puts
    _Alignas(64) _Atomic uint32_t taken; // records taken so far; of the one who takes
};

struct ring {
    struct ring_shared *shared;
    uint8_t *records; // [capacity][record_bytes]
    uint32_t record_bytes;
    uint32_t capacity; // a power of two
};

// Records that can be put now; capacity at most, 0 too where the other side's count can't be.
uint32_t ring_room(const struct ring *r);
// False where there is no room. The record is copied.
bool ring_put(struct ring *r, const void *record);

enum ring_taken {
    RING_EMPTY,
    RING_TAKEN,
    RING_BROKEN, // the other side's count can't be
};
// The oldest record, copied.
enum ring_taken ring_take(struct ring *r, void *ret_record);
