#include "serve/choice.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/num.h"

static struct answer_spec *spec_of(const struct choice *k)
{
    return k->call->specs[k->prompt];
}

const char *choice_finish(const struct choice *k)
{
    return answer_finish_name(&k->answer);
}

static void choice_count(struct choice *k, enum metrics_finish finish)
{
    uint64_t now = clock_now_ns();
    const struct call *c = k->call;
    metrics_answer(&c->model->metrics,
                   &(struct metrics_answer){.finish = finish,
                                            .prompt_tokens = spec_of(k)->n_prompt,
                                            .cached_tokens = k->cached,
                                            .output_tokens = k->answer.n_output,
                                            .queue_ns = (k->started ? k->started_ns : now) - c->arrived_ns,
                                            .ttft_ns = k->first_ns ? k->first_ns - c->arrived_ns : 0,
                                            .decode_ns = k->first_ns ? k->last_ns - k->first_ns : 0,
                                            .e2e_ns = now - c->arrived_ns});
    k->ended = true;
}

// ---- The end ----

static void write_audit(struct choice *k, const json_t *params, const uint32_t *output, uint32_t n_output,
                        const char *finish)
{
    struct call *c = k->call;
    struct server *s = c->server;
    struct iso_errinfo e;
    const struct audit_entry entry = {.request_id = c->request_id,
                                      .id = c->id,
                                      .key = c->key == KEYS_NONE ? NULL : keys_name(s->keys, c->key),
                                      .endpoint = c->endpoint,
                                      .model = c->model->name,
                                      .plan_path = c->model->plan_path,
                                      .plan_hash = c->engine->language.hash,
                                      .finish = finish,
                                      .digest = k->digest,
                                      .params = params,
                                      .prompt = spec_of(k)->prompt,
                                      .n_prompt = spec_of(k)->n_prompt,
                                      .output = output,
                                      .n_output = n_output};
    if (audit_write(&s->audit, &entry, &e)) {
        c->model->metrics.audit_errors++;
        log_write(&s->log, LOG_ERROR, "audit", LOG_S("request_id", c->request_id), LOG_S("error", e.text));
    }
}

static enum iso_err make_digest(struct choice *k, const char *finish)
{
    const struct answer_spec *s = spec_of(k);
    const struct answer *a = &k->answer;
    json_t *params = audit_params(s, a->choice);
    enum iso_err err = audit_digest(k->call->engine->language.hash, params, s->prompt, s->n_prompt, a->output,
                                    a->n_output, k->digest);
    if (!err)
        write_audit(k, params, a->output, a->n_output, finish);
    json_decref(params);
    return err;
}

void choice_abandon(struct choice *k, enum metrics_finish finish)
{
    if (k->ended)
        return;
    if (k->is_open && k->answer.n_output > 0) // what the client has may be asked for
        (void)!make_digest(k, finish == METRICS_ABORT ? "abort" : "error");
    choice_count(k, finish);
}

static void fail_memory(struct choice *k)
{
    call_error(k->call, 503, NULL, "out_of_memory", "the system refused memory for the answer");
}

// True: that was the call's last one, and the call is gone.
static bool finish(struct choice *k)
{
    struct call *c = k->call;
    engine_cancel(&k->job);
    if (c->kind != CALL_EMBEDDING && make_digest(k, choice_finish(k))) {
        fail_memory(k);
        return true;
    }
    choice_count(k, k->answer.finish == ANSWER_LENGTH ? METRICS_LENGTH : METRICS_STOP);
    c->n_ended++;
    if (c->params.stream) {
        call_send(c, complete_chunk(k, choice_finish(k), false));
        reply_reset(&k->reply);
    }
    if (!c->request) {
        call_gone(c);
        return true;
    }
    if (c->n_ended < c->n_choices)
        return false;
    complete_call(c);
    return true;
}

// ---- What the unit says ----

static struct choice *choice_of(struct engine_job *j)
{
    return (struct choice *)((uint8_t *)j - offsetof(struct choice, job));
}

static struct unit_request ask(struct engine_job *j, uint32_t *into)
{
    struct choice *k = choice_of(j);
    const struct answer_spec *s = spec_of(k);
    if (!k->scoring && k->is_open)
        return answer_request(&k->answer, into);
    memcpy(into, s->prompt, s->n_prompt * sizeof *into);
    return (struct unit_request){.prompt = into,
                                 .n_prompt = s->n_prompt,
                                 .max_output = 1,
                                 .sampling = SAMPLING_GREEDY,
                                 .ignore_eog = true,
                                 .score = k->scoring};
}

static void note_start(struct choice *k, const struct channel_event *e)
{
    struct call *c = k->call;
    if (k->started)
        return;
    k->started = true;
    k->started_ns = clock_now_ns();
    k->cached = e->reused;
    if (!c->params.stream)
        return;
    call_begin_stream(c);
    call_send(c, complete_chunk(k, NULL, true));
    reply_reset(&k->reply);
}

static void note_time(struct choice *k)
{
    uint64_t now = clock_now_ns();
    struct call *c = k->call;
    if (!k->first_ns) {
        k->first_ns = now;
    } else {
        hist_record(&c->inter_token, now - k->last_ns);
        metrics_inter_token(&c->model->metrics, now - k->last_ns);
    }
    k->last_ns = now;
    log_write(&c->server->log, LOG_DEBUG, "token", LOG_S("request_id", c->request_id),
              LOG_U("choice", k->index), LOG_U("n", k->answer.n_output));
}

static enum iso_err note_logprob(struct choice *k, const struct channel_event *e)
{
    uint32_t n_top = k->call->params.n_top;
    if (n_top == LOGPROBS_NONE || e->finish == UNIT_EOG)
        return ISO_OK;
    return reply_add_prob(&k->reply, e->token, e, n_top);
}

static void take_token(struct choice *k, const struct channel_event *e)
{
    struct call *c = k->call;
    struct iso_errinfo error;
    enum answer_next next;
    note_time(k);
    if (note_logprob(k, e)) {
        fail_memory(k);
        return;
    }
    if (answer_push(&k->answer, e->token, (enum unit_finish)e->finish, &next, &error)) {
        call_fail(c, &error);
        return;
    }
    if (next == ANSWER_END) {
        (void)finish(k);
        return;
    }
    if (next == ANSWER_GO_ON && !k->job.engine) { // ended where nothing ends: the unit went astray
        call_error(c, 503, NULL, "unit_failed", "the compute unit ended the answer untimely; try again");
        return;
    }
    if (c->params.stream && !reply_is_empty(&k->reply)) {
        call_send(c, complete_chunk(k, NULL, false));
        reply_reset(&k->reply);
        if (!c->request) {
            call_gone(c);
            return;
        }
    }
    k->paused = c->streaming && http_lags(c->request);
    if (k->paused)
        engine_pause(c->engine, &k->job);
    else if (next == ANSWER_RESUME)
        engine_resubmit(c->engine, &k->job);
}

void choice_go_on(struct choice *k)
{
    if (!k->paused)
        return;
    k->paused = false;
    engine_resubmit(k->call->engine, &k->job);
}

// A position of the prompt: how probable its next token was.
static void take_score(struct choice *k, const struct channel_event *e)
{
    struct call *c = k->call;
    const struct answer_spec *s = spec_of(k);
    enum iso_err err = ISO_OK;
    if (k->scored == 0)
        err = reply_add_prob(&k->reply, s->prompt[0], NULL, 0);
    if (!err && ++k->scored < s->n_prompt)
        err = reply_add_prob(&k->reply, s->prompt[k->scored], e, c->params.n_top);
    if (err) {
        fail_memory(k);
    } else if (e->finish != UNIT_RUNNING && e->finish != UNIT_SCORED) {
        call_error(c, 503, NULL, "unit_failed", "the compute unit ended the answer untimely; try again");
    } else if (e->finish == UNIT_SCORED) {
        k->scoring = false;
        if (c->params.max_tokens_is_zero) {
            k->answer.finish = ANSWER_LENGTH;
            (void)finish(k);
        } else {
            engine_resubmit(c->engine, &k->job);
        }
    }
}

// The row of the last token, scaled to length 1 as clients of embeddings expect it.
static void take_row(struct choice *k, const struct channel_event *e)
{
    struct call *c = k->call;
    const float *row = channel_hidden(&c->engine->remote.channel, e->area);
    uint32_t n = c->engine->language.header.model.hidden;
    k->row = malloc(n * sizeof *k->row);
    if (!k->row) {
        fail_memory(k);
        return;
    }
    audit_scale_row(row, n, k->row);
    const struct answer_spec *s = spec_of(k);
    if (audit_digest_row(c->engine->language.hash, s->prompt, s->n_prompt, k->row, n, k->digest)) {
        fail_memory(k);
        return;
    }
    write_audit(k, NULL, NULL, 0, "embedded");
    k->answer.finish = ANSWER_STOP;
    (void)finish(k);
}

static void on_event(struct engine_job *j, const struct channel_event *e)
{
    struct choice *k = choice_of(j);
    struct call *c = k->call;
    if (e->kind == CHANNEL_STARTED) {
        note_start(k, e);
        if (!c->request)
            call_gone(c);
    } else if (e->finish == UNIT_NONFINITE) {
        call_error(c, 500, NULL, "not_finite",
                   "a logit after position %" PRIu32 " is not finite: the model's weights overflow",
                   e->position);
    } else if (k->scoring) {
        take_score(k, e);
    } else if (c->kind == CALL_EMBEDDING) {
        take_row(k, e);
    } else {
        take_token(k, e);
    }
}

static void on_failed(struct engine_job *j, enum iso_err err, const char *why)
{
    (void)err;
    call_error(choice_of(j)->call, 503, NULL, "unit_failed", "%s", why);
}

static const struct engine_calls CALLS = {ask, on_event, on_failed};

// ---- Begin ----

enum iso_err choice_init(struct call *c, uint32_t index, struct iso_errinfo *reterr)
{
    struct choice *k = &c->choices[index];
    const struct params *p = &c->params;
    enum answer_next next;
    const struct answer_spec *s = c->specs[index / p->n];
    // Of the ids of tool calls: a conversation's next request has another prompt, so they don't come again in it.
    uint64_t seeds[] = {s->sampling.seed, hash64(s->prompt, s->n_prompt * sizeof *s->prompt), index};
    *k = (struct choice){.call = c, .index = index, .prompt = index / p->n};
    k->job = (struct engine_job){.calls = &CALLS, .n_top = p->n_top, .embed = c->kind == CALL_EMBEDDING};
    reply_init(&k->reply, c->engine->language.tokenizer, hash64(seeds, sizeof seeds));
    k->scoring = p->echo && p->n_top != LOGPROBS_NONE;
    if (p->echo && c->kind != CALL_CHAT && reply_add(&k->reply, SPLIT_CONTENT, 0, c->prompt_texts[k->prompt]))
        return iso_fail(reterr, ISO_E_NOMEM, 0, NULL, "the system refused memory for the answers");
    if (c->kind == CALL_EMBEDDING || p->max_tokens_is_zero)
        return ISO_OK;
    enum iso_err err =
        answer_open(&k->answer, spec_of(k), &c->engine->language, reply_add, &k->reply, &next, reterr);
    k->is_open = !err;
    k->answer.choice = index % p->n;
    return err;
}

bool choice_begin(struct choice *k)
{
    struct call *c = k->call;
    bool nothing = c->params.max_tokens_is_zero && !k->scoring;
    if (nothing)
        k->answer.finish = ANSWER_LENGTH;
    if (nothing || k->answer.finish != ANSWER_RUNNING) {
        if (c->params.stream) { // the first chunk says the role, also where nothing is computed
            call_begin_stream(c);
            call_send(c, complete_chunk(k, NULL, true));
            reply_reset(&k->reply);
        }
        return finish(k);
    }
    engine_submit(c->engine, &k->job);
    return false;
}

void choice_deinit(struct choice *k)
{
    engine_cancel(&k->job);
    if (k->is_open)
        answer_close(&k->answer);
    reply_deinit(&k->reply);
    free(k->row);
}
