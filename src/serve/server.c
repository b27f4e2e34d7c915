#include "serve/server.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/num.h"
#include "base/text_file.h"
#include "formats/json_file.h"
#include "serve/api.h"
#include "serve/error_body.h"

#define UNREAD_BYTES_MAX   ((uint64_t)1 << 20) // of a stream that the client doesn't take
#define BODIES_EACH        8 // of all requests together: so many times the longest body, at least
#define BODIES_BYTES_LEAST ((uint64_t)64 << 20)
#define FILES_BESIDE       64 // descriptors that are no connection
#define PEM_BYTES_MAX      ((size_t)1 << 20)

// ---- Routes ----

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
        call_error(c, 404, NULL, "not_found", "there is no %.200s here", http_path(c->request));
        return;
    }
    http_add_header(c->request, "Allow", strcmp(other->method, "GET") == 0 ? "GET, HEAD" : other->method);
    call_error(c, 405, NULL, "method_not_allowed", "%s is asked with %s", other->path, other->method);
}

static void on_request(void *context, struct http_request *r)
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

static void on_refused(void *context, struct http_request *r, unsigned status, const char *why)
{
    struct server *s = context;
    const char *id = http_header(r, "X-Request-Id");
    if (id && call_is_request_id(id))
        http_add_header(r, "X-Request-Id", id);
    else
        id = "";
    log_write(&s->log, status >= 500 ? LOG_ERROR : LOG_INFO, "request", LOG_S("request_id", id),
              LOG_S("endpoint", http_path(r)), LOG_U("status", status), LOG_S("error", why));
}

static void on_gone(void *context, struct http_request *r)
{
    (void)context;
    call_gone(http_data(r));
}

// ---- Models ----

struct served *server_model(struct server *s, struct strv name)
{
    for (uint32_t i = 0; i < s->n_models; i++)
        if (name.ptr && strv_is(name, s->models[i].name))
            return &s->models[i];
    bool any = s->config.any_model || (!name.ptr && s->n_models == 1);
    return any ? &s->models[0] : NULL;
}

bool server_is_ready(const struct server *s)
{
    for (uint32_t i = 0; i < s->n_models; i++)
        if (!s->models[i].engine || s->models[i].engine->state != ENGINE_READY)
            return false;
    return !s->draining;
}

static void on_step(void *context, struct engine *e, uint64_t ns, uint32_t tokens)
{
    struct served *m = context;
    (void)e;
    metrics_step(&m->metrics, ns, tokens);
    log_write(&m->server->log, LOG_DEBUG, "step", LOG_S("model", m->name), LOG_U("tokens", tokens),
              LOG_F("ms", (double)ns * 1e-6));
}

static void end_loop(struct server *s)
{
    (void)sd_event_exit(s->loop, 0);
}

// Closed by the loop, as the engine that says it is gone is still in use.
static int on_close_engine(sd_event_source *source, void *context)
{
    (void)source;
    engine_close(context);
    return 0;
}

static void close_later(struct server *s, struct engine *e)
{
    sd_event_source *source;
    int r = sd_event_add_defer(s->loop, &source, on_close_engine, e);
    ASSERT(r >= 0);
    (void)sd_event_source_set_floating(source, 1);
    sd_event_source_unref(source);
}

static void log_engine(struct served *m, const struct engine *e, enum log_level level, const char *event)
{
    log_write(&m->server->log, level, event, LOG_S("model", m->name), LOG_S("plan", e->language.hash),
              LOG_U("pid", (uint64_t)e->pid), LOG_S("error", e->failure.code ? e->failure.text : ""));
}

static void reload_ended(struct served *m, unsigned status, const char *error)
{
    struct call *c = m->reload;
    m->reload = NULL;
    if (!c)
        return;
    if (error)
        call_error(c, status, NULL, "reload_failed", "%s", error);
    else
        call_json(c, 200, json_pack("{s:s, s:s}", "model", m->name, "plan", m->engine->language.hash));
}

static void take_next(struct served *m)
{
    struct engine *old = m->engine;
    m->engine = m->next;
    m->next = NULL;
    m->metrics.reloads++;
    log_engine(m, m->engine, LOG_INFO, "reloaded");
    m->server->n_old++;
    engine_end_when_idle(old);
    reload_ended(m, 200, NULL);
}

static void next_failed(struct served *m)
{
    struct engine *failed = m->next;
    m->next = NULL;
    log_engine(m, failed, LOG_ERROR, "reload_failed");
    reload_ended(m, (unsigned)iso_err_http_status(failed->failure.code), failed->failure.text);
    close_later(m->server, failed);
}

static void log_ready(struct served *m)
{
    const struct engine *e = m->engine;
    const struct plan_limits *l = &e->language.header.limits;
    log_engine(m, e, LOG_INFO, "ready");
    if (!e->remote.channel.shared->locked)
        log_write(
            &m->server->log, LOG_WARN, "memory_not_locked",
            LOG_S("detail",
                  "pool and weights could not be locked in memory (see ulimit -l); they may be swapped"));
    log_write(&m->server->log, LOG_INFO, "memory", LOG_S("model", m->name),
              LOG_U("weights", e->account.weights), LOG_U("activations", e->account.activations),
              LOG_U("kv_cache", e->account.kv), LOG_U("runtime", e->account.runtime),
              LOG_U("slots", l->slots), LOG_U("max_seq_len", l->max_seq_len));
}

static void on_state(void *context, struct engine *e)
{
    struct served *m = context;
    struct server *s = m->server;
    bool current = e == m->engine, next = e == m->next;
    if (e->state == ENGINE_READY && next) {
        take_next(m);
    } else if (e->state == ENGINE_READY && current) {
        log_ready(m);
    } else if (next) {
        if (e->state != ENGINE_LOADING)
            next_failed(m);
    } else if (e->state == ENGINE_GONE || (!current && e->state == ENGINE_FAILED)) {
        s->n_old -= !current;
        if (current)
            m->engine = NULL;
        close_later(s, e);
        server_set_draining(s, s->draining); // that may have been the last
    } else if (e->state == ENGINE_FAILED) {
        log_engine(m, e, LOG_ERROR, "unit_failed");
        s->failure = e->failure;
        end_loop(s);
    } else if (e->state == ENGINE_DOWN) {
        m->metrics.unit_restarts++;
        log_engine(m, e, LOG_ERROR, "unit_died");
    }
}

static enum iso_err open_engine(struct served *m, uint64_t available, struct engine **ret,
                                struct iso_errinfo *reterr)
{
    const struct engine_config config = {.loop = m->server->loop,
                                         .argv = m->server->unit_argv,
                                         .channel = m->channel,
                                         .on_state = on_state,
                                         .on_step = on_step,
                                         .context = m};
    enum iso_err err = engine_open(m->plan_path, &config, available, ret, reterr);
    return err ? iso_fail_prefix(reterr, m->plan_path) : ISO_OK;
}

static uint64_t memory_available(void)
{
    FILE *f = fopen("/proc/meminfo", "re");
    char line[128];
    uint64_t kib = 0;
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "MemAvailable: %" SCNu64 " kB", &kib) == 1)
            break;
    if (f)
        fclose(f);
    return kib * 1024;
}

enum iso_err server_reload(struct served *m, struct call *c, struct iso_errinfo *reterr)
{
    if (m->is_compiled)
        return iso_fail(reterr, ISO_E_USAGE, 0, "model",
                        "%s was given as a model file, which is compiled at start; compile it to a plan and "
                        "serve that, and the "
                        "plan can be reloaded",
                        m->name);
    if (m->next)
        return iso_fail(reterr, ISO_E_BUSY, 0, NULL, "%s is being reloaded already", m->name);
    if (m->server->ending)
        return iso_fail(reterr, ISO_E_BUSY, 0, NULL, "the server is ending");
    enum iso_err err = open_engine(m, memory_available(), &m->next, reterr);
    if (!err)
        m->reload = c;
    return err;
}

// ---- Draining ----

void server_set_draining(struct server *s, bool draining)
{
    s->draining = draining || s->ending;
    if (!s->ending || s->n_calls > 0)
        return;
    bool any = s->n_old > 0;
    for (uint32_t i = 0; i < s->n_models; i++) {
        struct served *m = &s->models[i];
        if (m->next)
            close_later(s, m->next);
        m->next = NULL;
        any = any || m->engine;
        if (m->engine && !m->engine->ending)
            engine_end_when_idle(m->engine);
    }
    if (!any)
        end_loop(s);
}

// ---- Signals ----

static enum iso_err renew_certificate(struct server *s, struct iso_errinfo *reterr);

// Whether it was read; an error is logged.
static bool was_read(struct server *s, const char *what, enum iso_err err, const struct iso_errinfo *e)
{
    if (err)
        log_write(&s->log, LOG_ERROR, "not_read_again", LOG_S("what", what), LOG_S("error", e->text));
    return !err;
}

static enum iso_err renew_log_level(struct server *s, struct iso_errinfo *reterr)
{
    struct serve_config fresh;
    enum log_level level;
    config_defaults(&fresh);
    enum iso_err err = config_read(&fresh, s->config.file, reterr);
    if (!err && s->config.lines[SETTING_LOG_LEVEL] != CONFIG_LINE_FLAG &&
        log_level_from_name(fresh.log_level, &level))
        s->log.level = level;
    return err;
}

// One that fails leaves its own as it was, and the others go on.
static void reread_files(struct server *s)
{
    struct iso_errinfo e;
    bool good = true;
    if (s->config.file[0])
        good &= was_read(s, "log level", renew_log_level(s, &e), &e);
    if (s->keys)
        good &= was_read(s, "keys", keys_reload(s->keys, s->config.keys_file, &e), &e);
    if (s->config.certificate_file[0])
        good &= was_read(s, "certificate", renew_certificate(s, &e), &e);
    if (s->config.audit_file[0])
        good &= was_read(s, "audit", audit_reopen(&s->audit, &e), &e);
    if (good)
        log_write(&s->log, LOG_INFO, "files_read_again");
}

static int on_signal(sd_event_source *source, const struct signalfd_siginfo *info, void *context)
{
    (void)source;
    struct server *s = context;
    if (info->ssi_signo == SIGHUP) {
        reread_files(s);
        return 0;
    }
    log_write(&s->log, LOG_INFO, "draining", LOG_U("signal", info->ssi_signo),
              LOG_U("unanswered", s->n_calls));
    if (s->ending) { // told twice: at once
        end_loop(s);
        return 0;
    }
    s->ending = true;
    http_stop_accepting(s->http);
    server_set_draining(s, true);
    return 0;
}

// Looks whether a server that is ending has answered everything.
static int on_prepare(sd_event_source *source, void *context)
{
    (void)source;
    struct server *s = context;
    if (s->ending)
        server_set_draining(s, true);
    return 0;
}
// ---- Beginning and end ----

static enum iso_err read_pem(const char *path, struct buf *out, struct iso_errinfo *reterr)
{
    enum iso_err err = text_file_read(path, PEM_BYTES_MAX, out, reterr);
    if (!err && buf_append_byte(out, 0))
        err = iso_fail(reterr, ISO_E_LIMIT, 0, "tls", "it is longer than %zu bytes", PEM_BYTES_MAX);
    return err ? iso_fail_prefix(reterr, path) : ISO_OK;
}

// Both PEM texts; released by the caller in any case.
static enum iso_err read_certificate(const struct serve_config *c, struct buf *certificate, struct buf *key,
                                     struct iso_errinfo *reterr)
{
    buf_init(certificate, 0);
    buf_init(key, 0);
    if (!c->certificate_file[0])
        return ISO_OK;
    enum iso_err err = read_pem(c->certificate_file, certificate, reterr);
    return err ? err : read_pem(c->key_file, key, reterr);
}

static enum iso_err renew_certificate(struct server *s, struct iso_errinfo *reterr)
{
    struct buf certificate, key;
    if (!s->config.certificate_file[0])
        return ISO_OK;
    enum iso_err err = read_certificate(&s->config, &certificate, &key, reterr);
    if (!err)
        err = http_set_certificate(s->http, (char *)certificate.ptr, (char *)key.ptr, reterr);
    buf_deinit(&certificate);
    buf_deinit(&key);
    return err;
}

static enum iso_err open_http(struct server *s, struct iso_errinfo *reterr)
{
    const struct serve_config *c = &s->config;
    struct buf certificate, key;
    enum iso_err err = read_certificate(c, &certificate, &key, reterr);
    const struct http_config http = {.address = c->address,
                                     .port = c->port,
                                     .connections_max = c->connections,
                                     .body_bytes_max = c->body_bytes,
                                     .bodies_bytes_max =
                                         num_max(BODIES_EACH * c->body_bytes, BODIES_BYTES_LEAST),
                                     .unread_bytes_max = UNREAD_BYTES_MAX,
                                     .head_ms = c->head_ms,
                                     .body_ms = c->body_ms,
                                     .idle_ms = c->idle_ms,
                                     .stall_ms = c->stall_ms,
                                     .certificate = (char *)certificate.ptr,
                                     .key = (char *)key.ptr,
                                     .on_request = on_request,
                                     .on_gone = on_gone,
                                     .on_refused = on_refused,
                                     .context = s};
    if (!err)
        err = http_open(s->loop, &http, &s->http, reterr);
    buf_deinit(&certificate);
    buf_deinit(&key);
    if (!err)
        log_write(&s->log, LOG_INFO, "listening", LOG_S("address", c->address),
                  LOG_U("port", http_port(s->http)), LOG_S("tls", c->certificate_file[0] ? "yes" : "no"),
                  LOG_U("keys", s->keys ? keys_count(s->keys) : 0));
    return err;
}

// A descriptor for each connection, some for the rest; as many as the system lets us have.
static void raise_file_limit(struct server *s)
{
    struct rlimit limit;
    uint64_t needed = (uint64_t)s->config.connections + HTTP_REFUSALS + FILES_BESIDE;
    if (getrlimit(RLIMIT_NOFILE, &limit) || limit.rlim_cur >= needed)
        return;
    limit.rlim_cur = (rlim_t)num_min(needed, limit.rlim_max);
    if (setrlimit(RLIMIT_NOFILE, &limit) || limit.rlim_cur < needed)
        log_write(&s->log, LOG_WARN, "few_descriptors", LOG_U("needed", needed),
                  LOG_U("given", limit.rlim_cur),
                  LOG_S("detail", "raise the limit of open files (ulimit -n) for so many connections"));
}

static void watch_config_file(struct server *s)
{
    struct stat st;
    if (s->config.file[0] && stat(s->config.file, &st) == 0)
        s->config_time = st.st_mtim;
}

static enum iso_err open_files(struct server *s, struct iso_errinfo *reterr)
{
    const struct serve_config *c = &s->config;
    enum iso_err err = ISO_OK;
    s->audit.fd = -1;
    watch_config_file(s);
    raise_file_limit(s);
    if (c->keys_file[0])
        err = keys_open(c->keys_file, &s->keys, reterr);
    if (!err && s->keys && keys_is_readable_by_others(s->keys))
        log_write(&s->log, LOG_WARN, "keys_readable", LOG_S("file", c->keys_file),
                  LOG_S("detail", "other users of this machine may read the keys"));
    if (!err && c->audit_file[0])
        err = audit_open(c->audit_file, c->audit_detail == AUDIT_TOKENS, &s->audit, reterr);
    return err;
}

// The units of several models share the pool and the CPUs of the one that is configured.
static enum iso_err open_models(struct server *s, const struct server_plan *plans,
                                const struct channel_config *channel, struct iso_errinfo *reterr)
{
    // What is said in the settings is taken for granted.
    uint64_t pool = channel->pool_bytes_max, available = pool ? 0 : memory_available();
    for (uint32_t i = 0; i < s->config.n_models; i++) {
        struct served *m = &s->models[i];
        m->server = s;
        m->is_compiled = plans[i].is_compiled;
        m->channel = *channel;
        m->channel.pool_bytes_max = pool;
        snprintf(m->plan_path, sizeof m->plan_path, "%s", plans[i].path);
        s->n_models = i + 1;
        enum iso_err err = open_engine(m, available, &m->engine, reterr);
        if (err)
            return err;
        uint64_t total = account_total(&m->engine->account);
        pool = pool ? num_max(pool - total, 1) : 0;
        available = available > total ? available - total : available ? 1 : 0;
        const char *name = s->config.models[i].name, *own = m->engine->language.header.model.name;
        m->name = name[0] ? name : s->config.alias[0] ? s->config.alias : own[0] ? own : "default";
        snprintf(m->name_own, sizeof m->name_own, "%s", m->name);
        m->name = m->name_own; // an engine goes with its reload
    }
    return ISO_OK;
}

static enum iso_err open_loop(struct server *s, struct iso_errinfo *reterr)
{
    static const int SIGNALS[] = {SIGTERM, SIGINT, SIGHUP};
    sigset_t blocked;
    sigemptyset(&blocked);
    for (size_t i = 0; i < ARRAY_LEN(SIGNALS); i++)
        sigaddset(&blocked, SIGNALS[i]);
    bool good = sigprocmask(SIG_BLOCK, &blocked, NULL) == 0 && sd_event_new(&s->loop) >= 0;
    for (size_t i = 0; i < ARRAY_LEN(SIGNALS) && good; i++)
        good = sd_event_add_signal(s->loop, NULL, SIGNALS[i], on_signal, s) >= 0;
    good = good && sd_event_add_post(s->loop, NULL, on_prepare, s) >= 0;
    const struct sigaction ignore = {.sa_handler = SIG_IGN};
    good = good && sigaction(SIGPIPE, &ignore, NULL) == 0;
    return good ? ISO_OK : iso_fail(reterr, ISO_E_NOMEM, 0, NULL, "the system refused an event loop");
}

static void close_all(struct server *s)
{
    http_close(s->http);
    for (uint32_t i = 0; i < s->n_models; i++) {
        engine_close(s->models[i].next);
        engine_close(s->models[i].engine);
    }
    sd_event_unref(s->loop);
    audit_close(&s->audit);
    keys_close(s->keys);
    free(s);
}

enum iso_err server_run(const struct serve_config *config, const struct server_plan *plans,
                        const struct channel_config *channel, const char *const *unit_argv,
                        struct iso_errinfo *reterr)
{
    struct server *s = calloc(1, sizeof *s);
    if (!s)
        return iso_fail(reterr, ISO_E_NOMEM, 0, NULL, "the system refused memory for the server");
    s->config = *config;
    s->unit_argv = unit_argv;
    s->started_s = (uint64_t)time(NULL);
    s->log =
        (struct log){.fd = STDERR_FILENO, .level = LOG_INFO, .json = strcmp(config->log_format, "json") == 0};
    (void)log_level_from_name(config->log_level, &s->log.level);
    if (getrandom(&s->instance, sizeof s->instance, 0) < 0)
        s->instance = s->started_s;
    enum iso_err err = open_files(s, reterr);
    if (!err)
        err = open_loop(s, reterr);
    if (!err)
        err = open_models(s, plans, channel, reterr);
    if (!err)
        err = open_http(s, reterr);
    if (!err && sd_event_loop(s->loop) < 0)
        err = iso_fail(reterr, ISO_E_IO, 0, NULL, "the event loop failed");
    if (!err && s->failure.code) {
        *reterr = s->failure;
        err = s->failure.code;
    }
    if (!err)
        log_write(&s->log, LOG_INFO, "ended");
    close_all(s);
    return err;
}
