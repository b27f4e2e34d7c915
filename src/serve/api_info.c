// Endpoints that say what the server is and how it is: models, units, metrics, health.
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>

#include "base/num.h"
#include "kernels/kernels.h"
#include "formats/json_file.h"
#include "serve/api.h"

static json_t *model_json(const struct served *m)
{
    const struct engine *e = m->engine;
    json_t *model = json_pack("{s:s, s:s, s:I, s:s}", "id", m->name, "object", "model", "created",
                              (json_int_t)m->server->started_s, "owned_by", "isochron");
    if (!e)
        return model;
    const struct plan_header *h = &e->language.header;
    model = json_having(model, "max_model_len", json_integer(h->limits.max_seq_len));
    model = json_having(model, "isochron",
                        json_pack("{s:s, s:s, s:s, s:I, s:I, s:b, s:b}", "plan", e->language.hash,
                                  "architecture", h->model.arch, "name", h->model.name, "vocab",
                                  (json_int_t)h->model.vocab, "slots", (json_int_t)h->limits.slots, "chat",
                                  e->language.template != NULL, "thinks", (int)e->language.thinks));
    return model;
}

void api_models(struct call *c)
{
    struct server *s = c->server;
    json_t *list = json_array();
    for (uint32_t i = 0; i < s->n_models; i++)
        list = json_with(list, model_json(&s->models[i]));
    call_json(c, 200, json_pack("{s:s, s:o}", "object", "list", "data", list));
}

void api_model(struct call *c)
{
    struct strv name = strv_from(http_path(c->request) + strlen("/v1/models/"));
    struct served *m = server_model_named(c->server, name);
    if (m)
        call_json(c, 200, model_json(m));
    else
        call_error(c, 404, "model", "model_not_found",
                   "there is no model \"%.*s\"; /v1/models lists those that are", STRV_ARG(name));
}

// ---- Units ----

static const char *state_name(const struct engine *e)
{
    static const char *const NAMES[] = {[ENGINE_LOADING] = "loading",
                                        [ENGINE_READY] = "ready",
                                        [ENGINE_DOWN] = "down",
                                        [ENGINE_FAILED] = "failed",
                                        [ENGINE_GONE] = "gone"};
    return NAMES[e->state];
}

static json_t *memory_json(const struct account *a)
{
    return json_pack("{s:I, s:I, s:I, s:I, s:I}", "weights", (json_int_t)a->weights, "activations",
                     (json_int_t)a->activations, "kv_cache", (json_int_t)a->kv, "runtime",
                     (json_int_t)a->runtime, "total", (json_int_t)account_total(a));
}

static json_t *unit_json(const struct served *m, const struct engine *e)
{
    const struct plan_limits *l = &e->language.header.limits;
    const struct channel_config *config = &e->config.channel;
    json_t *cpus = json_array();
    for (uint32_t i = 0; i < config->n_cpus; i++)
        cpus = json_with(cpus, json_integer(config->cpus[i]));
    json_t *unit = json_pack("{s:s, s:s, s:s, s:I, s:I, s:o, s:I, s:I, s:I, s:I, s:I, s:o}", "model", m->name,
                             "plan", e->language.hash, "state", state_name(e), "pid",
                             (json_int_t)e->remote.pid, "threads", (json_int_t)config->threads, "cpus", cpus,
                             "slots", (json_int_t)l->slots, "running", (json_int_t)e->n_running, "waiting",
                             (json_int_t)engine_n_waiting(e), "max_seq_len", (json_int_t)l->max_seq_len,
                             "restarts", (json_int_t)e->restarts, "memory", memory_json(&e->account));
    if (e->remote_open && e->state == ENGINE_READY) {
        struct channel_shared *shared = e->remote.channel.shared;
        uint32_t isa = shared->isa;
        unit = json_having(unit, "isa", isa < ISA_COUNT ? json_string(isa_name((enum isa)isa)) : json_null());
        unit = json_having(unit, "locked", json_boolean(shared->locked));
        unit = json_having(unit, "steps", json_integer((json_int_t)atomic_load(&shared->steps)));
        unit = json_having(unit, "kv_cache_usage",
                           json_real((double)e->kv_blocks_used / (double)e->account.kv_blocks));
    }
    if (e->failure.code)
        unit = json_having(unit, "last_failure", json_string(e->failure.text));
    return unit;
}

void api_units(struct call *c)
{
    struct server *s = c->server;
    json_t *list = json_array();
    for (uint32_t i = 0; i < s->n_models; i++) {
        const struct served *m = &s->models[i];
        if (m->engine)
            list = json_with(list, unit_json(m, m->engine));
        if (m->next)
            list = json_with(list, unit_json(m, m->next));
    }
    call_json(c, 200,
              json_pack("{s:o, s:b, s:I}", "units", list, "draining", (int)s->draining, "ending_units",
                        (json_int_t)s->n_old));
}

// ---- Metrics ----

static struct metrics_gauges gauges_of(const struct served *m)
{
    const struct engine *e = m->engine;
    struct metrics_gauges g = {
        .model = m->name, .plan = "", .kv_type = "", .kv_block_tokens = KV_BLOCK_TOKENS};
    if (!e)
        return g;
    const struct plan_limits *l = &e->language.header.limits;
    g.plan = e->language.hash;
    g.waiting = engine_n_waiting(e);
    g.running = e->n_running;
    g.slots = l->slots;
    g.ready = e->state == ENGINE_READY && !m->server->draining;
    g.kv_usage = (double)e->kv_blocks_used / (double)e->account.kv_blocks;
    g.kv_blocks = e->account.kv_blocks;
    g.kv_type = l->kv_type == KV_Q8 ? "q8" : "f16";
    g.memory_weights = e->account.weights;
    g.memory_activations = e->account.activations;
    g.memory_kv = e->account.kv;
    g.memory_runtime = e->account.runtime;
    g.max_seq_len = l->max_seq_len;
    return g;
}

// Whether the file on disk is another than the one that was read.
static bool config_is_stale(const struct server *s)
{
    struct stat st;
    return s->config.file[0] && (stat(s->config.file, &st) || st.st_mtim.tv_sec != s->config_time.tv_sec ||
                                 st.st_mtim.tv_nsec != s->config_time.tv_nsec);
}

void api_metrics(struct call *c)
{
    struct server *s = c->server;
    const struct metrics *metrics[CONFIG_MODELS_MAX];
    struct metrics_gauges gauges[CONFIG_MODELS_MAX];
    for (uint32_t i = 0; i < s->n_models; i++) {
        metrics[i] = &s->models[i].metrics;
        gauges[i] = gauges_of(&s->models[i]);
    }
    const struct metrics_server server = {.connections = http_connections(s->http),
                                          .draining = s->draining,
                                          .log_lines_lost = s->log.lost,
                                          .start_time_s = s->started_s,
                                          .config_stale = config_is_stale(s)};
    if (metrics_text(&c->out, metrics, gauges, s->n_models, &server))
        call_error(c, 503, NULL, "out_of_memory", "the system refused memory for the metrics");
    else
        call_text(c, 200, "text/plain; version=0.0.4; charset=utf-8", buf_strv(&c->out));
}

// ---- Health ----

void api_alive(struct call *c)
{
    call_json(c, 200, json_pack("{s:s}", "status", "alive"));
}

static const char *readiness(const struct served *m)
{
    const struct engine *e = m->engine;
    if (e && e->state == ENGINE_READY)
        return "ok";
    return e && e->state == ENGINE_LOADING && e->restarts == 0 ? "loading" : "no live unit";
}

// Of the models, or with ?model=NAME of one: whether any takes requests.
void api_ready(struct call *c)
{
    struct server *s = c->server;
    const char *name = http_query(c->request, "model"), *status = NULL;
    json_t *models = json_object();
    for (uint32_t i = 0; i < s->n_models; i++) {
        const struct served *m = &s->models[i];
        if (name && strcmp(name, m->name) != 0)
            continue;
        if (!status || strcmp(status, "ok") != 0)
            status = readiness(m);
        models = json_having(models, m->name, json_string(readiness(m)));
    }
    status = !status ? "no such model" : s->draining ? "draining" : status;
    bool good = strcmp(status, "ok") == 0;
    c->cause = good ? NULL : status;
    if (!good)
        http_add_header(c->request, "Retry-After", "1");
    call_json(c, good ? 200 : 503, json_pack("{s:s, s:o}", "status", status, "models", models));
}
