// The endpoints. Each takes a call with its body parsed where it has one, and answers it, now or later. Internal to serve/.
#pragma once

#include "serve/call.h"

void api_chat(struct call *c);
void api_completions(struct call *c);
void api_batch(struct call *c);
void api_embeddings(struct call *c);
void api_tokenize(struct call *c);
void api_detokenize(struct call *c);

void api_models(struct call *c);
void api_model(struct call *c); // /v1/models/{id}
void api_units(struct call *c);
void api_metrics(struct call *c);
void api_alive(struct call *c); // /healthz
void api_ready(struct call *c); // /health, /readyz

void api_drain(struct call *c);
void api_reload(struct call *c);

// Of served.c: the model that is called so, and the one that a request with this name means; NULL: none.
struct served *server_model_named(struct server *s, struct strv name);
struct served *server_model(struct server *s, struct strv name);
// Loads a model's plan anew; `c` gets the answer.
enum iso_err server_reload(struct served *m, struct call *c, struct iso_errinfo *reterr) ISO_MUST_USE;
void server_set_draining(struct server *s, bool draining);
