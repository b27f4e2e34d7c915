// Arena: memory handed out in order and given back all at once, with a fixed cap.
//
// The cap is reserved as address space at init; pages become real as they are used. Every allocation is
// zeroed and aligned to ARENA_ALIGN. Not thread-safe. An allocation over the cap returns NULL (callers turn
// it into ISO_E_LIMIT with the name of what was too big); nothing else can fail after init.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/strv.h"

#define ARENA_ALIGN 16

struct arena {
    uint8_t *base;
    size_t used;
    size_t cap;
};

// Reserves `cap` bytes (> 0). ISO_E_NOMEM where the system refuses the mapping.
enum iso_err arena_init(struct arena *a, size_t cap) ISO_MUST_USE;
// Gives the memory back; safe on a zeroed struct and twice.
void arena_deinit(struct arena *a);
// Forgets all allocations and zeroes what they used; the pages stay.
void arena_reset(struct arena *a);

// n bytes, or NULL. n may be 0: a valid, unusable pointer.
void *arena_alloc(struct arena *a, size_t n);
// count * size bytes with the product checked, or NULL.
void *arena_array(struct arena *a, uint64_t count, size_t size);
// Copy of s with a terminating zero, or NULL.
char *arena_strdup(struct arena *a, struct strv s);
