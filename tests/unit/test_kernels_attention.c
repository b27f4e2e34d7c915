// The KV cache and attention on every ISA: bits equal to the definition in simple loops, the definition near
// softmax in f64; nothing of what is not a key of the sequence shows.
#include "kernel_attention.h"

static uint8_t *garbage(const struct kv_case *c, int byte)
{
    uint8_t *pool = case_alloc(c->pool_bytes);
    memset(pool, byte, c->pool_bytes);
    return pool;
}

static uint8_t *stored_pool(const struct kv_case *c, int byte, uint32_t tokens)
{
    uint8_t *pool = garbage(c, byte);
    for (uint32_t row = 0; row < tokens; row++)
        ref_kv_store(c, pool, row);
    return pool;
}

static void test_store(void **state)
{
    (void)state;
    struct rng r = rng_seeded(20);
    for (uint32_t i = 0; i < case_count(40); i++) {
        struct kv_layout layout = {.type = (enum kv_type)(i % 2),
                                   .layers = 1 + rng_below(&r, 3),
                                   .kv_heads = 1 + rng_below(&r, 4),
                                   .head_dim = 16 * (1 + rng_below(&r, 16))};
        struct kv_case c = kv_case_make(&r, layout, layout.kv_heads, 1 + rng_below(&r, 50),
                                        i % 5 == 4 ? 120 : rng_between(&r, -28, 16));
        static const uint32_t ODD[] = {0x7F800000, 0xFF800000, 0x7FC00000, 0xFFA00000,
                                       0x477FE000, 0x477FDFFF, 0x477FF000, 0x80000000,
                                       1,          0x33000000, 0x33000001, 0x387FFFFF};
        for (size_t j = 0; i % 3 == 0 && j < ARRAY_LEN(ODD); j++)
            c.k[rng_below(&r, (uint32_t)(c.tokens * c.kv_stride / 4))] = float_of(ODD[j]);
        uint8_t *want = stored_pool(&c, 0xFF, c.tokens);
        FOR_EACH_ISA(k)
        {
            uint8_t *pool = garbage(&c, 0xFF);
            struct kv_store_args a = case_store_args(&c, pool);
            struct pieces p = random_pieces(&r, c.tokens);
            for (uint32_t j = 0; j < p.n; j++)
                k->kv_store(&a, p.begin[j], p.end[j]);
            if (memcmp(pool, want, c.pool_bytes) != 0)
                fail_msg("KV type %d on %s", layout.type, k->name);
            free(pool);
        }
        free(want);
        kv_case_free(&c);
    }
}

// f32 to f16 around every f16 value: itself, the midpoint to the next, and their neighbours.
static void test_store_rounds_to_f16(void **state)
{
    (void)state;
    enum { N = 0x7C00 * 6, COLS = 256 };
    float *x = case_alloc(2 * N * sizeof *x);
    for (uint32_t h = 0; h < 0x7C00; h++) {
        float at = (float)ref_f16((uint16_t)h);
        float mid = h == 0x7BFF ? 65520 : (at + (float)ref_f16((uint16_t)(h + 1))) / 2;
        const float near[6] = {at,  nextafterf(at, -1), nextafterf(at, INFINITY),
                               mid, nextafterf(mid, 0), nextafterf(mid, INFINITY)};
        memcpy(x + h * 6, near, sizeof near);
    }
    for (uint32_t i = 0; i < N; i++)
        x[N + i] = -x[i];
    struct kv_layout layout = {.type = KV_F16, .layers = 1, .kv_heads = 1, .head_dim = COLS};
    uint32_t rows = 2 * N / COLS, zero = 0;
    struct kv_ref ref = {.blocks = &zero, .position = 5};
    uint8_t *pool = case_alloc(kv_block_bytes(&layout));
    FOR_EACH_ISA(k)
    {
        for (uint32_t row = 0; row < rows; row++) {
            const float *in = x + row * COLS;
            struct kv_store_args a = {.k = in, .v = in, .pool = pool, .layout = layout, .rows = &ref};
            k->kv_store(&a, 0, 1);
            const uint16_t *v = (const uint16_t *)(pool + kv_head_bytes(&layout)) + 5 * COLS;
            for (uint32_t d = 0; d < COLS; d++)
                if (v[d] != ref_f16_saturating(in[d]))
                    fail_msg("%a becomes %04x on %s", (double)in[d], v[d], k->name);
        }
    }
    free(pool);
    free(x);
}

// Every head of the rows at `positions` against the definition and f64, on every ISA, items in pieces.
static void check_attention(struct rng *r, const struct kv_case *c, const uint32_t *positions, uint32_t rows)
{
    uint32_t per = c->heads / c->layout.kv_heads, head_dim = c->layout.head_dim;
    struct kv_ref ref[16];
    uint64_t y_bytes = rows * c->q_stride;
    float *want = case_alloc(y_bytes), *y = case_alloc(y_bytes);
    double exact[KV_HEAD_DIM_MAX], size;
    uint8_t *pool = stored_pool(c, 0xFF, c->tokens);
    struct attention_args a = case_attention_args(c, pool, ref, rows, c->q, y);
    memset(want, CASE_SENTINEL, y_bytes);
    assert_true(rows <= 16);
    for (uint32_t row = 0; row < rows; row++) {
        ref[row] = c->ref[positions[row]];
        for (uint32_t h = 0; h < c->heads; h++) {
            const float *q = case_row(c->q, c->q_stride, row) + h * head_dim;
            float *to = (float *)case_row(want, c->q_stride, row) + h * head_dim;
            ref_attend(c, pool, q, a.scale, h / per, positions[row], to);
            exact_attend(c, pool, q, a.scale, h / per, positions[row], exact, &size);
            for (uint32_t d = 0; d < head_dim; d++)
                assert_true(is_near("attention", (double)to[d], exact[d], 1e-5 * size));
        }
    }
    FOR_EACH_ISA(k)
    {
        memset(y, CASE_SENTINEL, y_bytes);
        struct pieces p = random_pieces(r, rows * c->layout.kv_heads);
        for (uint32_t i = 0; i < p.n; i++)
            k->attention(&a, p.begin[i], p.end[i]);
        if (!same_floats("attention", y, want, y_bytes / 4))
            fail_msg("KV type %d, %u heads on %u of %u, row 0 at %u, on %s", c->layout.type, c->heads,
                     c->layout.kv_heads, head_dim, positions[0], k->name);
    }
    free(pool);
    free(want);
    free(y);
}

static void test_attention_shapes(void **state)
{
    (void)state;
    struct rng r = rng_seeded(21);
    static const uint32_t DIMS[] = {16, 32, 48, 64, 80, 128, 256}, PER[] = {1, 2, 3, 7};
    for (uint32_t i = 0; i < case_count(28); i++) {
        struct kv_layout layout = {.type = (enum kv_type)(i % 2),
                                   .layers = 1 + rng_below(&r, 3),
                                   .kv_heads = 1 + rng_below(&r, 3),
                                   .head_dim = DIMS[i % 7]};
        uint32_t heads = layout.kv_heads * PER[i / 7 % 4], positions[5] = {0, 15, 16, 17, 0};
        struct kv_case c = kv_case_make(&r, layout, heads, 40, i % 3 ? 1 : -2);
        positions[4] = rng_below(&r, 40);
        c.window = i % 3 == 1 ? 1 + rng_below(&r, 45) : 0;
        for (uint64_t j = 0; i % 5 == 0 && j < 40 * c.kv_stride / 4; j++)
            c.v[j] = -0.0f; // the sum starts at +0
        check_attention(&r, &c, positions, 5);
        kv_case_free(&c);
    }
}

static void test_attention_spans(void **state)
{
    (void)state;
    struct rng r = rng_seeded(22);
    static const uint32_t POSITIONS[] = {510, 511, 512, 513, 527, 528, 1023, 1024, 1025, 1040, 1599};
    for (int type = 0; type < KV_TYPE_COUNT; type++) {
        struct kv_layout layout = {.type = (enum kv_type)type, .layers = 2, .kv_heads = 2, .head_dim = 32};
        for (int exp_max = -1; exp_max <= 1; exp_max += 2) {
            struct kv_case c = kv_case_make(&r, layout, 6, 1600, exp_max);
            check_attention(&r, &c, POSITIONS, ARRAY_LEN(POSITIONS));
            kv_case_free(&c);
        }
    }
}

// Windows that begin and end inside of spans and at their edges; rows beside each other whose windows share all keys
// but a few, and rows that share none.
static void test_attention_windows(void **state)
{
    (void)state;
    struct rng r = rng_seeded(26);
    static const uint32_t WINDOWS[] = {1, 15, 16, 17, 511, 512, 513, 600, 1200},
                          TOGETHER[] = {1020, 1021, 1022, 1023, 1024, 1025, 1026, 1027, 1028},
                          APART[] = {3, 520, 40, 1100, 511, 512, 1599};
    for (int type = 0; type < KV_TYPE_COUNT; type++) {
        struct kv_layout layout = {.type = (enum kv_type)type, .layers = 1, .kv_heads = 2, .head_dim = 32};
        struct kv_case c = kv_case_make(&r, layout, 6, 1600, 0);
        for (size_t i = 0; i < ARRAY_LEN(WINDOWS); i++) {
            c.window = WINDOWS[i];
            check_attention(&r, &c, TOGETHER, ARRAY_LEN(TOGETHER));
            check_attention(&r, &c, APART, ARRAY_LEN(APART));
        }
        kv_case_free(&c);
    }
}

// A sharp maximum in one span or another: the rescaling of either side underflows to 0.
static void test_attention_sharp(void **state)
{
    (void)state;
    struct rng r = rng_seeded(23);
    for (int type = 0; type < KV_TYPE_COUNT; type++) {
        struct kv_layout layout = {.type = (enum kv_type)type, .layers = 1, .kv_heads = 1, .head_dim = 64};
        for (uint32_t peak = 3; peak < 1100; peak += 400) {
            struct kv_case c = kv_case_make(&r, layout, 2, 1100, 0);
            const uint32_t positions[3] = {511, 900, 1099};
            for (uint32_t row = 0; row < 3; row++)
                for (uint32_t d = 0; d < 64; d++)
                    ((float *)case_row(c.q, c.q_stride, row))[d] = 40 * c.k[peak * c.kv_stride / 4 + d];
            check_attention(&r, &c, positions, 3);
            kv_case_free(&c);
        }
    }
}

// What lies in the unused part of the last block and in other blocks must not show: NaNs of either sign,
// zeros, and the sequence's own later tokens give the same bytes.
static void test_garbage_does_not_show(void **state)
{
    (void)state;
    struct rng r = rng_seeded(24);
    for (uint32_t i = 0; i < 12; i++) {
        struct kv_layout layout = {
            .type = (enum kv_type)(i % 2), .layers = 2, .kv_heads = 2, .head_dim = i % 3 ? 64 : 16};
        struct kv_case c = kv_case_make(&r, layout, 4, 600, 1);
        uint32_t position = i < 4 ? i : i < 8 ? 505 + i : rng_below(&r, 600);
        const struct kv_ref ref = c.ref[position];
        float *want = case_alloc(c.q_stride), *y = case_alloc(c.q_stride);
        FOR_EACH_ISA(k)
        {
            memset(want, 0, c.q_stride);
            for (int fill = 0; fill < 4; fill++) {
                static const int BYTES[] = {0x00, 0xFF, 0x7E, 0x00};
                memset(y, 0, c.q_stride);
                uint8_t *pool = stored_pool(&c, BYTES[fill], fill == 3 ? c.tokens : position + 1);
                struct attention_args a = case_attention_args(&c, pool, &ref, 1, c.q, fill ? y : want);
                k->attention(&a, 0, layout.kv_heads);
                for (uint32_t d = 0; d < c.heads * layout.head_dim; d++)
                    assert_true(isfinite(want[d]));
                if (fill)
                    assert_memory_equal(y, want, c.q_stride);
                free(pool);
            }
        }
        free(want);
        free(y);
        kv_case_free(&c);
    }
}

// A query or a stored vector that is not finite makes its own output NaN, and no other's.
static void test_nonfinite_shows(void **state)
{
    (void)state;
    struct rng r = rng_seeded(25);
    static const uint32_t ODD[] = {0x7FC00000, 0xFF800001, 0x7F800000};
    for (int type = 0; type < KV_TYPE_COUNT; type++) {
        for (int what = 0; what < 3; what++) {
            for (size_t i = 0; i < (what == 0 ? 3 : 2); i++) { // an infinite K or V saturates in f16
                struct kv_layout layout = {
                    .type = (enum kv_type)type, .layers = 1, .kv_heads = 2, .head_dim = 32};
                struct kv_case c = kv_case_make(&r, layout, 2, 530, 0);
                float *x = what == 0 ? c.q : what == 1 ? c.k : c.v;
                x[(what ? 520 * c.kv_stride / 4 : 0) + 7] = float_of(ODD[i]);
                uint8_t *pool = stored_pool(&c, 0, c.tokens);
                float *y = case_alloc(c.q_stride);
                FOR_EACH_ISA(k)
                {
                    struct attention_args a = case_attention_args(&c, pool, &c.ref[529], 1, c.q, y);
                    k->attention(&a, 0, 2);
                    bool nan = false;
                    for (uint32_t d = 0; d < 32; d++) {
                        nan = nan || y[d] != y[d];
                        assert_true(isfinite(y[32 + d]));
                    }
                    assert_true(nan);
                }
                free(y);
                free(pool);
                kv_case_free(&c);
            }
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_store),
        cmocka_unit_test(test_store_rounds_to_f16),
        cmocka_unit_test(test_attention_shapes),
        cmocka_unit_test(test_attention_spans),
        cmocka_unit_test(test_attention_windows),
        cmocka_unit_test(test_attention_sharp),
        cmocka_unit_test(test_garbage_does_not_show),
        cmocka_unit_test(test_nonfinite_shows),
    };
    return cmocka_run_group_tests_name("kernels_attention", tests, NULL, NULL);
}
