// Large regions of memory from the system: weights and a unit's pool.
//
// On huge pages where the system gives them (transparent_hugepage "madvise", the default of Debian, or
// "always"): reading weights at memory speed misses the TLB on every 4 KiB page otherwise. Nothing depends on
// it but speed.
#pragma once

#include <stdbool.h>
#include <stdint.h>

#define PAGES_BYTES      4096
#define PAGES_HUGE_BYTES ((uint64_t)2 << 20)

// Zeroed memory of `bytes` bytes, readable and writable, aligned to PAGES_HUGE_BYTES where it is as long. Pages
// come with their first touch. `name` is shown in /proc/PID/smaps where the kernel can. NULL where the system
// refuses. Free with pages_unmap.
uint8_t *pages_map(uint64_t bytes, const char *name);
// Has every page of fresh memory there; false where the system can't.
bool pages_touch(uint8_t *p, uint64_t bytes);
void pages_unmap(void *p, uint64_t bytes);
// Bytes that the kernel says could be given to a new program without swapping; 0 where it does not say.
uint64_t pages_available(void);
