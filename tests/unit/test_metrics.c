// metrics: on which side of an edge a value falls, sums, what an answer counts, the ends of the text's buffer. The text's form is
// checked by another parser, in tests/property/test_metrics.py.
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/num.h"
#include "serve/metrics.h"

#define INF METRICS_BUCKETS_MAX
#define MS  1000000ull
#define S   1000000000ull

static struct metrics m;

static int set_up(void **state)
{
    (void)state;
    memset(&m, 0, sizeof m);
    return 0;
}

static struct metrics_gauges some_gauges(const char *model)
{
    return (struct metrics_gauges){.model = model, .plan = "ab12", .kv_type = "f16", .max_seq_len = 100};
}

// The text of one model; it is the caller's.
static char *text_of_one(void)
{
    struct metrics_gauges g = some_gauges("m");
    struct metrics_server server = {0};
    struct buf out;
    buf_init(&out, MIB);
    assert_int_equal(metrics_text(&out, (const struct metrics *const[]){&m}, &g, 1, &server), ISO_OK);
    assert_int_equal(buf_append_byte(&out, 0), ISO_OK);
    return (char *)out.ptr;
}

static void expect_line(const char *line)
{
    char *text = text_of_one();
    const char *at = strstr(text, line);
    size_t n = strlen(line);
    if (!at || (at > text && at[-1] != '\n') || at[n] != '\n')
        fail_msg("no '%s' in %s", line, text);
    free(text);
}

// A nanosecond on both sides of every edge: the edge itself is below it.
static void check_edges(const struct metrics_hist *h, const double *edges, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        uint64_t ns = (uint64_t)(edges[i] * 1e9 + 0.5);
        memset(&m, 0, sizeof m);
        for (uint64_t at = ns - 1; at <= ns + 1; at++) {
            struct metrics_answer a = {METRICS_STOP, 1, 0, 1, at, 2 * at, at, at};
            metrics_answer(&m, &a);
            metrics_step(&m, at, 1);
            metrics_inter_token(&m, at);
        }
        for (uint32_t j = 0; j <= INF; j++)
            assert_int_equal(h->buckets[j], j == i ? 2 : j == (i + 1 < n ? i + 1 : INF) ? 1 : 0);
        assert_int_equal(h->count, 3);
        assert_true(h->sum > 2.9999999 * edges[i] - 1e-9 && h->sum < 3.0000001 * edges[i] + 1e-9);
    }
}

static void test_edges(void **state)
{
    (void)state;
    static const double TOKEN[] = {0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5,
                                   0.75, 1,     2.5,  5,     7.5, 10,   20,  40,  80};
    static const double LATENCY[] = {0.3, 0.5, 0.8, 1,  1.5, 2,   2.5, 5,   10,   15,  20,
                                     30,  40,  50,  60, 120, 240, 480, 960, 1920, 7680};
    static const double STEP[] = {0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10};
    check_edges(&m.inter_token, TOKEN, ARRAY_LEN(TOKEN));
    check_edges(&m.step_time, STEP, ARRAY_LEN(STEP));
    check_edges(&m.e2e, LATENCY, ARRAY_LEN(LATENCY));
    check_edges(&m.queue_time, LATENCY, ARRAY_LEN(LATENCY));
    check_edges(&m.decode_time, LATENCY, ARRAY_LEN(LATENCY));
    check_edges(&m.prefill_time, LATENCY, ARRAY_LEN(LATENCY)); // 2 at - at
}

static void test_token_edges(void **state)
{
    (void)state;
    uint32_t edge = 1, i = 0;
    for (; i < METRICS_BUCKETS_MAX; i++) {
        memset(&m, 0, sizeof m);
        for (uint32_t n = edge - 1; n <= edge + 1; n++)
            metrics_answer(&m, &(struct metrics_answer){METRICS_STOP, n, 0, n, 0, 0, 0, 0});
        // 0 and 1 share the first bucket, and 2 is the next edge; 1, 2 and 3 are below 2 or 5.
        assert_int_equal(m.prompt_tokens.buckets[i], i == 1 ? 1 : 2);
        assert_int_equal(m.prompt_tokens.buckets[i + 1 < METRICS_BUCKETS_MAX ? i + 1 : INF], 1);
        assert_memory_equal(&m.prompt_tokens, &m.generation_tokens, sizeof m.prompt_tokens);
        assert_int_equal(m.prompt_tokens.count, 3);
        assert_true(m.prompt_tokens.sum == 3.0 * edge);
        edge = i % 3 == 1 ? edge / 2 * 5 : edge * 2;
    }
    assert_int_equal(edge, 100000000); // after 5e7
}

static void test_answer(void **state)
{
    (void)state;
    struct metrics_answer a = {METRICS_LENGTH, 100, 64, 20, 2 * S, 3 * S, 4 * S, 8 * S};
    metrics_answer(&m, &a);
    assert_true(m.queue_time.sum == 2 && m.ttft.sum == 3 && m.prefill_time.sum == 1 &&
                m.decode_time.sum == 4 && m.e2e.sum == 8);
    assert_int_equal(m.prompt_tokens_total, 100);
    assert_int_equal(m.generation_tokens_total, 20);
    assert_int_equal(m.prefix_cache_queries, 100);
    assert_int_equal(m.prefix_cache_hits, 64);
    // Ended before its first token: no time of one.
    metrics_answer(&m, &(struct metrics_answer){METRICS_ABORT, 50, 0, 0, S, 77, 77, S});
    assert_true(m.ttft.count == 1 && m.prefill_time.count == 1 && m.decode_time.count == 1);
    assert_true(m.e2e.count == 2 && m.queue_time.count == 2 && m.prompt_tokens.count == 2);
    // Times and counts that can't be don't become huge ones.
    metrics_answer(&m, &(struct metrics_answer){METRICS_ERROR, 10, 11, 1, 5 * S, 4 * S, 0, S});
    assert_true(m.prefill_time.sum == 1 && m.prefill_time.count == 2);
    assert_int_equal(m.prefix_cache_hits, 74);
    metrics_answer(&m, &(struct metrics_answer){.finish = METRICS_STOP});
    metrics_answer(&m, &(struct metrics_answer){.finish = METRICS_STOP});
    static const uint64_t FINISHED[] = {2, 1, 1, 1};
    assert_memory_equal(m.finished, FINISHED, sizeof FINISHED);
    expect_line("vllm:request_success_total{model_name=\"m\",engine=\"0\",finished_reason=\"stop\"} 2");
    expect_line("vllm:prefix_cache_hits_total{model_name=\"m\",engine=\"0\"} 74");
    expect_line("vllm:e2e_request_latency_seconds_sum{model_name=\"m\",engine=\"0\"} 10");
}

// Buckets of tokens end at max_seq_len; what is over it is in +Inf.
static void test_token_buckets_shown(void **state)
{
    (void)state;
    metrics_answer(&m, &(struct metrics_answer){METRICS_STOP, 3, 0, 99, 0, 0, 0, 0});
    metrics_answer(&m, &(struct metrics_answer){METRICS_STOP, 150, 0, 100, 0, 0, 0, 0});
    expect_line("vllm:request_prompt_tokens_bucket{model_name=\"m\",engine=\"0\",le=\"2.0\"} 0");
    expect_line("vllm:request_prompt_tokens_bucket{model_name=\"m\",engine=\"0\",le=\"5.0\"} 1");
    expect_line("vllm:request_prompt_tokens_bucket{model_name=\"m\",engine=\"0\",le=\"100.0\"} 1");
    expect_line("vllm:request_prompt_tokens_bucket{model_name=\"m\",engine=\"0\",le=\"+Inf\"} 2");
    expect_line("vllm:request_generation_tokens_bucket{model_name=\"m\",engine=\"0\",le=\"50.0\"} 0");
    expect_line("vllm:request_generation_tokens_bucket{model_name=\"m\",engine=\"0\",le=\"100.0\"} 2");
    char *text = text_of_one();
    assert_null(strstr(text, "le=\"200.0\""));
    free(text);
}

static void test_percentiles(void **state)
{
    (void)state;
    expect_line("isochron_step_quantile_seconds{model_name=\"m\",quantile=\"0.99\"} 0");
    expect_line("isochron_jitter_ratio{model_name=\"m\"} 0");
    for (uint64_t i = 0; i < 100; i++) {
        metrics_step(&m, i < 99 ? 4 * MS : 64 * MS, 10);
        metrics_inter_token(&m, i < 97 ? 32 : 48);
    }
    assert_int_equal(m.step_tokens_total, 1000);
    expect_line("isochron_step_quantile_seconds{model_name=\"m\",quantile=\"1\"} 0.064");
    expect_line("isochron_jitter_ratio{model_name=\"m\"} 0.5");
    // After a great many it begins anew, so that no bucket overflows.
    m.step_ns.count = m.inter_token_ns.count = METRICS_EXACT_MAX - 1;
    metrics_step(&m, 4 * MS, 1);
    metrics_inter_token(&m, 32);
    assert_int_equal(m.step_ns.count, METRICS_EXACT_MAX);
    assert_int_equal(m.step_ns.max, 64 * MS);
    metrics_step(&m, 5 * MS, 1);
    metrics_inter_token(&m, 16);
    expect_line("isochron_step_quantile_seconds{model_name=\"m\",quantile=\"1\"} 0.005");
    assert_int_equal(m.inter_token_ns.count, 1);
    assert_int_equal(m.step_time.count, 102);
    expect_line("isochron_step_seconds_count{model_name=\"m\"} 102");
}

// Every size of buffer that is too small is told, and leaves nothing half.
static void test_small_buffer(void **state)
{
    (void)state;
    const struct metrics *const models[] = {&m, &m};
    struct metrics_gauges g[] = {some_gauges("one"), some_gauges("\"two\"\n\\\xff")};
    struct metrics_server server = {0};
    struct buf out;
    buf_init(&out, MIB);
    assert_int_equal(buf_append(&out, "before", 6), ISO_OK);
    assert_int_equal(metrics_text(&out, models, g, 2, &server), ISO_OK);
    assert_memory_equal(out.ptr, "# HELP ", 7);
    size_t len = out.len;
    assert_int_equal(metrics_text(&out, models, g, 2, &server), ISO_OK);
    assert_int_equal(out.len, len);
    buf_deinit(&out);
    for (size_t max = 0; max <= len; max += max + 50 < len ? 37 : 1) {
        buf_init(&out, max);
        assert_int_equal(metrics_text(&out, models, g, 2, &server), max < len ? ISO_E_LIMIT : ISO_OK);
        assert_int_equal(out.len, max < len ? 0 : len);
        buf_deinit(&out);
    }
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup(name, set_up)
    const struct CMUnitTest tests[] = {TEST(test_edges),       TEST(test_token_edges),
                                       TEST(test_answer),      TEST(test_token_buckets_shown),
                                       TEST(test_percentiles), TEST(test_small_buffer)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
