// The microbenchmark of test_kernels: the best of several runs of each kernel on each ISA, on operands that a
// small language model has.
#pragma once

#include "base/clock.h"
#include "kernel_attention.h"
#include "kernel_weights.h"

#define BENCH_NS    ((uint64_t)150 * 1000 * 1000) // for each kernel and ISA
#define BENCH_COLS  2048
#define BENCH_ROWS  64
#define BENCH_VOCAB 49152

// What one call does: multiply-adds, and bytes of the large operand.
struct bench_work {
    double macs, bytes;
};

struct bench_operands {
    struct matmul_case matmul;
    struct kv_case kv;
    uint8_t *pool;
    float *x, *y, *gain; // [BENCH_ROWS][BENCH_COLS], or a vocabulary
    float *feedback;     // [FIT_BLOCK][FIT_BLOCK]
};

typedef struct bench_work bench_run(const struct kernels *k, const struct bench_operands *o,
                                    uint32_t variant);

static inline struct bench_work bench_matmul(const struct kernels *k, const struct bench_operands *o,
                                             uint32_t unused)
{
    (void)unused;
    struct matmul_args a = o->matmul.args;
    a.y = o->y;
    k->matmul[o->matmul.w.type](&a, 0, a.n / 16);
    return (struct bench_work){(double)a.rows * a.n * a.k, (double)(a.n / 16 * o->matmul.w.panel_bytes)};
}

static inline struct bench_work bench_attention(const struct kernels *k, const struct bench_operands *o,
                                                uint32_t rows)
{
    const struct kv_layout *kv = &o->kv.layout;
    struct attention_args a =
        case_attention_args(&o->kv, o->pool, &o->kv.ref[o->kv.tokens - rows], rows, o->kv.q, o->y);
    k->attention(&a, 0, rows * kv->kv_heads);
    double keys = (o->kv.tokens - (rows - 1) / 2.0) * rows;
    return (struct bench_work){2 * keys * o->kv.heads * kv->head_dim,
                               2 * keys / 16 * kv->kv_heads * (double)kv_head_bytes(kv)};
}

// Codes of a panel, with errors fed back or without; the products of a calibration.
enum { BENCH_FIT, BENCH_FIT_FEEDBACK, BENCH_PRODUCTS };

static inline struct bench_work bench_fit(const struct kernels *k, const struct bench_operands *o,
                                          uint32_t what)
{
    if (what == BENCH_PRODUCTS) {
        uint64_t stride = BENCH_COLS * sizeof(float);
        struct products_args p = {
            .x = o->x, .x_stride = stride, .rows = BENCH_ROWS, .cols = FIT_BLOCK, .to = o->feedback};
        k->products(&p, 0, FIT_BLOCK);
        return (struct bench_work){BENCH_ROWS * (double)FIT_BLOCK * FIT_BLOCK / 2, FIT_BLOCK * stride};
    }
    struct fit_args a = {.dtype = DT_IQ4_NL,
                         .k = FIT_BLOCK,
                         .w = o->x,
                         .importance = o->gain,
                         .feedback = what == BENCH_FIT_FEEDBACK ? o->feedback : NULL,
                         .code = (void *)o->y,
                         .d = (void *)(o->y + FIT_BLOCK * PANEL_LANES)};
    k->fit(&a, 0, 1);
    return (struct bench_work){0, FIT_BLOCK * PANEL_LANES * sizeof(float)};
}

enum { BENCH_RMSNORM, BENCH_QUANTIZE, BENCH_ADD, BENCH_SILU_MUL, BENCH_GELU_MUL, BENCH_EMBED };

static inline struct bench_work bench_rows(const struct kernels *k, const struct bench_operands *o,
                                           uint32_t op)
{
    uint64_t stride = BENCH_COLS * sizeof(float);
    struct norm_args norm = {o->x, o->gain, o->y, stride, stride, 1, BENCH_COLS, 1e-5f};
    struct rows_args rows = {o->x, o->x, o->y, stride, stride, stride, BENCH_COLS};
    struct quantize_args quantize = {o->x, o->y, stride, BENCH_ROWS, BENCH_COLS};
    uint32_t ids[BENCH_ROWS];
    for (uint32_t i = 0; i < BENCH_ROWS; i++)
        ids[i] = i * 7 % BENCH_COLS;
    struct embed_args embed = {o->matmul.w.panels, o->matmul.w.type, ids, o->y, stride, BENCH_COLS, 1};
    if (op == BENCH_RMSNORM)
        k->rmsnorm(&norm, 0, BENCH_ROWS);
    else if (op == BENCH_QUANTIZE)
        k->quantize(&quantize, 0, BENCH_ROWS);
    else if (op == BENCH_EMBED)
        k->embed(&embed, 0, BENCH_ROWS);
    else
        (op == BENCH_ADD ? k->add : op == BENCH_SILU_MUL ? k->silu_mul : k->gelu_mul)(&rows, 0, BENCH_ROWS);
    return (struct bench_work){0, (double)BENCH_ROWS * BENCH_COLS * sizeof(float)};
}

static inline struct bench_work bench_vocab(const struct kernels *k, const struct bench_operands *o,
                                            uint32_t sum)
{
    float max = 0;
    if (sum)
        o->y[0] = k->vocab_sum_exp(o->x, BENCH_VOCAB, 0);
    else if (!k->vocab_max(o->x, BENCH_VOCAB, &max))
        abort();
    return (struct bench_work){0, BENCH_VOCAB * sizeof(float)};
}

static inline void bench_one(const char *name, const char *word, bench_run *run,
                             const struct bench_operands *o, uint32_t variant)
{
    if (!strstr(name, word))
        return;
    FOR_EACH_ISA(k)
    {
        uint64_t best = UINT64_MAX, start = clock_now_ns();
        struct bench_work work = {0};
        while (clock_now_ns() - start < BENCH_NS) {
            uint64_t begin = clock_now_ns();
            work = run(k, o, variant);
            best = num_min(best, num_max(1, clock_now_ns() - begin));
        }
        printf("%-22s %-7s %10.1f us", name, k->name, (double)best / 1e3);
        if (work.macs > 0)
            printf(" %8.2f GMAC/s", work.macs / (double)best);
        printf(" %8.2f GB/s\n", work.bytes / (double)best);
        fflush(stdout);
    }
}

static inline void bench_types(struct rng *r, const char *word, struct bench_operands *o)
{
    char name[40];
    static const uint32_t ROWS[] = {1, 4, 16, BENCH_ROWS};
    for (uint32_t type = 0; type < DT_A8; type++) {
        for (size_t i = 0; i < ARRAY_LEN(ROWS); i++) {
            o->matmul = matmul_make(r, (enum dtype)type, ROWS[i], BENCH_COLS, BENCH_COLS, PROFILE_PLAIN);
            snprintf(name, sizeof name, "matmul_%s x%u", dtype_info(type)->name, ROWS[i]);
            bench_one(name, word, bench_matmul, o, 0);
            snprintf(name, sizeof name, "embed_%s", dtype_info(type)->name);
            if (i == 0)
                bench_one(name, word, bench_rows, o, BENCH_EMBED);
            matmul_free(&o->matmul);
        }
    }
}

static inline void bench_all(const char *word)
{
    struct rng r = rng_seeded(50);
    struct bench_operands o = {0};
    size_t n = BENCH_ROWS * BENCH_COLS;
    o.x = case_alloc(n * sizeof(float));
    o.y = case_alloc(n * sizeof(float));
    o.gain = case_alloc(BENCH_COLS * sizeof(float));
    rng_fill(&r, o.x, n, -6, 2);
    rng_fill(&r, o.gain, BENCH_COLS, -1, 1);
    bench_types(&r, word, &o);
    for (int type = 0; type < KV_TYPE_COUNT; type++) {
        struct kv_layout layout = {.type = (enum kv_type)type, .layers = 1, .kv_heads = 3, .head_dim = 64};
        o.kv = kv_case_make(&r, layout, 9, 1024, 0);
        o.pool = case_alloc(o.kv.pool_bytes);
        for (uint32_t row = 0; row < o.kv.tokens; row++)
            ref_kv_store(&o.kv, o.pool, row);
        bench_one(type == KV_F16 ? "attention_f16 x1" : "attention_q8 x1", word, bench_attention, &o, 1);
        bench_one(type == KV_F16 ? "attention_f16 x64" : "attention_q8 x64", word, bench_attention, &o, 64);
        free(o.pool);
        kv_case_free(&o.kv);
    }
    bench_one("rmsnorm", word, bench_rows, &o, BENCH_RMSNORM);
    bench_one("quantize", word, bench_rows, &o, BENCH_QUANTIZE);
    bench_one("add", word, bench_rows, &o, BENCH_ADD);
    bench_one("silu_mul", word, bench_rows, &o, BENCH_SILU_MUL);
    bench_one("gelu_mul", word, bench_rows, &o, BENCH_GELU_MUL);
    o.feedback = case_alloc((uint64_t)FIT_BLOCK * FIT_BLOCK * sizeof(float));
    for (uint32_t i = 0; i < BENCH_COLS; i++)
        o.gain[i] = o.gain[i] < 0 ? -o.gain[i] : o.gain[i];
    bench_one("fit_iq4_nl", word, bench_fit, &o, BENCH_FIT);
    bench_one("fit_iq4_nl feedback", word, bench_fit, &o, BENCH_FIT_FEEDBACK);
    bench_one("products", word, bench_fit, &o, BENCH_PRODUCTS);
    free(o.feedback);
    bench_one("vocab_max", word, bench_vocab, &o, 0);
    bench_one("vocab_sum_exp", word, bench_vocab, &o, 1);
    free(o.x);
    free(o.y);
    free(o.gain);
}
