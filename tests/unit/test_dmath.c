// dmath against libm's long double, and against itself on other machines by a hash.
#include <inttypes.h>
#include "kernel_cases.h"

#include "base/dmath.h"
#include "base/hash.h"

#define DMATH_ERROR 5e-16 // what dmath.h states
// Made by this test of the results on its own seeded arguments: another value is another definition.
#define DMATH_HASH 0x0ccc76842892c41au

// Any f64 in 2^exp_min <= |x| < 2^(exp_max + 1).
static double rng_f64(struct rng *r, int exp_min, int exp_max)
{
    uint64_t exponent = (uint64_t)(rng_between(r, exp_min, exp_max) + 1023), u = rng_u64(r);
    uint64_t bits = (u & 0x800FFFFFFFFFFFFFu) | exponent << 52;
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static double relative(double got, long double want)
{
    return want == 0 ? fabs(got) : (double)(fabsl((long double)got - want) / fabsl(want));
}

static void test_log(void **state)
{
    (void)state;
    struct rng r = rng_seeded(60);
    double worst = 0;
    for (uint32_t i = 0; i < case_count(300000); i++) {
        double x = fabs(rng_f64(&r, i % 3 ? -3 : -1022, i % 3 ? 3 : 1023));
        if (i % 3 == 2)
            x = 1 + rng_f64(&r, -52, -2);
        worst = fmax(worst, relative(dmath_log(x), logl((long double)x)));
    }
    print_message("log: relative error %.3g\n", worst);
    assert_true(worst < DMATH_ERROR);
    assert_true(dmath_log(1) == 0);
}

static void test_exp(void **state)
{
    (void)state;
    struct rng r = rng_seeded(61);
    double worst = 0;
    for (uint32_t i = 0; i < case_count(300000); i++) {
        double x = rng_f64(&r, -30, 9);
        if (x >= -700 && x <= 700)
            worst = fmax(worst, relative(dmath_exp(x), expl((long double)x)));
    }
    worst = fmax(worst, relative(dmath_exp(700), expl(700)));
    worst = fmax(worst, relative(dmath_exp(-700), expl(-700)));
    print_message("exp: relative error %.3g\n", worst);
    assert_true(worst < DMATH_ERROR);
    assert_true(dmath_exp(0) == 1);
}

static void test_sincos(void **state)
{
    (void)state;
    struct rng r = rng_seeded(62);
    double worst = 0, s, c;
    for (uint32_t i = 0; i < case_count(600000); i++) {
        double x = i % 2 ? rng_f64(&r, -20, 21) : (double)rng_between(&r, -4194304, 4194304);
        if (i % 8 == 0) // about a multiple of pi / 2
            x = (double)rng_between(&r, -2670176, 2670176) * 1.5707963267948966 + rng_f64(&r, -30, -5);
        dmath_sincos(x, &s, &c);
        worst = fmax(worst, (double)fabsl((long double)s - sinl((long double)x)));
        worst = fmax(worst, (double)fabsl((long double)c - cosl((long double)x)));
    }
    print_message("sincos: absolute error %.3g\n", worst);
    assert_true(worst < DMATH_ERROR);
    dmath_sincos(0, &s, &c);
    assert_true(s == 0 && c == 1);
    dmath_sincos(4194304, &s, &c);
    assert_true(relative(s, sinl(4194304)) < 1e-14);
}

// Near zero the sine keeps its relative accuracy: small angles of the slowest RoPE pairs.
static void test_small_angles(void **state)
{
    (void)state;
    struct rng r = rng_seeded(63);
    for (uint32_t i = 0; i < 100000; i++) {
        double x = rng_f64(&r, -200, -1), s, c;
        dmath_sincos(x, &s, &c);
        assert_true(relative(s, sinl((long double)x)) < DMATH_ERROR);
    }
}

static void test_golden(void **state)
{
    (void)state;
    enum { N = 4096 };
    struct rng r = rng_seeded(64);
    static double y[4 * N];
    for (uint32_t i = 0; i < N; i++) {
        y[4 * i] = dmath_log(fabs(rng_f64(&r, -40, 40)));
        y[4 * i + 1] = dmath_exp(rng_f64(&r, -20, 8));
        dmath_sincos(rng_f64(&r, -20, 20), &y[4 * i + 2], &y[4 * i + 3]);
    }
    uint64_t hash = hash64(y, sizeof y);
    if (hash != DMATH_HASH)
        fail_msg("the hash of the results is %016" PRIx64, hash);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_log),          cmocka_unit_test(test_exp),    cmocka_unit_test(test_sincos),
        cmocka_unit_test(test_small_angles), cmocka_unit_test(test_golden),
    };
    return cmocka_run_group_tests_name("dmath", tests, NULL, NULL);
}
