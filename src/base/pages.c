#include "base/pages.h"

#include <errno.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/prctl.h>

#include "base/assert.h"
#include "base/num.h"

#ifndef PR_SET_VMA
#define PR_SET_VMA           0x53564d41
#define PR_SET_VMA_ANON_NAME 0
#endif
#ifndef MADV_POPULATE_WRITE // headers before Linux 5.14
#define MADV_POPULATE_WRITE 23
#endif

uint8_t *pages_map(uint64_t bytes, const char *name)
{
    ASSERT(bytes > 0 && bytes <= UINT64_MAX / 2);
    uint64_t slack = bytes >= PAGES_HUGE_BYTES ? PAGES_HUGE_BYTES : 0;
    // Reserved, so that the system refuses what it can't have, instead of finding out page by page.
    uint8_t *base = mmap(NULL, bytes + slack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED)
        return NULL;
    if (slack) { // the aligned part stays
        uint8_t *aligned = (uint8_t *)num_align((uintptr_t)base, PAGES_HUGE_BYTES);
        uint8_t *end = aligned + num_align(bytes, PAGES_BYTES);
        if (aligned > base)
            munmap(base, (size_t)(aligned - base));
        if (end < base + bytes + slack)
            munmap(end, (size_t)(base + bytes + slack - end));
        base = aligned;
        (void)madvise(base, bytes, MADV_HUGEPAGE); // a kernel without them: small pages
    }
    (void)prctl(PR_SET_VMA, PR_SET_VMA_ANON_NAME, base, bytes, name);
    return base;
}

bool pages_touch(uint8_t *p, uint64_t bytes)
{
    if (madvise(p, bytes, MADV_POPULATE_WRITE) == 0)
        return true;
    if (errno != EINVAL)
        return false;
    for (uint64_t at = 0; at < bytes; at += PAGES_BYTES) // before Linux 5.14
        ((volatile uint8_t *)p)[at] = 0;
    return true;
}

void pages_unmap(void *p, uint64_t bytes)
{
    munmap(p, bytes);
}

uint64_t pages_available(void)
{
    FILE *f = fopen("/proc/meminfo", "re");
    char line[128];
    uint64_t kib = 0;
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "MemAvailable: %" SCNu64 " kB", &kib) == 1)
            break;
    if (f)
        fclose(f);
    return kib * 1024;
}
