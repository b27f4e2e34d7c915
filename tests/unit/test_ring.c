// The ring: in order, full and empty, over the counts' wrap, between two threads, and with counts that can't be. And the list of
// most probable tokens against a sort.
#include "kernel_cases.h"

#include <pthread.h>

#include "unit/logprobs.h"
#include "unit/ring.h"

#define CAPACITY 8
#define RECORDS  2000000

struct record {
    uint64_t number, check, more;
};

struct fixture {
    struct ring_shared shared;
    struct record records[CAPACITY];
    struct ring ring;
};

static void ring_init(struct fixture *f, uint32_t begin)
{
    memset(f, 0, sizeof *f);
    f->shared.put = f->shared.taken = begin;
    f->ring = (struct ring){&f->shared, (uint8_t *)f->records, sizeof(struct record), CAPACITY};
}

static void test_order(void **state)
{
    (void)state;
    static struct fixture f;
    struct rng r = rng_seeded(80);
    ring_init(&f, UINT32_MAX - 20); // the counts come round
    uint64_t put = 0, taken = 0;
    for (int i = 0; i < 10000; i++) {
        struct record record = {put, ~put, 3 * put}, got = {0};
        assert_int_equal(ring_room(&f.ring), CAPACITY - (put - taken));
        if (rng_below(&r, 2)) {
            assert_int_equal(ring_put(&f.ring, &record), put - taken < CAPACITY);
            put += put - taken < CAPACITY;
        } else if (put == taken) {
            assert_int_equal(ring_take(&f.ring, &got), RING_EMPTY);
        } else {
            assert_int_equal(ring_take(&f.ring, &got), RING_TAKEN);
            assert_true(got.number == taken && got.check == ~taken && got.more == 3 * taken);
            taken++;
        }
    }
    assert_true(put > 3000);
}

static void *put_all(void *context)
{
    struct ring ring = *(struct ring *)context;
    for (uint64_t i = 0; i < RECORDS;)
        i += ring_put(&ring, &(struct record){i, ~i, 3 * i});
    return NULL;
}

static void test_two_threads(void **state)
{
    (void)state;
    static struct fixture f;
    pthread_t thread;
    ring_init(&f, 7);
    assert_int_equal(pthread_create(&thread, NULL, put_all, &f.ring), 0);
    for (uint64_t i = 0; i < RECORDS;) {
        struct record got;
        enum ring_taken taken = ring_take(&f.ring, &got);
        assert_true(taken != RING_BROKEN);
        if (taken == RING_EMPTY)
            continue;
        if (got.number != i || got.check != ~i || got.more != 3 * i)
            fail_msg("record %llu came as %llu", (unsigned long long)i, (unsigned long long)got.number);
        i++;
    }
    pthread_join(thread, NULL);
}

static void test_counts_that_cannot_be(void **state)
{
    (void)state;
    static struct fixture f;
    struct record record = {0};
    static const uint32_t AHEAD[] = {CAPACITY + 1, 1000, UINT32_MAX / 2, UINT32_MAX};
    for (size_t i = 0; i < ARRAY_LEN(AHEAD); i++) {
        ring_init(&f, 100);
        f.shared.put = 100 + AHEAD[i];
        assert_int_equal(ring_take(&f.ring, &record), RING_BROKEN);
        ring_init(&f, 100);
        f.shared.taken = 100 - AHEAD[i];
        assert_int_equal(ring_room(&f.ring), 0);
        assert_false(ring_put(&f.ring, &record));
    }
}

static void test_logprobs(void **state)
{
    (void)state;
    enum { N = 300 };
    struct rng r = rng_seeded(81);
    float x[N];
    for (uint32_t round = 0; round < case_count(2000); round++) {
        uint32_t n = 1 + rng_below(&r, N), n_top = rng_below(&r, LOGPROBS_TOP_MAX + 1),
                 token = rng_below(&r, n);
        struct token_logprob got[1 + LOGPROBS_TOP_MAX];
        double sum = 0;
        bool taken[N] = {false};
        for (uint32_t i = 0; i < n; i++) {
            x[i] = round % 2 ? (float)rng_between(&r, -3, 3) : rng_f32(&r, -4, 3);
            sum += exp((double)x[i]);
        }
        double lse = log(sum);
        assert_true(logprobs_of(x, n, lse, token, n_top, got));
        assert_int_equal(got[0].id, token);
        assert_true(got[0].logprob == (float)((double)x[token] - lse));
        for (uint32_t place = 1; place <= n_top; place++) {
            uint32_t best = LOGPROBS_NONE;
            for (uint32_t i = 0; i < n; i++)
                if (!taken[i] && (best == LOGPROBS_NONE || x[i] > x[best]))
                    best = i;
            assert_int_equal(got[place].id, best);
            if (best == LOGPROBS_NONE)
                continue;
            taken[best] = true;
            assert_true(got[place].logprob == (float)((double)x[best] - lse));
        }
    }
    struct token_logprob got[2];
    assert_false(logprobs_of(x, 10, NAN, 0, 1, got));
    assert_false(logprobs_of(x, 10, INFINITY, 0, 1, got));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_order), cmocka_unit_test(test_two_threads),
                                       cmocka_unit_test(test_counts_that_cannot_be),
                                       cmocka_unit_test(test_logprobs)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
