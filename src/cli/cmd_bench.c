// isochron bench FILE
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/num.h"
#include "cli/cli.h"
#include "cli/noise.h"
#include "cli/session.h"

#define PROMPT_DEFAULT 128
#define OUTPUT_DEFAULT 64
#define REPEAT_DEFAULT 3
#define NOISE_NS       1000000000u
#define MEASURE_MAX    65536

struct arguments {
    struct compile_flags compile;
    struct run_flags run;
    const char *file;
    uint32_t prompt, output, repeat; // 0: the defaults
    bool json;
};

enum { KEY_PROMPT = 0x3000, KEY_OUTPUT, KEY_REPEAT };

static const struct argp_option OPTIONS[] = {
    {"prompt-tokens", KEY_PROMPT, "N", 0, "Tokens of prefill (default: 128, or what fits)", 0},
    {"output-tokens", KEY_OUTPUT, "N", 0, "Tokens of decode (default: 64, or what fits)", 0},
    {"repeat", KEY_REPEAT, "N", 0, "Rounds of both (default: 3)", 0},
    {"json", 'j', NULL, 0, "Print the result as one JSON object", 0},
    {0},
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct arguments *a = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &a->compile;
        state->child_inputs[1] = &a->run;
        return 0;
    case KEY_PROMPT:
        a->prompt = cli_u32(state, "prompt-tokens", arg, 1, MEASURE_MAX);
        return 0;
    case KEY_OUTPUT:
        a->output = cli_u32(state, "output-tokens", arg, 2, MEASURE_MAX);
        return 0;
    case KEY_REPEAT:
        a->repeat = cli_u32(state, "repeat", arg, 1, 1000);
        return 0;
    case 'j':
        a->json = true;
        return 0;
    case ARGP_KEY_ARG:
        if (a->file)
            argp_error(state, "one model file or plan is expected, and \"%s\" is a second", arg);
        a->file = arg;
        return 0;
    case ARGP_KEY_END:
        if (!a->file)
            argp_error(state, "which model file or plan?");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

struct measured {
    uint32_t prompt, output, repeat;
    uint64_t prefill_ns_min, prefill_ns_sum; // of one prompt, to its first token
    struct hist token;                       // ns from token to token
    struct noise noise;
};

// Lengths that fit a sequence; where both were given and don't, the unit refuses with the numbers.
static void choose_lengths(const struct arguments *a, uint32_t max_seq_len, struct measured *m)
{
    m->repeat = a->repeat ? a->repeat : REPEAT_DEFAULT;
    m->output = a->output ? a->output : (uint32_t)num_min(OUTPUT_DEFAULT, num_max(2, max_seq_len / 2));
    uint32_t room = max_seq_len > m->output ? max_seq_len - m->output : 1;
    m->prompt = a->prompt ? a->prompt : (uint32_t)num_min(PROMPT_DEFAULT, room);
}

// One round on a prompt of its own, so that nothing of it is cached.
static enum iso_err run_round(struct session *s, uint32_t round, uint32_t *ids, struct measured *m,
                              struct iso_errinfo *reterr)
{
    uint32_t vocab = s->plan.header->model.vocab, slot;
    for (uint32_t i = 0; i < m->prompt; i++)
        ids[i] = (uint32_t)(hash64_seeded(&i, sizeof i, round) % vocab);
    struct unit_request request = {.prompt = ids,
                                   .n_prompt = m->prompt,
                                   .max_output = m->output,
                                   .sampling = SAMPLING_GREEDY,
                                   .ignore_eog = true};
    uint64_t last = clock_now_ns();
    enum iso_err err = unit_submit(s->unit, &request, &slot, NULL, reterr);
    if (err)
        return err;
    for (uint32_t token = 0;;) {
        struct unit_result r = unit_step(s->unit);
        if (r.n == 0)
            continue;
        uint64_t now = clock_now_ns(), took = now - last;
        last = now;
        if (r.events[0].finish == UNIT_NONFINITE)
            return iso_fail(reterr, ISO_E_NONFINITE, 0, "logits",
                            "a logit is not finite: the weights overflow");
        if (token++ == 0) {
            m->prefill_ns_sum += took;
            m->prefill_ns_min = num_min(m->prefill_ns_min, took);
        } else {
            hist_record(&m->token, took);
        }
        if (r.events[0].finish != UNIT_RUNNING)
            return ISO_OK;
    }
}

static double ms(uint64_t ns)
{
    return (double)ns * 1e-6;
}

static double rate(uint64_t n, uint64_t ns)
{
    return ns ? (double)n * 1e9 / (double)ns : 0;
}

static double jitter(const struct hist *h)
{
    uint64_t p50 = hist_quantile(h, 0.5);
    return p50 ? (double)hist_quantile(h, 0.99) / (double)p50 : 0;
}

static void print_text(const struct session *s, const struct measured *m)
{
    const struct hist *t = &m->token, *gaps = &m->noise.gaps;
    printf("kernels %s, %" PRIu32 " threads, %" PRIu32 " rounds\n\n", unit_kernels(s->unit)->name, s->threads,
           m->repeat);
    printf("prefill  %6" PRIu32 " tokens  %10.2f tokens/s mean  %10.2f best\n", m->prompt,
           rate((uint64_t)m->prompt * m->repeat, m->prefill_ns_sum), rate(m->prompt, m->prefill_ns_min));
    printf("decode   %6" PRIu32 " tokens  %10.2f tokens/s mean\n\n", m->output, rate(t->count, t->sum));
    printf("per token          P50 %9.3f ms   P90 %9.3f   P99 %9.3f   max %9.3f   P99/P50 %.2f\n",
           ms(hist_quantile(t, 0.5)), ms(hist_quantile(t, 0.9)), ms(hist_quantile(t, 0.99)), ms(t->max),
           jitter(t));
    printf("host noise floor   a spinning thread lost %.3f ms in %.2f s (%" PRIu64
           " gaps over %d us); longest gap "
           "%.3f ms, P99.9 %.1f us\n",
           ms(m->noise.stolen_ns), (double)m->noise.spun_ns * 1e-9, m->noise.stolen_gaps, NOISE_GAP_NS / 1000,
           ms(gaps->max), (double)hist_quantile(gaps, 0.999) * 1e-3);
}

static int print_json(const struct session *s, const struct measured *m)
{
    const struct hist *t = &m->token, *gaps = &m->noise.gaps;
    json_t *prefill = json_pack("{s:i, s:f, s:f}", "tokens", (int)m->prompt, "tokens_per_s",
                                rate((uint64_t)m->prompt * m->repeat, m->prefill_ns_sum), "tokens_per_s_best",
                                rate(m->prompt, m->prefill_ns_min));
    json_t *decode = json_pack("{s:i, s:f, s:f, s:f, s:f, s:f, s:f}", "tokens", (int)m->output,
                               "tokens_per_s", rate(t->count, t->sum), "p50_ms", ms(hist_quantile(t, 0.5)),
                               "p90_ms", ms(hist_quantile(t, 0.9)), "p99_ms", ms(hist_quantile(t, 0.99)),
                               "max_ms", ms(t->max), "p99_over_p50", jitter(t));
    json_t *noise = json_pack("{s:f, s:f, s:I, s:f, s:f}", "spun_ms", ms(m->noise.spun_ns), "lost_ms",
                              ms(m->noise.stolen_ns), "gaps", (json_int_t)m->noise.stolen_gaps,
                              "longest_gap_ms", ms(gaps->max), "p999_gap_ms", ms(hist_quantile(gaps, 0.999)));
    return cli_print_json(json_pack("{s:s, s:i, s:i, s:o, s:o, s:o}", "isa", unit_kernels(s->unit)->name,
                                    "threads", (int)s->threads, "rounds", (int)m->repeat, "prefill", prefill,
                                    "decode", decode, "host_noise", noise));
}

static int run(const struct arguments *a, struct session *s)
{
    struct iso_errinfo e;
    static struct measured m; // two histograms: too large for a stack
    m.prefill_ns_min = UINT64_MAX;
    choose_lengths(a, s->plan.header->limits.max_seq_len, &m);
    uint32_t *ids = calloc(m.prompt, sizeof *ids);
    enum iso_err err = ids ? ISO_OK : iso_fail(&e, ISO_E_NOMEM, 0, NULL, "the system refused memory");
    for (uint32_t round = 0; round < m.repeat && !err; round++) {
        err = run_round(s, round, ids, &m, &e);
        if (!err && !a->json)
            fprintf(stderr, "round %" PRIu32 " of %" PRIu32 " done\n", round + 1, m.repeat);
    }
    free(ids);
    if (err) {
        iso_fail_prefix(&e, a->file);
        return cli_fail(&e, a->json);
    }
    noise_measure(NOISE_NS, &m.noise);
    if (a->json)
        return print_json(s, &m);
    print_text(s, &m);
    return CLI_EXIT_OK;
}

int cmd_bench(int argc, char **argv)
{
    static const struct argp_child CHILDREN[] = {{&COMPILE_ARGP, 0, NULL, 0}, {&RUN_ARGP, 0, NULL, 0}, {0}};
    static const struct argp ARGP = {
        .options = OPTIONS,
        .parser = parse,
        .args_doc = "FILE",
        .doc = "Measures prefill and decode speed and how steady tokens come, "
               "and beside it the host's own noise: the "
               "gaps a thread sees that only reads the clock. FILE is a plan, "
               "or a model (GGUF file or Hugging Face folder) that is compiled into "
               "the cache first.\v" CLI_EXIT_CODES_HELP,
        .children = CHILDREN};
    struct arguments a = {0};
    struct iso_errinfo e;
    struct session s;
    cli_parse(&ARGP, argc, argv, &a);
    if (session_open(a.file, &a.compile, &a.run, a.json, &s, &e))
        return cli_fail(&e, a.json);
    int code = run(&a, &s);
    session_close(&s);
    return code;
}
