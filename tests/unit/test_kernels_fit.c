// The compiler's kernels: choosing codes, and the products that a calibration adds up. Compared with the description in
// kernels/fit.c, in simple loops over one output at a time.
#include "kernel_cases.h"

static const enum dtype TYPES[] = {DT_Q8_0, DT_W6, DT_Q4_0, DT_IQ4_NL};

struct ref_rule {
    float low, high, step;
    int zero;
};

static struct ref_rule ref_rule(enum dtype type)
{
    switch (type) {
    case DT_Q8_0:
        return (struct ref_rule){-127, 127, 0.1f, 0};
    case DT_W6:
        return (struct ref_rule){-32, 31, 0.15f, 32};
    case DT_Q4_0:
        return (struct ref_rule){-8, 7, 0.1f, 8};
    default:
        return (struct ref_rule){-127, 113, 2.0f, 0};
    }
}

// The code nearest to v, what it stands for in *value.
static int ref_nearest(enum dtype type, float v, float *value)
{
    static const int TABLE[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
    struct ref_rule rule = ref_rule(type);
    if (type != DT_IQ4_NL) {
        *value = rintf(v < rule.low ? rule.low : v > rule.high ? rule.high : v);
        return (int)*value;
    }
    int best = 0;
    for (int i = 1; i < 16; i++) // the lower of two at equal distance
        if (fabs((double)v - TABLE[i]) < fabs((double)v - TABLE[best]))
            best = i;
    *value = (float)TABLE[best];
    return best;
}

static float ref_scale(enum dtype type, const float *w, const float *importance)
{
    struct ref_rule rule = ref_rule(type);
    float most = w[0], gain = 0, best = 0;
    for (uint32_t k = 1; k < GROUP; k++)
        if (fabsf(w[k]) > fabsf(most))
            most = w[k];
    float inverse = fabsf(most) > 0x1p-60f ? 1.0f / most : 0;
    for (int end = 0; end < 2; end++)
        for (int i = -9; i <= 9; i++) {
            float t = (end ? rule.high : rule.low) + (float)i * rule.step, wq = 0, qq = 0, q;
            float by = t * inverse;
            for (uint32_t k = 0; k < GROUP; k++) {
                ref_nearest(type, w[k] * by, &q);
                float hq = importance[k] * q;
                wq = wq + hq * w[k];
                qq = qq + hq * q;
            }
            float d = wq / (qq > 0 ? qq : 1), reached = wq * d;
            if (reached > gain)
                gain = reached, best = d;
        }
    return best;
}

// One output of n inputs from the start of a block on.
static void ref_block(enum dtype type, uint32_t n, const float *w, const float *importance,
                      const float *feedback, uint8_t *code, uint16_t *d)
{
    float error[FIT_BLOCK], group[GROUP];
    for (uint32_t first = 0; first < n; first += GROUP) {
        for (uint32_t k = 0; k < GROUP; k++) {
            group[k] = w[first + k];
            for (uint32_t i = 0; feedback && i < first; i++)
                group[k] = group[k] + error[i] * feedback[(first + k) * FIT_BLOCK + i];
        }
        d[first / GROUP] = ref_f16_saturating(ref_scale(type, group, importance + first));
        float scale = (float)ref_f16(d[first / GROUP]);
        for (uint32_t k = 0; k < GROUP; k++) {
            float value;
            for (uint32_t i = first; feedback && i < first + k; i++)
                group[k] = group[k] + error[i] * feedback[(first + k) * FIT_BLOCK + i];
            int q = ref_nearest(type, group[k] * (scale != 0 ? 1.0f / scale : 0), &value);
            error[first + k] = w[first + k] - scale * value;
            code[first + k] = (uint8_t)(q + ref_rule(type).zero);
        }
    }
}

struct fit_case {
    enum dtype type;
    uint32_t k;
    float *w, *importance, *feedback; // w as the kernel takes it
    uint8_t (*code)[PANEL_LANES][GROUP], (*got)[PANEL_LANES][GROUP];
    uint16_t (*d)[PANEL_LANES], (*got_d)[PANEL_LANES];
};

static struct fit_case fit_make(struct rng *r, enum dtype type, uint32_t k, bool feedback)
{
    struct fit_case c = {.type = type, .k = k};
    c.w = case_alloc(k * PANEL_LANES * sizeof *c.w);
    c.importance = case_alloc(k * sizeof *c.importance);
    c.feedback = feedback ? case_alloc((uint64_t)k * FIT_BLOCK * sizeof *c.feedback) : NULL;
    c.code = case_alloc(k * PANEL_LANES);
    c.got = case_alloc(k * PANEL_LANES);
    c.d = case_alloc(k / GROUP * sizeof *c.d);
    c.got_d = case_alloc(k / GROUP * sizeof *c.got_d);
    rng_fill(r, c.w, k * PANEL_LANES, -8, -3);
    for (uint32_t i = 0; i < k; i++)
        c.importance[i] = fabsf(rng_f32(r, -6, 3));
    if (feedback)
        rng_fill(r, c.feedback, (size_t)k * FIT_BLOCK, -9, -4);
    return c;
}

static void fit_free(struct fit_case *c)
{
    free(c->w), free(c->importance), free(c->feedback), free(c->code), free(c->got), free(c->d),
        free(c->got_d);
}

static void fit_check(struct rng *r, struct fit_case *c)
{
    float *column = case_alloc(c->k * sizeof *column);
    uint8_t *code = case_alloc(c->k);
    uint16_t *d = case_alloc(c->k / GROUP * sizeof *d);
    for (uint32_t lane = 0; lane < PANEL_LANES; lane++) {
        for (uint32_t k = 0; k < c->k; k++)
            column[k] = c->w[k * PANEL_LANES + lane];
        for (uint32_t first = 0; first < c->k; first += FIT_BLOCK)
            ref_block(c->type, (uint32_t)num_min(FIT_BLOCK, c->k - first), column + first,
                      c->importance + first, c->feedback ? c->feedback + (size_t)first * FIT_BLOCK : NULL,
                      code + first, d + first / GROUP);
        for (uint32_t k = 0; k < c->k; k++)
            c->code[k / GROUP][lane][k % GROUP] = code[k];
        for (uint32_t g = 0; g < c->k / GROUP; g++)
            c->d[g][lane] = d[g];
    }
    FOR_EACH_ISA(k)
    {
        struct fit_args a = {c->type, c->k, c->w, c->importance, c->feedback, c->got, c->got_d};
        struct pieces p = random_pieces(r, (c->k + FIT_BLOCK - 1) / FIT_BLOCK);
        memset(c->got, CASE_SENTINEL, c->k * PANEL_LANES);
        for (uint32_t i = 0; i < p.n; i++)
            k->fit(&a, p.begin[i], p.end[i]);
        assert_memory_equal(c->got_d, c->d, c->k / GROUP * sizeof *c->d);
        assert_memory_equal(c->got, c->code, c->k * PANEL_LANES);
    }
    free(column), free(code), free(d);
}

static void test_fit(void **state)
{
    (void)state;
    struct rng r = rng_seeded(31);
    static const uint32_t LENGTHS[] = {32, 96, FIT_BLOCK, FIT_BLOCK + 32, 2 * FIT_BLOCK + 64};
    for (uint32_t round = 0; round < case_count(1); round++)
        for (size_t t = 0; t < ARRAY_LEN(TYPES); t++)
            for (size_t i = 0; i < ARRAY_LEN(LENGTHS); i++)
                for (int feedback = 0; feedback < 2; feedback++) {
                    struct fit_case c = fit_make(&r, TYPES[t], LENGTHS[i], feedback);
                    fit_check(&r, &c);
                    fit_free(&c);
                }
}

// Groups of zeros, of one weight, of weights below and above what f16 scales hold, of equals.
static void test_fit_edges(void **state)
{
    (void)state;
    struct rng r = rng_seeded(32);
    static const float VALUES[] = {0, -0.0f, 0x1p-70f, 0x1p-40f, 1, -1, 65504, -65504, 0x1p-149f};
    for (size_t t = 0; t < ARRAY_LEN(TYPES); t++)
        for (size_t v = 0; v < ARRAY_LEN(VALUES); v++)
            for (int alone = 0; alone < 2; alone++) {
                struct fit_case c = fit_make(&r, TYPES[t], 64, false);
                for (uint32_t i = 0; i < 64 * PANEL_LANES; i++)
                    c.w[i] = alone && i / PANEL_LANES % GROUP != 7 ? 0 : VALUES[v];
                fit_check(&r, &c);
                fit_free(&c);
            }
}

// A scale found by search is never worse than the plain one, and on a grid's own weights the error is none.
static void test_fit_finds_the_grid(void **state)
{
    (void)state;
    struct rng r = rng_seeded(33);
    for (size_t t = 0; t < ARRAY_LEN(TYPES); t++) {
        struct fit_case c = fit_make(&r, TYPES[t], 64, false);
        struct ref_rule rule = ref_rule(TYPES[t]);
        for (uint32_t i = 0; i < 64 * PANEL_LANES; i++) {
            float value;
            bool first = i / PANEL_LANES % GROUP == 0; // the whole range is used
            ref_nearest(TYPES[t], first ? rule.low : (float)rng_between(&r, (int)rule.low, (int)rule.high),
                        &value);
            c.w[i] = 0x1p-6f * value;
            c.importance[i / PANEL_LANES] = 1;
        }
        fit_check(&r, &c);
        for (uint32_t lane = 0; lane < PANEL_LANES; lane++)
            assert_int_equal(c.got_d[0][lane], ref_f16_saturating(0x1p-6f));
        fit_free(&c);
    }
}

static void test_products(void **state)
{
    (void)state;
    struct rng r = rng_seeded(34);
    static const uint32_t COLS[] = {32, 96, FIT_BLOCK, FIT_BLOCK + 64};
    for (size_t i = 0; i < ARRAY_LEN(COLS); i++) {
        uint32_t cols = COLS[i], rows = 1 + rng_below(&r, 7);
        uint64_t stride = (cols + 3) * sizeof(float), bytes = (uint64_t)cols * FIT_BLOCK * sizeof(float);
        float *x = case_alloc(rows * stride), *want = case_alloc(bytes), *got = case_alloc(bytes);
        rng_fill(&r, x, rows * stride / sizeof *x, -4, 4);
        for (uint32_t k = 0; k < cols; k++)
            for (uint32_t row = 0; row < rows; row++)
                for (uint32_t l = k / FIT_BLOCK * FIT_BLOCK; l <= k; l++) {
                    const float *at = x + row * (cols + 3);
                    float *sum = &want[(size_t)k * FIT_BLOCK + l % FIT_BLOCK];
                    *sum = *sum + at[k] * at[l];
                }
        FOR_EACH_ISA(isa)
        {
            memset(got, 0, bytes);
            struct products_args a = {.x = x, .x_stride = stride, .rows = rows, .cols = cols, .to = got};
            struct pieces p = random_pieces(&r, cols);
            for (uint32_t j = 0; j < p.n; j++)
                isa->products(&a, p.begin[j], p.end[j]);
            for (uint32_t k = 0; k < cols; k++)
                assert_true(same_floats(isa->name, got + (size_t)k * FIT_BLOCK, want + (size_t)k * FIT_BLOCK,
                                        k % FIT_BLOCK + 1));
        }
        free(x), free(want), free(got);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fit),
        cmocka_unit_test(test_fit_edges),
        cmocka_unit_test(test_fit_finds_the_grid),
        cmocka_unit_test(test_products),
    };
    return cmocka_run_group_tests_name("kernels_fit", tests, NULL, NULL);
}
