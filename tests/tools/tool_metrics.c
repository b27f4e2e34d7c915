// Metrics as commands on standard input say, one a line; at the end their text. Names are an x and their bytes in hexadecimal.
//   model NAME PLAN KV_TYPE WAITING RUNNING SLOTS READY KV_USAGE BLOCK_TOKENS BLOCKS WEIGHTS ACTIVATIONS KV RUNTIME MAX_SEQ_LEN
//   server CONNECTIONS DRAINING LOG_LINES_LOST START_TIME CONFIG_STALE
// and of the model last named:
//   answer FINISH PROMPT CACHED OUTPUT QUEUE_NS TTFT_NS DECODE_NS E2E_NS
//   token NS       step NS TOKENS       refused REASON       counts RESTARTS AUDIT_ERRORS RELOADS
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/num.h"
#include "serve/metrics.h"

#define MODELS_MAX 4
#define NAME_MAX_  256

static struct metrics metrics[MODELS_MAX];
static struct metrics_gauges gauges[MODELS_MAX];
static char names[MODELS_MAX][3][NAME_MAX_];
static struct metrics_server server;
static uint32_t n_models;

static const char *word(void)
{
    static char text[2 * NAME_MAX_];
    ASSERT(scanf("%511s", text) == 1);
    return text;
}

static uint64_t whole(void)
{
    return strtoull(word(), NULL, 10);
}

static const char *name(int which)
{
    const char *hex = word() + 1;
    char *out = names[n_models][which];
    for (size_t i = 0; hex[2 * i]; i++) {
        unsigned byte;
        ASSERT(i < NAME_MAX_ - 1 && sscanf(hex + 2 * i, "%2x", &byte) == 1);
        out[i] = (char)byte;
    }
    return out;
}

static void read_model(void)
{
    ASSERT(n_models < MODELS_MAX);
    struct metrics_gauges *g = &gauges[n_models];
    g->model = name(0);
    g->plan = name(1);
    g->kv_type = name(2);
    g->waiting = (uint32_t)whole();
    g->running = (uint32_t)whole();
    g->slots = (uint32_t)whole();
    g->ready = (uint32_t)whole();
    g->kv_usage = strtod(word(), NULL);
    uint64_t *const rest[] = {&g->kv_block_tokens,    &g->kv_blocks, &g->memory_weights,
                              &g->memory_activations, &g->memory_kv, &g->memory_runtime,
                              &g->max_seq_len};
    for (size_t i = 0; i < ARRAY_LEN(rest); i++)
        *rest[i] = whole();
    n_models++;
}

static void read_server(void)
{
    server.connections = (uint32_t)whole();
    server.draining = (uint32_t)whole();
    server.log_lines_lost = whole();
    server.start_time_s = whole();
    server.config_stale = whole();
}

static void read_answer(struct metrics *m)
{
    struct metrics_answer a = {.finish = (enum metrics_finish)whole()};
    a.prompt_tokens = (uint32_t)whole();
    a.cached_tokens = (uint32_t)whole();
    a.output_tokens = (uint32_t)whole();
    a.queue_ns = whole();
    a.ttft_ns = whole();
    a.decode_ns = whole();
    a.e2e_ns = whole();
    metrics_answer(m, &a);
}

static void read_of_model(const char *command)
{
    ASSERT(n_models > 0);
    struct metrics *m = &metrics[n_models - 1];
    if (strcmp(command, "answer") == 0) {
        read_answer(m);
    } else if (strcmp(command, "token") == 0) {
        metrics_inter_token(m, whole());
    } else if (strcmp(command, "step") == 0) {
        uint64_t ns = whole();
        metrics_step(m, ns, (uint32_t)whole());
    } else if (strcmp(command, "refused") == 0) {
        m->refused[whole() % METRICS_REFUSAL_COUNT]++;
    } else {
        ASSERT(strcmp(command, "counts") == 0);
        m->unit_restarts = whole();
        m->audit_errors = whole();
        m->reloads = whole();
    }
}

int main(void)
{
    char command[16];
    while (scanf("%15s", command) == 1) {
        if (strcmp(command, "model") == 0)
            read_model();
        else if (strcmp(command, "server") == 0)
            read_server();
        else
            read_of_model(command);
    }
    const struct metrics *all[MODELS_MAX];
    for (uint32_t i = 0; i < MODELS_MAX; i++)
        all[i] = &metrics[i];
    struct buf out;
    buf_init(&out, MIB);
    ASSERT(!metrics_text(&out, all, gauges, n_models, &server));
    fwrite(out.ptr, 1, out.len, stdout);
    buf_deinit(&out);
    return 0;
}
