// The HTTP/1.1 server of the front: libmicrohttpd, driven by the front's event loop, with bounds of our own around it.
//
// A request reaches on_request when its whole body is there, and is answered once: by http_respond, or as a stream by
// http_stream, http_write and http_end, then or later. on_gone tells that the client left (closed, half-closed, too slow) or
// that the server ends, while a request is unanswered or its stream goes on; the request is nobody's afterwards.
// Everything runs on the one thread of the event loop. Copies are made of what is given.
//
// Bounds: connections (more get a 503 at once, at most HTTP_REFUSALS of them at a time; further ones wait to be accepted); a
// request's head and body, in bytes and in time from their first byte, however slowly they drip; all bodies together; what is
// not yet read of a stream, in bytes and in time.
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <systemd/sd-event.h>

#include "base/err.h"
#include "base/strv.h"

#define HTTP_REFUSALS   64
#define HTTP_CLIENT_MAX 48
#define HTTP_HEAD_BYTES \
    ((size_t)32 << 10) // of a request's line and headers, with what the library keeps beside

struct http;
struct http_request;

struct http_config {
    const char *address;       // numeric, IPv4 or IPv6
    uint16_t port;             // 0: any that is free
    uint32_t connections_max;  // at once
    uint64_t body_bytes_max;   // of one request
    uint64_t bodies_bytes_max; // of all requests that are being received or answered
    // Of a stream: written but not taken by the client; twice as much may be held, and one write.
    uint64_t unread_bytes_max;
    uint64_t answers_bytes_max; // of all whole answers that are not yet taken
    // Until the head is complete, since the connection or its first byte; then until the body is.
    uint32_t head_ms, body_ms;
    uint32_t idle_ms;              // between two requests of a connection
    uint32_t stall_ms;             // that a client may take nothing of what is there for it
    const char *certificate, *key; // PEM texts for TLS; NULL: plain HTTP
    // May be NULL. The head is there, the body not yet: whoever may not ask is answered here, and need send no more. False: it was
    // answered.
    bool (*on_head)(void *context, struct http_request *r);
    void (*on_request)(void *context, struct http_request *r);
    void (*on_gone)(void *context, struct http_request *r);
    // May be NULL. The client of a stream lags no more. From within the library: nothing of serve/http.h may be called.
    void (*on_caught_up)(void *context, struct http_request *r);
    // May be NULL. A request is refused here, before on_request: over a limit. Headers may be added.
    void (*on_refused)(void *context, struct http_request *r, unsigned status, const char *why);
    void *context;
};

// ISO_E_USAGE: no such address, certificate or key; ISO_E_IO: the address can't be listened on.
enum iso_err http_open(sd_event *loop, const struct http_config *config, struct http **ret,
                       struct iso_errinfo *reterr) ISO_MUST_USE;
void http_close(struct http *h);
// Lets connections from now on have another certificate; those that are there go on with theirs. ISO_E_USAGE where it is none or the
// key another's: all stays as it was. Only of a server that was opened with one.
enum iso_err http_set_certificate(struct http *h, const char *certificate, const char *key,
                                  struct iso_errinfo *reterr) ISO_MUST_USE;
// The port listened on.
uint16_t http_port(const struct http *h);
uint32_t http_connections(const struct http *h);
// Answers that are complete, but not yet taken by their clients.
uint32_t http_unsent(const struct http *h);
// Accepts no more connections; those that are there go on.
void http_stop_accepting(struct http *h);

// The client's address, without the port, into out[HTTP_CLIENT_MAX].
void http_client(const struct http_request *r, char *out);
const char *http_method(const struct http_request *r);
const char *http_path(const struct http_request *r); // without the query, decoded
// The value of a header, NULL where there is none; valid until the request is answered.
const char *http_header(const struct http_request *r, const char *name);
const char *http_query(const struct http_request *r, const char *name); // the same of the query's parameters
struct strv http_body(const struct http_request *r);                    // a zero stands behind it
// The caller needs the body no more.
void http_release_body(struct http_request *r);
// Where the caller keeps what it knows of the request.
void http_set_data(struct http_request *r, void *data);
void *http_data(const struct http_request *r);

// For the response's head; before http_respond or http_stream. Values with control characters are left out.
void http_add_header(struct http_request *r, const char *name, const char *value);
// The whole answer. The request is nobody's afterwards. Over answers_bytes_max a 503 takes its place.
void http_respond(struct http_request *r, unsigned status, const char *content_type, struct strv body);
// Begins an answer whose length isn't known.
void http_stream(struct http_request *r, unsigned status, const char *content_type);
// False where the client reads too slowly (over unread_bytes_max) or is gone. The connection is dropped then, and on_gone is not
// called: the request is nobody's afterwards.
bool http_write(struct http_request *r, struct strv bytes) ISO_MUST_USE;
// Whether so much of a stream is not taken (an eighth of unread_bytes_max) that its writer had better pause. on_caught_up is called once
// half of that is left.
bool http_lags(const struct http_request *r);
// The end of a stream. The request is nobody's afterwards.
void http_end(struct http_request *r);
