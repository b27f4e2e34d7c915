#include "base/hash.h"

#include <inttypes.h>
#include <stdio.h>
#include <xxhash.h>

uint64_t hash64(const void *bytes, size_t n)
{
    return XXH3_64bits(bytes, n);
}

uint64_t hash64_seeded(const void *bytes, size_t n, uint64_t seed)
{
    return XXH3_64bits_withSeed(bytes, n, seed);
}

struct hash128 hash128(const void *bytes, size_t n)
{
    XXH128_hash_t h = XXH3_128bits(bytes, n);
    return (struct hash128){.low = h.low64, .high = h.high64};
}

void hash128_hex(struct hash128 h, char out[HASH_HEX_BYTES])
{
    snprintf(out, HASH_HEX_BYTES, "%016" PRIx64 "%016" PRIx64, h.high, h.low);
}

struct hash_stream *hash_stream_open(void)
{
    XXH3_state_t *state = XXH3_createState();
    if (state)
        XXH3_128bits_reset(state);
    return (struct hash_stream *)state;
}

void hash_stream_update(struct hash_stream *s, const void *bytes, size_t n)
{
    XXH3_128bits_update((XXH3_state_t *)s, bytes, n);
}

struct hash128 hash_stream_close(struct hash_stream *s)
{
    if (!s)
        return (struct hash128){0, 0};
    XXH128_hash_t h = XXH3_128bits_digest((XXH3_state_t *)s);
    XXH3_freeState((XXH3_state_t *)s);
    return (struct hash128){.low = h.low64, .high = h.high64};
}
