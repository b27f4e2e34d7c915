#include "cli/calibrate.h"

#include <stdlib.h>

#include "base/assert.h"
#include "base/num.h"
#include "cli/cli.h"
#include "cli/eval.h"

#define WINDOW   512
#define SLOTS    64 // rows at once
#define TOGETHER 32

// What the threads add up. Row k of a matmul's products is one thread's.
struct sums {
    struct calibration_row *rows;
    float **products; // of each row, [cols][FIT_BLOCK]
    uint32_t threads;
    const struct kernels *kernels;
};

// Inputs of a matmul in runs of TOGETHER, each thread every so manieth.
static void add_products(void *context, uint32_t number, const void *x, uint64_t stride, uint32_t rows,
                         uint32_t cols, uint32_t thread)
{
    const struct sums *s = context;
    const struct products_args a = {
        .x = x, .x_stride = stride, .rows = rows, .cols = cols, .to = s->products[number]};
    ASSERT(s->rows[number].cols == cols && cols % TOGETHER == 0);
    for (uint32_t k = thread * TOGETHER; k < cols; k += s->threads * TOGETHER)
        s->kernels->products(&a, k, k + TOGETHER);
}

static enum iso_err open_sums(const struct plan *p, struct sums *s, struct calibration *ret,
                              struct iso_errinfo *reterr)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < p->header->n_ops; i++)
        n += p->ops[i].code == PLAN_OP_MATMUL;
    s->rows = calloc(n, sizeof *s->rows);
    s->products = calloc(n, sizeof *s->products);
    bool ok = s->rows && s->products;
    *ret = (struct calibration){.rows = s->rows};
    for (uint32_t i = 0; i < p->header->n_ops && ok; i++) {
        if (p->ops[i].code != PLAN_OP_MATMUL)
            continue;
        uint32_t cols = p->ops[i].in[0].cols;
        if (cols % TOGETHER)
            return iso_fail(reterr, ISO_E_UNSUPPORTED, 0, "calibrate",
                            "a matrix has %u inputs, no multiple of %d as calibrating needs", cols, TOGETHER);
        float *products = calloc((size_t)cols * FIT_BLOCK, sizeof *products);
        s->products[ret->n] = products;
        s->rows[ret->n++] = (struct calibration_row){.cols = cols, .products = products};
        ok = products != NULL;
    }
    return ok ? ISO_OK : iso_fail(reterr, ISO_E_NOMEM, 0, NULL, "the system refused memory to calibrate");
}

void calibrate_free(struct calibration *c)
{
    for (uint32_t i = 0; i < c->n; i++)
        free((void *)c->rows[i].products);
    free((void *)c->rows);
    *c = (struct calibration){0};
}

enum iso_err calibrate(const char *model_path, const char *text_path, uint32_t tokens_max,
                       const struct pruning *pruning, bool quiet, struct calibration *ret,
                       struct iso_errinfo *reterr)
{
    struct compile_flags flags = {
        .options = {.quant = QUANT_F16, .pruning = pruning, .slots = SLOTS, .max_seq_len_default = WINDOW}};
    struct run_flags run = {0};
    struct session session, *sessions[1] = {&session};
    struct eval_text text;
    struct eval_result result;
    struct cli_progress progress;
    struct sums sums = {0};
    *ret = (struct calibration){0};
    enum iso_err err = session_open(model_path, &flags, &run, quiet, &session, reterr);
    if (err)
        return err;
    sums.threads = session.threads;
    sums.kernels = unit_kernels(session.unit);
    err = open_sums(&session.plan, &sums, ret, reterr);
    if (err)
        iso_fail_prefix(reterr, model_path);
    else
        err = eval_text_open(&session, text_path, WINDOW, tokens_max, &text, reterr);
    if (!err) {
        unit_set_tap(session.unit, add_products, &sums);
        cli_progress_begin(&progress, "calibrating", "tokens", quiet);
        err = eval_run(sessions, &model_path, 1, &text, &progress, &result, reterr);
        cli_progress_end(&progress);
        eval_text_close(&text);
    }
    free(sums.products);
    session_close(&session);
    if (err)
        calibrate_free(ret);
    return err;
}
