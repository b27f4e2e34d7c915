// Operations on rows on every ISA: bits equal to the definition in simple loops, and the definition near f64.
#include "kernel_weights.h"

// Rows of floats with a stride, in memory that ends where the last row ends.
struct rows {
    float *x;
    uint64_t stride, bytes;
};

static struct rows rows_make(struct rng *r, uint32_t rows, uint32_t cols, int exp_min, int exp_max)
{
    struct rows a = {.stride = (cols + rng_below(r, 3)) * sizeof(float)};
    a.bytes = (rows - 1) * a.stride + cols * sizeof(float);
    a.x = case_alloc(a.bytes);
    rng_fill(r, a.x, a.bytes / 4, exp_min, exp_max);
    return a;
}

static struct rows rows_sentinel(struct rng *r, uint32_t rows, uint32_t row_bytes)
{
    struct rows a = {.stride = row_bytes + 4 * rng_below(r, 3)};
    a.bytes = (rows - 1) * a.stride + row_bytes;
    a.x = case_alloc(a.bytes);
    memset(a.x, CASE_SENTINEL, a.bytes);
    return a;
}

static float *at_row(const struct rows *a, uint32_t row)
{
    return (float *)((uint8_t *)a->x + row * a->stride);
}

static void plant(struct rng *r, struct rows *a, uint32_t rows, uint32_t cols)
{
    static const uint32_t ODD[] = {0,          0x80000000, 1,          0x807FFFFF, 0x7F7FFFFF,
                                   0x7F800000, 0xFF800000, 0x7FC00000, 0xFFA00000};
    for (uint32_t i = rng_below(r, 6); i > 0; i--)
        at_row(a, rng_below(r, rows))[rng_below(r, cols)] = float_of(ODD[rng_below(r, ARRAY_LEN(ODD))]);
}

static const uint32_t COLS[] = {1, 2, 15, 16, 17, 31, 33, 64, 100, 576, 1000};

// ---- rmsnorm, add, silu_mul, gelu_mul: y[rows][cols] from one or two operands

enum op { OP_RMSNORM, OP_ADD, OP_SILU_MUL, OP_GELU_MUL, OP_COUNT };

struct row_case {
    uint32_t rows, cols;
    uint32_t heads;      // of rmsnorm
    struct rows a, b, y; // b: gains in row 0 for rmsnorm
    float epsilon;
};

static void run_op(const struct kernels *k, enum op op, const struct row_case *c, uint32_t begin,
                   uint32_t end)
{
    struct norm_args norm = {.x = c->a.x,
                             .gain = c->b.x,
                             .y = c->y.x,
                             .x_stride = c->a.stride,
                             .y_stride = c->y.stride,
                             .heads = c->heads,
                             .cols = c->cols / c->heads,
                             .epsilon = c->epsilon};
    struct rows_args args = {.a = c->a.x,
                             .b = c->b.x,
                             .y = c->y.x,
                             .a_stride = c->a.stride,
                             .b_stride = c->b.stride,
                             .y_stride = c->y.stride,
                             .cols = c->cols};
    if (op == OP_RMSNORM)
        k->rmsnorm(&norm, begin, end);
    else if (op == OP_ADD)
        k->add(&args, begin, end);
    else
        (op == OP_SILU_MUL ? k->silu_mul : k->gelu_mul)(&args, begin, end);
}

static void ref_rmsnorm(const float *x, const float *gain, uint32_t cols, float epsilon, float *y)
{
    float lane[CASE_LANES] = {0};
    double exact = 0;
    for (uint32_t i = 0; i < cols; i++) {
        lane[i % CASE_LANES] = fmaf(x[i], x[i], lane[i % CASE_LANES]);
        exact += (double)x[i] * x[i];
    }
    float mean = ref_fold(lane) / (float)cols;
    float r = isfinite(mean) ? 1.0f / sqrtf(mean + epsilon) : NAN;
    double exact_r = 1 / sqrt(exact / cols + (double)epsilon);
    for (uint32_t i = 0; i < cols; i++) {
        y[i] = (x[i] * r) * gain[i];
        double want = (double)x[i] * exact_r * gain[i];
        if (isfinite(y[i]) && fabs(want) > 0x1p-120)
            assert_true(is_near("rmsnorm", (double)y[i], want, fabs(want) * (cols / 32 + 12) * 0x1p-24));
    }
}

static void ref_gelu_mul(const float *a, const float *b, uint32_t n, float *y)
{
    const double root = sqrt(2 / 3.14159265358979323846);
    for (uint32_t i = 0; i < n; i++) {
        float z = a[i] * fmaf(a[i] * a[i], 0x1.2444f2p-4f, 0x1.988454p+0f);
        y[i] = (a[i] / (1.0f + ref_exp(-z))) * b[i];
        double x = (double)a[i], u = root * (x + 0.044715 * x * x * x);
        double want = 0.5 * x * (1 + tanh(u)) * b[i];
        if (isfinite(y[i]) && fabs(want) > 0x1p-120 && u > -9) // beyond it tanh's own rounding shows
            assert_true(is_near("gelu_mul", (double)y[i], want,
                                fabs(want) * (6 + 8 * fabs(u)) * 0x1p-24 + fabs(x * b[i]) * 0x1p-50));
    }
}

static void ref_silu_mul(const float *a, const float *b, uint32_t n, float *y)
{
    for (uint32_t i = 0; i < n; i++) {
        y[i] = (a[i] / (1.0f + ref_exp(-a[i]))) * b[i];
        double want = (double)a[i] / (1 + exp(-(double)a[i])) * b[i];
        if (isfinite(y[i]) && fabs(want) > 0x1p-120 && a[i] > -87)
            assert_true(is_near("silu_mul", (double)y[i], want, fabs(want) * 5 * 0x1p-24));
    }
}

static void ref_op(enum op op, const struct row_case *c, struct rows *y)
{
    for (uint32_t row = 0; row < c->rows; row++) {
        const float *a = at_row(&c->a, row), *b = at_row(&c->b, row);
        float *to = at_row(y, row);
        if (op == OP_RMSNORM)
            for (uint32_t h = 0, cols = c->cols / c->heads; h < c->heads; h++)
                ref_rmsnorm(a + h * cols, c->b.x, cols, c->epsilon, to + h * cols);
        else if (op == OP_SILU_MUL)
            ref_silu_mul(a, b, c->cols, to);
        else if (op == OP_GELU_MUL)
            ref_gelu_mul(a, b, c->cols, to);
        for (uint32_t i = 0; op == OP_ADD && i < c->cols; i++)
            to[i] = a[i] + b[i];
    }
}

static void check_op(struct rng *r, enum op op, uint32_t rows, uint32_t cols, int exp_max, bool odd)
{
    struct row_case c = {
        .rows = rows, .cols = cols, .heads = cols % 3 ? 1 : 3, .epsilon = rng_below(r, 2) ? 1e-5f : 1e-12f};
    c.a = rows_make(r, rows, cols, exp_max - 12, exp_max);
    c.b = rows_make(r, rows, cols, -3, 3);
    c.y = rows_sentinel(r, rows, cols * sizeof(float));
    if (odd)
        plant(r, &c.a, rows, cols);
    struct rows want = c.y;
    want.x = case_alloc(want.bytes);
    memcpy(want.x, c.y.x, want.bytes);
    ref_op(op, &c, &want);
    canonical_nans(want.x, want.bytes / 4);
    char what[64];
    snprintf(what, sizeof what, "operation %d, %u rows of %u", op, rows, cols);
    FOR_EACH_ISA(k)
    {
        memset(c.y.x, CASE_SENTINEL, c.y.bytes);
        struct pieces p = random_pieces(r, rows);
        for (uint32_t i = 0; i < p.n; i++)
            run_op(k, op, &c, p.begin[i], p.end[i]);
        canonical_nans(c.y.x, c.y.bytes / 4);
        if (!same_floats(what, c.y.x, want.x, want.bytes / 4))
            fail_msg("on %s", k->name);
    }
    free(want.x);
    free(c.a.x);
    free(c.b.x);
    free(c.y.x);
}

static void test_element_operations(void **state)
{
    (void)state;
    struct rng r = rng_seeded(10);
    for (int op = 0; op < OP_COUNT; op++) {
        for (size_t i = 0; i < ARRAY_LEN(COLS); i++) {
            check_op(&r, (enum op)op, 3, COLS[i], 3, false);
            check_op(&r, (enum op)op, 2, COLS[i], 70, true); // squares past f32's end
            check_op(&r, (enum op)op, 2, COLS[i], -60, true);
        }
        for (uint32_t i = 0; i < case_count(40); i++)
            check_op(&r, (enum op)op, 1 + rng_below(&r, 9), 1 + rng_below(&r, 300), rng_between(&r, -20, 20),
                     rng_below(&r, 2));
    }
}

// In place, as the residual stream is added to.
static void test_add_in_place(void **state)
{
    (void)state;
    struct rng r = rng_seeded(11);
    FOR_EACH_ISA(k)
    {
        float x[100], b[100], want[100];
        rng_fill(&r, x, 100, -4, 4);
        rng_fill(&r, b, 100, -4, 4);
        for (int i = 0; i < 100; i++)
            want[i] = x[i] + b[i];
        struct rows_args a = {.a = x, .b = b, .y = x, .cols = 100};
        k->add(&a, 0, 1);
        assert_memory_equal(x, want, sizeof x);
    }
}

// ---- quantize

static void ref_codes(const float *x, struct codes *g)
{
    g->scale = ref_quantize(x, GROUP, g->q);
    g->sum = 0;
    for (int i = 0; i < GROUP; i++) {
        g->sum += g->q[i];
        if (g->scale > 0) {
            assert_in_range(g->q[i] + 127, 0, 254);
            assert_true(is_near("code", (double)g->q[i] * (double)g->scale, (double)x[i],
                                0.5 * (double)g->scale * (1 + 0x1p-15)));
        }
    }
}

static void check_quantize(struct rng *r, struct rows *x, uint32_t rows, uint32_t cols)
{
    uint32_t groups = cols / GROUP;
    struct codes *codes = case_alloc(rows * groups * sizeof *codes);
    for (uint32_t i = 0; i < rows * groups; i++)
        ref_codes(at_row(x, i / groups) + i % groups * GROUP, &codes[i]);
    size_t bytes = rows * groups * A8_GROUP_BYTES;
    uint8_t *want = codes_pack(codes, rows, groups), *y = case_alloc(bytes);
    FOR_EACH_ISA(k)
    {
        memset(y, CASE_SENTINEL, bytes);
        struct quantize_args a = {.x = x->x, .y = y, .x_stride = x->stride, .rows = rows, .cols = cols};
        struct pieces p = random_pieces(r, rows);
        for (uint32_t i = 0; i < p.n; i++)
            k->quantize(&a, p.begin[i], p.end[i]);
        assert_memory_equal(y, want, bytes); // a NaN scale has defined bits: it is a constant
    }
    free(codes);
    free(y);
    free(want);
}

static void test_quantize(void **state)
{
    (void)state;
    struct rng r = rng_seeded(12);
    for (uint32_t i = 0; i < case_count(200); i++) {
        uint32_t rows = 1 + rng_below(&r, 4), cols = GROUP * (1 + rng_below(&r, 20));
        int exp_max = rng_between(&r, -120, 127);
        struct rows x = rows_make(&r, rows, cols, exp_max - 5 < -126 ? -126 : exp_max - 5, exp_max);
        if (rng_below(&r, 2))
            plant(&r, &x, rows, cols);
        check_quantize(&r, &x, rows, cols);
        free(x.x);
    }
}

// The cut-off at 2^-100, the largest numbers, ties, zeros of both signs, one value among zeros.
static void test_quantize_edges(void **state)
{
    (void)state;
    struct rng r = rng_seeded(13);
    static const float AMAX[] = {0x1p-100f,
                                 0x1.fffffep-101f,
                                 0x1.000002p-100f,
                                 0x1p-126f,
                                 0x1p-149f,
                                 0x1.fffffep+127f,
                                 0x1p127f,
                                 127.0f,
                                 1.0f,
                                 0.0f,
                                 -0.0f,
                                 -0x1p-100f};
    for (size_t i = 0; i < ARRAY_LEN(AMAX); i++) {
        for (uint32_t at = 0; at < GROUP; at++) {
            struct rows x = rows_make(&r, 1, GROUP, 0, 0);
            for (uint32_t j = 0; j < GROUP; j++)
                x.x[j] = j == at ? AMAX[i] : AMAX[i] * ((float)j - 15.5f) / 127.0f; // ties where amax is 127
            check_quantize(&r, &x, 1, GROUP);
            free(x.x);
        }
    }
    float ties[GROUP] = {127, 0.5f, 1.5f, 2.5f, -0.5f, -1.5f, -2.5f, 126.5f, -126.5f};
    const int8_t want[GROUP] = {127, 0, 2, 2, 0, -2, -2, 126, -126};
    float packed[A8_GROUP_BYTES / sizeof(float)];
    struct a8 y = a8_at(packed, 1, GROUP);
    FOR_EACH_ISA(k)
    {
        k->quantize(&(struct quantize_args){.x = ties, .y = packed, .rows = 1, .cols = GROUP}, 0, 1);
        assert_memory_equal(y.q, want, GROUP);
        assert_true(y.scale[0] == 1 && y.shift[0] == 127 && y.zero[0] == -8 * 127 && y.half[0] == -8 * 127);
    }
}

// ---- embed

static float ref_embed(const struct weights *w, uint32_t id, uint32_t k)
{
    if (!dtype_is_grouped(w->type))
        return weights_float(w, id, k);
    size_t at = weights_scale_at(w, id, k);
    float d = (float)ref_f16(w->d[at]) * (float)weights_sub(w, w->sub, id, k);
    float m = (float)ref_f16(w->m[at]) * (float)weights_sub(w, w->min_sub, id, k);
    float y = d * (float)weights_code(w, id, k);
    return weights_has_min(w->type) ? y + m : y;
}

static void check_embed(struct rng *r, enum dtype type, uint32_t vocab, uint32_t cols, enum profile profile)
{
    struct weights w = weights_make(r, type, vocab, cols, profile);
    float scale = rng_below(r, 2) ? 1.0f : sqrtf((float)cols);
    uint32_t ids[6] = {0, vocab - 1};
    for (int i = 2; i < 6; i++)
        ids[i] = rng_below(r, vocab);
    struct rows y = rows_sentinel(r, 6, cols * sizeof(float)), want = y;
    want.x = case_alloc(y.bytes);
    memcpy(want.x, y.x, y.bytes);
    for (uint32_t row = 0; row < 6; row++)
        for (uint32_t k = 0; k < cols; k++)
            at_row(&want, row)[k] = ref_embed(&w, ids[row], k) * scale;
    canonical_nans(want.x, y.bytes / 4);
    FOR_EACH_ISA(table)
    {
        memset(y.x, CASE_SENTINEL, y.bytes);
        struct embed_args a = {.w = w.panels,
                               .dtype = type,
                               .ids = ids,
                               .y = y.x,
                               .y_stride = y.stride,
                               .cols = cols,
                               .scale = scale};
        struct pieces p = random_pieces(r, 6);
        for (uint32_t i = 0; i < p.n; i++)
            table->embed(&a, p.begin[i], p.end[i]);
        canonical_nans(y.x, y.bytes / 4);
        if (!same_floats("embed", y.x, want.x, y.bytes / 4))
            fail_msg("%s on %s", dtype_info(type)->name, table->name);
    }
    free(y.x);
    free(want.x);
    weights_free(&w);
}

static void test_embed(void **state)
{
    (void)state;
    struct rng r = rng_seeded(14);
    for (int type = 0; type < DT_A8; type++)
        for (uint32_t i = 0; i < case_count(24); i++)
            check_embed(&r, (enum dtype)type, 1 + rng_below(&r, 100),
                        (uint32_t)num_max(GROUP, dtype_inputs((enum dtype)type)) * (1 + rng_below(&r, 6)),
                        (enum profile)(i % PROFILE_COUNT));
}

// ---- rope

// x_i cos - x_j sin, x_j cos + x_i sin.
static void ref_rope(float *x, const float *table, uint32_t heads, uint32_t head_dim)
{
    uint32_t half = head_dim / 2;
    for (uint32_t h = 0; h < heads; h++, x += head_dim) {
        for (uint32_t i = 0; i < half; i++) {
            float a = x[i], b = x[i + half], cosine = table[i], sine = table[half + i];
            x[i] = fmaf(a, cosine, -(b * sine));
            x[i + half] = fmaf(b, cosine, a * sine);
            double size = (fabs((double)a) + fabs((double)b)) * 0x1p-22;
            assert_true(is_near("rope", (double)x[i], (double)a * cosine - (double)b * sine, size));
            assert_true(is_near("rope", (double)x[i + half], (double)b * cosine + (double)a * sine, size));
        }
    }
}

static void test_rope(void **state)
{
    (void)state;
    struct rng r = rng_seeded(15);
    static const uint32_t DIMS[] = {16, 32, 48, 64, 80, 128, 256};
    for (size_t d = 0; d < ARRAY_LEN(DIMS); d++) {
        uint32_t head_dim = DIMS[d], heads = 1 + rng_below(&r, 5), rows = 4, positions = 20;
        float *table = case_alloc(positions * head_dim * sizeof *table);
        rng_fill(&r, table, positions * head_dim, -8, -1);
        struct kv_ref refs[4];
        for (uint32_t i = 0; i < rows; i++)
            refs[i] = (struct kv_ref){.position = i == 0 ? positions - 1 : rng_below(&r, positions)};
        struct rows x = rows_make(&r, rows, heads * head_dim, -4, 4), want = x, y = x;
        want.x = case_alloc(x.bytes);
        y.x = case_alloc(x.bytes);
        memcpy(want.x, x.x, x.bytes);
        for (uint32_t i = 0; i < rows; i++)
            ref_rope(at_row(&want, i), table + refs[i].position * head_dim, heads, head_dim);
        FOR_EACH_ISA(k)
        {
            memcpy(y.x, x.x, x.bytes);
            struct rope_args a = {.x = y.x,
                                  .x_stride = x.stride,
                                  .table = table,
                                  .rows = refs,
                                  .heads = heads,
                                  .head_dim = head_dim};
            struct pieces p = random_pieces(&r, rows);
            for (uint32_t i = 0; i < p.n; i++)
                k->rope(&a, p.begin[i], p.end[i]);
            assert_true(same_floats(k->name, y.x, want.x, x.bytes / 4));
        }
        free(table);
        free(x.x);
        free(y.x);
        free(want.x);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_element_operations),
        cmocka_unit_test(test_add_in_place),
        cmocka_unit_test(test_quantize),
        cmocka_unit_test(test_quantize_edges),
        cmocka_unit_test(test_embed),
        cmocka_unit_test(test_rope),
    };
    return cmocka_run_group_tests_name("kernels_rows", tests, NULL, NULL);
}
