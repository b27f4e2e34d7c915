// Integrity hashes: XXH3 from libxxhash. Not against an adversary: they find damage, not forgery.
#pragma once

#include <stddef.h>
#include <stdint.h>

#define HASH_HEX_BYTES 33 // 32 digits and a zero

struct hash128 {
    uint64_t low, high;
};

uint64_t hash64(const void *bytes, size_t n);
uint64_t hash64_seeded(const void *bytes, size_t n, uint64_t seed);
struct hash128 hash128(const void *bytes, size_t n);
// Lower-case hexadecimal, high half first, zero-terminated.
void hash128_hex(struct hash128 h, char out[HASH_HEX_BYTES]);

// The same hash over bytes that come in pieces. open: NULL where memory is refused.
struct hash_stream;
struct hash_stream *hash_stream_open(void);
void hash_stream_update(struct hash_stream *s, const void *bytes, size_t n);
// Frees the stream; NULL is allowed and gives zeros.
struct hash128 hash_stream_close(struct hash_stream *s);

static inline int hash128_equal(struct hash128 a, struct hash128 b)
{
    return a.low == b.low && a.high == b.high;
}
