// A request of a client, from its arrival to its answer. Internal to serve/.
//
// call_open makes it, a handler (api.h) checks it and either answers at once (call_json, call_error) or admits answers
// (call_admit) that the engine works on; each choice is one answer to one prompt. When the last one ended the call is answered and gone.
// A client that leaves takes its choices with it.
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/hist.h"
#include "serve/params.h"
#include "serve/reply.h"
#include "serve/server.h"

#define CALL_ID_MAX 64

enum call_kind { CALL_OTHER, CALL_CHAT, CALL_COMPLETION, CALL_BATCH, CALL_EMBEDDING, CALL_RELOAD };

struct choice {
    struct engine_job job;
    struct call *call;
    uint32_t index, prompt; // of the answer; of its prompt
    struct answer answer;
    bool is_open, ended; // answer is; no more comes
    bool scoring;        // the prompt's own probabilities come first
    uint32_t scored;     // of the prompt's tokens
    bool started;        // by the unit
    bool paused;         // as the client lags; its job is
    uint32_t cached;
    struct reply reply; // what the client has not been sent yet, or all of it
    float *row;         // of an embedding: f32[hidden]
    char digest[AUDIT_DIGEST_HEX];
    uint64_t started_ns, first_ns, last_ns;
};

struct call {
    struct server *server;
    struct http_request *request; // NULL: the client left
    enum call_kind kind;
    const char *endpoint; // the path
    char request_id[SERVER_REQUEST_ID_MAX + 1], id[CALL_ID_MAX];
    uint32_t key;         // KEYS_NONE: none
    uint32_t refused_key; // that is over its limits
    char client[HTTP_CLIENT_MAX];
    struct served *model;
    struct engine *engine;
    json_t *body, *kept; // kept: texts that views point into
    struct params params;
    int64_t created; // unix time
    uint64_t arrived_ns;
    uint64_t events; // of a stream, so far
    bool streaming, client_is_slow;
    bool is_probe;          // for the log: of no interest where all is well
    const char *cause;      // for the log, of a status that is no error of the request's
    uint32_t retry_after_s; // to tell with a refusal; 0: one second
    struct answer_spec *specs[PARAMS_PROMPTS_MAX];
    struct strv prompt_texts[PARAMS_PROMPTS_MAX]; // where they were texts
    uint32_t n_specs;
    struct choice *choices; // [n_choices]
    uint32_t n_choices, n_ended;
    struct hist inter_token; // ns
    struct buf out;          // workspace for what is sent
};

// The client's X-Request-Id, where it is visible ASCII and not too long, else a new one; given back by the answer.
void call_request_id(struct server *s, struct http_request *r, char out[SERVER_REQUEST_ID_MAX + 1]);
// Takes a request; ids and time are set. NULL: no memory, answered.
struct call *call_open(struct server *s, struct http_request *r, const char *endpoint);
// Releases it; choices that still run are cancelled.
void call_close(struct call *c);
// The client left.
void call_gone(struct call *c);
// The client of a stream lags no more.
void call_go_on(struct call *c);

// Answers and closes. `json` is taken; NULL is one that there was no memory for.
void call_json(struct call *c, unsigned status, json_t *json);
void call_text(struct call *c, unsigned status, const char *content_type, struct strv body);
// An error as OpenAI's API has it; param and code may be NULL. Statuses from 500 are logged with the cause. A stream that has begun gets it
// as its last event.
void call_error(struct call *c, unsigned status, const char *param, const char *code, const char *format, ...)
    __attribute__((format(printf, 5, 6)));
// The same of an error inside: its status, field and text.
void call_fail(struct call *c, const struct iso_errinfo *e);
// Counts the refusal and answers it.
void call_refuse(struct call *c, enum metrics_refusal why, unsigned status, const char *code,
                 const char *text);

// Makes n_specs * params.n choices and submits them, where the queue has room. False: refused and closed.
bool call_admit(struct call *c);
