#include "serve/served.h"

#include <stdio.h>

#include "base/assert.h"
#include "base/num.h"
#include "base/pages.h"
#include "serve/api.h"

struct served *server_model_named(struct server *s, struct strv name)
{
    for (uint32_t i = 0; i < s->n_models; i++)
        if (name.ptr && strv_is(name, s->models[i].name))
            return &s->models[i];
    return NULL;
}

struct served *server_model(struct server *s, struct strv name)
{
    struct served *m = server_model_named(s, name);
    if (m)
        return m;
    bool any = s->config.any_model || (!name.ptr && s->n_models == 1);
    return any ? &s->models[0] : NULL;
}

static void on_step(void *context, struct engine *e, uint64_t ns, uint32_t tokens)
{
    struct served *m = context;
    (void)e;
    metrics_step(&m->metrics, ns, tokens);
    log_write(&m->server->log, LOG_DEBUG, "step", LOG_S("model", m->name), LOG_U("tokens", tokens),
              LOG_F("ms", (double)ns * 1e-6));
}

void served_sweep(struct server *s, bool all)
{
    for (struct engine **at = &s->engines; *at;) {
        struct engine *e = *at;
        if (e->closing || all) {
            *at = e->next;
            engine_close(e);
        } else {
            at = &e->next;
        }
    }
}

static void log_engine(struct served *m, const struct engine *e, enum log_level level, const char *event)
{
    log_write(&m->server->log, level, event, LOG_S("model", m->name), LOG_S("plan", e->language.hash),
              LOG_U("pid", (uint64_t)e->pid),
              LOG_S("error", level == LOG_ERROR && e->failure.code ? e->failure.text : ""));
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
    failed->closing = true;
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
    if (e->closing)
        return;
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
        e->closing = true;
        server_set_draining(s, s->draining); // that may have been the last
    } else if (e->state == ENGINE_FAILED) {
        log_engine(m, e, LOG_ERROR, "unit_failed");
        s->failure = e->failure;
        (void)sd_event_exit(s->loop, 0);
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
    struct engine *e;
    if (engine_open(m->plan_path, &config, available, &e, reterr))
        return iso_fail_prefix(reterr, m->plan_path);
    e->next = m->server->engines;
    m->server->engines = e;
    *ret = e;
    return ISO_OK;
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
    enum iso_err err = open_engine(m, pages_available(), &m->next, reterr);
    if (!err)
        m->reload = c;
    return err;
}

// The units of several models share the pool and the CPUs of the one that is configured.
enum iso_err served_open(struct server *s, const struct server_plan *plans,
                         const struct channel_config *channel, struct iso_errinfo *reterr)
{
    // What is said in the settings is taken for granted.
    uint64_t pool = channel->pool_bytes_max, available = pool ? 0 : pages_available();
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
