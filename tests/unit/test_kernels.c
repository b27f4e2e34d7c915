// All kernels: golden hashes that hold the definition still, on every ISA; the floating-point environment;
// the table of ISAs; and a microbenchmark.
//
//   test_kernels                  the tests
//   test_kernels --print-hashes   tests/golden/kernel_hashes.h, computed anew with the plain C kernels
//   test_kernels --bench [WORD]   speed of each kernel on each ISA, or of those whose name holds WORD
#include <inttypes.h>

#include "base/fpenv.h"
#include "base/hash.h"
#include "kernel_attention.h"
#include "kernel_bench.h"
#include "kernel_weights.h"
#include "../golden/kernel_hashes.h"

// ---- golden: each case makes its inputs from a seed of its own and hashes all that the kernel writes

#define COLS       576
#define SUPER_COLS 512 // of types with sub-scales

static uint64_t hash_floats(float *x, size_t n)
{
    canonical_nans(x, n);
    return hash64(x, n * sizeof *x);
}

static uint64_t golden_matmul(const struct kernels *k, uint32_t type)
{
    uint64_t hash = type;
    for (int profile = 0; profile < PROFILE_COUNT; profile++) {
        struct rng r = rng_seeded(100 + type * PROFILE_COUNT + (uint32_t)profile);
        uint32_t cols = dtype_info(type)->subs ? SUPER_COLS : COLS;
        struct matmul_case c = matmul_make(&r, (enum dtype)type, 5, 72, cols, (enum profile)profile);
        float *y = case_alloc(c.y_bytes);
        struct matmul_args a = c.args;
        a.y = y;
        k->matmul[type](&a, 0, 5);
        hash = hash64_seeded(&(uint64_t){hash_floats(y, c.y_bytes / 4)}, 8, hash);
        free(y);
        matmul_free(&c);
    }
    return hash;
}

static uint64_t golden_embed(const struct kernels *k, uint32_t type)
{
    struct rng r = rng_seeded(200 + type);
    uint32_t cols = dtype_info(type)->subs ? SUPER_COLS : COLS;
    struct weights w = weights_make(&r, (enum dtype)type, 33, cols, PROFILE_EXTREME);
    const uint32_t ids[3] = {0, 32, 17};
    float y[3 * COLS];
    struct embed_args a = {.w = w.panels,
                           .dtype = w.type,
                           .ids = ids,
                           .y = y,
                           .y_stride = cols * sizeof *y,
                           .cols = cols,
                           .scale = 1};
    k->embed(&a, 0, 3);
    weights_free(&w);
    return hash_floats(y, 3 * cols);
}

static uint64_t golden_rmsnorm(const struct kernels *k, uint32_t variant)
{
    struct rng r = rng_seeded(300 + variant);
    float x[COLS], gain[COLS], y[COLS];
    rng_fill(&r, x, COLS, -12, 6);
    rng_fill(&r, gain, COLS, -3, 3);
    struct norm_args a = {
        .x = x, .gain = gain, .y = y, .heads = 1, .cols = COLS - 7 * variant, .epsilon = 1e-5f};
    k->rmsnorm(&a, 0, 1);
    return hash_floats(y, a.cols);
}

static uint64_t golden_quantize(const struct kernels *k, uint32_t variant)
{
    struct rng r = rng_seeded(310 + variant);
    float x[COLS];
    uint32_t packed[COLS / GROUP * A8_GROUP_BYTES / 4];
    struct a8 y = a8_at(packed, 1, COLS);
    struct codes codes[COLS / GROUP];
    rng_fill(&r, x, COLS, variant ? -110 : -12, variant ? -95 : 6);
    x[40] = float_of(0x7F800000);
    k->quantize(&(struct quantize_args){.x = x, .y = packed, .rows = 1, .cols = COLS}, 0, 1);
    for (uint32_t g = 0; g < COLS / GROUP; g++) {
        memcpy(codes[g].q, y.q[g], GROUP);
        codes[g].scale = y.scale[g];
        codes[g].sum = y.zero[g] / -8;
    }
    return hash64(codes, sizeof codes);
}

static uint64_t golden_two(const struct kernels *k, uint32_t which)
{
    struct rng r = rng_seeded(320 + which);
    float a[COLS], b[COLS], y[COLS];
    rng_fill(&r, a, COLS, -12, 7);
    rng_fill(&r, b, COLS, -12, 7);
    struct rows_args args = {.a = a, .b = b, .y = y, .cols = COLS - 3};
    (which == 0 ? k->add : which == 1 ? k->silu_mul : k->gelu_mul)(&args, 0, 1);
    return hash_floats(y, COLS - 3);
}

static uint64_t golden_rope(const struct kernels *k, uint32_t head_dim)
{
    struct rng r = rng_seeded(330 + head_dim);
    float x[COLS], table[4 * COLS];
    rng_fill(&r, x, COLS, -6, 6);
    rng_fill(&r, table, 4 * COLS, -9, -1);
    const struct kv_ref ref = {.position = 3};
    struct rope_args a = {.x = x, .table = table, .rows = &ref, .heads = 2, .head_dim = head_dim};
    k->rope(&a, 0, 1);
    return hash_floats(x, COLS);
}

static struct kv_case golden_cache(const struct kernels *k, uint32_t type, uint8_t **ret_pool)
{
    struct rng r = rng_seeded(340 + type);
    struct kv_layout layout = {.type = (enum kv_type)type, .layers = 2, .kv_heads = 2, .head_dim = 64};
    struct kv_case c = kv_case_make(&r, layout, 6, 1100, 1);
    *ret_pool = case_alloc(c.pool_bytes);
    struct kv_store_args a = case_store_args(&c, *ret_pool);
    k->kv_store(&a, 0, c.tokens);
    return c;
}

static uint64_t golden_kv_store(const struct kernels *k, uint32_t type)
{
    uint8_t *pool;
    struct kv_case c = golden_cache(k, type, &pool);
    uint64_t hash = hash64(pool, c.pool_bytes);
    free(pool);
    kv_case_free(&c);
    return hash;
}

static uint64_t hash_attention(const struct kernels *k, uint32_t type, uint32_t window)
{
    static const uint32_t POSITIONS[] = {0, 16, 511, 512, 700, 1099};
    enum { ROWS = ARRAY_LEN(POSITIONS) };
    uint8_t *pool;
    struct kv_case c = golden_cache(k, type, &pool);
    struct kv_ref ref[ROWS];
    float *y = case_alloc(ROWS * c.q_stride);
    for (uint32_t i = 0; i < ROWS; i++)
        ref[i] = c.ref[POSITIONS[i]];
    struct attention_args a = case_attention_args(&c, pool, ref, ROWS, c.q, y);
    a.window = window;
    k->attention(&a, 0, ROWS * c.layout.kv_heads);
    uint64_t hash = hash_floats(y, ROWS * c.q_stride / 4);
    free(y);
    free(pool);
    kv_case_free(&c);
    return hash;
}

static uint64_t golden_attention(const struct kernels *k, uint32_t type)
{
    return hash_attention(k, type, 0);
}

static uint64_t golden_attention_window(const struct kernels *k, uint32_t type)
{
    return hash_attention(k, type, 600);
}

// The maximum, the sum, and every exp: over logits of a usual range, or all of exp's range.
static uint64_t golden_vocab(const struct kernels *k, uint32_t variant)
{
    enum { N = 49152 };
    struct rng r = rng_seeded(350 + variant);
    float *x = case_alloc((N + 2) * sizeof *x);
    rng_fill(&r, x, N, variant ? -24 : -6, variant ? 6 : 4);
    float max = 0;
    if (!k->vocab_max(x, N, &max))
        return 0;
    x[N] = max;
    x[N + 1] = k->vocab_sum_exp(x, N, max);
    k->exp_shifted(x, N, variant ? 0 : max, x);
    uint64_t hash = hash_floats(x, N + 2);
    free(x);
    return hash;
}

struct golden {
    const char *name;
    uint64_t (*run)(const struct kernels *k, uint32_t variant);
    uint32_t variant;
};

static const struct golden GOLDEN[] = {
    {"matmul_f32", golden_matmul, DT_F32},
    {"matmul_f16", golden_matmul, DT_F16},
    {"matmul_bf16", golden_matmul, DT_BF16},
    {"matmul_q4_0", golden_matmul, DT_Q4_0},
    {"matmul_q4_1", golden_matmul, DT_Q4_1},
    {"matmul_q5_0", golden_matmul, DT_Q5_0},
    {"matmul_q5_1", golden_matmul, DT_Q5_1},
    {"matmul_q8_0", golden_matmul, DT_Q8_0},
    {"matmul_q2_k", golden_matmul, DT_Q2_K},
    {"matmul_q3_k", golden_matmul, DT_Q3_K},
    {"matmul_q4_k", golden_matmul, DT_Q4_K},
    {"matmul_q5_k", golden_matmul, DT_Q5_K},
    {"matmul_q6_k", golden_matmul, DT_Q6_K},
    {"matmul_iq4_nl", golden_matmul, DT_IQ4_NL},
    {"matmul_iq4_xs", golden_matmul, DT_IQ4_XS},
    {"matmul_w6", golden_matmul, DT_W6},
    {"embed_f32", golden_embed, DT_F32},
    {"embed_f16", golden_embed, DT_F16},
    {"embed_bf16", golden_embed, DT_BF16},
    {"embed_q4_0", golden_embed, DT_Q4_0},
    {"embed_q4_1", golden_embed, DT_Q4_1},
    {"embed_q5_0", golden_embed, DT_Q5_0},
    {"embed_q5_1", golden_embed, DT_Q5_1},
    {"embed_q8_0", golden_embed, DT_Q8_0},
    {"embed_q2_k", golden_embed, DT_Q2_K},
    {"embed_q3_k", golden_embed, DT_Q3_K},
    {"embed_q4_k", golden_embed, DT_Q4_K},
    {"embed_q5_k", golden_embed, DT_Q5_K},
    {"embed_q6_k", golden_embed, DT_Q6_K},
    {"embed_iq4_nl", golden_embed, DT_IQ4_NL},
    {"embed_iq4_xs", golden_embed, DT_IQ4_XS},
    {"embed_w6", golden_embed, DT_W6},
    {"rmsnorm", golden_rmsnorm, 0},
    {"rmsnorm_tail", golden_rmsnorm, 1},
    {"quantize", golden_quantize, 0},
    {"quantize_tiny", golden_quantize, 1},
    {"add", golden_two, 0},
    {"silu_mul", golden_two, 1},
    {"gelu_mul", golden_two, 2},
    {"rope_16", golden_rope, 16},
    {"rope_64", golden_rope, 64},
    {"kv_store_f16", golden_kv_store, KV_F16},
    {"kv_store_q8", golden_kv_store, KV_Q8},
    {"attention_f16", golden_attention, KV_F16},
    {"attention_q8", golden_attention, KV_Q8},
    {"attention_f16_window", golden_attention_window, KV_F16},
    {"attention_q8_window", golden_attention_window, KV_Q8},
    {"vocab", golden_vocab, 0},
    {"exp", golden_vocab, 1},
};

static const uint64_t *committed_hash(const char *name)
{
    for (size_t i = 0; i < ARRAY_LEN(KERNEL_HASHES); i++)
        if (strcmp(KERNEL_HASHES[i].name, name) == 0)
            return &KERNEL_HASHES[i].hash;
    return NULL;
}

static void test_golden(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(GOLDEN); i++) {
        const uint64_t *want = committed_hash(GOLDEN[i].name);
        if (!want)
            fail_msg("no hash of %s is committed; --print-hashes makes the file anew", GOLDEN[i].name);
        FOR_EACH_ISA(k)
        {
            uint64_t hash = GOLDEN[i].run(k, GOLDEN[i].variant);
            if (hash != *want)
                fail_msg("%s on %s gives %016" PRIx64 " where %016" PRIx64
                         " is committed: a definition changed, or this build does not follow it",
                         GOLDEN[i].name, k->name, hash, *want);
        }
    }
    assert_int_equal(ARRAY_LEN(KERNEL_HASHES), ARRAY_LEN(GOLDEN));
}

static void print_hashes(void)
{
    printf(
        "// What the kernels compute on the seeded inputs of tests/unit/test_kernels.c: XXH3 of the "
        "output's\n"
        "// bytes. `test_kernels --print-hashes` writes this file. A hash changes only with a definition in\n"
        "// docs/internals/numerics.md.\n#pragma once\n\n#include <stdint.h>\n\n// clang-format off\n"
        "static const struct {\n    const char *name;\n    uint64_t hash;\n} KERNEL_HASHES[] = {\n");
    for (size_t i = 0; i < ARRAY_LEN(GOLDEN); i++)
        printf("    {\"%s\", 0x%016" PRIx64 "},\n", GOLDEN[i].name,
               GOLDEN[i].run(kernels_get(ISA_C), GOLDEN[i].variant));
    printf("};\n");
}

// ---- environment and table

// A library built with fast-math turns on flush-to-zero and denormals-are-zero: inside fpenv_enter they are
// off, and after fpenv_leave as they were.
static void test_environment(void **state)
{
    (void)state;
#ifdef __x86_64__
    const uint32_t fast_math = 0x9FC0, toward_zero = 0x7F80;
    const uint32_t before = _mm_getcsr();
    const uint32_t odd[] = {fast_math, toward_zero, fast_math | toward_zero};
    for (size_t i = 0; i < ARRAY_LEN(odd); i++) {
        _mm_setcsr(odd[i]);
        struct fpenv env = fpenv_enter();
        bool right = true;
        for (size_t g = 0; g < ARRAY_LEN(GOLDEN); g++)
            right =
                right && GOLDEN[g].run(kernels_best(), GOLDEN[g].variant) == *committed_hash(GOLDEN[g].name);
        fpenv_leave(env);
        uint32_t after = _mm_getcsr();
        _mm_setcsr(before);
        assert_true(right);
        assert_int_equal(after & 0xFFC0, odd[i] & 0xFFC0); // all but the flags of past exceptions
    }
#else
    struct fpenv env = fpenv_enter();
    fpenv_leave(env);
#endif
}

static void test_table(void **state)
{
    (void)state;
    for (int i = 0; i < ISA_COUNT; i++) {
        enum isa isa = ISA_COUNT;
        assert_true(isa_from_name(isa_name((enum isa)i), &isa));
        assert_int_equal(isa, i);
        const struct kernels *k = kernels_get((enum isa)i);
        if (!k)
            continue;
        assert_string_equal(k->name, isa_name((enum isa)i));
        for (int type = 0; type < DT_COUNT; type++)
            assert_int_equal(k->matmul[type] != NULL, dtype_info((uint32_t)type)->is_weight);
    }
    enum isa isa = ISA_COUNT;
    assert_false(isa_from_name("sse9", &isa));
    assert_false(isa_from_name("", &isa));
    assert_int_equal(isa, ISA_COUNT);
    assert_non_null(kernels_get(ISA_C));
    assert_non_null(kernels_best());
    assert_null(kernels_get(ISA_COUNT));
    assert_null(dtype_info(DT_COUNT));
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "--print-hashes") == 0) {
        print_hashes();
        return 0;
    }
    if (argc >= 2 && strcmp(argv[1], "--bench") == 0) {
        bench_all(argc > 2 ? argv[2] : "");
        return 0;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden),
        cmocka_unit_test(test_environment),
        cmocka_unit_test(test_table),
    };
    return cmocka_run_group_tests_name("kernels", tests, NULL, NULL);
}
