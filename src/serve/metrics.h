// What is counted and measured, and its text for Prometheus (exposition format 0.0.4).
//
// Names beginning with vllm: are those of vLLM 0.8 and later, with the same buckets, labels (model_name, engine="0") and types, so
// that dashboards and endpoint pickers work; isochron_ ones are ours. One thread; a struct metrics for each model, which the caller
// owns: all zeros is an empty one.
#pragma once

#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/hist.h"

#define METRICS_BUCKETS_MAX 24
// Values that a percentile is of; then it begins anew. Old ones weigh less so, and no bucket can overflow.
#define METRICS_EXACT_MAX ((uint64_t)1 << 30)

struct metrics_hist {
    uint64_t buckets[METRICS_BUCKETS_MAX + 1]; // not cumulative; the last is +Inf
    uint64_t count;
    double sum;
};

enum metrics_finish { METRICS_STOP, METRICS_LENGTH, METRICS_ABORT, METRICS_ERROR, METRICS_FINISH_COUNT };
// Requests not admitted.
enum metrics_refusal {
    REFUSED_INVALID,
    REFUSED_TOO_LONG,
    REFUSED_AUTH,
    REFUSED_RATE,
    REFUSED_QUEUE,
    REFUSED_NOT_READY,
    METRICS_REFUSAL_COUNT
};

struct metrics {
    struct metrics_hist ttft, inter_token, e2e, queue_time, prefill_time, decode_time; // seconds
    struct metrics_hist prompt_tokens, generation_tokens;
    uint64_t prompt_tokens_total, generation_tokens_total, prefix_cache_queries, prefix_cache_hits; // tokens
    uint64_t finished[METRICS_FINISH_COUNT];
    uint64_t refused[METRICS_REFUSAL_COUNT];
    struct metrics_hist step_time;       // seconds
    struct hist step_ns, inter_token_ns; // the same for exact percentiles
    uint64_t step_tokens_total, unit_restarts, audit_errors, reloads;
};

// An answer that ended. Times in nanoseconds: in the queue; from the request's arrival (so with the queue) to the first token; from
// the first token to the last; from arrival to the end. Without a token (output_tokens 0), ttft_ns and decode_ns count nothing.
struct metrics_answer {
    enum metrics_finish finish;
    uint32_t prompt_tokens, cached_tokens, output_tokens; // cached: of the prompt, from the KV cache
    uint64_t queue_ns, ttft_ns, decode_ns, e2e_ns;
};
void metrics_answer(struct metrics *m, const struct metrics_answer *a);
void metrics_inter_token(struct metrics *m, uint64_t ns);
void metrics_step(struct metrics *m, uint64_t ns, uint32_t tokens);

// What is read when asked.
struct metrics_gauges {
    const char *model, *plan;                // names; the plan's hash in hexadecimal
    uint32_t waiting, running, slots, ready; // ready 1: a live unit serves
    double kv_usage;                         // 0 to 1
    uint64_t kv_block_tokens, kv_blocks;
    const char *kv_type;
    uint64_t memory_weights, memory_activations, memory_kv, memory_runtime; // bytes
    uint64_t max_seq_len; // also the end of the buckets of tokens, as in vLLM
};
// Of the whole server.
struct metrics_server {
    uint32_t connections, draining;
    uint64_t log_lines_lost, start_time_s; // unix time
    uint64_t config_stale;                 // 1: the file has changed since it was read
};
// Replaces out's content: HELP and TYPE once for each name, then a line for each model. Label values are escaped. On failure
// (ISO_E_LIMIT over out's maximum, ISO_E_NOMEM) out is empty.
enum iso_err metrics_text(struct buf *out, const struct metrics *const *models,
                          const struct metrics_gauges *gauges, uint32_t n,
                          const struct metrics_server *server) ISO_MUST_USE;
