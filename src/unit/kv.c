#include "unit/kv.h"

#include <string.h>

#include "base/assert.h"
#include "base/hash.h"

uint32_t kv_bucket_count(uint32_t n_blocks)
{
    uint32_t n = 16;
    while (n < n_blocks && n < (1u << 30))
        n *= 2;
    return n;
}

static void free_push(struct kv_table *t, uint32_t b)
{
    struct kv_block *block = &t->blocks[b];
    block->older = t->newest;
    block->newer = KV_NONE;
    if (t->newest != KV_NONE)
        t->blocks[t->newest].newer = b;
    else
        t->oldest = b;
    t->newest = b;
    t->n_free++;
}

static void free_remove(struct kv_table *t, uint32_t b)
{
    struct kv_block *block = &t->blocks[b];
    ASSERT(t->n_free > 0);
    if (block->older != KV_NONE)
        t->blocks[block->older].newer = block->newer;
    else
        t->oldest = block->newer;
    if (block->newer != KV_NONE)
        t->blocks[block->newer].older = block->older;
    else
        t->newest = block->older;
    t->n_free--;
}

void kv_init(struct kv_table *t)
{
    ASSERT(t->n_blocks > 0 && t->n_buckets == kv_bucket_count(t->n_blocks));
    t->oldest = t->newest = KV_NONE;
    t->n_free = 0;
    for (uint32_t i = 0; i < t->n_buckets; i++)
        t->buckets[i] = KV_NONE;
    memset(t->blocks, 0, t->n_blocks * sizeof *t->blocks);
    for (uint32_t i = 0; i < t->n_blocks; i++)
        free_push(t, i);
}

static uint64_t chain_hash(const struct kv_table *t, uint32_t parent, const uint32_t *tokens)
{
    uint64_t seed = parent == KV_NONE ? 0 : t->blocks[parent].hash;
    return hash64_seeded(tokens, KV_BLOCK_TOKENS * sizeof *tokens, seed);
}

// The published block with this parent and these tokens, or KV_NONE.
static uint32_t find(const struct kv_table *t, uint32_t parent, const uint32_t *tokens)
{
    uint64_t hash = chain_hash(t, parent, tokens);
    uint32_t b = t->buckets[hash & (t->n_buckets - 1)];
    for (; b != KV_NONE; b = t->blocks[b].next_in_bucket) {
        const struct kv_block *block = &t->blocks[b];
        bool same_parent = block->parent == parent &&
                           (parent == KV_NONE || block->parent_generation == t->blocks[parent].generation);
        if (block->hash == hash && same_parent && memcmp(block->tokens, tokens, sizeof block->tokens) == 0)
            return b;
    }
    return KV_NONE;
}

static void unpublish(struct kv_table *t, uint32_t b)
{
    uint32_t *link = &t->buckets[t->blocks[b].hash & (t->n_buckets - 1)];
    while (*link != b) {
        ASSERT(*link != KV_NONE);
        link = &t->blocks[*link].next_in_bucket;
    }
    *link = t->blocks[b].next_in_bucket;
    t->blocks[b].published = false;
}

// The least recently used free block, now of the caller alone.
static uint32_t take(struct kv_table *t)
{
    uint32_t b = t->oldest;
    ASSERT(b != KV_NONE && t->blocks[b].refs == 0);
    free_remove(t, b);
    if (t->blocks[b].published)
        unpublish(t, b);
    t->blocks[b].generation++;
    t->blocks[b].refs = 1;
    return b;
}

bool kv_acquire(struct kv_table *t, struct kv_sequence *seq, uint32_t n_blocks, const uint32_t *tokens,
                uint32_t n_tokens, bool reuse, uint32_t *ret_reused_tokens)
{
    ASSERT(n_tokens > 0 && n_tokens <= (uint64_t)n_blocks * KV_BLOCK_TOKENS);
    uint32_t whole = reuse ? (n_tokens - 1) / KV_BLOCK_TOKENS : 0; // the last token is always computed
    uint32_t shared = 0, from_free = 0, parent = KV_NONE;
    while (shared < whole) {
        uint32_t b = find(t, parent, tokens + shared * KV_BLOCK_TOKENS);
        if (b == KV_NONE)
            break;
        from_free += t->blocks[b].refs == 0;
        seq->blocks[shared++] = parent = b;
    }
    if (n_blocks - shared + from_free > t->n_free)
        return false;
    for (uint32_t i = 0; i < shared; i++) {
        struct kv_block *block = &t->blocks[seq->blocks[i]];
        if (block->refs == 0)
            free_remove(t, seq->blocks[i]);
        block->refs++;
    }
    for (uint32_t i = shared; i < n_blocks; i++)
        seq->blocks[i] = take(t);
    seq->n_blocks = n_blocks;
    seq->n_published = shared;
    seq->parent = parent;
    seq->parent_generation = parent == KV_NONE ? 0 : t->blocks[parent].generation;
    seq->chain_broken = false;
    *ret_reused_tokens = shared * KV_BLOCK_TOKENS;
    return true;
}

// Block `b` becomes findable after seq->parent.
static void publish(struct kv_table *t, const struct kv_sequence *seq, uint32_t b, const uint32_t *tokens)
{
    struct kv_block *block = &t->blocks[b];
    ASSERT(!block->published && block->refs > 0);
    block->hash = chain_hash(t, seq->parent, tokens);
    block->parent = seq->parent;
    block->parent_generation = seq->parent_generation;
    memcpy(block->tokens, tokens, sizeof block->tokens);
    uint32_t *bucket = &t->buckets[block->hash & (t->n_buckets - 1)];
    block->next_in_bucket = *bucket;
    *bucket = b;
    block->published = true;
}

void kv_publish(struct kv_table *t, struct kv_sequence *seq, const uint32_t *tokens, uint32_t n_tokens)
{
    while ((seq->n_published + 1) * KV_BLOCK_TOKENS <= n_tokens && !seq->chain_broken) {
        const uint32_t *ids = tokens + seq->n_published * KV_BLOCK_TOKENS;
        // The parent may be another sequence's block with the same content; that one may be gone by now.
        if (seq->parent != KV_NONE && t->blocks[seq->parent].generation != seq->parent_generation) {
            seq->chain_broken = true;
            return;
        }
        uint32_t b = find(t, seq->parent, ids);
        if (b == KV_NONE) {
            b = seq->blocks[seq->n_published];
            publish(t, seq, b, ids);
        }
        seq->parent = b;
        seq->parent_generation = t->blocks[b].generation;
        seq->n_published++;
    }
}

void kv_release(struct kv_table *t, struct kv_sequence *seq)
{
    for (uint32_t i = seq->n_blocks; i > 0; i--) {
        uint32_t b = seq->blocks[i - 1];
        ASSERT(t->blocks[b].refs > 0);
        if (--t->blocks[b].refs == 0)
            free_push(t, b);
    }
    seq->n_blocks = 0;
}
