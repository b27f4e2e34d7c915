#include "serve/routes.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/num.h"
#include "formats/json_file.h"
#include "serve/api.h"

struct route {
    const char *method, *path;
    bool is_prefix, needs_key, has_body;
    void (*handle)(struct call *c);
};

static const struct route ROUTES[] = {
    {"POST", "/v1/chat/completions", false, true, true, api_chat},
    {"POST", "/v1/completions", false, true, true, api_completions},
    {"POST", "/v1/batch_completions", false, true, true, api_batch},
    {"POST", "/v1/embeddings", false, true, true, api_embeddings},
    {"POST", "/tokenize", false, true, true, api_tokenize},
    {"POST", "/detokenize", false, true, true, api_detokenize},
    {"GET", "/v1/models", false, true, false, api_models},
    {"GET", "/v1/models/", true, true, false, api_model},
    {"GET", "/v1/units", false, true, false, api_units},
    {"GET", "/metrics", false, false, false, api_metrics},
    {"GET", "/health", false, false, false, api_ready},
    {"GET", "/readyz", false, false, false, api_ready},
    {"GET", "/healthz", false, false, false, api_alive},
    {"POST", "/admin/drain", false, true, true, api_drain},
    {"POST", "/admin/reload", false, true, true, api_reload},
};

static bool is_path(const struct route *r, const char *path)
{
    return r->is_prefix ? strv_starts(strv_from(path), r->path) : strcmp(r->path, path) == 0;
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

static bool authorize(struct call *c)
{
    struct server *s = c->server;
    uint64_t retry_ms = 0;
    char text[32];
    if (!s->keys)
        return true;
    struct strv given = bearer(c->request);
    uint32_t key = given.ptr ? keys_find(s->keys, given) : KEYS_NONE;
    if (key == KEYS_NONE) {
        http_add_header(c->request, "WWW-Authenticate", "Bearer");
        call_refuse(c, REFUSED_AUTH, 401, "invalid_api_key",
                    given.ptr ? "this key is not known here" : "a key is needed: Authorization: Bearer KEY");
        return false;
    }
    enum keys_verdict verdict = keys_begin(s->keys, key, c->arrived_ns, &retry_ms);
    if (verdict == KEYS_ADMITTED) {
        c->key = key;
        return true;
    }
    c->refused_key = key;
    if (verdict == KEYS_TOO_OFTEN) {
        snprintf(text, sizeof text, "%" PRIu64, (retry_ms + 999) / 1000);
        c->retry_after_s = (uint32_t)num_min((retry_ms + 999) / 1000, UINT32_MAX);
    }
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

void routes_request(void *context, struct http_request *r)
{
    struct server *s = context;
    const struct route *route = NULL, *other = NULL;
    const char *path = http_path(r);
    for (size_t i = 0; i < ARRAY_LEN(ROUTES) && !route; i++) {
        if (!is_path(&ROUTES[i], path))
            continue;
        if (is_method(&ROUTES[i], http_method(r)))
            route = &ROUTES[i];
        else
            other = &ROUTES[i];
    }
    struct call *c = call_open(s, r, route ? route->path : "");
    if (!c)
        return;
    if (!route)
        no_route(c, other);
    else if ((!route->needs_key || authorize(c)) && (!route->has_body || read_body(c)))
        route->handle(c);
}

void routes_refused(void *context, struct http_request *r, unsigned status, const char *why)
{
    struct server *s = context;
    char id[SERVER_REQUEST_ID_MAX + 1], client[HTTP_CLIENT_MAX];
    http_client(r, client);
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
