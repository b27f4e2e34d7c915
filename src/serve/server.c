#include "serve/server.h"

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
#include "serve/api.h"
#include "serve/routes.h"
#include "serve/served.h"

#define ANSWERS_BYTES_MAX  ((uint64_t)256 << 20) // of all answers that their clients have not yet taken
#define UNREAD_BYTES_MAX   ((uint64_t)1 << 20)   // of a stream that the client doesn't take
#define BODIES_EACH        8 // of all requests together: so many times the longest body, at least
#define BODIES_BYTES_LEAST ((uint64_t)64 << 20)
#define FILES_BESIDE       64 // descriptors that are no connection
#define PEM_BYTES_MAX      ((size_t)1 << 20)

// ---- Draining ----

void server_set_draining(struct server *s, bool draining)
{
    s->draining = draining || s->ending;
    if (!s->ending || s->n_calls > 0 || http_unsent(s->http) > 0)
        return;
    bool any = s->n_old > 0;
    for (uint32_t i = 0; i < s->n_models; i++) {
        struct served *m = &s->models[i];
        if (m->next)
            m->next->closing = true;
        m->next = NULL;
        any = any || m->engine;
        if (m->engine && !m->engine->ending)
            engine_end_when_idle(m->engine);
    }
    if (!any)
        (void)sd_event_exit(s->loop, 0);
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
        (void)sd_event_exit(s->loop, 0);
        return 0;
    }
    s->ending = true;
    http_stop_accepting(s->http);
    server_set_draining(s, true);
    return 0;
}

// After each turn of the loop: closes engines, and looks whether a server that is ending has answered everything.
static int on_turn(sd_event_source *source, void *context)
{
    (void)source;
    struct server *s = context;
    if (s->ending)
        server_set_draining(s, true);
    served_sweep(s, false);
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
                                     .answers_bytes_max = ANSWERS_BYTES_MAX,
                                     .head_ms = c->head_ms,
                                     .body_ms = c->body_ms,
                                     .idle_ms = c->idle_ms,
                                     .stall_ms = c->stall_ms,
                                     .certificate = (char *)certificate.ptr,
                                     .key = (char *)key.ptr,
                                     .on_head = routes_head,
                                     .on_request = routes_request,
                                     .on_gone = routes_gone,
                                     .on_caught_up = routes_caught_up,
                                     .on_refused = routes_refused,
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
    good = good && sd_event_add_post(s->loop, NULL, on_turn, s) >= 0;
    const struct sigaction ignore = {.sa_handler = SIG_IGN};
    good = good && sigaction(SIGPIPE, &ignore, NULL) == 0;
    return good ? ISO_OK : iso_fail(reterr, ISO_E_NOMEM, 0, NULL, "the system refused an event loop");
}

static void close_all(struct server *s, bool as_told)
{
    s->closing = true;
    http_close(s->http);
    served_sweep(s, true);
    if (as_told)
        log_write(&s->log, LOG_INFO, "ended");
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
        err = served_open(s, plans, channel, reterr);
    if (!err)
        err = open_http(s, reterr);
    if (!err && sd_event_loop(s->loop) < 0)
        err = iso_fail(reterr, ISO_E_IO, 0, NULL, "the event loop failed");
    if (!err && s->failure.code) {
        *reterr = s->failure;
        err = s->failure.code;
    }
    close_all(s, !err);
    return err;
}
