// The KV cache's blocks: who holds which, and reuse of a prompt's beginning that is already computed.
//
// A block is free (held by nobody; it may still be cached), or held by one sequence, or, once published,
// shared by any number. A full block is published after all layers have written it, under its chain: the
// published block before it and its own 16 token ids, compared in full. Free blocks are taken least recently
// used first; taking a cached block ends its entry, and what hangs on it is no longer found. Everything lies
// in tables given at init; every operation is bounded by the sequence's length. Not thread-safe.
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "kernels/kv_layout.h"

#define KV_NONE UINT32_MAX

struct kv_block {
    uint64_t hash;       // of parent and tokens, where published
    uint32_t refs;       // sequences that hold it
    uint32_t generation; // counts how often it was taken: a link to an older one is stale
    bool published;
    uint32_t parent; // published block before it, KV_NONE at the beginning
    uint32_t parent_generation;
    uint32_t next_in_bucket; // of the hash table
    uint32_t older, newer;   // free list, by time of release
    uint32_t tokens[KV_BLOCK_TOKENS];
};

struct kv_table {
    struct kv_block *blocks;
    uint32_t *buckets; // [n_buckets], a power of two
    uint32_t n_blocks, n_buckets;
    uint32_t oldest, newest; // free list
    uint32_t n_free;
};

// A sequence's blocks in order, and how far they are published.
struct kv_sequence {
    uint32_t *blocks; // [capacity]
    uint32_t n_blocks;
    uint32_t n_published; // leading blocks whose content is findable
    uint32_t parent;      // the published block that stands for blocks[n_published - 1]
    uint32_t parent_generation;
    bool chain_broken; // that one is gone: nothing more is published
};

// Number of hash buckets for n_blocks.
uint32_t kv_bucket_count(uint32_t n_blocks);
// Tables of kv_bucket_count(n_blocks) buckets and n_blocks blocks, given in *t; all blocks free, nothing
// cached.
void kv_init(struct kv_table *t);

// Gives seq (blocks[] of capacity >= n_blocks) n_blocks blocks, the first of them shared ones that hold the
// beginning of tokens[0..n_tokens), as many as are published, but never the block of the last token. Returns
// how many tokens they hold. False where fewer blocks are free than are needed; nothing changes then.
bool kv_acquire(struct kv_table *t, struct kv_sequence *seq, uint32_t n_blocks, const uint32_t *tokens,
                uint32_t n_tokens, bool reuse, uint32_t *ret_reused_tokens);
// Publishes the full blocks among the first n_tokens positions, all computed, of a sequence with these
// tokens.
void kv_publish(struct kv_table *t, struct kv_sequence *seq, const uint32_t *tokens, uint32_t n_tokens);
// Gives all blocks back. Later blocks are reused before earlier ones.
void kv_release(struct kv_table *t, struct kv_sequence *seq);
