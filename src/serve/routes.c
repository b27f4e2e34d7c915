#include "serve/routes.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/num.h"
#include "formats/json_file.h"
#include "serve/api.h"

enum {
    PREFIX = 1, // the path goes on
    KEY = 2,    // where there are keys
    BODY = 4,   // is JSON
    PROBE = 8,  // asked all the time by machines: no line in the log where all is well
};

struct route {
    const char *method, *path;
    unsigned flags;
    void (*handle)(struct call *c);
};

static const struct route ROUTES[] = {
    {"POST", "/v1/chat/completions", KEY | BODY, api_chat},
    {"POST", "/v1/completions", KEY | BODY, api_completions},
    {"POST", "/v1/batch_completions", KEY | BODY, api_batch},
    {"POST", "/v1/embeddings", KEY | BODY, api_embeddings},
    {"POST", "/tokenize", KEY | BODY, api_tokenize},
    {"POST", "/detokenize", KEY | BODY, api_detokenize},
    {"GET", "/v1/models", KEY, api_models},
    {"GET", "/v1/models/", PREFIX | KEY, api_model},
    {"GET", "/v1/units", KEY, api_units},
    {"GET", "/metrics", PROBE, api_metrics},
    {"GET", "/health", PROBE, api_ready},
    {"GET", "/readyz", PROBE, api_ready},
    {"GET", "/healthz", PROBE, api_alive},
    {"POST", "/admin/drain", KEY | BODY, api_drain},
    {"POST", "/admin/reload", KEY | BODY, api_reload},
};

static bool is_path(const struct route *r, const char *path)
{
    return r->flags & PREFIX ? strv_starts(strv_from(path), r->path) : strcmp(r->path, path) == 0;
}

// HEAD is GET whose body nobody reads.
static bool is_method(const struct route *r, const char *method)
{
    return strcmp(r->method, method) == 0 || (strcmp(r->method, "GET") == 0 && strcmp(method, "HEAD") == 0);
}

static struct strv bearer(struct http_request *r)
{
    const char *authorization = http_header(r, "Authorization"), *key = http_header(r, "X-Api-Key");
    if (authorization && strncasecmp(authorization, "Bearer ", 7) == 0)
        return strv_from(authorization + 7);
    return key ? strv_from(key) : (struct strv){0};
}

// The request's key; KEYS_NONE: it has none that is known.
static uint32_t key_of(struct server *s, struct http_request *r)
{
    struct strv given = bearer(r);
    return given.ptr ? keys_find(s->keys, given) : KEYS_NONE;
}

static void refuse_unknown(struct call *c)
{
    http_add_header(c->request, "WWW-Authenticate", "Bearer");
    call_refuse(c, REFUSED_AUTH, 401, "invalid_api_key",
                bearer(c->request).ptr ? "this key is not known here"
                                       : "a key is needed: Authorization: Bearer KEY");
}

static bool authorize(struct call *c)
{
    struct server *s = c->server;
    uint64_t retry_ms = 0;
    if (!s->keys)
        return true;
    uint32_t key = key_of(s, c->request);
    if (key == KEYS_NONE) { // it was known when the head came
        refuse_unknown(c);
        return false;
    }
    enum keys_verdict verdict = keys_begin(s->keys, key, c->arrived_ns, &retry_ms);
    if (verdict == KEYS_ADMITTED) {
        c->key = key;
        return true;
    }
    c->refused_key = key;
    if (verdict == KEYS_TOO_OFTEN)
        c->retry_after_s = (uint32_t)num_min((retry_ms + 999) / 1000, UINT32_MAX);
    call_refuse(c, REFUSED_RATE, 429, "rate_limit_exceeded",
                verdict == KEYS_TOO_OFTEN ? "this key's rate is used up"
                                          : "this key has as many requests at once as it may");
    return false;
}

// The body as JSON; none counts as {} where none is needed. False: refused and answered.
static bool read_body(struct call *c)
{
    struct iso_errinfo e;
    struct strv body = http_body(c->request);
    if (body.len == 0)
        body = STRV_LIT("{}");
    if (!json_parse_within(body, PARAMS_VALUES_MAX, &c->body, &e))
        return true;
    c->server->models[0].metrics.refused[REFUSED_INVALID]++;
    call_error(c, 400, NULL, "invalid_json", "the body is no JSON object that this server takes: %s", e.text);
    return false;
}

static void no_route(struct call *c, const struct route *other)
{
    if (!other) {
        call_error(c, 404, NULL, "not_found",
                   "there is no %.200s here; GET /v1/models and POST /v1/chat/completions are, among others",
                   http_path(c->request));
        return;
    }
    http_add_header(c->request, "Allow", strcmp(other->method, "GET") == 0 ? "GET, HEAD" : other->method);
    call_error(c, 405, NULL, "method_not_allowed", "%s is asked with %s", other->path, other->method);
}

// NULL: there is none; `other` is then one of the same path with another method, or NULL.
static const struct route *route_of(const struct http_request *r, const struct route **other)
{
    *other = NULL;
    for (size_t i = 0; i < ARRAY_LEN(ROUTES); i++) {
        if (!is_path(&ROUTES[i], http_path(r)))
            continue;
        if (is_method(&ROUTES[i], http_method(r)))
            return &ROUTES[i];
        *other = &ROUTES[i];
    }
    return NULL;
}

bool routes_head(void *context, struct http_request *r)
{
    struct server *s = context;
    const struct route *other, *route = route_of(r, &other);
    if (!route || !(route->flags & KEY) || !s->keys || key_of(s, r) != KEYS_NONE)
        return true;
    http_add_header(r, "Connection", "close"); // its body is not waited for
    struct call *c = call_open(s, r, route->path);
    if (c)
        refuse_unknown(c);
    return false;
}

void routes_request(void *context, struct http_request *r)
{
    struct server *s = context;
    const struct route *other, *route = route_of(r, &other);
    struct call *c = call_open(s, r, route ? route->path : "");
    if (!c)
        return;
    c->is_probe = route && (route->flags & PROBE);
    if (!route)
        no_route(c, other);
    else if ((!(route->flags & KEY) || authorize(c)) && (!(route->flags & BODY) || read_body(c)))
        route->handle(c);
}

void routes_refused(void *context, struct http_request *r, unsigned status, const char *why)
{
    struct server *s = context;
    char id[SERVER_REQUEST_ID_MAX + 1], client[HTTP_CLIENT_MAX];
    const struct call *c = http_data(r);
    http_client(r, client);
    if (c) // an answer of ours, for which there is no room
        snprintf(id, sizeof id, "%s", c->request_id);
    else
        call_request_id(s, r, id);
    log_write(&s->log, status >= 500 ? LOG_ERROR : LOG_INFO, "request", LOG_S("request_id", id),
              LOG_S("endpoint", http_path(r)), LOG_S("client", client), LOG_U("status", status),
              LOG_S("error", why));
}

void routes_gone(void *context, struct http_request *r)
{
    (void)context;
    call_gone(http_data(r));
}

void routes_caught_up(void *context, struct http_request *r)
{
    (void)context;
    call_go_on(http_data(r));
}
