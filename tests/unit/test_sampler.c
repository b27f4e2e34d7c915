// The sampler against rule 11 of numerics.md written down simply, and Philox against its authors' vectors.
#include "kernel_cases.h"

#include "unit/sampler.h"

struct candidate {
    float logit;
    uint32_t id;
};

static int by_logit_then_id(const void *a, const void *b)
{
    const struct candidate *x = a, *y = b;
    if (x->logit != y->logit) // +0 and -0 are equal
        return x->logit > y->logit ? -1 : 1;
    return (x->id > y->id) - (x->id < y->id);
}

static bool all_finite(const struct candidate *c, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (!isfinite(c[i].logit))
            return false;
    return true;
}

static uint32_t ref_draw(const struct candidate *c, const float *p, uint32_t n, const struct sampling *params,
                         uint32_t position)
{
    uint32_t x[4];
    philox4x32((uint32_t[]){position, params->choice, 0, 0},
               (uint32_t[]){params->seed & 0xFFFFFFFF, params->seed >> 32}, x);
    double unit = ((double)(x[0] >> 5) * 67108864 + (x[1] >> 6)) / 9007199254740992.0, total = 0, sum = 0;
    for (uint32_t i = 0; i < n; i++)
        total += (double)p[i];
    for (uint32_t i = 0; i < n; i++)
        if ((sum += (double)p[i]) > unit * total)
            return c[i].id;
    return c[n - 1].id;
}

// How many of n candidates are kept by top-p and min-p.
static uint32_t ref_cut(const float *p, uint32_t n, const struct sampling *params)
{
    double total = 0, sum = 0;
    for (uint32_t i = 0; i < n; i++)
        total += (double)p[i];
    uint32_t kept = params->top_p < 1 ? 0 : n;
    while (kept < n) {
        sum += (double)p[kept++];
        if (sum >= (double)params->top_p * total)
            break;
    }
    while (kept > 1 && p[kept - 1] < params->min_p)
        kept--;
    return kept;
}

static float ref_logit(float x, uint32_t id, const struct sampling *params, const struct sampling_history *h)
{
    uint32_t all = 0, answer = 0;
    for (uint32_t i = 0; i < h->n; i++) {
        all += h->tokens[i] == id;
        answer += h->tokens[i] == id && i >= h->n_prompt;
    }
    for (uint32_t i = 0; i < params->n_bias; i++)
        if (params->bias[i].id == id)
            x = x + params->bias[i].bias;
    if (all > 0 && params->repeat_penalty != 1)
        x = x > 0 ? x / params->repeat_penalty : x * params->repeat_penalty;
    if (answer > 0) {
        float often = (float)answer * params->frequency_penalty;
        x = x - often;
        x = x - params->presence_penalty;
    }
    return params->temperature > 0 ? x / params->temperature : x;
}

static bool ref_sample(const float *logits, uint32_t n, const struct sampling *params,
                       const struct sampling_history *h, uint32_t position, uint32_t *ret_id)
{
    struct candidate *c = case_alloc(n * sizeof *c);
    float *p = case_alloc(n * sizeof *p);
    for (uint32_t i = 0; i < n; i++) {
        c[i] = (struct candidate){ref_logit(logits[i], i, params, h), i};
        if (!isfinite(logits[i]))
            c[i].logit = NAN;
    }
    bool finite = all_finite(c, n);
    qsort(c, n, sizeof *c, by_logit_then_id);
    if (finite && params->temperature == 0) {
        *ret_id = c[0].id;
    } else if (finite) {
        uint32_t kept = params->top_k && params->top_k < n ? params->top_k : n;
        for (uint32_t i = 0; i < kept; i++)
            p[i] = ref_exp(c[i].logit - c[0].logit);
        *ret_id = ref_draw(c, p, ref_cut(p, kept, params), params, position);
    }
    free(c);
    free(p);
    return finite;
}

static struct sampler sampler_make(const struct kernels *k, uint32_t vocab, uint8_t **ret_memory)
{
    struct sampler s;
    *ret_memory = aligned_alloc(64, sampler_bytes(vocab));
    assert_non_null(*ret_memory);
    memset(*ret_memory, 0, sampler_bytes(vocab));
    sampler_init(&s, k, vocab, *ret_memory);
    return s;
}

// From the authors' kat_vectors, philox4x32 with 10 rounds.
static void test_philox(void **state)
{
    (void)state;
    static const struct {
        uint32_t counter[4], key[2], want[4];
    } KNOWN[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
         {0xffffffff, 0xffffffff},
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t i = 0; i < ARRAY_LEN(KNOWN); i++) {
        uint32_t out[4];
        philox4x32(KNOWN[i].counter, KNOWN[i].key, out);
        assert_memory_equal(out, KNOWN[i].want, sizeof out);
    }
}

static struct sampling random_params(struct rng *r)
{
    static const float TEMPERATURES[] = {0, 0.01f, 0.7f, 1, 1.3f, 100};
    static const float TOP_P[] = {1, 1, 0.95f, 0.5f, 1e-6f, 0.99999994f};
    static const float MIN_P[] = {0, 0, 0.05f, 1e-6f, 1};
    static const float PENALTY[] = {1, 1, 1.1f, 0.01f, 100};
    static const float ANSWER_PENALTY[] = {0, 0, 0, 0.3f, 2, -2};
    static const uint32_t TOP_K[] = {0, 0, 1, 2, 40, 1000000, UINT32_MAX};
    return (struct sampling){.temperature = TEMPERATURES[rng_below(r, 6)],
                             .top_p = TOP_P[rng_below(r, 6)],
                             .min_p = MIN_P[rng_below(r, 5)],
                             .repeat_penalty = PENALTY[rng_below(r, 5)],
                             .presence_penalty = ANSWER_PENALTY[rng_below(r, 6)],
                             .frequency_penalty = ANSWER_PENALTY[rng_below(r, 6)],
                             .top_k = TOP_K[rng_below(r, 7)],
                             .choice = rng_below(r, 3),
                             .seed = rng_u64(r)};
}

static void random_logits(struct rng *r, float *x, uint32_t n)
{
    uint32_t kind = rng_below(r, 4);
    for (uint32_t i = 0; i < n; i++) {
        x[i] = rng_f32(r, -4, 3);
        if (kind == 1) // many ties
            x[i] = (float)rng_between(r, -2, 2);
        if (kind == 2 && rng_below(r, 2)) // zeros of both signs
            x[i] = rng_below(r, 2) ? 0.0f : -0.0f;
        if (kind == 3 && rng_below(r, 20) == 0) // most have no probability at all
            x[i] = rng_f32(r, 5, 9);
    }
}

// One sampler over many calls, so that what a call leaves behind would show in the next.
static void test_against_reference(void **state)
{
    (void)state;
    static const uint32_t VOCABS[] = {1, 2, 15, 16, 17, 100, 1000, 5000};
    FOR_EACH_ISA(k)
    {
        struct rng r = rng_seeded(70);
        for (size_t v = 0; v < ARRAY_LEN(VOCABS); v++) {
            uint32_t n = VOCABS[v], tokens[12];
            struct logit_bias bias[4];
            uint8_t *memory;
            struct sampler s = sampler_make(k, n, &memory);
            float *logits = case_alloc(n * sizeof *logits);
            for (uint32_t i = 0; i < case_count(n > 500 ? 60 : 500); i++) {
                uint32_t got = UINT32_MAX, want = UINT32_MAX;
                struct sampling p = random_params(&r);
                random_logits(&r, logits, n);
                struct sampling_history h = {.tokens = tokens, .n = rng_below(&r, 13)};
                h.n_prompt = rng_below(&r, h.n + 1);
                for (uint32_t j = 0; j < h.n; j++)
                    tokens[j] = rng_below(&r, n);
                p.bias = bias;
                p.n_bias = rng_below(&r, 2) * rng_below(&r, 5);
                for (uint32_t j = 0; j < p.n_bias; j++)
                    bias[j] = (struct logit_bias){rng_below(&r, n), (float)rng_between(&r, -100, 100)};
                if (i == 20)
                    s.call = UINT32_MAX - 3; // the counter of calls comes round
                uint32_t position = (uint32_t)rng_u64(&r);
                assert_true(sampling_is_valid(&p, n));
                bool finite = sampler_draw(&s, logits, &p, &h, position, &got);
                assert_int_equal(finite, ref_sample(logits, n, &p, &h, position, &want));
                assert_int_equal(got, want);
            }
            free(logits);
            free(memory);
        }
    }
}

static const struct sampling_history NO_HISTORY = {0};

static void test_greedy_tie(void **state)
{
    (void)state;
    uint8_t *memory;
    struct sampler s = sampler_make(kernels_best(), 100, &memory);
    struct sampling p = SAMPLING_GREEDY;
    float x[100];
    uint32_t id;
    for (uint32_t first = 0; first < 100; first++) {
        for (uint32_t i = 0; i < 100; i++)
            x[i] = i >= first ? 3 : -1;
        assert_true(sampler_draw(&s, x, &p, &NO_HISTORY, 7, &id));
        assert_int_equal(id, first);
        for (uint32_t i = 0; i < 100; i++) // zeros of both signs are one value
            x[i] = i < first ? -1 : i % 2 ? 0.0f : -0.0f;
        assert_true(sampler_draw(&s, x, &p, &NO_HISTORY, 7, &id));
        assert_int_equal(id, first);
        p.temperature = 1, p.top_k = 1; // the most probable of equals is the lowest id too
        assert_true(sampler_draw(&s, x, &p, &NO_HISTORY, 7, &id));
        assert_int_equal(id, first);
        p = SAMPLING_GREEDY;
    }
    free(memory);
}

// A history is a set: a token's count and order do not matter.
static void test_penalty(void **state)
{
    (void)state;
    uint8_t *memory;
    struct sampler s = sampler_make(kernels_best(), 4, &memory);
    struct sampling p = SAMPLING_GREEDY;
    const float x[4] = {2.0f, 1.9f, -1.0f, -1.1f}, below[4] = {-2.0f, -2.0f, -1.0f, -1.1f};
    uint32_t id;
    p.repeat_penalty = 1.2f;
    assert_true(sampler_draw(&s, x, &p, &(struct sampling_history){(uint32_t[]){0, 0, 0}, 0, 3}, 0,
                             &id)); // 2 / 1.2 < 1.9
    assert_int_equal(id, 1);
    assert_true(sampler_draw(&s, x, &p, &(struct sampling_history){(uint32_t[]){1, 0}, 0, 2}, 0, &id));
    assert_int_equal(id, 0);
    assert_true(sampler_draw(&s, below, &p, &(struct sampling_history){(uint32_t[]){2}, 0, 1}, 0,
                             &id)); // -1 * 1.2 < -1.1
    assert_int_equal(id, 3);
    assert_true(sampler_draw(&s, x, &p, &NO_HISTORY, 0, &id)); // and nothing is remembered
    assert_int_equal(id, 0);
    free(memory);
}

// The answer alone counts, and how often: 2 less 0.3 twice and 0.5 once is 0.9.
static void test_answer_penalties(void **state)
{
    (void)state;
    uint8_t *memory;
    struct sampler s = sampler_make(kernels_best(), 4, &memory);
    struct sampling p = SAMPLING_GREEDY;
    const uint32_t tokens[] = {0, 1, 0, 0};
    const float x[4] = {2.0f, 1.0f, -1.0f, -1.1f};
    uint32_t id;
    p.frequency_penalty = 0.3f, p.presence_penalty = 0.5f;
    assert_true(sampler_draw(&s, x, &p, &(struct sampling_history){tokens, 2, 4}, 0, &id));
    assert_int_equal(id, 1);
    assert_true(sampler_draw(&s, x, &p, &(struct sampling_history){tokens, 3, 4}, 0, &id));
    assert_int_equal(id, 0);
    p.bias = &(struct logit_bias){3, 5}, p.n_bias = 1;
    assert_true(sampler_draw(&s, x, &p, &(struct sampling_history){tokens, 2, 4}, 0, &id));
    assert_int_equal(id, 3);
    free(memory);
}

static void test_nonfinite(void **state)
{
    (void)state;
    uint8_t *memory;
    struct sampler s = sampler_make(kernels_best(), 33, &memory);
    static const uint32_t ODD[] = {0x7F800000, 0xFF800000, 0x7FC00000, 0xFFC00001};
    struct sampling greedy = SAMPLING_GREEDY, tiny = {.temperature = 1e-38f, .top_p = 1, .repeat_penalty = 1};
    for (uint32_t at = 0; at < 33; at++) {
        for (size_t i = 0; i < ARRAY_LEN(ODD); i++) {
            float x[33] = {1};
            uint32_t id = 77;
            x[at] = float_of(ODD[i]);
            assert_false(sampler_draw(&s, x, &greedy, &NO_HISTORY, 0, &id));
            assert_int_equal(id, 77);
        }
    }
    const float x[33] = {100};
    uint32_t id = 77;
    assert_false(sampler_draw(&s, x, &tiny, &NO_HISTORY, 0, &id)); // the quotient overflows
    assert_int_equal(id, 77);
    free(memory);
}

// Chi-square of 50,000 draws at as many positions against the probabilities.
static void test_frequencies(void **state)
{
    (void)state;
    enum { N = 6, DRAWS = 50000 };
    static const double P[N] = {0.05, 0.4, 0.1, 0.25, 0.15, 0.05};
    uint8_t *memory;
    struct sampler s = sampler_make(kernels_best(), N, &memory);
    float x[N];
    for (int i = 0; i < N; i++)
        x[i] = (float)log(P[i]);
    for (uint32_t variant = 0; variant < 4; variant++) {
        // The seed's upper half and the choice give streams of their own.
        struct sampling p = {.temperature = 1, .top_p = 1, .repeat_penalty = 1};
        p.seed = variant == 1 ? 1 : variant == 2 ? (uint64_t)1 << 32 : 0;
        p.choice = variant == 3;
        uint32_t count[N] = {0}, id;
        for (uint32_t position = 0; position < DRAWS; position++) {
            assert_true(sampler_draw(&s, x, &p, &NO_HISTORY, position, &id));
            count[id]++;
        }
        double chi = 0;
        for (int i = 0; i < N; i++)
            chi += (count[i] - P[i] * DRAWS) * (count[i] - P[i] * DRAWS) / (P[i] * DRAWS);
        assert_true(chi < 25.7); // passed once in 10,000 times by chance, with 5 degrees of freedom
    }
    free(memory);
}

// Seed, choice and position each change the number drawn; nothing else does.
static void test_streams_differ(void **state)
{
    (void)state;
    enum { N = 4096 };
    uint8_t *memory;
    struct sampler s = sampler_make(kernels_best(), N, &memory);
    static float x[N]; // equal logits: the id tells 12 bits of the number
    const struct sampling base = {.temperature = 1, .top_p = 1, .repeat_penalty = 1, .seed = 5};
    struct sampling p[4] = {base, base, base, base};
    p[1].seed = 6, p[2].seed |= (uint64_t)1 << 63, p[3].choice = 1;
    uint32_t same = 0, id[4], next = 0;
    for (uint32_t position = 0; position < 200; position++) {
        for (int i = 0; i < 4; i++)
            assert_true(sampler_draw(&s, x, &p[i], &NO_HISTORY, position, &id[i]));
        same += (id[0] == id[1]) + (id[0] == id[2]) + (id[0] == id[3]) + (id[0] == next);
        next = id[0];
    }
    assert_true(same < 5);
    free(memory);
}

static void test_validity(void **state)
{
    (void)state;
    const struct sampling good = SAMPLING_GREEDY;
    assert_true(sampling_is_valid(&good, 100));
    static const float BAD_TEMPERATURE[] = {-0.1f, 100.1f, NAN, INFINITY}, BAD_TOP_P[] = {0, -1, 1.01f, NAN},
                       BAD_MIN_P[] = {-0.01f, 1.01f, NAN, -INFINITY}, BAD_PENALTY[] = {0, -1, 100.1f, NAN},
                       BAD_ANSWER[] = {-2.01f, 2.01f, NAN, INFINITY};
    for (int i = 0; i < 4; i++) {
        struct sampling p[6] = {good, good, good, good, good, good};
        p[0].temperature = BAD_TEMPERATURE[i];
        p[1].top_p = BAD_TOP_P[i];
        p[2].min_p = BAD_MIN_P[i];
        p[3].repeat_penalty = BAD_PENALTY[i];
        p[4].presence_penalty = BAD_ANSWER[i];
        p[5].frequency_penalty = BAD_ANSWER[i];
        for (size_t j = 0; j < ARRAY_LEN(p); j++)
            assert_false(sampling_is_valid(&p[j], 100));
    }
    static const struct {
        struct logit_bias bias;
        bool valid;
    } BIASES[] = {
        {{99, 100}, true}, {{0, -100}, true}, {{100, 0}, false}, {{0, 100.1f}, false}, {{0, NAN}, false}};
    for (size_t i = 0; i < ARRAY_LEN(BIASES); i++) {
        struct sampling p = good;
        p.bias = &BIASES[i].bias, p.n_bias = 1;
        assert_int_equal(sampling_is_valid(&p, 100), BIASES[i].valid);
    }
    struct sampling many = good;
    many.n_bias = SAMPLING_BIAS_MAX + 1;
    assert_false(sampling_is_valid(&many, 100));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_philox),           cmocka_unit_test(test_against_reference),
        cmocka_unit_test(test_greedy_tie),       cmocka_unit_test(test_penalty),
        cmocka_unit_test(test_answer_penalties), cmocka_unit_test(test_nonfinite),
        cmocka_unit_test(test_frequencies),      cmocka_unit_test(test_streams_differ),
        cmocka_unit_test(test_validity),
    };
    return cmocka_run_group_tests_name("sampler", tests, NULL, NULL);
}
