// One choice of a call: from its job's events to the client. Internal to serve/.
#pragma once

#include "serve/call.h"

// In c->choices[index], which is zeroed; call_close releases it.
enum iso_err choice_init(struct call *c, uint32_t index, struct iso_errinfo *reterr) ISO_MUST_USE;
// Submits it, or ends it where there is nothing to compute. True: the call ended, and is gone.
bool choice_begin(struct choice *k);
void choice_deinit(struct choice *k);
// Where it was paused as the client lagged.
void choice_go_on(struct choice *k);
// "stop", "length" or "tool_calls".
const char *choice_finish(const struct choice *k);
// Ends it before its time: counts it, and audits what there is of it. Nothing where it has ended.
void choice_abandon(struct choice *k, enum metrics_finish finish);

// Of call.c:
// An event of the stream; takes the JSON. Where the client reads too slowly c->request becomes NULL: the caller then lets the call go.
void call_send(struct call *c, json_t *chunk);
void call_begin_stream(struct call *c);
void call_log(struct call *c, unsigned status, const char *error);

// Of complete.c: the whole answer, or the stream's last events. Closes the call.
void complete_call(struct call *c);
// The next chunk of a choice's stream; `finish` NULL: it goes on.
json_t *complete_chunk(const struct choice *k, const char *finish, bool first);
