// hist: quantiles against sorting.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>

#include "base/hist.h"
#include "base/num.h"

static uint64_t next_random(uint64_t *state)
{
    uint64_t z = *state += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

static int by_value(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static const double FRACTIONS[] = {0, 0.001, 0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 0.999, 0.9999, 1};

static void check_quantiles(const struct hist *h, uint64_t *values, uint32_t n)
{
    qsort(values, n, sizeof *values, by_value);
    for (size_t i = 0; i < ARRAY_LEN(FRACTIONS); i++) {
        // The smallest rank whose share of the values is at least the fraction.
        uint32_t rank = 1;
        while (rank < n && (double)rank < FRACTIONS[i] * n)
            rank++;
        uint64_t want = values[rank - 1], got = hist_quantile(h, FRACTIONS[i]);
        assert_true(got >= want && got - want <= want / 64);
        assert_true(got <= h->max);
    }
    assert_int_equal(h->min, values[0]);
    assert_int_equal(h->max, values[n - 1]);
}

static void test_against_sorting(void **state)
{
    (void)state;
    enum { N = 5000 };
    uint64_t seed = 1;
    static uint64_t values[N];
    struct hist h;
    for (uint32_t round = 0; round < 64; round++) {
        uint32_t n = round == 0 ? 1 : round < 8 ? round + 1 : N;
        hist_reset(&h);
        uint64_t sum = 0;
        for (uint32_t i = 0; i < n; i++) {
            values[i] = next_random(&seed) >> (round < 32 ? round : next_random(&seed) % 60 + 4);
            hist_record(&h, values[i]);
            sum += values[i];
        }
        assert_int_equal(h.count, n);
        if (round >= 16) // before, the sum passes 64 bits
            assert_int_equal(hist_mean(&h), sum / n);
        check_quantiles(&h, values, n);
    }
}

// Each value alone: min, max, mean and every quantile are the value itself.
static void test_single_values(void **state)
{
    (void)state;
    struct hist h;
    for (int bit = 0; bit < 64; bit++) {
        for (int off = -1; off <= 1; off++) {
            uint64_t v = ((uint64_t)1 << bit) + (uint64_t)(int64_t)off;
            hist_reset(&h);
            hist_record(&h, v);
            for (size_t i = 0; i < ARRAY_LEN(FRACTIONS); i++)
                assert_int_equal(hist_quantile(&h, FRACTIONS[i]), v);
            assert_int_equal(hist_mean(&h), v);
        }
    }
    hist_record(&h, UINT64_MAX);
    hist_record(&h, 0);
    assert_int_equal(hist_quantile(&h, 0), 0);
    assert_int_equal(hist_quantile(&h, 1), UINT64_MAX);
}

// Below 64 every value has a bucket of its own.
static void test_small_values_are_exact(void **state)
{
    (void)state;
    struct hist h;
    hist_reset(&h);
    for (uint64_t v = 0; v < 64; v++)
        hist_record(&h, v);
    for (uint32_t v = 0; v < 64; v++)
        assert_int_equal(hist_quantile(&h, (v + 1) / 64.0), v);
}

static void test_empty(void **state)
{
    (void)state;
    struct hist h;
    hist_reset(&h);
    assert_int_equal(hist_quantile(&h, 0.5), 0);
    assert_int_equal(hist_quantile(&h, 1), 0);
    assert_int_equal(hist_mean(&h), 0);
    assert_int_equal(h.count, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_against_sorting),
        cmocka_unit_test(test_single_values),
        cmocka_unit_test(test_small_values_are_exact),
        cmocka_unit_test(test_empty),
    };
    return cmocka_run_group_tests_name("hist", tests, NULL, NULL);
}
