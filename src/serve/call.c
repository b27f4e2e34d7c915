#include "serve/call.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/assert.h"
#include "base/clock.h"
#include "base/num.h"
#include "formats/json_file.h"
#include "serve/choice.h"
#include "serve/error_body.h"

#define CALL_OUT_MAX (256 * MIB)

// ---- Arrival and end ----

static bool is_request_id(const char *id)
{
    size_t n = 0;
    for (; id[n]; n++)
        if (id[n] <= ' ' || id[n] > '~' || n == SERVER_REQUEST_ID_MAX)
            return false;
    return n > 0;
}

void call_request_id(struct server *s, struct http_request *r, char out[SERVER_REQUEST_ID_MAX + 1])
{
    const char *id = http_header(r, "X-Request-Id");
    s->serial++;
    if (id && is_request_id(id))
        snprintf(out, SERVER_REQUEST_ID_MAX + 1, "%s", id);
    else
        snprintf(out, SERVER_REQUEST_ID_MAX + 1, "req-%016" PRIx64 "%08" PRIx64, s->instance, s->serial);
    http_add_header(r, "X-Request-Id", out);
}

struct call *call_open(struct server *s, struct http_request *r, const char *endpoint)
{
    struct call *c = calloc(1, sizeof *c);
    if (!c) {
        log_write(&s->log, LOG_ERROR, "request", LOG_U("status", 503),
                  LOG_S("error", "the system refused memory"));
        http_respond(r, 503, "text/plain", STRV_LIT("out of memory\n"));
        return NULL;
    }
    call_request_id(s, r, c->request_id);
    snprintf(c->id, sizeof c->id, "%016" PRIx64 "%08" PRIx64, s->instance, s->serial);
    c->server = s;
    c->request = r;
    c->endpoint = endpoint;
    c->key = c->refused_key = KEYS_NONE;
    http_client(r, c->client);
    c->created = (int64_t)time(NULL);
    c->arrived_ns = clock_now_ns();
    hist_reset(&c->inter_token);
    buf_init(&c->out, CALL_OUT_MAX);
    http_set_data(r, c);
    s->n_calls++;
    return c;
}

void call_close(struct call *c)
{
    struct server *s = c->server;
    for (uint32_t i = 0; i < c->n_choices; i++)
        choice_deinit(&c->choices[i]);
    for (uint32_t i = 0; i < c->n_specs; i++)
        answer_spec_free(c->specs[i]);
    if (c->key != KEYS_NONE)
        keys_end(s->keys, c->key);
    if (c->model && c->model->reload == c)
        c->model->reload = NULL;
    s->n_calls--;
    free(c->choices);
    json_decref(c->body);
    json_decref(c->kept);
    buf_deinit(&c->out);
    free(c);
}

void call_gone(struct call *c)
{
    c->request = NULL;
    for (uint32_t i = 0; i < c->n_choices; i++)
        choice_abandon(&c->choices[i], METRICS_ABORT);
    call_log(c, 499,
             c->server->closing  ? "the server was ended"
             : c->client_is_slow ? "the client left, or reads too slowly"
                                 : "the client left");
    call_close(c);
}

void call_go_on(struct call *c)
{
    for (uint32_t i = 0; i < c->n_choices; i++)
        choice_go_on(&c->choices[i]);
}

// ---- The log's line ----

static double ms(uint64_t ns)
{
    return (double)ns * 1e-6;
}

// What was computed, for the log.
struct sums {
    uint32_t prompt, cached, output;
    uint64_t ttft_ns;
};

static struct sums sums_of(const struct call *c)
{
    struct sums s = {0};
    uint64_t first_ns = 0;
    for (uint32_t i = 0; i < c->n_specs; i++)
        s.prompt += c->specs[i]->n_prompt;
    for (uint32_t i = 0; i < c->n_choices; i++) {
        const struct choice *k = &c->choices[i];
        s.cached += k->cached;
        s.output += k->answer.n_output;
        if (k->first_ns && (!first_ns || k->first_ns < first_ns))
            first_ns = k->first_ns;
    }
    s.ttft_ns = first_ns ? first_ns - c->arrived_ns : 0;
    return s;
}

void call_log(struct call *c, unsigned status, const char *error)
{
    struct log *log = &c->server->log;
    enum log_level level = status >= 500 ? LOG_ERROR : LOG_INFO;
    uint32_t of = c->key == KEYS_NONE ? c->refused_key : c->key;
    const char *key = of == KEYS_NONE ? "" : keys_name(c->server->keys, of), *client = c->client;
    double total = ms(clock_now_ns() - c->arrived_ns);
    if (level == LOG_INFO && c->is_probe && !error)
        level = LOG_DEBUG;
    if (c->n_choices == 0) {
        log_write(log, level, "request", LOG_S("request_id", c->request_id), LOG_S("endpoint", c->endpoint),
                  LOG_S("client", client), LOG_S("key", key), LOG_U("status", status),
                  LOG_F("total_ms", total), LOG_S("error", error ? error : ""));
        return;
    }
    struct sums s = sums_of(c);
    const struct hist *h = &c->inter_token;
    const char *finish = error ? "error" : choice_finish(&c->choices[0]);
    log_write(log, level, "request", LOG_S("request_id", c->request_id), LOG_S("endpoint", c->endpoint),
              LOG_S("client", client), LOG_S("key", key), LOG_S("model", c->model->name),
              LOG_U("status", status), LOG_U("choices", c->n_choices), LOG_U("prompt_tokens", s.prompt),
              LOG_U("cached_tokens", s.cached), LOG_U("output_tokens", s.output),
              LOG_F("ttft_ms", ms(s.ttft_ns)), LOG_F("token_p50_ms", ms(hist_quantile(h, 0.5))),
              LOG_F("token_p99_ms", ms(hist_quantile(h, 0.99))), LOG_F("token_max_ms", ms(h->max)),
              LOG_F("total_ms", total), LOG_S("finish_reason", finish), LOG_S("error", error ? error : ""));
}

// ---- Answers ----

void call_text(struct call *c, unsigned status, const char *content_type, struct strv body)
{
    call_log(c, status, c->cause);
    http_respond(c->request, status, content_type, body);
    call_close(c);
}

void call_json(struct call *c, unsigned status, json_t *json)
{
    buf_reset(&c->out);
    bool made = json_write(json, JSON_COMPACT, &c->out) == ISO_OK;
    json_decref(json);
    if (!made)
        call_error(c, 503, NULL, "out_of_memory", "the system refused memory for the answer");
    else
        call_text(c, status, "application/json", buf_strv(&c->out));
}

void call_send(struct call *c, json_t *chunk)
{
    char id[40];
    snprintf(id, sizeof id, "id: %" PRIu64 "\ndata: ", ++c->events);
    buf_reset(&c->out);
    bool made = !buf_append_strv(&c->out, strv_from(id)) && !json_write(chunk, JSON_COMPACT, &c->out) &&
                !buf_append_strv(&c->out, STRV_LIT("\n\n"));
    json_decref(chunk);
    if (!c->request)
        return;
    if (!made || !http_write(c->request, buf_strv(&c->out))) {
        c->client_is_slow = true;
        c->request = NULL;
    }
}

void call_begin_stream(struct call *c)
{
    if (c->streaming)
        return;
    c->streaming = true;
    http_add_header(c->request, "Cache-Control", "no-cache");
    http_add_header(c->request, "X-Accel-Buffering", "no");
    http_stream(c->request, 200, "text/event-stream");
}

static void send_error(struct call *c, unsigned status, const char *text, const char *param, const char *code)
{
    bool made = error_body(&c->out, status, text, param, code) == ISO_OK;
    struct strv body = made ? buf_strv(&c->out) : STRV_LIT("{}");
    call_log(c, status, text);
    if (!c->streaming) {
        char seconds[16];
        snprintf(seconds, sizeof seconds, "%" PRIu32, c->retry_after_s ? c->retry_after_s : 1);
        if (status == 503 || status == 429)
            http_add_header(c->request, "Retry-After", seconds);
        http_respond(c->request, status, "application/json", body);
    } else if (c->request) {
        call_send(c, json_loadb(body.ptr, body.len, 0, NULL));
        if (c->request)
            http_end(c->request);
    }
}

void call_error(struct call *c, unsigned status, const char *param, const char *code, const char *format, ...)
{
    char text[ISO_ERR_TEXT_MAX];
    struct iso_errinfo e;
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    // What came in through arguments, a path say, may be no UTF-8, or be cut in a character: JSON takes neither.
    iso_fail_fill(&e, ISO_E_USAGE, 0, NULL, "%s", text);
    if (c->model && status >= 500)
        for (uint32_t i = 0; i < c->n_choices; i++)
            choice_abandon(&c->choices[i], METRICS_ERROR);
    send_error(c, status, e.text, param, code);
    call_close(c);
}

void call_fail(struct call *c, const struct iso_errinfo *e)
{
    unsigned status = e->code == ISO_E_LIMIT ? 400 : (unsigned)iso_err_http_status(e->code);
    const char *code = e->code == ISO_E_LIMIT         ? "context_length_exceeded"
                       : e->code == ISO_E_UNSUPPORTED ? "unsupported"
                       : status == 400                ? "invalid_value"
                                                      : NULL;
    if (c->model && status == 400)
        c->model->metrics.refused[e->code == ISO_E_LIMIT ? REFUSED_TOO_LONG : REFUSED_INVALID]++;
    call_error(c, status, e->field[0] ? e->field : NULL, code, "%s", e->text);
}

void call_refuse(struct call *c, enum metrics_refusal why, unsigned status, const char *code,
                 const char *text)
{
    struct served *model = c->model ? c->model : &c->server->models[0];
    model->metrics.refused[why]++;
    call_error(c, status, NULL, code, "%s", text);
}

// ---- Admission ----

static bool has_room(struct call *c, uint32_t n)
{
    const struct engine *e = c->engine;
    uint32_t slots = e->language.header.limits.slots, queue = c->server->config.queue;
    if (n > slots + queue) {
        const char *field = c->params.n > 1 || c->kind == CALL_CHAT ? "n"
                            : c->kind == CALL_EMBEDDING             ? "input"
                                                                    : "prompt";
        call_error(c, 400, field, "too_many_answers",
                   "%" PRIu32 " answers are asked for at once; this server takes at most %" PRIu32
                   " (slots and queue together)",
                   n, slots + queue);
        return false;
    }
    uint32_t busy = e->n_running + engine_n_waiting(e);
    if (busy + n <= slots + queue)
        return true;
    call_refuse(c, REFUSED_QUEUE, 503, "queue_full", "the queue is full; try again");
    return false;
}

// Log probabilities of an answer that doesn't stream are told all at once.
static bool has_room_for_probs(struct call *c)
{
    const struct params *p = &c->params;
    uint64_t tokens = 0;
    if (p->n_top == LOGPROBS_NONE || p->stream)
        return true;
    for (uint32_t i = 0; i < c->n_specs; i++)
        tokens += (uint64_t)p->n * (c->specs[i]->max_output + (p->echo ? c->specs[i]->n_prompt : 0));
    if (tokens * (1 + p->n_top) <= REPLY_PROBS_MAX)
        return true;
    call_error(c, 400, "logprobs", "too_many_logprobs",
               "%" PRIu64 " tokens with %" PRIu32
               " probabilities each are too many for one answer, which has at most "
               "%d: stream it, or ask for fewer tokens",
               tokens, 1 + p->n_top, REPLY_PROBS_MAX);
    return false;
}

// Prompts and parameters were taken out of it; what waits for a slot need not hold it.
static void release_body(struct call *c)
{
    struct params *p = &c->params;
    json_decref(c->body);
    http_release_body(c->request);
    c->body = NULL;
    p->body = p->messages = p->tools = p->template_kwargs = p->prompt = NULL;
    p->tool_name = NULL;
    p->model = (struct strv){0};
}

bool call_admit(struct call *c)
{
    struct iso_errinfo e;
    uint32_t n = c->n_specs * c->params.n;
    if (!has_room(c, n) || !has_room_for_probs(c))
        return false;
    release_body(c);
    c->choices = calloc(n, sizeof *c->choices);
    if (!c->choices) {
        call_error(c, 503, NULL, "out_of_memory", "the system refused memory for the answers");
        return false;
    }
    for (uint32_t i = 0; i < n; i++) {
        c->n_choices = i + 1;
        if (choice_init(c, i, &e)) {
            call_fail(c, &e);
            return false;
        }
    }
    for (uint32_t i = 0; i < n; i++)
        if (choice_begin(&c->choices[i]))
            return true; // the last one ended already, and the call with it
    return true;
}
