#include "cli/eval.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/dmath.h"
#include "base/fpenv.h"
#include "base/num.h"
#include "base/utf8.h"
#include "base/text_file.h"

#define DECODE_PROMPT 64
#define DECODE_TOKENS 33 // the first ends the prefill

enum iso_err eval_text_open(struct session *s, const char *path, uint32_t window, uint32_t tokens_max,
                            struct eval_text *ret, struct iso_errinfo *reterr)
{
    struct buf text;
    struct tokenizer *t = NULL;
    size_t n = 0;
    *ret = (struct eval_text){.window = (uint32_t)num_min(window, s->plan.header->limits.max_seq_len)};
    enum iso_err err = text_file_read(path, TOK_TEXT_BYTES_MAX, &text, reterr);
    if (err)
        return iso_fail_prefix(reterr, path);
    size_t valid = utf8_valid_length(text.ptr, text.len), most = num_min(3 * text.len, TOK_TEXT_BYTES_MAX);
    if (valid < text.len)
        err = iso_fail(reterr, ISO_E_FORMAT, valid, NULL, "the text is no UTF-8 at byte %zu (0x%02X)", valid,
                       text.ptr[valid]);
    // NFC makes no text more than three times as long, and each byte may be a token.
    ret->ids = err ? NULL : calloc(most + 2, sizeof *ret->ids);
    if (!err && !ret->ids)
        err = iso_fail(reterr, ISO_E_NOMEM, 0, NULL, "the system refused memory for the text's tokens");
    if (!err)
        err = tok_open(s->plan.tokenizer, s->plan.tokenizer_bytes, num_max(most, 1), &t, reterr);
    if (!err)
        err = tok_encode(t, buf_strv(&text), TOK_PLAIN, false, ret->ids, most + 2, &n, reterr);
    tok_close(t);
    buf_deinit(&text);
    ret->n = (uint32_t)(tokens_max ? num_min(n, tokens_max) : n);
    if (!err && ret->n < 2)
        err = iso_fail(reterr, ISO_E_USAGE, 0, NULL, "the text has %" PRIu32 " tokens; at least 2 are needed",
                       ret->n);
    if (!err && ret->n > EVAL_TOKENS_MAX)
        err = iso_fail(reterr, ISO_E_LIMIT, 0, NULL,
                       "the text has %" PRIu32 " tokens; the limit is %d, --tokens takes fewer", ret->n,
                       EVAL_TOKENS_MAX);
    if (err)
        eval_text_close(ret);
    return err ? iso_fail_prefix(reterr, path) : ISO_OK;
}

void eval_text_close(struct eval_text *t)
{
    free(t->ids);
    t->ids = NULL;
}

// A run over the windows: what it adds up.
struct eval_sums {
    struct session *const *sessions;
    const char *const *paths;
    uint32_t n_sessions;
    double nll[2], difference, difference_square;
    double kl;
    float *kls; // [scored]
    float *p;   // [vocab]: scratch
    uint32_t same, scored;
};

// sum P log(P / Q) of two rows of logits: with P from exp in f32, the sum in f64, ascending.
static double divergence(const struct eval_sums *e, const float *of_p, double log_sum_p, const float *of_q,
                         double log_sum_q)
{
    const struct unit *u = e->sessions[0]->unit;
    uint32_t vocab = e->sessions[0]->plan.header->model.vocab;
    double sum = 0;
    struct fpenv env = fpenv_enter();
    unit_kernels(u)->exp_shifted(of_p, vocab, (float)log_sum_p, e->p);
    for (uint32_t i = 0; i < vocab; i++)
        sum += (double)e->p[i] * (((double)of_p[i] - log_sum_p) - ((double)of_q[i] - log_sum_q));
    fpenv_leave(env);
    return sum > 0 ? sum : 0; // rounding may leave a little less
}

// The same position in every session's step; `next` is the token that stands there.
static enum iso_err add_position(struct eval_sums *e, const struct unit_event *const events[2], uint32_t next,
                                 struct iso_errinfo *reterr)
{
    const float *logits[2];
    double log_sum[2], nll[2];
    for (uint32_t i = 0; i < e->n_sessions; i++) {
        if (events[i]->finish == UNIT_NONFINITE) {
            (void)iso_fail(reterr, ISO_E_NONFINITE, events[i]->position, "logits",
                           "a logit after position %" PRIu32
                           " of a window is not finite: the model's weights overflow",
                           events[i]->position);
            return iso_fail_prefix(reterr, e->paths[i]);
        }
        logits[i] = unit_logits(e->sessions[i]->unit, events[i]->row);
        log_sum[i] = unit_log_sum_exp(e->sessions[i]->unit, events[i]->row);
        nll[i] = log_sum[i] - (double)logits[i][next];
        e->nll[i] += nll[i];
    }
    if (e->n_sessions == 2) {
        double kl = divergence(e, logits[1], log_sum[1], logits[0], log_sum[0]), d = nll[0] - nll[1];
        e->kls[e->scored] = (float)kl;
        e->kl += kl;
        e->difference += d;
        e->difference_square += d * d;
        e->same += events[0]->token == events[1]->token;
    }
    e->scored++;
    return ISO_OK;
}

// One window, its tokens with BOS in front where the model has one.
static enum iso_err score_window(struct eval_sums *e, const uint32_t *ids, uint32_t n,
                                 struct iso_errinfo *reterr)
{
    const struct unit_request request = {
        .prompt = ids, .n_prompt = n, .score = true, .sampling = SAMPLING_GREEDY};
    uint32_t slots[2], at = 0;
    for (uint32_t i = 0; i < e->n_sessions; i++) {
        enum iso_err err = unit_submit(e->sessions[i]->unit, &request, &slots[i], NULL, reterr);
        if (err)
            return err;
    }
    while (at < n) {
        struct unit_result r[2] = {{0}};
        for (uint32_t i = 0; i < e->n_sessions; i++)
            r[i] = unit_step(e->sessions[i]->unit);
        for (uint32_t j = 0; j < r[0].n; j++, at++) {
            const struct unit_event *events[2] = {&r[0].events[j],
                                                  e->n_sessions == 2 ? &r[1].events[j] : NULL};
            if (at + 1 == n)
                continue; // nothing follows
            enum iso_err err = add_position(e, events, ids[at + 1], reterr);
            if (err) {
                for (uint32_t i = 0; i < e->n_sessions; i++)
                    unit_cancel(e->sessions[i]->unit, slots[i]);
                return err;
            }
        }
    }
    return ISO_OK;
}

static int compare_floats(const void *a, const void *b)
{
    float x, y;
    memcpy(&x, a, sizeof x);
    memcpy(&y, b, sizeof y);
    return (x > y) - (x < y);
}

static void summarize(struct eval_sums *e, struct eval_result *ret)
{
    double n = e->scored, mean = e->difference / n;
    ret->scored = e->scored;
    for (uint32_t i = 0; i < e->n_sessions; i++)
        ret->side[i].nll = e->nll[i] / n;
    if (e->n_sessions < 2)
        return;
    qsort(e->kls, e->scored, sizeof *e->kls, compare_floats);
    ret->kl_mean = e->kl / n;
    ret->kl_p99 = (double)e->kls[num_min((uint64_t)(0.99 * n), e->scored - 1)];
    ret->top1 = e->same / n;
    double variance = e->difference_square / n - mean * mean;
    ret->nll_error = dmath_sqrt(variance > 0 ? variance / n : 0);
}

static enum iso_err time_scoring(struct session *s, const struct eval_text *text, double *ret,
                                 struct iso_errinfo *reterr)
{
    const struct unit_request request = {.prompt = text->ids,
                                         .n_prompt = (uint32_t)num_min(text->window, text->n),
                                         .sampling = SAMPLING_GREEDY,
                                         .score = true};
    uint32_t slot;
    enum iso_err err = unit_submit(s->unit, &request, &slot, NULL, reterr);
    if (err)
        return err;
    uint64_t begun = clock_now_ns();
    while (unit_step(s->unit).rows > 0)
        continue;
    *ret = request.n_prompt * 1e9 / (double)(clock_now_ns() - begun);
    return ISO_OK;
}

static enum iso_err time_decode(struct session *s, const struct eval_text *text, double *ret,
                                struct iso_errinfo *reterr)
{
    uint32_t room = s->plan.header->limits.max_seq_len, slot;
    struct unit_request request = {.prompt = text->ids, .sampling = SAMPLING_GREEDY, .ignore_eog = true};
    request.max_output = (uint32_t)num_min(DECODE_TOKENS, room / 2);
    request.n_prompt = (uint32_t)num_min(num_min(DECODE_PROMPT, text->n), room - request.max_output);
    *ret = 0;
    if (request.max_output < 2)
        return ISO_OK;
    enum iso_err err = unit_submit(s->unit, &request, &slot, NULL, reterr);
    if (err)
        return err;
    uint64_t begun = 0;
    for (uint32_t token = 0;;) {
        struct unit_result r = unit_step(s->unit);
        if (r.n == 0)
            continue;
        if (token++ == 0)
            begun = clock_now_ns();
        if (r.events[0].finish != UNIT_RUNNING)
            break;
    }
    *ret = (request.max_output - 1) * 1e9 / (double)(clock_now_ns() - begun);
    return ISO_OK;
}

enum iso_err eval_speed(struct session *s, const struct eval_text *text, struct eval_side *side,
                        struct iso_errinfo *reterr)
{
    enum iso_err err = time_scoring(s, text, &side->scoring, reterr);
    return err ? err : time_decode(s, text, &side->decode, reterr);
}

enum iso_err eval_check_pair(struct session *const *sessions, struct iso_errinfo *reterr)
{
    const struct plan_header *a = sessions[0]->plan.header, *b = sessions[1]->plan.header;
    if (a->model.vocab != b->model.vocab)
        return iso_fail(reterr, ISO_E_USAGE, 0, "against",
                        "the models have vocabularies of %" PRIu32 " and %" PRIu32
                        " tokens, which can't be compared",
                        a->model.vocab, b->model.vocab);
    if (a->limits.slots != b->limits.slots || a->limits.batch_tokens != b->limits.batch_tokens)
        return iso_fail(
            reterr, ISO_E_USAGE, 0, "against",
            "the plans have %" PRIu32 " and %" PRIu32 " slots and %" PRIu32 " and %" PRIu32
            " batch tokens; to be compared they must have the same: compile one of them again with "
            "--slots %" PRIu32 " --batch-tokens %" PRIu32,
            a->limits.slots, b->limits.slots, a->limits.batch_tokens, b->limits.batch_tokens, a->limits.slots,
            a->limits.batch_tokens);
    return ISO_OK;
}

static enum iso_err run_windows(struct eval_sums *e, const struct eval_text *text, uint32_t *ids,
                                struct cli_progress *progress, struct iso_errinfo *reterr)
{
    const struct tokenizer *t = e->sessions[0]->tokenizer;
    uint32_t edge = tok_adds_bos(t) && text->window > 2 ? 1 : 0;
    ids[0] = tok_role(t, TOK_BOS);
    for (uint32_t at = 0, n; at < text->n; at += n) {
        n = (uint32_t)num_min(text->window - edge, text->n - at);
        if (n + edge < 2)
            break;
        memcpy(ids + edge, text->ids + at, n * sizeof *ids);
        enum iso_err err = score_window(e, ids, n + edge, reterr);
        if (err)
            return err;
        cli_progress_update(progress, at + n, text->n);
    }
    return ISO_OK;
}

enum iso_err eval_run(struct session *const *sessions, const char *const *paths, uint32_t n,
                      const struct eval_text *text, struct cli_progress *progress, struct eval_result *ret,
                      struct iso_errinfo *reterr)
{
    struct eval_sums e = {.sessions = sessions, .paths = paths, .n_sessions = n};
    enum iso_err err = ISO_OK;
    ASSERT(n == 1 || n == 2);
    uint32_t *ids = calloc(text->window, sizeof *ids);
    e.kls = calloc(text->n + 1, sizeof *e.kls);
    e.p = calloc(sessions[0]->plan.header->model.vocab, sizeof *e.p);
    memset(ret, 0, sizeof *ret);
    if (!ids || !e.kls || !e.p)
        err = iso_fail(reterr, ISO_E_NOMEM, 0, NULL, "the system refused memory to evaluate");
    if (!err)
        err = run_windows(&e, text, ids, progress, reterr);
    if (!err)
        summarize(&e, ret);
    free(ids);
    free(e.kls);
    free(e.p);
    return err;
}

enum iso_err eval_continuation(struct session *s, const uint32_t *ids, uint32_t n, uint32_t from, double *ret,
                               struct iso_errinfo *reterr)
{
    const struct unit_request request = {
        .prompt = ids, .n_prompt = n, .score = true, .sampling = SAMPLING_GREEDY};
    uint32_t slot;
    double sum = 0;
    enum iso_err err = unit_submit(s->unit, &request, &slot, NULL, reterr);
    for (uint32_t at = 0; at < n && !err;) {
        struct unit_result r = unit_step(s->unit);
        for (uint32_t j = 0; j < r.n && !err; j++, at++) {
            if (r.events[j].finish == UNIT_NONFINITE)
                err = iso_fail(reterr, ISO_E_NONFINITE, at, "logits",
                               "a logit is not finite: the model's weights overflow");
            else if (at + 1 < n && at + 1 >= from)
                sum += (double)unit_logits(s->unit, r.events[j].row)[ids[at + 1]] -
                       unit_log_sum_exp(s->unit, r.events[j].row);
        }
        if (err)
            unit_cancel(s->unit, slot);
    }
    if (!err)
        *ret = sum;
    return err;
}
