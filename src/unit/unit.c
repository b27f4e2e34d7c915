#include "unit/unit.h"

#include <inttypes.h>
#include <string.h>
#include <sys/mman.h>

#include "base/assert.h"
#include "base/dmath.h"
#include "base/fpenv.h"
#include "base/mem.h"
#include "base/num.h"
#include "base/pages.h"
#include "unit/account.h"
#include "unit/unit_internal.h"

// Hands out the tables' memory in order. With base 0 it only counts.
struct carver {
    uintptr_t base;
    uint64_t used;
};

static void *carve(struct carver *c, uint64_t count, uint64_t size)
{
    uintptr_t at = c->base + c->used;
    c->used = num_align(c->used + count * size, 64);
    return c->base ? (void *)at : NULL;
}

// Places every table of *u; the same walk counts them. `u` itself is the first.
static void carve_tables(struct carver *c, const struct plan_header *h, struct unit *u)
{
    const struct plan_limits *l = &h->limits;
    uint64_t blocks = plan_kv_blocks(l), slot_blocks = plan_slot_blocks(l);
    carve(c, 1, sizeof *u);
    u->kv.n_blocks = (uint32_t)blocks;
    u->kv.n_buckets = kv_bucket_count((uint32_t)blocks);
    u->kv.blocks = carve(c, blocks, sizeof *u->kv.blocks);
    u->kv.buckets = carve(c, u->kv.n_buckets, sizeof *u->kv.buckets);
    u->slots = carve(c, l->slots, sizeof *u->slots);
    u->order = carve(c, l->slots, sizeof *u->order);
    u->events = carve(c, l->slots, sizeof *u->events);
    u->batch.ids = carve(c, l->batch_tokens, sizeof *u->batch.ids);
    u->batch.slots = carve(c, l->batch_tokens, sizeof *u->batch.slots);
    u->batch.refs = carve(c, l->batch_tokens, sizeof *u->batch.refs);
    u->batch.wanted = carve(c, l->slots, sizeof *u->batch.wanted);
    u->meets = carve(c, h->n_ops, sizeof *u->meets);
    u->hidden = carve(c, (uint64_t)l->slots * h->model.hidden, sizeof *u->hidden);
    uint32_t *tokens = carve(c, (uint64_t)l->slots * l->max_seq_len, sizeof *tokens);
    struct logit_bias *bias = carve(c, (uint64_t)l->slots * SAMPLING_BIAS_MAX, sizeof *bias);
    uint32_t *block_numbers = carve(c, l->slots * slot_blocks, sizeof *block_numbers);
    uint8_t *sampler = carve(c, 1, sampler_bytes(h->model.vocab));
    if (!c->base)
        return;
    for (uint32_t i = 0; i < l->slots; i++) {
        u->slots[i].tokens = tokens + (uint64_t)i * l->max_seq_len;
        u->slots[i].bias = bias + (uint64_t)i * SAMPLING_BIAS_MAX;
        u->slots[i].kv.blocks = block_numbers + i * slot_blocks;
    }
    sampler_init(&u->sampler, u->kernels, h->model.vocab, sampler);
}

uint64_t unit_table_bytes(const struct plan_header *h)
{
    struct unit counted = {0};
    struct carver c = {0};
    carve_tables(&c, h, &counted);
    return num_align(c.used, PLAN_ALIGN);
}

static uint64_t kv_pool_bytes(const struct plan_header *h)
{
    struct kv_layout kv = plan_kv_layout(h);
    return num_align(plan_kv_blocks(&h->limits) * kv_block_bytes(&kv), PLAN_ALIGN);
}

uint64_t unit_pool_bytes(const struct plan_header *h)
{
    return num_align(h->arena_bytes, PLAN_ALIGN) + kv_pool_bytes(h) + unit_table_bytes(h);
}

// The account against the limit: the same numbers that `fit` prints.
static enum iso_err check_fit(const struct plan *plan, const struct unit_config *config,
                              struct iso_errinfo *reterr)
{
    const struct plan_section *w = &plan->header->sections[PLAN_WEIGHTS];
    struct account a = account_of(plan->header, w->bytes, plan->mapped_bytes - w->bytes, config->threads,
                                  config->extra_bytes);
    uint64_t total = account_total(&a);
    if (config->pool_bytes_max == 0 || total <= config->pool_bytes_max)
        return ISO_OK;
    return iso_fail(reterr, ISO_E_NOFIT, 0, "pool",
                    "the plan needs %" PRIu64 " bytes (weights %" PRIu64 ", activations %" PRIu64
                    ", KV cache %" PRIu64 ", runtime %" PRIu64 ") and the pool has %" PRIu64 ": %" PRIu64
                    " too few",
                    total, a.weights, a.activations, a.kv, a.runtime, config->pool_bytes_max,
                    total - config->pool_bytes_max);
}

static enum iso_err map_pool(const struct plan_header *h, uint8_t **ret, bool *ret_locked,
                             struct iso_errinfo *reterr)
{
    uint64_t bytes = unit_pool_bytes(h);
    uint8_t *pool = pages_map(bytes, "isochron-pool");
    if (pool && !pages_touch(pool, bytes)) {
        pages_unmap(pool, bytes);
        pool = NULL;
    }
    if (!pool)
        return iso_fail(reterr, ISO_E_NOMEM, 0, "pool", "the system refused a pool of %" PRIu64 " bytes",
                        bytes);
    *ret_locked = mlock(pool, bytes) == 0;
    *ret = pool;
    return ISO_OK;
}

enum iso_err unit_open(const struct plan *plan, const struct unit_config *config, struct unit **ret,
                       struct iso_errinfo *reterr)
{
    const struct plan_header *h = plan->header;
    ASSERT(config->threads > 0 && config->threads <= TEAM_THREADS_MAX);
    enum iso_err err = check_fit(plan, config, reterr);
    uint8_t *pool = NULL;
    bool locked = false;
    if (!err)
        err = map_pool(h, &pool, &locked, reterr);
    if (err)
        return err;
    uint8_t *tables = pool + num_align(h->arena_bytes, PLAN_ALIGN) + kv_pool_bytes(h);
    struct unit *u = (struct unit *)tables;
    u->plan = plan;
    u->kernels = config->kernels ? config->kernels : kernels_best();
    u->chunk_tokens = config->chunk_tokens ? config->chunk_tokens : h->limits.batch_tokens;
    u->reuse = !config->no_prefix_reuse;
    // The weights too; several units may lock them, and they stay so until the plan is closed.
    u->locked = locked && mlock(h, plan->mapped_bytes) == 0;
    u->pool = u->arena = pool;
    u->pool_bytes = unit_pool_bytes(h);
    u->kv_pool = pool + num_align(h->arena_bytes, PLAN_ALIGN);
    struct carver c = {.base = (uintptr_t)tables};
    carve_tables(&c, h, u);
    ASSERT(c.used <= unit_table_bytes(h));
    kv_init(&u->kv);
    exec_find_meetings(plan, u->meets);
    u->hidden_op = exec_find_hidden(plan);
    struct team_config team = {.threads = config->threads, .cpus = config->cpus, .fifo = config->fifo};
    err = team_open(&u->team, &team, reterr);
    if (err) {
        pages_unmap(pool, u->pool_bytes);
        return err;
    }
    *ret = u;
    return ISO_OK;
}

void unit_close(struct unit *u)
{
    if (!u)
        return;
    team_close(&u->team);
    pages_unmap(u->pool, u->pool_bytes);
}

static enum iso_err check_request(const struct unit *u, const struct unit_request *r,
                                  struct iso_errinfo *reterr)
{
    const struct plan_header *h = u->plan->header;
    uint64_t total = (uint64_t)r->n_prompt + (r->score ? 0 : r->max_output);
    if (r->n_prompt == 0 || (!r->score && r->max_output == 0))
        return iso_fail(reterr, ISO_E_USAGE, 0, "prompt",
                        "a request needs at least one prompt and one output token");
    if (r->n_prior >= r->n_prompt)
        return iso_fail(reterr, ISO_E_USAGE, 0, "n_prior",
                        "%" PRIu32 " of %" PRIu32 " prompt tokens can't be output of before", r->n_prior,
                        r->n_prompt);
    if (total > h->limits.max_seq_len)
        return iso_fail(reterr, ISO_E_LIMIT, 0, "prompt",
                        "%" PRIu32 " prompt tokens and %" PRIu32
                        " output tokens do not fit a sequence of %" PRIu32 " (max-seq-len)",
                        r->n_prompt, r->score ? 0 : r->max_output, h->limits.max_seq_len);
    for (uint32_t i = 0; i < r->n_prompt; i++)
        if (r->prompt[i] >= h->model.vocab)
            return iso_fail(reterr, ISO_E_USAGE, i, "prompt",
                            "token %" PRIu32 " at position %" PRIu32 " is outside the vocabulary of %" PRIu32,
                            r->prompt[i], i, h->model.vocab);
    if (!sampling_is_valid(&r->sampling, h->model.vocab))
        return iso_fail(
            reterr, ISO_E_USAGE, 0, "sampling",
            "a sampling parameter is out of range: temperature 0 or 0.001 to 100, top-p above 0 "
            "to 1, min-p 0 to 1, repeat-penalty 0.01 to 100, presence and frequency penalty -2 to 2, "
            "biases -100 to 100 of at most %d tokens of the vocabulary",
            SAMPLING_BIAS_MAX);
    return ISO_OK;
}

enum iso_err unit_submit(struct unit *u, const struct unit_request *request, uint32_t *ret_slot,
                         uint32_t *ret_reused, struct iso_errinfo *reterr)
{
    enum iso_err err = check_request(u, request, reterr);
    if (err)
        return err;
    uint32_t s = 0, slots = u->plan->header->limits.slots;
    while (s < slots && u->slots[s].used)
        s++;
    if (s == slots)
        return iso_fail(reterr, ISO_E_BUSY, 0, NULL, "all %" PRIu32 " slots are taken", slots);
    struct slot *slot = &u->slots[s];
    uint32_t total = request->n_prompt + (request->score ? 0 : request->max_output);
    // A scored request needs the logits of every position, so it can't skip computing any.
    uint32_t reused = 0;
    bool got = kv_acquire(&u->kv, &slot->kv, (uint32_t)num_div_up(total, KV_BLOCK_TOKENS), request->prompt,
                          request->n_prompt, u->reuse && !request->score, &reused);
    ASSERT(got); // the pool holds every slot's blocks at their most
    slot->used = true;
    slot->arrival = u->arrivals++;
    slot->request = *request;
    slot->request.prompt = NULL;
    slot->request.sampling.bias = slot->bias;
    for (uint32_t i = 0; i < request->sampling.n_bias; i++)
        slot->bias[i] = request->sampling.bias[i];
    memcpy(slot->tokens, request->prompt, request->n_prompt * sizeof *slot->tokens);
    slot->n_tokens = request->n_prompt;
    slot->n_computed = reused;
    *ret_slot = s;
    if (ret_reused)
        *ret_reused = reused;
    return ISO_OK;
}

void unit_set_tap(struct unit *u, unit_tap *tap, void *context)
{
    u->tap = tap;
    u->tap_context = context;
}

void unit_cancel(struct unit *u, uint32_t slot)
{
    ASSERT(slot < u->plan->header->limits.slots);
    if (!u->slots[slot].used)
        return;
    kv_release(&u->kv, &u->slots[slot].kv);
    u->slots[slot].used = false;
}

static bool is_eog(const struct plan_header *h, uint32_t token)
{
    for (uint32_t i = 0; i < h->n_eog; i++)
        if (h->eog[i] == token)
            return true;
    return false;
}

// The token that a row of logits gives, and what becomes of its sequence.
static struct unit_event decide(struct unit *u, uint32_t row)
{
    const struct wanted *w = &u->batch.wanted[row];
    struct slot *slot = &u->slots[w->slot];
    const struct unit_request *r = &slot->request;
    struct unit_event event = {.slot = w->slot, .position = w->position, .row = row};
    const struct sampling greedy = SAMPLING_GREEDY;
    const struct sampling_history history = {slot->tokens, r->n_prompt - r->n_prior, slot->n_tokens};
    if (!sampler_draw(&u->sampler, unit_logits(u, row), r->score ? &greedy : &r->sampling, &history,
                      w->position + 1, &event.token)) {
        event.finish = UNIT_NONFINITE;
    } else if (r->score) {
        event.finish = w->position + 1 == r->n_prompt ? UNIT_SCORED : UNIT_RUNNING;
    } else if (!r->ignore_eog && is_eog(u->plan->header, event.token)) {
        event.finish = UNIT_EOG;
    } else {
        bool last = slot->n_tokens + 1 == r->n_prompt + r->max_output;
        slot->tokens[slot->n_tokens++] = event.token;
        event.finish = last ? UNIT_LENGTH : UNIT_RUNNING;
    }
    return event;
}

// Rows that were computed count as stored; full blocks become findable.
static void settle(struct unit *u)
{
    for (uint32_t i = 0; i < u->batch.rows; i++) {
        struct slot *slot = &u->slots[u->batch.slots[i]];
        ASSERT(slot->n_computed == u->batch.refs[i].position);
        slot->n_computed++;
        if (u->reuse && slot->n_computed % KV_BLOCK_TOKENS == 0)
            kv_publish(&u->kv, &slot->kv, slot->tokens, slot->n_computed);
    }
}

struct unit_result unit_step(struct unit *u)
{
    struct unit_result result = {.events = u->events};
    batch_compose(u);
    if (u->batch.rows == 0)
        return result;
    struct fpenv env = fpenv_enter();
    mem_seal();
    exec_step(u);
    settle(u);
    for (uint32_t row = 0; row < u->batch.n_wanted; row++) {
        if (!u->slots[u->batch.wanted[row].slot].used)
            continue; // a scored sequence that ended at an earlier row of this step
        struct unit_event event = decide(u, row);
        if (event.finish != UNIT_RUNNING)
            unit_cancel(u, event.slot);
        u->events[result.n++] = event;
    }
    mem_unseal();
    fpenv_leave(env);
    result.rows = u->batch.rows;
    return result;
}

const float *unit_logits(const struct unit *u, uint32_t row)
{
    const struct plan_tensor *t = &u->plan->tensors[u->plan->header->logits];
    ASSERT(row < u->batch.n_wanted);
    return (const float *)(u->arena + t->offset) + (uint64_t)row * t->cols;
}

const float *unit_hidden(const struct unit *u, uint32_t row)
{
    ASSERT(row < u->batch.n_wanted);
    return u->hidden_op ? u->hidden + (uint64_t)row * u->plan->header->model.hidden : NULL;
}

bool unit_has_hidden(const struct unit *u)
{
    return u->hidden_op != NULL;
}

double unit_log_sum_exp(const struct unit *u, uint32_t row)
{
    float max;
    const float *logits = unit_logits(u, row);
    uint32_t vocab = u->plan->header->model.vocab;
    struct fpenv env = fpenv_enter();
    double result = __builtin_nan("");
    if (u->kernels->vocab_max(logits, vocab, &max))
        result = (double)max + dmath_log((double)u->kernels->vocab_sum_exp(logits, vocab, max));
    fpenv_leave(env);
    return result;
}

const struct plan *unit_plan(const struct unit *u)
{
    return u->plan;
}

const struct kernels *unit_kernels(const struct unit *u)
{
    return u->kernels;
}

bool unit_is_locked(const struct unit *u)
{
    return u->locked;
}
