// Matmul of every weight type on every ISA: bits equal to the definition in simple loops, the definition near
// the sum in f64, whatever the range of panels and the rows computed beside.
#include "kernel_weights.h"

static const enum dtype TYPES[] = {DT_F32,  DT_F16,  DT_BF16, DT_Q4_0, DT_Q4_1, DT_Q5_0,   DT_Q5_1,   DT_Q8_0,
                                   DT_Q2_K, DT_Q3_K, DT_Q4_K, DT_Q5_K, DT_Q6_K, DT_IQ4_NL, DT_IQ4_XS, DT_W6};

static float *sentinels(uint64_t bytes)
{
    float *y = case_alloc(bytes);
    memset(y, CASE_SENTINEL, bytes);
    return y;
}

static float *row_of(float *y, const struct matmul_args *a, uint32_t row)
{
    return (float *)((uint8_t *)y + row * a->y_stride);
}

// What the definition gives; fails where it is far from the f64 sum.
static float *expected(const struct matmul_case *c, const char *what)
{
    float *y = sentinels(c->y_bytes);
    for (uint32_t row = 0; row < c->args.rows; row++) {
        for (uint32_t out = 0; out < c->args.n; out++) {
            double exact, bound;
            float v = ref_matmul(c, row, out, &exact, &bound);
            row_of(y, &c->args, row)[out] = v;
            if (isfinite(v)) // an f32 that overflows has no near f64
                assert_true(is_near(what, (double)v, exact, bound));
        }
    }
    canonical_nans(y, c->y_bytes / 4);
    return y;
}

static void run_whole(const struct kernels *k, const struct matmul_case *c, float *y)
{
    struct matmul_args a = c->args;
    a.y = y;
    k->matmul[c->w.type](&a, 0, (a.n + 15) / 16);
}

static void run_pieces(const struct kernels *k, const struct matmul_case *c, struct rng *r, float *y)
{
    struct matmul_args a = c->args;
    a.y = y;
    struct pieces p = random_pieces(r, (a.n + 15) / 16);
    for (uint32_t i = 0; i < p.n; i++)
        k->matmul[c->w.type](&a, p.begin[i], p.end[i]);
}

static void run_rows_apart(const struct kernels *k, const struct matmul_case *c, struct rng *r, float *y)
{
    for (uint32_t row = 0, n; row < c->args.rows; row += n) {
        n = 1 + (rng_below(r, 2) ? 0 : rng_below(r, c->args.rows - row));
        struct matmul_args a = c->args;
        void *x = c->codes ? codes_pack(c->codes + row * (a.k / GROUP), n, a.k / GROUP) : NULL;
        a.x = x ? x : (const uint8_t *)a.x + row * a.x_stride;
        a.y = row_of(y, &a, row);
        a.rows = n;
        k->matmul[c->w.type](&a, 0, (a.n + 15) / 16);
        free(x);
    }
}

// Frees the case.
static void check_made(struct rng *r, struct matmul_case *c, const char *profile)
{
    char what[96];
    snprintf(what, sizeof what, "%s, %u rows of %u outputs from %u, %s", dtype_info(c->w.type)->name,
             c->args.rows, c->args.n, c->args.k, profile);
    float *want = expected(c, what);
    FOR_EACH_ISA(table)
    {
        for (int way = 0; way < 3; way++) {
            float *y = sentinels(c->y_bytes);
            if (way == 0)
                run_whole(table, c, y);
            else if (way == 1)
                run_pieces(table, c, r, y);
            else
                run_rows_apart(table, c, r, y);
            canonical_nans(y, c->y_bytes / 4);
            if (!same_floats(what, y, want, c->y_bytes / 4))
                fail_msg("on %s, way %d", table->name, way);
            free(y);
        }
    }
    free(want);
    matmul_free(c);
}

static void check_case(struct rng *r, enum dtype type, uint32_t rows, uint32_t n, uint32_t k,
                       enum profile profile)
{
    static const char *const NAMES[PROFILE_COUNT] = {"plain", "extreme", "not finite"};
    struct matmul_case c = matmul_make(r, type, rows, n, k, profile);
    assert_int_equal(panel_layout(type, k).bytes, c.w.panel_bytes);
    check_made(r, &c, NAMES[profile]);
}

static uint32_t random_outputs(struct rng *r)
{
    static const uint32_t EDGES[] = {1, 2, 15, 16, 17, 31, 32, 33};
    return rng_below(r, 2) ? EDGES[rng_below(r, 8)] : 1 + rng_below(r, 80);
}

// Around the tiles of rows that kernels take together.
static uint32_t random_rows(struct rng *r)
{
    return 1 + rng_below(r, rng_below(r, 4) ? 9 : 150);
}

static void test_random_shapes(void **state)
{
    (void)state;
    struct rng r = rng_seeded(1);
    for (size_t t = 0; t < ARRAY_LEN(TYPES); t++) {
        bool grouped = dtype_is_grouped(TYPES[t]);
        for (uint32_t i = 0; i < case_count(40); i++) {
            uint32_t inputs = dtype_inputs(TYPES[t]);
            uint32_t k = inputs * (1 + rng_below(&r, grouped ? (inputs == GROUP ? 12 : 3) : 200));
            check_case(&r, TYPES[t], random_rows(&r), random_outputs(&r), k,
                       (enum profile)rng_below(&r, PROFILE_COUNT));
        }
        for (uint32_t rows = 1; rows <= 40; rows++)
            check_case(&r, TYPES[t], rows, 17, dtype_inputs(TYPES[t]), PROFILE_PLAIN);
    }
}

static void repack(struct matmul_case *c)
{
    free(c->w.panels);
    weights_pack(&c->w);
    c->args.w = c->w.panels;
}

// Products that are all -0: the sum starts at +0 and stays there.
static void test_zeros(void **state)
{
    (void)state;
    struct rng r = rng_seeded(4);
    for (size_t t = 0; t < ARRAY_LEN(TYPES); t++) {
        uint32_t inputs = (uint32_t)num_max(GROUP, dtype_inputs(TYPES[t]));
        bool has_zero = TYPES[t] != DT_IQ4_NL && TYPES[t] != DT_IQ4_XS;
        for (uint32_t k = inputs; k <= 3 * inputs; k += inputs) {
            struct matmul_case c = matmul_make(&r, TYPES[t], 6, 20, k, PROFILE_PLAIN);
            uint32_t zero = dtype_is_grouped(TYPES[t]) ? (uint32_t)weights_zero(TYPES[t])
                            : TYPES[t] == DT_F32       ? 0x80000000
                                                       : 0x8000;
            for (uint32_t i = 0; i < 20 * k; i++)
                c.w.raw[i] = zero;
            for (uint32_t i = 0; i < 20 * k / GROUP; i++)
                c.w.d[i] = has_zero ? c.w.d[i] | 0x8000 : 0x8000, c.w.m[i] = 0x8000;
            repack(&c);
            check_made(&r, &c, "zeros");
        }
    }
}

// As long as a real model's rows: the f64 bound must hold there too.
static void test_long_rows(void **state)
{
    (void)state;
    struct rng r = rng_seeded(2);
    for (size_t t = 0; t < ARRAY_LEN(TYPES); t++)
        check_case(&r, TYPES[t], 3, 16, 8960, PROFILE_PLAIN);
    // And as many that a matrix unit takes them, over several of its blocks of inputs and tiles of rows.
    for (size_t t = 0; t < ARRAY_LEN(TYPES); t++)
        check_case(&r, TYPES[t], 37, 48, 2304, PROFILE_PLAIN);
}

// Every f16 and bf16 pattern as a weight times 1.
static void test_every_half(void **state)
{
    (void)state;
    for (int b = 0; b < 2; b++) {
        struct weights w = {.type = b ? DT_BF16 : DT_F16, .n = 65536, .k = 1};
        w.raw = case_alloc(65536 * sizeof *w.raw);
        float *want = case_alloc(65536 * sizeof *want), *y = case_alloc(65536 * sizeof *y);
        for (uint32_t i = 0; i < 65536; i++) {
            w.raw[i] = i;
            want[i] = weights_float(&w, i, 0) + 0.0f; // fma(w, 1, +0): -0 becomes +0
        }
        canonical_nans(want, 65536);
        weights_pack(&w);
        const float one = 1;
        FOR_EACH_ISA(table)
        {
            struct matmul_args a = {.w = w.panels, .x = &one, .y = y, .rows = 1, .n = w.n, .k = 1};
            table->matmul[w.type](&a, 0, w.n / 16);
            canonical_nans(y, 65536);
            assert_true(same_floats(table->name, y, want, 65536));
        }
        free(y);
        free(want);
        weights_free(&w);
    }
}

// With d = 1, m = -2, small sub-scales and activation scale 1 every step is an exact integer, and so is the result.
static int64_t integer_sum(const struct matmul_case *c, uint32_t row, uint32_t out)
{
    const struct codes *x = c->codes + row * (c->args.k / GROUP);
    int64_t sum = 0;
    for (uint32_t k = 0; k < c->args.k; k++)
        sum += (weights_code(&c->w, out, k) * weights_sub(&c->w, c->w.sub, out, k) -
                (weights_has_min(c->w.type) ? 2 * weights_sub(&c->w, c->w.min_sub, out, k) : 0)) *
               x[k / 32].q[k % 32];
    return sum;
}

static void test_exact_integers(void **state)
{
    (void)state;
    struct rng r = rng_seeded(3);
    for (size_t t = 0; t < ARRAY_LEN(TYPES); t++) {
        if (!dtype_is_grouped(TYPES[t]))
            continue;
        struct matmul_case c = matmul_make(&r, TYPES[t], 5, 48, 256, PROFILE_EXTREME);
        for (uint32_t i = 0; i < 48 * 8; i++)
            for (int j = 0; j < 2; j++) {
                c.w.d[i] = 0x3C00, c.w.m[i] = 0xC000;
                c.w.sub[i][j] = rng_below(&r, 2) ? 1 : -1, c.w.min_sub[i][j] = (int8_t)rng_below(&r, 2);
            }
        for (uint32_t i = 0; i < 5 * 8; i++)
            c.codes[i].scale = 1;
        free((void *)c.args.x);
        c.args.x = codes_pack(c.codes, 5, 8);
        repack(&c);
        free((void *)c.args.bias);
        c.args.bias = NULL;
        float *y = sentinels(c.y_bytes);
        FOR_EACH_ISA(table)
        {
            run_whole(table, &c, y);
            for (uint32_t i = 0; i < 5 * 48; i++)
                assert_true(row_of(y, &c.args, i / 48)[i % 48] == (float)integer_sum(&c, i / 48, i % 48));
        }
        free(y);
        matmul_free(&c);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_shapes),  cmocka_unit_test(test_zeros),
        cmocka_unit_test(test_long_rows),      cmocka_unit_test(test_every_half),
        cmocka_unit_test(test_exact_integers),
    };
    return cmocka_run_group_tests_name("kernels_matmul", tests, NULL, NULL);
}
