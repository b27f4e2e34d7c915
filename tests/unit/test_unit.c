// The unit: what it refuses, how requests end, that slots come free, and that neighbours, chunks, reuse and a
// neighbour's broken numbers change no byte of any logits.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "base/fpenv.h"
#include "tiny_plan.h"
#include "unit/account.h"
#include "unit/unit_internal.h"

#define VOCAB    40
#define EOG      (VOCAB - 1)
#define POISON   7 // a token whose activations become infinite, in poisoned plans
#define SEQ_MAX  128
#define SLOTS    8
#define BATCH    24
#define REQUESTS 10

static const struct tiny_shape SHAPE = {
    .arch = "llama",
    .layers = 2,
    .hidden = 32,
    .heads = 2,
    .kv_heads = 1,
    .head_dim = 16,
    .ffn = 64,
    .vocab = VOCAB,
    .context = SEQ_MAX,
    .type = GGML_F32,
};

// ---- Plans and units ----

struct fixture {
    struct tiny_plan bytes;
    struct plan plan;
    struct unit *unit;
};

static float *weight(struct tiny_plan *p, const char *name, uint32_t row, uint32_t col)
{
    for (uint32_t i = 0; i < p->h->n_tensors; i++) {
        struct plan_tensor *t = &p->tensors[i];
        if (strcmp(t->name, name) != 0)
            continue;
        uint8_t *at = p->bytes + p->h->sections[PLAN_WEIGHTS].offset + t->offset;
        if (t->kind == PLAN_VECTOR)
            return (float *)at + col;
        assert_int_equal(t->dtype, DT_F32);
        at += row / PANEL_LANES * panel_layout(DT_F32, t->cols).bytes;
        return (float *)at + (size_t)col * PANEL_LANES + row % PANEL_LANES;
    }
    fail_msg("the plan has no tensor %s", name);
    return NULL;
}

// Column 0 of the residual stream is 1 for the poison, 0 for all other tokens, and nothing is added to it;
// the first layer's SwiGLU makes the 1 infinite.
static void poison(struct tiny_plan *p)
{
    for (uint32_t id = 0; id < VOCAB; id++)
        *weight(p, "token_embd.weight", id, 0) = id == POISON ? 1.0f : 0.0f;
    for (uint32_t i = 0; i < SHAPE.hidden; i++)
        *weight(p, "blk.0.attn_output.weight", 0, i) = *weight(p, "blk.1.attn_output.weight", 0, i) = 0;
    for (uint32_t i = 0; i < SHAPE.ffn; i++)
        *weight(p, "blk.0.ffn_down.weight", 0, i) = *weight(p, "blk.1.ffn_down.weight", 0, i) = 0;
    *weight(p, "blk.0.ffn_norm.weight", 0, 0) = 1e30f;
    for (uint32_t i = 0; i < 2 * SHAPE.ffn; i++)
        *weight(p, "blk.0.ffn_gate.weight+ffn_up.weight", i, 0) = 1e10f;
    tiny_plan_rehash(p);
}

static void plan_open(struct fixture *f, uint32_t slots, enum kv_type kv, bool poisoned)
{
    static struct tiny_model model; // large
    struct iso_errinfo e = {0};
    tiny_init(&model, &SHAPE);
    const struct compile_options options = {
        .max_seq_len = SEQ_MAX, .slots = slots, .batch_tokens = BATCH, .kv_type = kv};
    *f = (struct fixture){.bytes = tiny_plan_make(&model, &options)};
    if (poisoned)
        poison(&f->bytes);
    if (plan_attach(f->bytes.bytes, f->bytes.n, &f->plan, &e))
        fail_msg("%s", e.text);
}

static void unit_start(struct fixture *f, const struct unit_config *config)
{
    struct iso_errinfo e = {0};
    if (unit_open(&f->plan, config, &f->unit, &e))
        fail_msg("%s", e.text);
}

static void fixture_open(struct fixture *f, uint32_t slots)
{
    plan_open(f, slots, KV_F16, false);
    unit_start(f, &(struct unit_config){.threads = 1});
}

static void fixture_close(struct fixture *f)
{
    unit_close(f->unit);
    tiny_plan_free(&f->bytes);
}

// ---- Running requests ----

// Everything that came of a request.
struct trace {
    uint32_t slot, reused, n;
    bool ended;
    enum unit_finish finish;
    uint32_t tokens[SEQ_MAX], positions[SEQ_MAX];
    float logits[SEQ_MAX][VOCAB];
};

static void submit(struct fixture *f, const struct unit_request *r, struct trace *t)
{
    struct iso_errinfo e = {0};
    t->n = 0;
    t->ended = false;
    if (unit_submit(f->unit, r, &t->slot, &t->reused, &e))
        fail_msg("%s", e.text);
}

// One step; false where there was nothing to do.
static bool step(struct fixture *f, struct trace *traces, uint32_t n_traces)
{
    struct unit_result result = unit_step(f->unit);
    assert_true(result.rows <= BATCH);
    for (uint32_t i = 0; i < result.n; i++) {
        const struct unit_event *e = &result.events[i];
        struct trace *t = traces;
        while (t < traces + n_traces && (t->ended || t->slot != e->slot))
            t++;
        assert_true(t < traces + n_traces && t->n < SEQ_MAX);
        t->tokens[t->n] = e->token;
        t->positions[t->n] = e->position;
        memcpy(t->logits[t->n++], unit_logits(f->unit, e->row), sizeof t->logits[0]);
        t->finish = e->finish;
        t->ended = e->finish != UNIT_RUNNING;
    }
    return result.rows > 0;
}

static void run_one(struct fixture *f, const struct unit_request *r, struct trace *t)
{
    submit(f, r, t);
    while (step(f, t, 1))
        continue;
    assert_true(t->ended);
}

static void assert_same(const struct trace *a, const struct trace *b)
{
    assert_int_equal(a->n, b->n);
    assert_int_equal(a->finish, b->finish);
    assert_memory_equal(a->tokens, b->tokens, a->n * sizeof *a->tokens);
    assert_memory_equal(a->positions, b->positions, a->n * sizeof *a->positions);
    assert_memory_equal(a->logits, b->logits, a->n * sizeof *a->logits);
}

// Token i of prompts: all share their beginnings, in three groups that part at different places.
static const uint32_t *prompt_of(uint32_t request)
{
    static uint32_t prompts[3][SEQ_MAX];
    for (uint32_t g = 0; g < 3; g++) {
        for (uint32_t i = 0; i < SEQ_MAX; i++) {
            uint32_t id = (i * 11 + i * i % 5 + (i > 20 * g + 3 ? g : 0)) % (VOCAB - 1);
            prompts[g][i] = id == POISON ? POISON + 1 : id;
        }
    }
    return prompts[request % 3];
}

static struct unit_request request_of(uint32_t i)
{
    static const uint32_t LENGTHS[REQUESTS] = {1, 16, 17, 33, 48, 49, 70, 5, 15, 32};
    struct unit_request r = {.prompt = prompt_of(i),
                             .n_prompt = LENGTHS[i],
                             .max_output = 3 + i * 2,
                             .sampling = SAMPLING_GREEDY,
                             .ignore_eog = true};
    if (i % 3 == 1)
        r.sampling = (struct sampling){.temperature = 0.9f,
                                       .top_p = 0.95f,
                                       .min_p = 0.01f,
                                       .repeat_penalty = 1.2f,
                                       .top_k = 30,
                                       .seed = i};
    r.score = i == 5;
    return r;
}

static struct trace alone[REQUESTS], together[REQUESTS];

static void run_alone(struct fixture *f)
{
    for (uint32_t i = 0; i < REQUESTS; i++) {
        struct unit_request r = request_of(i);
        run_one(f, &r, &alone[i]);
    }
}

// ---- Refusals ----

static void test_refused_requests(void **state)
{
    (void)state;
    static const uint32_t PROMPT[4] = {1, 2, VOCAB - 1, VOCAB};
    const struct sampling GREEDY = SAMPLING_GREEDY;
    const struct {
        struct unit_request r;
        enum iso_err code;
        const char *text;
    } CASES[] = {
        {{.prompt = PROMPT, .n_prompt = 0, .max_output = 1, .sampling = GREEDY},
         ISO_E_USAGE,
         "at least one prompt"},
        {{.prompt = PROMPT, .n_prompt = 2, .max_output = 0, .sampling = GREEDY}, ISO_E_USAGE, "one output"},
        {{.prompt = PROMPT, .n_prompt = 2, .max_output = SEQ_MAX - 1, .sampling = GREEDY},
         ISO_E_LIMIT,
         "2 prompt tokens and 127 output tokens do not fit a sequence of 128"},
        {{.prompt = PROMPT, .n_prompt = 2, .max_output = UINT32_MAX, .sampling = GREEDY},
         ISO_E_LIMIT,
         "do not fit"},
        {{.prompt = PROMPT, .n_prompt = SEQ_MAX + 1, .sampling = GREEDY, .score = true},
         ISO_E_LIMIT,
         "129 prompt"},
        {{.prompt = PROMPT, .n_prompt = 4, .max_output = 1, .sampling = GREEDY},
         ISO_E_USAGE,
         "token 40 at position 3 is outside the vocabulary of 40"},
        {{.prompt = PROMPT, .n_prompt = 2, .max_output = 1, .sampling = {.repeat_penalty = 1}},
         ISO_E_USAGE,
         "sampling parameter"},
        {{.prompt = PROMPT,
          .n_prompt = 2,
          .max_output = 1,
          .sampling = {.temperature = __builtin_nanf(""), .top_p = 1, .repeat_penalty = 1}},
         ISO_E_USAGE,
         "sampling parameter"},
    };
    struct fixture f;
    fixture_open(&f, 2);
    for (size_t i = 0; i < ARRAY_LEN(CASES); i++) {
        struct iso_errinfo e = {0};
        uint32_t slot = 99, reused = 99;
        assert_int_equal(unit_submit(f.unit, &CASES[i].r, &slot, &reused, &e), CASES[i].code);
        if (!strstr(e.text, CASES[i].text))
            fail_msg("case %zu says \"%s\"", i, e.text);
        assert_int_equal(slot, 99);
        assert_int_equal(reused, 99);
    }
    assert_int_equal(unit_step(f.unit).rows, 0); // nothing of it is left
    fixture_close(&f);
}

static void test_all_slots_taken(void **state)
{
    (void)state;
    struct fixture f;
    struct iso_errinfo e = {0};
    struct unit_request r = request_of(0);
    uint32_t slot, other;
    fixture_open(&f, 2);
    assert_int_equal(unit_submit(f.unit, &r, &slot, NULL, &e), ISO_OK);
    assert_int_equal(unit_submit(f.unit, &r, &other, NULL, &e), ISO_OK);
    assert_int_not_equal(slot, other);
    assert_int_equal(unit_submit(f.unit, &r, &other, NULL, &e), ISO_E_BUSY);
    assert_non_null(strstr(e.text, "all 2 slots"));
    unit_cancel(f.unit, slot);
    unit_cancel(f.unit, slot); // a second time does nothing
    assert_int_equal(unit_submit(f.unit, &r, &other, NULL, &e), ISO_OK);
    assert_int_equal(other, slot);
    fixture_close(&f);
}

static void test_pool_too_small(void **state)
{
    (void)state;
    struct fixture f;
    plan_open(&f, 2, KV_F16, false);
    uint64_t weights = f.plan.header->sections[PLAN_WEIGHTS].bytes;
    struct account a = account_of(f.plan.header, weights, f.plan.mapped_bytes - weights, 3, 1000);
    struct unit_config config = {.threads = 3, .extra_bytes = 1000, .pool_bytes_max = account_total(&a)};
    unit_start(&f, &config);
    unit_close(f.unit);
    config.pool_bytes_max--;
    struct iso_errinfo e = {0};
    char text[128];
    f.unit = NULL;
    assert_int_equal(unit_open(&f.plan, &config, &f.unit, &e), ISO_E_NOFIT);
    assert_null(f.unit);
    snprintf(text, sizeof text, "needs %llu bytes", (unsigned long long)account_total(&a));
    assert_non_null(strstr(e.text, text));
    assert_non_null(strstr(e.text, ": 1 too few"));
    fixture_close(&f);
}

static void test_cpu_does_not_exist(void **state)
{
    (void)state;
    struct fixture f;
    struct iso_errinfo e = {0};
    const uint32_t CPUS[] = {UINT32_MAX};
    plan_open(&f, 1, KV_F16, false);
    struct unit_config config = {.threads = 1, .cpus = CPUS};
    assert_int_equal(unit_open(&f.plan, &config, &f.unit, &e), ISO_E_USAGE);
    f.unit = NULL;
    fixture_close(&f);
}

// ---- How requests end ----

static void test_length(void **state)
{
    (void)state;
    struct fixture f;
    static struct trace t;
    fixture_open(&f, 2);
    for (uint32_t output = 1; output < 40; output += 19) {
        struct unit_request r = request_of(3);
        r.max_output = output;
        run_one(&f, &r, &t);
        assert_int_equal(t.finish, UNIT_LENGTH);
        assert_int_equal(t.n, output);
        for (uint32_t i = 0; i < t.n; i++)
            assert_int_equal(t.positions[i], r.n_prompt - 1 + i);
    }
    struct unit_request whole = request_of(6); // a slot to its last token
    whole.max_output = SEQ_MAX - whole.n_prompt;
    run_one(&f, &whole, &t);
    assert_int_equal(t.n, whole.max_output);
    fixture_close(&f);
}

static void test_eog(void **state)
{
    (void)state;
    struct fixture f;
    static struct trace free_run, t;
    uint32_t seen = 0;
    fixture_open(&f, 1);
    for (uint32_t seed = 0; seed < 12; seed++) {
        struct unit_request r = request_of(2);
        r.sampling = (struct sampling){.temperature = 2, .top_p = 1, .repeat_penalty = 1, .seed = seed};
        r.max_output = 60;
        run_one(&f, &r, &free_run);
        uint32_t at = 0;
        while (at < free_run.n && free_run.tokens[at] != EOG)
            at++;
        r.ignore_eog = false;
        run_one(&f, &r, &t);
        assert_int_equal(t.finish, at < free_run.n ? UNIT_EOG : UNIT_LENGTH);
        assert_int_equal(t.n, at < free_run.n ? at + 1 : free_run.n);
        assert_memory_equal(t.logits, free_run.logits, t.n * sizeof *t.logits);
        seen += t.finish == UNIT_EOG;
    }
    assert_true(seen >= 3);
    fixture_close(&f);
}

// Scoring what was generated gives the logits it was generated from.
static void test_score(void **state)
{
    (void)state;
    struct fixture f;
    static struct trace generated, scored;
    uint32_t ids[SEQ_MAX];
    fixture_open(&f, 3);
    struct unit_request r = request_of(4);
    r.max_output = 30;
    run_one(&f, &r, &generated);
    memcpy(ids, r.prompt, r.n_prompt * sizeof *ids);
    memcpy(ids + r.n_prompt, generated.tokens, generated.n * sizeof *ids);
    struct unit_request score = {
        .prompt = ids, .n_prompt = r.n_prompt + generated.n, .sampling = SAMPLING_GREEDY, .score = true};
    run_one(&f, &score, &scored);
    assert_int_equal(scored.finish, UNIT_SCORED);
    assert_int_equal(scored.n, score.n_prompt);
    assert_int_equal(scored.reused, 0);
    for (uint32_t i = 0; i < scored.n; i++)
        assert_int_equal(scored.positions[i], i);
    assert_memory_equal(scored.logits[r.n_prompt - 1], generated.logits,
                        generated.n * sizeof *generated.logits);
    fixture_close(&f);
}

static void test_log_sum_exp(void **state)
{
    (void)state;
    struct fixture f;
    struct unit_request r = request_of(0);
    uint32_t slot;
    fixture_open(&f, 1);
    assert_int_equal(unit_submit(f.unit, &r, &slot, NULL, NULL), ISO_OK);
    struct unit_result result = unit_step(f.unit);
    assert_int_equal(result.n, 1);
    const float *logits = unit_logits(f.unit, result.events[0].row);
    double lse = unit_log_sum_exp(f.unit, result.events[0].row), sum = 0;
    for (uint32_t i = 0; i < VOCAB; i++) { // exp by its series: these logits are small
        double x = (double)logits[i] - lse, term = 1, e = 1;
        for (int n = 1; n < 60; n++)
            e += term *= x / n;
        sum += e;
    }
    assert_true(sum > 0.99999 && sum < 1.00001);
    fixture_close(&f);
}

// ---- Same bytes ----

// All requests, submitted when a slot is free, some steps apart; every third is joined by one that is
// cancelled.
static void run_together(struct fixture *f, uint32_t slots, uint32_t steps)
{
    static struct trace all[REQUESTS + 1];
    struct trace *cancelled = &all[REQUESTS];
    memset(all, 0, sizeof all);
    for (uint32_t i = 0; i <= REQUESTS; i++)
        all[i].ended = true;
    for (uint32_t i = 0; i < REQUESTS; i++) {
        uint32_t running = slots;
        while (running == slots) {
            running = 0;
            for (uint32_t j = 0; j <= REQUESTS; j++)
                running += !all[j].ended;
            if (running == slots)
                step(f, all, REQUESTS + 1);
        }
        struct unit_request r = request_of(i), doomed = request_of((i + 4) % REQUESTS);
        submit(f, &r, &all[i]);
        bool room = running + 1 < slots && cancelled->ended;
        if (i % 3 == 0 && room)
            submit(f, &doomed, cancelled);
        for (uint32_t n = 0; n < steps; n++)
            step(f, all, REQUESTS + 1);
        if (!cancelled->ended) {
            unit_cancel(f->unit, cancelled->slot);
            cancelled->ended = true;
        }
    }
    while (step(f, all, REQUESTS + 1))
        continue;
    memcpy(together, all, sizeof together);
}

static void check_together(enum kv_type kv)
{
    static const uint32_t SLOT_COUNTS[] = {2, 4, 8};
    struct fixture f;
    plan_open(&f, 1, kv, false);
    unit_start(&f, &(struct unit_config){.threads = 1, .no_prefix_reuse = true});
    run_alone(&f);
    fixture_close(&f);
    for (size_t s = 0; s < ARRAY_LEN(SLOT_COUNTS); s++) {
        plan_open(&f, SLOT_COUNTS[s], kv, false);
        for (uint32_t i = 0; i < 4; i++) {
            const struct unit_config config = {
                .threads = 1 + (i + (uint32_t)s) % 3, .chunk_tokens = 6 * i, .no_prefix_reuse = i == 1};
            unit_start(&f, &config);
            run_together(&f, SLOT_COUNTS[s], (uint32_t)s + i);
            for (uint32_t j = 0; j < REQUESTS; j++)
                assert_same(&together[j], &alone[j]);
            unit_close(f.unit);
        }
        f.unit = NULL;
        fixture_close(&f);
    }
}

static void test_beside_others_f16(void **state)
{
    (void)state;
    check_together(KV_F16);
}

static void test_beside_others_q8(void **state)
{
    (void)state;
    check_together(KV_Q8);
}

// A scored sequence wants a row of logits a token; the others' rows are counted once, not twice.
static void test_score_before_a_full_house(void **state)
{
    (void)state;
    struct fixture f;
    static struct trace traces[4];
    fixture_open(&f, 4);
    run_alone(&f);
    static const uint32_t ORDER[4] = {5, 6, 9, 8}; // the scored one first
    for (uint32_t i = 0; i < 4; i++) {
        struct unit_request r = request_of(ORDER[i]);
        submit(&f, &r, &traces[i]);
    }
    uint32_t steps = 0;
    while (step(&f, traces, 4)) {
        steps++;
        assert_true(traces[0].n >= steps || traces[0].ended); // and is never starved
    }
    for (uint32_t i = 0; i < 4; i++)
        assert_same(&traces[i], &alone[ORDER[i]]);
    fixture_close(&f);
}

static void test_reuse(void **state)
{
    (void)state;
    struct fixture f;
    static struct trace first, again;
    fixture_open(&f, 2);
    static const uint32_t CASES[][2] = {{15, 0}, {16, 0}, {17, 16}, {48, 32}, {49, 48}};
    for (size_t i = 0; i < ARRAY_LEN(CASES); i++) {
        struct unit_request r = request_of(6);
        uint32_t ids[SEQ_MAX];
        memcpy(ids, r.prompt, sizeof ids);
        ids[0] = (uint32_t)i; // nothing is shared between the cases
        r.prompt = ids;
        r.n_prompt = CASES[i][0];
        run_one(&f, &r, &first);
        run_one(&f, &r, &again);
        assert_int_equal(first.reused, 0);
        assert_int_equal(again.reused, CASES[i][1]);
        assert_same(&first, &again);
    }
    fixture_close(&f);
}

// ---- Numbers that are not finite ----

static void test_nonfinite_ends_only_its_request(void **state)
{
    (void)state;
    struct fixture f;
    static struct trace t, mates[REQUESTS];
    plan_open(&f, 4, KV_F16, true);
    unit_start(&f, &(struct unit_config){.threads = 2, .no_prefix_reuse = true});
    run_alone(&f);
    for (uint32_t i = 0; i < REQUESTS; i++)
        assert_true(alone[i].finish == UNIT_LENGTH || alone[i].finish == UNIT_SCORED);
    uint32_t ids[20] = {0};
    for (uint32_t at = 0; at < 20;
         at += 19) { // at the beginning, so that all later keys are broken; at the end
        memset(ids, 0, sizeof ids);
        ids[at] = POISON;
        struct unit_request r = {
            .prompt = ids, .n_prompt = 20, .max_output = 20, .sampling = SAMPLING_GREEDY};
        for (uint32_t i = 0; i + 2 < REQUESTS; i += 3) {
            for (uint32_t j = 0; j < 3; j++) {
                struct unit_request mate = request_of(i + j);
                submit(&f, &mate, &mates[j]);
            }
            submit(&f, &r, &mates[3]);
            while (step(&f, mates, 4))
                continue;
            assert_int_equal(mates[3].finish, UNIT_NONFINITE);
            assert_int_equal(mates[3].n, 1);
            for (uint32_t j = 0; j < 3; j++)
                assert_same(&mates[j], &alone[i + j]);
        }
        r.score = true;
        run_one(&f, &r, &t);
        assert_int_equal(t.finish, UNIT_NONFINITE);
        assert_int_equal(t.positions[t.n - 1], at);
    }
    // Its blocks, with what is not finite still in them, serve the next.
    for (uint32_t i = 0; i < REQUESTS; i++) {
        struct unit_request r = request_of(i);
        run_one(&f, &r, &t);
        assert_same(&t, &alone[i]);
    }
    fixture_close(&f);
}

// ---- The caller's floating-point environment ----

#ifdef __x86_64__
static void test_callers_environment(void **state)
{
    (void)state;
    struct fixture f;
    static struct trace t;
    fixture_open(&f, 2);
    run_alone(&f);
    unsigned saved = _mm_getcsr();
    for (uint32_t i = 0; i < REQUESTS; i++) {
        struct unit_request r = request_of(i);
        _mm_setcsr(0xFFC0); // flush to zero, denormals are zero, round towards zero
        run_one(&f, &r, &t);
        unsigned after = _mm_getcsr();
        _mm_setcsr(saved);
        assert_int_equal(after, 0xFFC0);
        assert_same(&t, &alone[i]);
    }
    fixture_close(&f);
}
#endif

// ---- Where threads meet ----

static bool takes_rows(uint32_t code)
{
    return code != PLAN_OP_MATMUL && code != PLAN_OP_ATTENTION && code != PLAN_OP_GATHER;
}

// Threads meet around whatever uses other rows than its own, and the row operations between run on, but for one
// whose result lies where another thread may still read.
static void test_meetings(void **state)
{
    (void)state;
    struct fixture f;
    bool meets[PLAN_OPS_MAX];
    plan_open(&f, SLOTS, KV_F16, false);
    uint32_t n = f.plan.header->n_ops, met = 0;
    exec_find_meetings(&f.plan, meets);
    for (uint32_t i = 0; i + 1 < n; i++) {
        met += meets[i];
        if (!takes_rows(f.plan.ops[i].code) || !takes_rows(f.plan.ops[i + 1].code))
            assert_true(meets[i]);
    }
    assert_false(meets[n - 1]);
    assert_true(n - 1 - met >= 3 * SHAPE.layers);

    // The second of two row operations that run on, moved onto the first's input.
    struct plan_tensor *tensors = f.bytes.tensors;
    bool again[PLAN_OPS_MAX];
    uint32_t moved = 0;
    for (uint32_t i = 0; i + 1 < n; i++) {
        const struct plan_op *first = &f.plan.ops[i], *second = &f.plan.ops[i + 1];
        if (meets[i] || first->code != PLAN_OP_ADD || first->in[0].tensor == second->out.tensor)
            continue;
        uint64_t offset = tensors[second->out.tensor].offset;
        tensors[second->out.tensor].offset = tensors[first->in[1].tensor].offset;
        exec_find_meetings(&f.plan, again);
        assert_true(again[i]);
        tensors[second->out.tensor].offset = offset;
        moved++;
    }
    assert_true(moved > 0);
    tiny_plan_free(&f.bytes);
}

// An answer cut anywhere and continued as prompt and output is the same, with penalties that count the output alone.
static void test_an_answer_that_goes_on(void **state)
{
    (void)state;
    struct fixture f;
    struct iso_errinfo e;
    uint32_t ids[SEQ_MAX], slot;
    struct unit_request r = {.prompt = prompt_of(0),
                             .n_prompt = 30,
                             .max_output = 40,
                             .ignore_eog = true,
                             .sampling = {.temperature = 1.5f,
                                          .top_p = 1,
                                          .repeat_penalty = 1,
                                          .presence_penalty = 1.5f,
                                          .frequency_penalty = 0.8f,
                                          .seed = 4}};
    fixture_open(&f, 2);
    run_one(&f, &r, &alone[0]);
    memcpy(ids, r.prompt, r.n_prompt * sizeof *ids);
    memcpy(ids + r.n_prompt, alone[0].tokens, r.max_output * sizeof *ids);
    bool counts = false; // that the tokens are output
    for (uint32_t n = 1; n < r.max_output; n++) {
        struct unit_request rest = r;
        rest.prompt = ids;
        rest.n_prompt = r.n_prompt + n;
        rest.max_output = r.max_output - n;
        rest.n_prior = n;
        run_one(&f, &rest, &together[0]);
        assert_int_equal(together[0].n, rest.max_output);
        assert_memory_equal(together[0].tokens, alone[0].tokens + n, rest.max_output * sizeof *ids);
        rest.n_prior = 0;
        run_one(&f, &rest, &together[1]);
        counts =
            counts || memcmp(together[1].tokens, alone[0].tokens + n, rest.max_output * sizeof *ids) != 0;
    }
    assert_true(counts);
    r.n_prior = r.n_prompt;
    assert_int_equal(unit_submit(f.unit, &r, &slot, NULL, &e), ISO_E_USAGE);
    fixture_close(&f);
}

// The logits are the embedding matrix times the hidden row, which is there for each row of logits.
static void test_hidden_rows(void **state)
{
    (void)state;
    struct fixture f;
    struct trace t = {0};
    fixture_open(&f, SLOTS);
    struct unit_request r = request_of(3), score = request_of(5);
    uint32_t rows = 0;
    submit(&f, &r, &t);
    submit(&f, &score, &t);
    for (struct unit_result got = unit_step(f.unit); got.rows > 0; got = unit_step(f.unit)) {
        for (uint32_t i = 0; i < got.n; i++, rows++) {
            const float *hidden = unit_hidden(f.unit, got.events[i].row);
            const float *logits = unit_logits(f.unit, got.events[i].row);
            for (uint32_t id = 0; id < VOCAB; id++) {
                double sum = 0;
                for (uint32_t k = 0; k < SHAPE.hidden; k++)
                    sum += (double)hidden[k] * (double)*weight(&f.bytes, "token_embd.weight", id, k);
                assert_true(fabs(sum - (double)logits[id]) < 1e-4 * (1 + fabs(sum)));
            }
        }
    }
    assert_int_equal(rows, r.max_output + score.n_prompt);
    fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refused_requests),
        cmocka_unit_test(test_all_slots_taken),
        cmocka_unit_test(test_pool_too_small),
        cmocka_unit_test(test_cpu_does_not_exist),
        cmocka_unit_test(test_length),
        cmocka_unit_test(test_eog),
        cmocka_unit_test(test_score),
        cmocka_unit_test(test_log_sum_exp),
        cmocka_unit_test(test_beside_others_f16),
        cmocka_unit_test(test_beside_others_q8),
        cmocka_unit_test(test_score_before_a_full_house),
        cmocka_unit_test(test_reuse),
        cmocka_unit_test(test_nonfinite_ends_only_its_request),
        cmocka_unit_test(test_meetings),
        cmocka_unit_test(test_an_answer_that_goes_on),
        cmocka_unit_test(test_hidden_rows),
#ifdef __x86_64__
        cmocka_unit_test(test_callers_environment),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
