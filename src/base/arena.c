#include "base/arena.h"

#include <string.h>
#include <sys/mman.h>

#include "base/assert.h"
#include "base/mem.h"
#include "base/num.h"

enum iso_err arena_init(struct arena *a, size_t cap)
{
    ASSERT(!mem_is_sealed() && cap > 0);
    void *base = mmap(NULL, cap, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED)
        return ISO_E_NOMEM;
    *a = (struct arena){.base = base, .cap = cap};
    return ISO_OK;
}

void arena_deinit(struct arena *a)
{
    if (a->base)
        munmap(a->base, a->cap);
    *a = (struct arena){0};
}

void arena_reset(struct arena *a)
{
    memset(a->base, 0, a->used);
    a->used = 0;
}

void *arena_alloc(struct arena *a, size_t n)
{
    ASSERT(!mem_is_sealed() && a->used <= a->cap);
    size_t room = a->cap - a->used;
    if (n > room || num_align(n, ARENA_ALIGN) > room)
        return NULL;
    void *p = a->base + a->used;
    a->used += num_align(n, ARENA_ALIGN);
    return p;
}

void *arena_array(struct arena *a, uint64_t count, size_t size)
{
    uint64_t bytes;
    if (!num_mul(count, size, &bytes))
        return NULL;
    return arena_alloc(a, bytes);
}

char *arena_strdup(struct arena *a, struct strv s)
{
    if (s.len == SIZE_MAX)
        return NULL;
    char *copy = arena_alloc(a, s.len + 1);
    if (copy && s.len > 0)
        memcpy(copy, s.ptr, s.len);
    return copy;
}
