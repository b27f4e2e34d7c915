#include "serve/metrics.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/num.h"
#include "base/strv.h"
#include "base/utf8.h"

#define NUMBER_BYTES_MAX 32 // of a double with 17 digits: 24
#define NS_PER_S         1e9

// ---- buckets: upper edges, inclusive, ascending

// vLLM's.
static const double TTFT_EDGES[] = {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75,
                                    1,     2.5,   5,    7.5,  10,   20,   40,   80,  160,  640, 2560};
static const double TOKEN_TIME_EDGES[] = {0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5,
                                          0.75, 1,     2.5,  5,     7.5, 10,   20,  40,  80};
static const double LATENCY_EDGES[] = {0.3, 0.5, 0.8, 1,  1.5, 2,   2.5, 5,   10,   15,  20,
                                       30,  40,  50,  60, 120, 240, 480, 960, 1920, 7680};
static const double TOKENS_EDGES[] = {1,   2,   5,   10,  20,  50,  100, 200, 500, 1e3, 2e3, 5e3,
                                      1e4, 2e4, 5e4, 1e5, 2e5, 5e5, 1e6, 2e6, 5e6, 1e7, 2e7, 5e7};
static const double STEP_EDGES[] = {0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05,
                                    0.1,    0.2,   0.5,   1,     2,    5,    10};

struct edges {
    const double *at;
    uint32_t n;
    bool tokens; // only those up to max_seq_len are shown
};
#define EDGES(array, tokens)                \
    {                                       \
        (array), ARRAY_LEN(array), (tokens) \
    }
static const struct edges TTFT = EDGES(TTFT_EDGES, false), TOKEN_TIME = EDGES(TOKEN_TIME_EDGES, false),
                          LATENCY = EDGES(LATENCY_EDGES, false), TOKENS = EDGES(TOKENS_EDGES, true),
                          STEP = EDGES(STEP_EDGES, false);
static_assert(ARRAY_LEN(TTFT_EDGES) <= METRICS_BUCKETS_MAX &&
                  ARRAY_LEN(TOKENS_EDGES) <= METRICS_BUCKETS_MAX &&
                  ARRAY_LEN(LATENCY_EDGES) <= METRICS_BUCKETS_MAX,
              "the longest");

static void observe(struct metrics_hist *h, const struct edges *e, double value)
{
    uint32_t i = 0;
    while (i < e->n && value > e->at[i])
        i++;
    h->buckets[i < e->n ? i : METRICS_BUCKETS_MAX]++;
    h->count++;
    h->sum += value;
}

static void observe_ns(struct metrics_hist *h, const struct edges *e, uint64_t ns)
{
    observe(h, e, (double)ns / NS_PER_S);
}

static void record_exact(struct hist *h, uint64_t ns)
{
    if (h->count >= METRICS_EXACT_MAX)
        hist_reset(h);
    hist_record(h, ns);
}

void metrics_answer(struct metrics *m, const struct metrics_answer *a)
{
    ASSERT(a->finish < METRICS_FINISH_COUNT);
    m->finished[a->finish]++;
    m->prompt_tokens_total += a->prompt_tokens;
    m->generation_tokens_total += a->output_tokens;
    m->prefix_cache_queries += a->prompt_tokens;
    m->prefix_cache_hits += num_min(a->cached_tokens, a->prompt_tokens);
    observe(&m->prompt_tokens, &TOKENS, a->prompt_tokens);
    observe(&m->generation_tokens, &TOKENS, a->output_tokens);
    observe_ns(&m->queue_time, &LATENCY, a->queue_ns);
    observe_ns(&m->e2e, &LATENCY, a->e2e_ns);
    if (a->output_tokens == 0)
        return;
    observe_ns(&m->ttft, &TTFT, a->ttft_ns);
    observe_ns(&m->prefill_time, &LATENCY, a->ttft_ns - num_min(a->queue_ns, a->ttft_ns));
    observe_ns(&m->decode_time, &LATENCY, a->decode_ns);
}

void metrics_inter_token(struct metrics *m, uint64_t ns)
{
    observe_ns(&m->inter_token, &TOKEN_TIME, ns);
    record_exact(&m->inter_token_ns, ns);
}

void metrics_step(struct metrics *m, uint64_t ns, uint32_t tokens)
{
    observe_ns(&m->step_time, &STEP, ns);
    record_exact(&m->step_ns, ns);
    m->step_tokens_total += tokens;
}

// ---- writing: after an error nothing more is written

struct writer {
    struct buf *out;
    enum iso_err err;
    uint32_t labels; // of the sample being written
    const struct metrics *const *models;
    const struct metrics_gauges *gauges;
    uint32_t n;
    const struct metrics_server *server;
};

static void put(struct writer *w, const void *bytes, size_t n)
{
    if (!w->err)
        w->err = buf_append(w->out, bytes, n);
}

static void put_text(struct writer *w, const char *c_string)
{
    put(w, c_string, strlen(c_string));
}

static void put_escaped(struct writer *w, const char *value)
{
    const uint8_t *p = (const uint8_t *)value;
    size_t len = strlen(value);
    for (size_t i = 0, n; i < len; i += n) {
        uint32_t cp = 0;
        uint8_t replacement[UTF8_MAX_BYTES];
        n = utf8_decode(p + i, len - i, &cp);
        if (n == 0) {
            put(w, replacement, utf8_encode(UTF8_REPLACEMENT, replacement));
            n = utf8_invalid_length(p + i, len - i);
        } else if (cp == '\n') {
            put_text(w, "\\n");
        } else {
            put(w, "\\", cp == '\\' || cp == '"');
            put(w, p + i, n);
        }
    }
}

static void put_label(struct writer *w, const char *name, const char *value)
{
    put_text(w, w->labels++ ? "," : "{");
    put_text(w, name);
    put_text(w, "=\"");
    put_escaped(w, value);
    put_text(w, "\"");
}

// The shortest of 15 to 17 digits that is read back as the same number.
static void put_double(struct writer *w, double value)
{
    char text[NUMBER_BYTES_MAX];
    if (!__builtin_isfinite(value)) {
        put_text(w, __builtin_isnan(value) ? "NaN" : value > 0 ? "+Inf" : "-Inf");
        return;
    }
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, value);
        if (strtod(text, NULL) == value)
            break;
    }
    put_text(w, text);
}

static void put_head(struct writer *w, const char *name, const char *type, const char *help)
{
    const char *parts[] = {"# HELP ", name, " ", help, "\n# TYPE ", name, " ", type, "\n"};
    for (size_t i = 0; i < ARRAY_LEN(parts); i++)
        put_text(w, parts[i]);
}

static void sample_begin(struct writer *w, const char *name, const char *suffix)
{
    put_text(w, name);
    put_text(w, suffix);
    w->labels = 0;
}

static void sample_begin_of(struct writer *w, const char *name, const char *suffix, uint32_t model)
{
    sample_begin(w, name, suffix);
    put_label(w, "model_name", w->gauges[model].model);
    if (strncmp(name, "vllm:", 5) == 0)
        put_label(w, "engine", "0");
}

static void sample_end_double(struct writer *w, double value)
{
    put_text(w, w->labels ? "} " : " ");
    put_double(w, value);
    put_text(w, "\n");
}

static void sample_end(struct writer *w, uint64_t value)
{
    char text[NUMBER_BYTES_MAX];
    snprintf(text, sizeof text, "%s %" PRIu64 "\n", w->labels ? "}" : "", value);
    put_text(w, text);
}

// ---- single numbers: each row a sample of each model (or of the server), the rows of a name together

enum source { OF_SERVER, OF_GAUGES, OF_MODEL };
enum number { U32, U64, F64 };

struct single {
    const char *name, *type, *help; // help NULL: as the row before
    const char *label, *value;      // NULL: none
    enum source source;
    enum number number;
    size_t offset;
};
#define MODEL(field)          OF_MODEL, U64, offsetof(struct metrics, field)
#define GAUGE(field, number)  OF_GAUGES, number, offsetof(struct metrics_gauges, field)
#define SERVER(field, number) OF_SERVER, number, offsetof(struct metrics_server, field)
#define PLAIN                 NULL, NULL
#define SUCCESS               "vllm:request_success_total", "counter"
#define REFUSED               "isochron_requests_refused_total", "counter"
#define MEMORY                "isochron_memory_bytes", "gauge"

// clang-format off
static const struct single SINGLES[] = {
    {"vllm:num_requests_waiting", "gauge", "Requests in the queue", PLAIN, GAUGE(waiting, U32)},
    {"vllm:num_requests_running", "gauge", "Requests being executed", PLAIN, GAUGE(running, U32)},
    {"vllm:kv_cache_usage_perc", "gauge", "Share of the KV cache's blocks in use, 0 to 1", PLAIN, GAUGE(kv_usage, F64)},
    {"vllm:gpu_cache_usage_perc", "gauge", "The older name of vllm:kv_cache_usage_perc", PLAIN, GAUGE(kv_usage, F64)},
    {"vllm:prompt_tokens_total", "counter", "Prompt tokens of ended requests, cached ones too", PLAIN, MODEL(prompt_tokens_total)},
    {"vllm:generation_tokens_total", "counter", "Tokens generated by ended requests", PLAIN, MODEL(generation_tokens_total)},
    {"vllm:prefix_cache_queries_total", "counter", "Prompt tokens looked up in the KV cache", PLAIN, MODEL(prefix_cache_queries)},
    {"vllm:prefix_cache_hits_total", "counter", "Prompt tokens found in the KV cache", PLAIN, MODEL(prefix_cache_hits)},
    {SUCCESS, "Requests that were admitted and ended, by reason", "finished_reason", "stop", MODEL(finished[METRICS_STOP])},
    {SUCCESS, NULL, "finished_reason", "length", MODEL(finished[METRICS_LENGTH])},
    {SUCCESS, NULL, "finished_reason", "abort", MODEL(finished[METRICS_ABORT])},
    {SUCCESS, NULL, "finished_reason", "error", MODEL(finished[METRICS_ERROR])},
    {"isochron_ready", "gauge", "1 where a live unit serves the model", PLAIN, GAUGE(ready, U32)},
    {"isochron_slots", "gauge", "Requests that can be executed at once", PLAIN, GAUGE(slots, U32)},
    {"isochron_max_seq_len", "gauge", "Most tokens of a prompt with its answer", PLAIN, GAUGE(max_seq_len, U64)},
    {MEMORY, "Memory of the unit by what it is for", "class", "weights", GAUGE(memory_weights, U64)},
    {MEMORY, NULL, "class", "activations", GAUGE(memory_activations, U64)},
    {MEMORY, NULL, "class", "kv", GAUGE(memory_kv, U64)},
    {MEMORY, NULL, "class", "runtime", GAUGE(memory_runtime, U64)},
    {"isochron_step_tokens_total", "counter", "Tokens that went through steps", PLAIN, MODEL(step_tokens_total)},
    {REFUSED, "Requests not admitted, by reason", "reason", "invalid", MODEL(refused[REFUSED_INVALID])},
    {REFUSED, NULL, "reason", "too_long", MODEL(refused[REFUSED_TOO_LONG])},
    {REFUSED, NULL, "reason", "auth", MODEL(refused[REFUSED_AUTH])},
    {REFUSED, NULL, "reason", "rate", MODEL(refused[REFUSED_RATE])},
    {REFUSED, NULL, "reason", "queue", MODEL(refused[REFUSED_QUEUE])},
    {REFUSED, NULL, "reason", "not_ready", MODEL(refused[REFUSED_NOT_READY])},
    {"isochron_unit_restarts_total", "counter", "Times the unit process was started anew", PLAIN, MODEL(unit_restarts)},
    {"isochron_reloads_total", "counter", "Times the model was loaded anew while serving", PLAIN, MODEL(reloads)},
    {"isochron_audit_errors_total", "counter", "Audit records that could not be written", PLAIN, MODEL(audit_errors)},
    {"isochron_connections", "gauge", "Open connections", PLAIN, SERVER(connections, U32)},
    {"isochron_draining", "gauge", "1 where no new requests are admitted before the end", PLAIN, SERVER(draining, U32)},
    {"isochron_log_lines_lost_total", "counter", "Log lines that could not be written", PLAIN, SERVER(log_lines_lost, U64)},
    {"isochron_start_time_seconds", "gauge", "When the server began, in Unix time", PLAIN, SERVER(start_time_s, U64)},
    {"isochron_config_stale", "gauge", "1 where the settings in use are not those of the file", PLAIN, SERVER(config_stale, U64)},
};
// clang-format on

static void put_single(struct writer *w, const struct single *s, const void *from)
{
    const uint8_t *at = (const uint8_t *)from + s->offset;
    if (s->label)
        put_label(w, s->label, s->value);
    if (s->number == F64)
        sample_end_double(w, *(const double *)at);
    else
        sample_end(w, s->number == U32 ? *(const uint32_t *)at : *(const uint64_t *)at);
}

static void put_singles(struct writer *w)
{
    for (size_t i = 0; i < ARRAY_LEN(SINGLES); i++) {
        const struct single *s = &SINGLES[i];
        if (s->help)
            put_head(w, s->name, s->type, s->help);
        if (s->source == OF_SERVER) {
            sample_begin(w, s->name, "");
            put_single(w, s, w->server);
            continue;
        }
        for (uint32_t m = 0; m < w->n; m++) {
            sample_begin_of(w, s->name, "", m);
            put_single(w, s, s->source == OF_MODEL ? (const void *)w->models[m] : &w->gauges[m]);
        }
    }
}

// ---- histograms

struct histogram {
    const char *name, *help;
    const struct edges *edges;
    size_t offset;
};
#define HIST(field) offsetof(struct metrics, field)

// clang-format off
static const struct histogram HISTOGRAMS[] = {
    {"vllm:time_to_first_token_seconds", "From a request's arrival to its first token", &TTFT, HIST(ttft)},
    {"vllm:inter_token_latency_seconds", "From a token to the next of its request", &TOKEN_TIME, HIST(inter_token)},
    {"vllm:time_per_output_token_seconds", "The older name of vllm:inter_token_latency_seconds", &TOKEN_TIME, HIST(inter_token)},
    {"vllm:e2e_request_latency_seconds", "From a request's arrival to its end", &LATENCY, HIST(e2e)},
    {"vllm:request_queue_time_seconds", "Time of a request in the queue", &LATENCY, HIST(queue_time)},
    {"vllm:request_prefill_time_seconds", "From the queue's end to the first token", &LATENCY, HIST(prefill_time)},
    {"vllm:request_decode_time_seconds", "From the first token to the last", &LATENCY, HIST(decode_time)},
    {"vllm:request_prompt_tokens", "Tokens of a request's prompt", &TOKENS, HIST(prompt_tokens)},
    {"vllm:request_generation_tokens", "Tokens that a request got", &TOKENS, HIST(generation_tokens)},
    {"isochron_step_seconds", "Time of a step", &STEP, HIST(step_time)},
};
// clang-format on

// As Prometheus' own clients write an edge: no edge has more than 6 digits, and a whole one has a .0.
static void edge_text(double edge, char text[NUMBER_BYTES_MAX])
{
    snprintf(text, NUMBER_BYTES_MAX, "%g", edge);
    if (!strpbrk(text, ".e"))
        snprintf(text, NUMBER_BYTES_MAX, "%.1f", edge);
}

static void put_histogram_of(struct writer *w, const struct histogram *h, uint32_t model)
{
    const struct metrics_hist *data = (const void *)((const uint8_t *)w->models[model] + h->offset);
    uint64_t below = 0;
    for (uint32_t i = 0; i < h->edges->n; i++) {
        char le[NUMBER_BYTES_MAX];
        if (h->edges->tokens && h->edges->at[i] > (double)w->gauges[model].max_seq_len)
            break;
        below += data->buckets[i];
        edge_text(h->edges->at[i], le);
        sample_begin_of(w, h->name, "_bucket", model);
        put_label(w, "le", le);
        sample_end(w, below);
    }
    sample_begin_of(w, h->name, "_bucket", model);
    put_label(w, "le", "+Inf");
    sample_end(w, data->count);
    sample_begin_of(w, h->name, "_count", model);
    sample_end(w, data->count);
    sample_begin_of(w, h->name, "_sum", model);
    sample_end_double(w, data->sum);
}

static void put_histograms(struct writer *w)
{
    for (size_t i = 0; i < ARRAY_LEN(HISTOGRAMS); i++) {
        put_head(w, HISTOGRAMS[i].name, "histogram", HISTOGRAMS[i].help);
        for (uint32_t m = 0; m < w->n; m++)
            put_histogram_of(w, &HISTOGRAMS[i], m);
    }
}

// ---- what is neither

static void put_label_whole(struct writer *w, const char *name, uint64_t value)
{
    char text[NUMBER_BYTES_MAX];
    snprintf(text, sizeof text, "%" PRIu64, value);
    put_label(w, name, text);
}

static void put_infos(struct writer *w)
{
    static const char CACHE[] = "vllm:cache_config_info", BUILD[] = "isochron_build_info",
                      PLAN[] = "isochron_plan_info";
    put_head(w, BUILD, "gauge", "The server's version, as a label");
    sample_begin(w, BUILD, "");
    put_label(w, "version", ISO_VERSION);
    sample_end(w, 1);
    put_head(w, PLAN, "gauge", "The hash of the model's plan, as a label");
    for (uint32_t m = 0; m < w->n; m++) {
        sample_begin_of(w, PLAN, "", m);
        put_label(w, "plan", w->gauges[m].plan);
        sample_end(w, 1);
    }
    put_head(w, CACHE, "gauge", "The KV cache's shape, as labels; a block's size is in tokens");
    for (uint32_t m = 0; m < w->n; m++) {
        sample_begin_of(w, CACHE, "", m);
        put_label_whole(w, "block_size", w->gauges[m].kv_block_tokens);
        put_label_whole(w, "num_gpu_blocks", w->gauges[m].kv_blocks);
        put_label(w, "cache_dtype", w->gauges[m].kv_type);
        sample_end(w, 1);
    }
}

static void put_quantiles(struct writer *w)
{
    static const struct {
        const char *label;
        double fraction;
    } QUANTILES[] = {{"0.5", 0.5}, {"0.99", 0.99}, {"1", 1}};
    static const char NAME[] = "isochron_step_quantile_seconds", JITTER[] = "isochron_jitter_ratio";
    put_head(w, NAME, "gauge", "Percentiles of the time of a step, within 1.6%; 0 before the first");
    for (uint32_t m = 0; m < w->n; m++)
        for (size_t i = 0; i < ARRAY_LEN(QUANTILES); i++) {
            sample_begin_of(w, NAME, "", m);
            put_label(w, "quantile", QUANTILES[i].label);
            uint64_t ns = hist_quantile(&w->models[m]->step_ns, QUANTILES[i].fraction);
            sample_end_double(w, (double)ns / NS_PER_S);
        }
    put_head(w, JITTER, "gauge",
             "(p99 - p50) / p50 of the time from a token to the next; 0 before the first");
    for (uint32_t m = 0; m < w->n; m++) {
        const struct hist *h = &w->models[m]->inter_token_ns;
        uint64_t p50 = hist_quantile(h, 0.5), p99 = hist_quantile(h, 0.99);
        sample_begin_of(w, JITTER, "", m);
        sample_end_double(w, p50 ? (double)(p99 - p50) / (double)p50 : 0);
    }
}

enum iso_err metrics_text(struct buf *out, const struct metrics *const *models,
                          const struct metrics_gauges *gauges, uint32_t n,
                          const struct metrics_server *server)
{
    struct writer w = {.out = out, .models = models, .gauges = gauges, .n = n, .server = server};
    buf_reset(out);
    put_singles(&w);
    put_histograms(&w);
    put_quantiles(&w);
    put_infos(&w);
    if (w.err)
        buf_reset(out);
    return w.err;
}
