#include "unit/account.h"

#include "base/num.h"
#include "unit/team.h"
#include "unit/unit.h"

struct account account_of(const struct plan_header *h, uint64_t weights_bytes, uint64_t other_bytes,
                          uint32_t threads, uint64_t text_bytes)
{
    struct kv_layout kv = plan_kv_layout(h);
    struct account a = {.weights = weights_bytes,
                        .activations = num_align(h->arena_bytes, PLAN_ALIGN),
                        .kv_blocks = plan_kv_blocks(&h->limits),
                        .kv_block_bytes = kv_block_bytes(&kv),
                        .kv_token_bytes = kv_block_bytes(&kv) / KV_BLOCK_TOKENS,
                        .runtime_tables = unit_table_bytes(h),
                        .runtime_plan = other_bytes,
                        .runtime_stacks = (threads - 1) * TEAM_STACK_USED_BYTES,
                        .runtime_text = text_bytes,
                        .runtime_image = ACCOUNT_IMAGE_BYTES};
    a.kv = num_align(a.kv_blocks * a.kv_block_bytes, PLAN_ALIGN);
    a.runtime = a.runtime_tables + a.runtime_plan + a.runtime_stacks + a.runtime_text + a.runtime_image;
    return a;
}

uint64_t account_total(const struct account *a)
{
    return a->weights + a->activations + a->kv + a->runtime;
}
