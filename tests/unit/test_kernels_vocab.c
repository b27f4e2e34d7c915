// exp, and the operations over a vocabulary, on every ISA.
#include "kernel_cases.h"

static const uint32_t SIZES[] = {1, 2, 15, 16, 17, 31, 32, 100, 4095, 4096, 4097, 4112, 8191, 8193, 49152};

// Rule 7's order for the maximum: lane i mod 16, the lanes past the end of the last vector take x[0] once
// more.
static float ref_max(const float *x, uint32_t n)
{
    float lane[CASE_LANES];
    for (int l = 0; l < CASE_LANES; l++)
        lane[l] = -INFINITY;
    for (uint32_t i = 0; i < (n + 15) / 16 * 16; i++) {
        float v = i < n ? x[i] : x[0];
        lane[i % CASE_LANES] = lane[i % CASE_LANES] > v ? lane[i % CASE_LANES] : v;
    }
    for (int half = 8; half > 0; half /= 2)
        for (int l = 0; l < half; l++)
            lane[l] = lane[l] > lane[l + half] ? lane[l] : lane[l + half];
    return lane[0];
}

static float ref_sum_exp(const float *x, uint32_t n, float max, double *ret_exact)
{
    float total = 0;
    *ret_exact = 0;
    for (uint32_t begin = 0; begin < n; begin += 4096) {
        float lane[CASE_LANES] = {0};
        for (uint32_t i = begin; i < n && i < begin + 4096; i++) {
            lane[i % CASE_LANES] = lane[i % CASE_LANES] + ref_exp(x[i] - max);
            *ret_exact += exp((double)x[i] - (double)max);
        }
        total = total + ref_fold(lane);
    }
    return total;
}

static void check_vocab(struct rng *r, uint32_t n, int exp_max)
{
    float *x = case_alloc(n * sizeof *x), *want = case_alloc(n * sizeof *want),
          *y = case_alloc(n * sizeof *y);
    rng_fill(r, x, n, exp_max - 8, exp_max);
    for (uint32_t i = 0; i < n && rng_below(r, 2); i += 1 + rng_below(r, n))
        x[i] = rng_below(r, 2) ? -0.0f : 0.0f;
    float max = ref_max(x, n);
    double exact;
    float sum = ref_sum_exp(x, n, max, &exact);
    assert_true(is_near("sum of exp", (double)sum, exact, exact * 0x1p-19));
    for (uint32_t i = 0; i < n; i++) {
        want[i] = ref_exp(x[i] - max);
        assert_true(x[i] <= max);
    }
    FOR_EACH_ISA(k)
    {
        float got = 0;
        assert_true(k->vocab_max(x, n, &got));
        assert_int_equal(bits_of(got), bits_of(max));
        assert_int_equal(bits_of(k->vocab_sum_exp(x, n, max)), bits_of(sum));
        k->exp_shifted(x, n, max, y);
        assert_true(same_floats(k->name, y, want, n));
    }
    free(x);
    free(want);
    free(y);
}

static void test_vocab(void **state)
{
    (void)state;
    struct rng r = rng_seeded(30);
    for (size_t i = 0; i < ARRAY_LEN(SIZES); i++)
        for (int exp_max = -20; exp_max <= 7; exp_max += 9)
            check_vocab(&r, SIZES[i], exp_max);
    for (uint32_t i = 0; i < case_count(100); i++)
        check_vocab(&r, 1 + rng_below(&r, 300), rng_between(&r, -100, 120));
}

// Zeros alone, of both signs in every place: the maximum's sign is defined too.
static void test_max_of_zeros(void **state)
{
    (void)state;
    struct rng r = rng_seeded(31);
    for (uint32_t i = 0; i < 2000; i++) {
        float x[40];
        uint32_t n = 1 + rng_below(&r, 40);
        for (uint32_t j = 0; j < n; j++)
            x[j] = rng_below(&r, 2) ? -0.0f : 0.0f;
        FOR_EACH_ISA(k)
        {
            float got = 1;
            assert_true(k->vocab_max(x, n, &got));
            assert_int_equal(bits_of(got), bits_of(ref_max(x, n)));
        }
    }
}

static void test_nonfinite_is_found(void **state)
{
    (void)state;
    static const uint32_t ODD[] = {0x7F800000, 0xFF800000, 0x7FC00000, 0xFFC00000, 0x7F800001, 0xFFFFFFFF};
    struct rng r = rng_seeded(32);
    for (size_t s = 0; s < ARRAY_LEN(SIZES); s++) {
        uint32_t n = SIZES[s];
        float *x = case_alloc(n * sizeof *x), untouched = 42;
        rng_fill(&r, x, n, -5, 127);
        for (uint32_t i = 0; i < 60; i++) {
            uint32_t at = i < 20 ? i % n : i < 40 ? n - 1 - i % n : rng_below(&r, n);
            float kept = x[at];
            x[at] = float_of(ODD[i % ARRAY_LEN(ODD)]);
            FOR_EACH_ISA(k)
            assert_false(k->vocab_max(x, n, &untouched));
            x[at] = kept;
        }
        assert_true(untouched == 42);
        FOR_EACH_ISA(k)
        assert_true(k->vocab_max(x, n, &untouched));
        free(x);
    }
}

static void exp_of(const struct kernels *k, const float *x, uint32_t n, float *y)
{
    k->exp_shifted(x, n, 0, y);
}

// Every `step`th f32 from -87 to 88, on every ISA against the definition; the definition against expl.
static void test_exp_sweep(void **state)
{
    (void)state;
    enum { N = 4096 };
    float x[N], want[N], y[N];
    double worst = 0;
    uint32_t step = 4999 / case_count(1), n = 0; // prime: all low bits are met
    for (uint64_t u = 0; u < (uint64_t)1 << 32; u += step) {
        float v = float_of((uint32_t)u);
        if (v >= -87 && v <= 88) {
            double exact = (double)expl((long double)v), ulp = ldexp(1, ilogb(exact) - 23);
            x[n] = v;
            want[n] = ref_exp(v);
            worst = fmax(worst, fabs((double)want[n] - exact) / ulp);
            n++;
        }
        if (n < N && u + step < (uint64_t)1 << 32)
            continue;
        FOR_EACH_ISA(k)
        {
            exp_of(k, x, n, y);
            assert_true(same_floats(k->name, y, want, n));
        }
        n = 0;
    }
    print_message("exp: within %.4f ulp\n", worst);
    assert_true(worst < 1.02); // numerics.md, rule 8
}

static void test_exp_edges(void **state)
{
    (void)state;
    const float inf = INFINITY;
    const float x[] = {0.0f,
                       -0.0f,
                       0x1p-149f,
                       -0x1p-149f,
                       0x1p-30f,
                       -0x1p-30f,
                       -87.0f,
                       nextafterf(-87, -inf),
                       88.0f,
                       nextafterf(88, inf),
                       -inf,
                       inf,
                       -0x1.fffffep127f,
                       0x1.fffffep127f,
                       -1e10f,
                       1e10f,
                       -104.0f};
    const float want[] = {1, 1, 1, 1, 1, 1, ref_exp(-87), 0, ref_exp(88), inf, 0, inf, 0, inf, 0, inf, 0};
    assert_true(ref_exp(-87) >= 0x1p-126f && ref_exp(88) < inf); // no subnormal and no overflow inside
    FOR_EACH_ISA(k)
    {
        float y[ARRAY_LEN(x)], nan = NAN;
        exp_of(k, x, ARRAY_LEN(x), y);
        for (size_t i = 0; i < ARRAY_LEN(x); i++)
            assert_int_equal(bits_of(y[i]), bits_of(want[i]));
        exp_of(k, &nan, 1, y);
        assert_true(y[0] != y[0]);
    }
}

// Greater logits have no smaller probability, so that sorting by logit and by probability agree.
static void test_exp_is_monotone(void **state)
{
    (void)state;
    enum { N = 1 << 16 };
    static const float CENTRES[] = {-86.9f,    -20.0f,   -1.5f,       -0.34657359f, -0.01f,
                                    -0x1p-20f, 0x1p-20f, 0.34657359f, 5.0f};
    float *x = case_alloc(N * sizeof *x), *y = case_alloc(N * sizeof *y);
    const struct kernels *k = kernels_best();
    for (size_t c = 0; c < ARRAY_LEN(CENTRES); c++) {
        float v = CENTRES[c];
        for (uint32_t i = 0; i < N; i++, v = nextafterf(v, INFINITY))
            x[i] = v;
        exp_of(k, x, N, y);
        for (uint32_t i = 1; i < N; i++)
            assert_true(y[i] >= y[i - 1]);
    }
    free(x);
    free(y);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_vocab),
        cmocka_unit_test(test_max_of_zeros),
        cmocka_unit_test(test_nonfinite_is_found),
        cmocka_unit_test(test_exp_sweep),
        cmocka_unit_test(test_exp_edges),
        cmocka_unit_test(test_exp_is_monotone),
    };
    return cmocka_run_group_tests_name("kernels_vocab", tests, NULL, NULL);
}
