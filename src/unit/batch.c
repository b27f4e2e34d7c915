#include "unit/unit_internal.h"

#include "base/assert.h"
#include "base/num.h"

// Used slots by arrival into u->order; returns their number. Insertion sort: slots are few and mostly in
// order.
static uint32_t by_arrival(struct unit *u)
{
    uint32_t n = 0;
    for (uint32_t s = 0; s < u->plan->header->limits.slots; s++) {
        if (!u->slots[s].used)
            continue;
        uint32_t i = n++;
        for (; i > 0 && u->slots[u->order[i - 1]].arrival > u->slots[s].arrival; i--)
            u->order[i] = u->order[i - 1];
        u->order[i] = s;
    }
    return n;
}

static bool is_decoding(const struct slot *slot)
{
    return !slot->request.score && slot->n_computed + 1 == slot->n_tokens &&
           slot->n_tokens > slot->request.n_prompt;
}

// Rows for tokens [n_computed, n_computed + n) of a slot. A scored request wants the logits of each, another
// those of its last known token.
static void add_rows(struct unit *u, uint32_t s, uint32_t n)
{
    struct slot *slot = &u->slots[s];
    struct batch *b = &u->batch;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t position = slot->n_computed + i;
        b->ids[b->rows] = slot->tokens[position];
        b->slots[b->rows] = s;
        b->refs[b->rows] = (struct kv_ref){.blocks = slot->kv.blocks, .position = position};
        if (slot->request.score || position + 1 == slot->n_tokens) {
            ASSERT(b->n_wanted < u->plan->header->limits.slots);
            b->wanted[b->n_wanted++] = (struct wanted){.batch_row = b->rows, .slot = s, .position = position};
        }
        b->rows++;
    }
}

void batch_compose(struct unit *u)
{
    const struct plan_limits *limits = &u->plan->header->limits;
    struct batch *b = &u->batch;
    uint32_t n = by_arrival(u), n_prompts = 0;
    b->rows = b->n_wanted = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (is_decoding(&u->slots[u->order[i]]))
            add_rows(u, u->order[i], 1);
        else
            u->order[n_prompts++] = u->order[i];
    }
    for (uint32_t i = 0; i < n_prompts && b->rows < limits->batch_tokens; i++) {
        const struct slot *slot = &u->slots[u->order[i]];
        ASSERT(slot->n_computed < slot->n_tokens);
        uint64_t chunk = num_min(slot->n_tokens - slot->n_computed, limits->batch_tokens - b->rows);
        chunk = num_min(chunk, u->chunk_tokens);
        if (slot->request.score) // leave a row of logits for every sequence that comes after
            chunk = num_min(chunk, limits->slots - b->n_wanted - (n_prompts - i - 1));
        add_rows(u, u->order[i], (uint32_t)chunk);
    }
}
