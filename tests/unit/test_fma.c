// The fma of the plain C kernels, made of f64 operations, against the machine's; f16 and bf16 conversions
// over all patterns.
#define KERNEL_ISA test
#include "kernel_cases.h"

#ifdef __FMA__
#error "compiled with fma, this would test the machine's against itself"
#endif
#include "kernels/vec.h"

static void check_fma(float a, float b, float c)
{
    float got = fma_exact(a, b, c), want = fmaf(a, b, c);
    if (bits_of(got) != bits_of(want) && (got == got || want == want))
        fail_msg("fma(%a, %a, %a) is %a, not %a", (double)a, (double)b, (double)c, (double)got, (double)want);
}

static void test_fma_specials(void **state)
{
    (void)state;
    static const uint32_t MAGNITUDES[] = {0,          1,          2,          3,          0x00400000,
                                          0x007FFFFF, 0x00800000, 0x00800001, 0x1A000000, 0x1F800000,
                                          0x20000000, 0x33800000, 0x3F000000, 0x3F7FFFFF, 0x3F800000,
                                          0x3F800001, 0x40000000, 0x4B800000, 0x5F7FFFFF, 0x5F800000,
                                          0x7F000000, 0x7F7FFFFE, 0x7F7FFFFF, 0x7F800000, 0x7FC00000};
    enum { N = ARRAY_LEN(MAGNITUDES) * 2 };
    for (uint32_t i = 0; i < N * N * N; i++) {
        float v[3];
        for (uint32_t j = 0, rest = i; j < 3; j++, rest /= N)
            v[j] = float_of(MAGNITUDES[rest % N / 2] | rest % 2 << 31);
        check_fma(v[0], v[1], v[2]);
    }
}

static void test_fma_random_bits(void **state)
{
    (void)state;
    struct rng r = rng_seeded(40);
    for (uint32_t i = 0, n = case_count(8000000); i < n; i++) {
        uint64_t u = rng_u64(&r);
        check_fma(float_of((uint32_t)u), float_of((uint32_t)(u >> 32)), float_of((uint32_t)rng_u64(&r)));
    }
}

// c near -a * b in size: cancellation, and a product whose last bits decide a rounding.
static void test_fma_close_terms(void **state)
{
    (void)state;
    struct rng r = rng_seeded(41);
    for (uint32_t i = 0, n = case_count(8000000); i < n; i++) {
        float a = rng_f32(&r, -70, 60), b = rng_f32(&r, -70, 60);
        uint32_t c = bits_of(-(a * b));
        if (rng_below(&r, 4) == 0)
            c ^= 0x80000000u;
        int far = rng_between(&r, -30, 30);
        if (rng_below(&r, 2) && (c >> 23 & 255) > 30 && (c >> 23 & 255) < 220)
            c += (uint32_t)far << 23;
        check_fma(a, b, float_of(c + (uint32_t)rng_between(&r, -3, 3)));
    }
}

// Few bits in each term: exact ties, and results just beside them, in normal and subnormal results.
static void test_fma_ties(void **state)
{
    (void)state;
    struct rng r = rng_seeded(42);
    for (uint32_t i = 0, n = case_count(4000000); i < n; i++) {
        int scale = rng_between(&r, -75, 30);
        float a = ldexpf((float)rng_between(&r, -4097, 4097), scale);
        float b = ldexpf((float)rng_between(&r, -4097, 4097), scale);
        float c = ldexpf((float)rng_between(&r, -9, 9), 2 * scale + rng_between(&r, -3, 60));
        check_fma(a, b, c);
    }
}

// ---- conversions

static void test_half_to_float(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 65536; h++) {
        float got = f32_from_f16((uint16_t)h), want = (float)ref_f16((uint16_t)h);
        assert_true(want == want ? bits_of(got) == bits_of(want) : got != got);
        assert_int_equal(bits_of(f32_from_bf16((uint16_t)h)), h << 16);
    }
}

static void test_float_to_half(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 65536; h++) { // every finite f16 comes back
        float x = (float)ref_f16((uint16_t)h);
        if (isfinite(x))
            assert_int_equal(f16_from_f32_saturating(x), h);
    }
    uint32_t step = 1999 / case_count(1);
    for (uint64_t u = 0; u < (uint64_t)1 << 32; u += step) {
        float x = float_of((uint32_t)u);
        if (f16_from_f32_saturating(x) != ref_f16_saturating(x))
            fail_msg("%a becomes %04x, not %04x", (double)x, f16_from_f32_saturating(x),
                     ref_f16_saturating(x));
    }
    static const struct {
        uint32_t bits;
        uint16_t half;
    } EDGES[] = {{0x7F800000, 0x7BFF}, {0xFF800000, 0xFBFF}, {0x7FC00000, 0x7E00}, {0xFF800001, 0x7E00},
                 {0x477FE000, 0x7BFF}, {0x477FF000, 0x7BFF}, {0x477FEFFF, 0x7BFF}, {0x477FDFFF, 0x7BFF},
                 {0x477FD000, 0x7BFE}, {0x33000000, 0x0000}, {0x33000001, 0x0001}, {0xB3000000, 0x8000},
                 {0x387FF000, 0x0400}, {0x387FDFFF, 0x03FF}, {0x00000001, 0x0000}, {0x80000001, 0x8000}};
    for (size_t i = 0; i < ARRAY_LEN(EDGES); i++)
        assert_int_equal(f16_from_f32_saturating(float_of(EDGES[i].bits)), EDGES[i].half);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fma_specials),    cmocka_unit_test(test_fma_random_bits),
        cmocka_unit_test(test_fma_close_terms), cmocka_unit_test(test_fma_ties),
        cmocka_unit_test(test_half_to_float),   cmocka_unit_test(test_float_to_half),
    };
    return cmocka_run_group_tests_name("fma", tests, NULL, NULL);
}
