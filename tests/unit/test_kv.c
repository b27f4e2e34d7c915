// KV blocks: random use against a naive model that keeps lists in order and searches them from end to end;
// the stated cases one by one.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "base/num.h"
#include "unit/kv.h"

#define BLOCKS     12
#define SEQUENCES  4
#define SEQ_BLOCKS 6
#define SEQ_TOKENS (SEQ_BLOCKS * KV_BLOCK_TOKENS)
#define ROUNDS     200000
#define SEED       20240601

struct pool {
    struct kv_table t;
    struct kv_block blocks[BLOCKS];
    uint32_t buckets[16];
};

static void pool_init(struct pool *p)
{
    *p = (struct pool){.t = {.n_blocks = BLOCKS, .n_buckets = kv_bucket_count(BLOCKS)}};
    assert_true(p->t.n_buckets <= ARRAY_LEN(p->buckets));
    p->t.blocks = p->blocks;
    p->t.buckets = p->buckets;
    kv_init(&p->t);
}

// ---- The naive model ----

// What a block holds: the tokens of its sequence from the first to the block's last, as far as computed.
struct content {
    uint32_t n;
    uint32_t tokens[SEQ_TOKENS];
};

struct model_block {
    uint32_t refs, taken; // how often taken
    bool published;
    uint32_t parent, parent_taken;
    struct content content;
};

struct model_sequence {
    bool used;
    struct kv_sequence kv;
    uint32_t blocks[SEQ_BLOCKS];
    uint32_t tokens[SEQ_TOKENS];
    uint32_t n_tokens, n_computed;
    uint32_t published, parent, parent_taken;
};

struct model {
    struct pool pool;
    struct model_block blocks[BLOCKS];
    uint32_t free[BLOCKS], n_free; // least recently used first
    struct model_sequence sequences[SEQUENCES];
    uint64_t random;
    uint64_t reused, refused, broken, evicted, adopted; // how often these were seen
};

static uint32_t random_below(struct model *m, uint32_t n)
{
    uint64_t z = m->random += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return (uint32_t)((z ^ z >> 31) % n);
}

static uint32_t model_find(const struct model *m, uint32_t parent, const uint32_t *tokens)
{
    for (uint32_t b = 0; b < BLOCKS; b++) {
        const struct model_block *block = &m->blocks[b];
        if (block->published && block->parent == parent &&
            (parent == KV_NONE || block->parent_taken == m->blocks[parent].taken) &&
            memcmp(block->content.tokens + block->content.n - KV_BLOCK_TOKENS, tokens, KV_BLOCK_TOKENS * 4) ==
                0)
            return b;
    }
    return KV_NONE;
}

static void model_free_remove(struct model *m, uint32_t b)
{
    uint32_t i = 0;
    while (m->free[i] != b)
        i++;
    m->n_free--;
    memmove(m->free + i, m->free + i + 1, (m->n_free - i) * sizeof *m->free);
}

// What the table says equals what the model says.
static void compare(const struct model *m)
{
    const struct kv_table *t = &m->pool.t;
    uint32_t n = 0, found = 0, published = 0, before = KV_NONE;
    assert_int_equal(t->n_free, m->n_free);
    for (uint32_t b = t->oldest; b != KV_NONE; before = b, b = t->blocks[b].newer) {
        assert_true(n < m->n_free);
        assert_int_equal(b, m->free[n++]);
        assert_int_equal(t->blocks[b].older, before);
    }
    assert_int_equal(n, m->n_free);
    assert_int_equal(t->newest, before);
    for (uint32_t b = 0; b < BLOCKS; b++) {
        assert_int_equal(t->blocks[b].refs, m->blocks[b].refs);
        assert_int_equal(t->blocks[b].published, m->blocks[b].published);
        published += m->blocks[b].published;
    }
    for (uint32_t i = 0; i < t->n_buckets; i++) {
        for (uint32_t b = t->buckets[i]; b != KV_NONE; b = t->blocks[b].next_in_bucket) {
            assert_true(t->blocks[b].published && ++found <= published);
            assert_int_equal(t->blocks[b].hash & (t->n_buckets - 1), i);
        }
    }
    assert_int_equal(found, published);
}

// Prompts of two kinds of blocks, so that beginnings are often shared, with a tail of any length.
static void random_prompt(struct model *m, struct model_sequence *s)
{
    s->n_tokens = 1 + random_below(m, SEQ_TOKENS - 8);
    for (uint32_t i = 0; i < s->n_tokens; i++)
        s->tokens[i] = i % KV_BLOCK_TOKENS ? s->tokens[i - 1] : random_below(m, 2);
}

static void random_acquire(struct model *m, struct model_sequence *s)
{
    random_prompt(m, s);
    uint32_t least = (uint32_t)num_div_up(s->n_tokens, KV_BLOCK_TOKENS);
    uint32_t n_blocks = least + random_below(m, SEQ_BLOCKS - least + 1);
    bool reuse = random_below(m, 8) > 0;
    uint32_t shared = 0, from_free = 0, parent = KV_NONE, reused = 77;
    uint32_t want[SEQ_BLOCKS];
    while (reuse && (shared + 1) * KV_BLOCK_TOKENS < s->n_tokens) {
        uint32_t b = model_find(m, parent, s->tokens + shared * KV_BLOCK_TOKENS);
        if (b == KV_NONE)
            break;
        from_free += m->blocks[b].refs == 0;
        want[shared++] = parent = b;
    }
    struct pool before = m->pool;
    s->kv = (struct kv_sequence){.blocks = s->blocks};
    bool got = kv_acquire(&m->pool.t, &s->kv, n_blocks, s->tokens, s->n_tokens, reuse, &reused);
    assert_int_equal(got, n_blocks - shared <= m->n_free - from_free);
    if (!got) {
        assert_memory_equal(&m->pool, &before, sizeof before);
        assert_int_equal(reused, 77);
        m->refused++;
        return;
    }
    assert_int_equal(reused, shared * KV_BLOCK_TOKENS);
    for (uint32_t i = 0; i < shared; i++) {
        struct model_block *b = &m->blocks[want[i]];
        assert_int_equal(s->blocks[i], want[i]);
        // The heart of it: what is reused is the beginning of this prompt, every token of it.
        assert_int_equal(b->content.n, (i + 1) * KV_BLOCK_TOKENS);
        assert_memory_equal(b->content.tokens, s->tokens, b->content.n * 4);
        if (b->refs++ == 0)
            model_free_remove(m, want[i]);
    }
    for (uint32_t i = shared; i < n_blocks; i++) {
        uint32_t oldest = m->free[0];
        assert_int_equal(s->blocks[i], oldest);
        model_free_remove(m, oldest);
        m->evicted += m->blocks[oldest].published;
        m->blocks[oldest] = (struct model_block){.refs = 1, .taken = m->blocks[oldest].taken + 1};
    }
    m->reused += shared > 0;
    s->used = true;
    s->n_computed = reused;
    s->published = shared;
    s->parent = parent;
    s->parent_taken = parent == KV_NONE ? 0 : m->blocks[parent].taken;
}

// Computes some tokens of the sequence, drawing new ones past the prompt, and publishes.
static void random_compute(struct model *m, struct model_sequence *s)
{
    uint32_t capacity = s->kv.n_blocks * KV_BLOCK_TOKENS;
    for (uint32_t n = 1 + random_below(m, 40); n > 0 && s->n_computed < capacity; n--) {
        if (s->n_computed == s->n_tokens)
            s->tokens[s->n_tokens++] =
                s->n_computed % KV_BLOCK_TOKENS ? s->tokens[s->n_computed - 1] : random_below(m, 2);
        struct content *c = &m->blocks[s->blocks[s->n_computed / KV_BLOCK_TOKENS]].content;
        s->n_computed++;
        c->n = s->n_computed;
        memcpy(c->tokens, s->tokens, c->n * sizeof *c->tokens);
    }
    kv_publish(&m->pool.t, &s->kv, s->tokens, s->n_computed);
    while ((s->published + 1) * KV_BLOCK_TOKENS <= s->n_computed) {
        const uint32_t *ids = s->tokens + s->published * KV_BLOCK_TOKENS;
        if (s->parent != KV_NONE && m->blocks[s->parent].taken != s->parent_taken) {
            assert_true(s->kv.chain_broken);
            m->broken++;
            break;
        }
        uint32_t own = s->blocks[s->published], b = model_find(m, s->parent, ids);
        m->adopted += b != KV_NONE;
        if (b == KV_NONE) {
            b = own;
            m->blocks[b].published = true;
            m->blocks[b].parent = s->parent;
            m->blocks[b].parent_taken = s->parent_taken;
        }
        s->parent = b;
        s->parent_taken = m->blocks[b].taken;
        s->published++;
    }
    assert_int_equal(s->kv.n_published, s->published);
}

static void random_release(struct model *m, struct model_sequence *s)
{
    for (uint32_t i = s->kv.n_blocks; i > 0; i--)
        if (--m->blocks[s->blocks[i - 1]].refs == 0)
            m->free[m->n_free++] = s->blocks[i - 1];
    kv_release(&m->pool.t, &s->kv);
    s->used = false;
}

static void test_random(void **state)
{
    (void)state;
    struct model *m = calloc(1, sizeof *m);
    assert_non_null(m);
    m->random = SEED;
    pool_init(&m->pool);
    for (uint32_t i = 0; i < BLOCKS; i++)
        m->free[m->n_free++] = i;
    for (uint32_t round = 0; round < ROUNDS; round++) {
        struct model_sequence *s = &m->sequences[random_below(m, SEQUENCES)];
        if (!s->used)
            random_acquire(m, s);
        else if (random_below(m, 3) > 0)
            random_compute(m, s);
        else
            random_release(m, s);
        compare(m);
    }
    // Each of these must have been met, or the test shows less than it says.
    assert_true(m->reused > 1000 && m->refused > 1000 && m->evicted > 1000 && m->adopted > 1000 &&
                m->broken > 100);
    free(m);
}

// ---- Cases ----

struct sequence {
    struct kv_sequence kv;
    uint32_t blocks[SEQ_BLOCKS];
};

static const uint32_t TOKENS[SEQ_TOKENS] = {5, 4, 3, 2, 1};

// Takes n_blocks for the first n_tokens of `tokens`; returns how many were reused.
static uint32_t acquire(struct pool *p, struct sequence *s, uint32_t n_blocks, const uint32_t *tokens,
                        uint32_t n_tokens)
{
    uint32_t reused;
    s->kv = (struct kv_sequence){.blocks = s->blocks};
    assert_true(kv_acquire(&p->t, &s->kv, n_blocks, tokens, n_tokens, true, &reused));
    return reused;
}

static void test_block_of_last_token_is_not_shared(void **state)
{
    (void)state;
    struct pool p;
    struct sequence a, b;
    pool_init(&p);
    acquire(&p, &a, 3, TOKENS, 48);
    kv_publish(&p.t, &a.kv, TOKENS, 48);
    static const uint32_t CASES[][2] = {{1, 0},   {15, 0},  {16, 0},  {17, 16}, {32, 16},
                                        {33, 32}, {48, 32}, {49, 48}, {60, 48}};
    for (size_t i = 0; i < ARRAY_LEN(CASES); i++) {
        assert_int_equal(acquire(&p, &b, 4, TOKENS, CASES[i][0]), CASES[i][1]);
        assert_int_equal(memcmp(a.blocks, b.blocks, CASES[i][1] / KV_BLOCK_TOKENS * sizeof *a.blocks), 0);
        assert_true(b.blocks[CASES[i][1] / KV_BLOCK_TOKENS] != a.blocks[CASES[i][1] / KV_BLOCK_TOKENS % 3]);
        kv_release(&p.t, &b.kv);
    }
    kv_release(&p.t, &a.kv);
}

static void test_unpublished_and_part_blocks_are_not_found(void **state)
{
    (void)state;
    struct pool p;
    struct sequence a, b;
    pool_init(&p);
    acquire(&p, &a, 3, TOKENS, 48);
    assert_int_equal(acquire(&p, &b, 3, TOKENS, 48), 0);
    kv_release(&p.t, &b.kv);
    kv_publish(&p.t, &a.kv, TOKENS, 31); // one full block, and a part of one
    assert_int_equal(acquire(&p, &b, 3, TOKENS, 48), 16);
    kv_release(&p.t, &b.kv);
    uint32_t other[48];
    memcpy(other, TOKENS, sizeof other);
    kv_publish(&p.t, &a.kv, TOKENS, 48);
    other[20] ^= 1; // in the second block: only the first is the same
    assert_int_equal(acquire(&p, &b, 3, other, 48), 16);
    kv_release(&p.t, &b.kv);
    kv_release(&p.t, &a.kv);
    uint32_t reused = 1;
    assert_true(kv_acquire(&p.t, &b.kv, 3, TOKENS, 48, false, &reused)); // reuse not wanted
    assert_int_equal(reused, 0);
    kv_release(&p.t, &b.kv);
}

// The end of an old prefix goes before its beginning, and the older before the newer.
static void test_order_of_eviction(void **state)
{
    (void)state;
    struct pool p;
    struct sequence old, new, other;
    uint32_t different[48] = {9};
    pool_init(&p);
    acquire(&p, &old, 3, TOKENS, 48);
    kv_publish(&p.t, &old.kv, TOKENS, 48);
    acquire(&p, &new, 3, different, 48);
    kv_publish(&p.t, &new.kv, different, 48);
    kv_release(&p.t, &old.kv);
    kv_release(&p.t, &new.kv);
    uint32_t junk[SEQ_TOKENS] = {77};
    acquire(&p, &other, 6, junk, 1); // the six that were never used
    for (uint32_t i = 0; i < 6; i++)
        assert_int_equal(other.blocks[i], 6 + i);
    struct sequence more;
    acquire(&p, &more, 1, junk, 1);
    assert_int_equal(more.blocks[0], old.blocks[2]);
    struct sequence probe;
    assert_int_equal(acquire(&p, &probe, 3, TOKENS, 48), 32);
    kv_release(&p.t, &probe.kv);
    kv_release(&p.t, &more.kv);
    kv_release(&p.t, &other.kv);
}

// A sequence whose block equals another's publishes its later blocks under the other's; when that one is
// taken, it publishes nothing more.
static void test_broken_chain(void **state)
{
    (void)state;
    struct pool p;
    struct sequence first, second, filler, probe;
    uint32_t junk[SEQ_TOKENS] = {77};
    pool_init(&p);
    acquire(&p, &first, 1, TOKENS, 16);
    acquire(&p, &second, 3, TOKENS, 48);
    kv_publish(&p.t, &first.kv, TOKENS, 16);
    kv_publish(&p.t, &second.kv, TOKENS, 16);
    assert_int_equal(second.kv.parent, first.blocks[0]);
    kv_release(&p.t, &first.kv);
    acquire(&p, &filler, 6, junk, 1);
    struct sequence filler2;
    acquire(&p, &filler2, 3, junk, 1); // takes the last free block, that of `first`
    assert_int_equal(p.t.n_free, 0);
    kv_publish(&p.t, &second.kv, TOKENS, 48);
    assert_true(second.kv.chain_broken);
    kv_publish(&p.t, &second.kv, TOKENS, 48);
    assert_int_equal(second.kv.n_published, 1);
    kv_release(&p.t, &filler.kv);
    assert_int_equal(acquire(&p, &probe, 3, TOKENS, 48), 0);
    kv_release(&p.t, &probe.kv);
    kv_release(&p.t, &filler2.kv);
    kv_release(&p.t, &second.kv);
    assert_int_equal(p.t.n_free, BLOCKS);
}

static void test_too_few_blocks(void **state)
{
    (void)state;
    struct pool p;
    struct sequence a, b, c;
    pool_init(&p);
    acquire(&p, &a, 6, TOKENS, 96);
    kv_publish(&p.t, &a.kv, TOKENS, 96);
    kv_release(&p.t, &a.kv);
    uint32_t junk[SEQ_TOKENS] = {77}, reused;
    acquire(&p, &b, 6, junk, 1); // six free ones are left, all cached
    c.kv = (struct kv_sequence){.blocks = c.blocks};
    assert_int_equal(acquire(&p, &a, 6, TOKENS, 96), 80); // five shared and one taken
    assert_false(kv_acquire(&p.t, &c.kv, 1, junk, 1, true, &reused));
    assert_int_equal(p.t.n_free, 0);
    // Shared blocks in use need no free ones.
    kv_release(&p.t, &b.kv);
    assert_true(kv_acquire(&p.t, &c.kv, 6, TOKENS, 96, true, &reused));
    assert_int_equal(p.t.n_free, BLOCKS - 7);
    kv_release(&p.t, &c.kv);
    kv_release(&p.t, &a.kv);
    assert_int_equal(p.t.n_free, BLOCKS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random),
        cmocka_unit_test(test_block_of_last_token_is_not_shared),
        cmocka_unit_test(test_unpublished_and_part_blocks_are_not_found),
        cmocka_unit_test(test_order_of_eviction),
        cmocka_unit_test(test_broken_chain),
        cmocka_unit_test(test_too_few_blocks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
