// Layout of the KV cache: blocks of 16 tokens that hold all layers, so that a block can be handed over whole.
//
// A block: for each layer, K of all KV heads, then V of all KV heads.
//   K of a head: [head_dim][16 tokens] elements (a vector lane is a key), then for q8 16 f32 scales.
//   V of a head: [16 tokens][head_dim] elements, then for q8 16 f32 scales.
#pragma once

#include <stdbool.h>
#include <stdint.h>

#define KV_BLOCK_TOKENS 16
#define KV_HEAD_DIM_MAX 256
#define KV_SPAN_TOKENS  512 // attention merges spans of absolute positions (numerics.md, rule 9)

enum kv_type { KV_F16 = 0, KV_Q8 = 1, KV_TYPE_COUNT };

struct kv_layout {
    enum kv_type type;
    uint32_t layers, kv_heads, head_dim;
};

// Bytes of K (or of V) of one head in one block: 16 * head_dim * element bytes, and q8's scales.
static inline uint64_t kv_head_bytes(const struct kv_layout *kv)
{
    uint64_t values = (uint64_t)KV_BLOCK_TOKENS * kv->head_dim;
    return kv->type == KV_F16 ? values * 2 : values + KV_BLOCK_TOKENS * sizeof(float);
}

static inline uint64_t kv_block_bytes(const struct kv_layout *kv)
{
    return (uint64_t)2 * kv->layers * kv->kv_heads * kv_head_bytes(kv);
}

// Offset in a block of K or V of one head of one layer.
static inline uint64_t kv_offset(const struct kv_layout *kv, uint32_t layer, bool is_v, uint32_t head)
{
    return (((uint64_t)layer * 2 + is_v) * kv->kv_heads + head) * kv_head_bytes(kv);
}
