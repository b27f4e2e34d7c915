#include "cli/generation.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/num.h"
#include "cli/cli.h"
#include "text/detok.h"

#define ANSWER_BYTES_MAX (64 * MIB)

enum { KEY_TEMPERATURE = 0x2000, KEY_TOP_P, KEY_TOP_K, KEY_MIN_P, KEY_REPEAT, KEY_SEED, KEY_STOP };

static const struct argp_option OPTIONS[] = {
    {NULL, 0, NULL, 0, "How tokens are chosen:", 3},
    {"max-tokens", 'n', "N", 0, "Most tokens of the answer (default: 256, or as many as fit)", 3},
    {"temperature", KEY_TEMPERATURE, "T", 0, "0 takes the most probable token (default); more is more varied",
     3},
    {"top-k", KEY_TOP_K, "N", 0, "Draw among the N most probable tokens (default: 0, all)", 3},
    {"top-p", KEY_TOP_P, "P", 0,
     "Draw among the most probable tokens that together reach P (default: 1, all)", 3},
    {"min-p", KEY_MIN_P, "P", 0, "Leave out tokens less than P times as probable as the first (default: 0)",
     3},
    {"repeat-penalty", KEY_REPEAT, "R", 0, "Make tokens that occurred less probable (default: 1, off)", 3},
    {"seed", KEY_SEED, "N", 0, "Seed of the draws (default: 0); the same seed gives the same answer", 3},
    {"stop", KEY_STOP, "TEXT", 0, "End the answer before this text; up to 16 times", 3},
    {0},
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct sampling_flags *f = state->input;
    switch (key) {
    case 'n':
        f->max_tokens = cli_u32(state, "max-tokens", arg, 1, PLAN_SEQ_MAX);
        return 0;
    case KEY_TEMPERATURE:
        f->sampling.temperature = cli_float(state, "temperature", arg, 0, 100);
        if (f->sampling.temperature > 0 && f->sampling.temperature < SAMPLING_TEMPERATURE_MIN)
            argp_error(state, "--temperature is \"%s\"; allowed are 0 and numbers from %g", arg,
                       (double)SAMPLING_TEMPERATURE_MIN);
        return 0;
    case KEY_TOP_K:
        f->sampling.top_k = cli_u32(state, "top-k", arg, 0, PLAN_VOCAB_MAX);
        return 0;
    case KEY_TOP_P:
        f->sampling.top_p = cli_float(state, "top-p", arg, 1e-6f, 1);
        return 0;
    case KEY_MIN_P:
        f->sampling.min_p = cli_float(state, "min-p", arg, 0, 1);
        return 0;
    case KEY_REPEAT:
        f->sampling.repeat_penalty = cli_float(state, "repeat-penalty", arg, 0.01f, 100);
        return 0;
    case KEY_SEED:
        f->sampling.seed = cli_u64(state, "seed", arg);
        return 0;
    case KEY_STOP:
        if (f->n_stop == STOP_STRINGS_MAX)
            argp_error(state, "--stop may be given %d times", STOP_STRINGS_MAX);
        if (arg[0] == '\0' || strlen(arg) > STOP_BYTES_MAX)
            argp_error(state, "--stop has %zu bytes; allowed are 1 to %d", strlen(arg), STOP_BYTES_MAX);
        f->stop[f->n_stop++] = strv_from(arg);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

const struct argp SAMPLING_ARGP = {.options = OPTIONS, .parser = parse};

struct sampling_flags sampling_flags_default(void)
{
    return (struct sampling_flags){.sampling = SAMPLING_GREEDY};
}

// What turns tokens into the answer's text.
struct stream {
    struct detok detok;
    struct stop stop;
    struct buf *text;
    generation_text *on_text;
    void *context;
};

static enum iso_err stream_out(struct stream *s, const char *text, size_t n, struct iso_errinfo *reterr)
{
    if (n == 0)
        return ISO_OK;
    if (s->on_text && !s->on_text(s->context, (struct strv){text, n}))
        return iso_fail(reterr, ISO_E_IO, 0, NULL, "writing the answer failed: %s", strerror(errno));
    if (buf_append(s->text, text, n))
        return iso_fail(reterr, ISO_E_NOMEM, 0, NULL, "the system refused memory for the answer");
    return ISO_OK;
}

static enum iso_err stream_token(struct stream *s, uint32_t token, bool *ret_stopped,
                                 struct iso_errinfo *reterr)
{
    char piece[DETOK_OUT_MAX], out[DETOK_OUT_MAX + STOP_HELD_MAX];
    size_t n = detok_push(&s->detok, token, piece);
    n = stop_push(&s->stop, (struct strv){piece, n}, out, ret_stopped);
    return stream_out(s, out, n, reterr);
}

static enum iso_err stream_end(struct stream *s, struct iso_errinfo *reterr)
{
    char piece[DETOK_FLUSH_MAX], out[DETOK_FLUSH_MAX + STOP_HELD_MAX], held[STOP_HELD_MAX];
    bool stopped;
    size_t n = detok_flush(&s->detok, piece);
    n = stop_push(&s->stop, (struct strv){piece, n}, out, &stopped);
    enum iso_err err = stream_out(s, out, n, reterr);
    return err ? err : stream_out(s, held, stop_flush(&s->stop, held), reterr);
}

// Steps until the slot's request ends.
static enum iso_err run(struct session *s, uint32_t slot, uint64_t submitted_ns, struct stream *stream,
                        const volatile int *interrupted, struct generation *g, struct iso_errinfo *reterr)
{
    uint64_t last_ns = submitted_ns;
    for (;;) {
        struct unit_result r = unit_step(s->unit);
        bool interrupt = interrupted && *interrupted;
        if (r.n == 0 && !interrupt)
            continue; // a chunk of the prompt
        if (r.n == 0) {
            g->finish = FINISH_INTERRUPTED;
            unit_cancel(s->unit, slot);
            return ISO_OK;
        }
        const struct unit_event *event = &r.events[0];
        uint64_t now = clock_now_ns();
        if (event->finish == UNIT_NONFINITE)
            return iso_fail(reterr, ISO_E_NONFINITE, event->position, "logits",
                            "a logit after position %" PRIu32 " is not finite: the model's weights overflow",
                            event->position);
        bool stopped = false;
        if (g->output_tokens == 0)
            g->ttft_ns = now - submitted_ns;
        else
            hist_record(&g->inter_token, now - last_ns);
        g->output_tokens++;
        g->decode_ns += g->output_tokens > 1 ? now - last_ns : 0;
        last_ns = now;
        enum iso_err err = ISO_OK;
        if (event->finish != UNIT_EOG)
            err = stream_token(stream, event->token, &stopped, reterr);
        if (err)
            return err;
        if (event->finish == UNIT_RUNNING && !stopped && !interrupt)
            continue;
        g->finish = stopped || event->finish == UNIT_EOG ? FINISH_STOP
                    : event->finish == UNIT_LENGTH       ? FINISH_LENGTH
                                                         : FINISH_INTERRUPTED;
        unit_cancel(s->unit, slot);
        return ISO_OK;
    }
}

enum iso_err generation_run(struct session *s, const uint32_t *prompt, uint32_t n_prompt,
                            const struct sampling_flags *flags, generation_text *on_text, void *context,
                            const volatile int *interrupted, struct generation *ret,
                            struct iso_errinfo *reterr)
{
    uint32_t room = s->plan.header->limits.max_seq_len;
    struct unit_request request = {.prompt = prompt, .n_prompt = n_prompt, .sampling = flags->sampling};
    request.max_output = flags->max_tokens;
    if (!flags->max_tokens) // a prompt that leaves no room at all is refused by the unit
        request.max_output =
            n_prompt < room ? (uint32_t)num_min(GENERATION_MAX_TOKENS_DEFAULT, room - n_prompt) : 1;
    struct stream stream = {.text = &ret->text, .on_text = on_text, .context = context};
    uint32_t slot;
    enum iso_err err = stop_init(&stream.stop, flags->stop, flags->n_stop, reterr);
    if (err)
        return err;
    uint64_t submitted = clock_now_ns();
    uint32_t reused = 0;
    err = unit_submit(s->unit, &request, &slot, &reused, reterr);
    if (err)
        return err;
    memset(ret, 0, sizeof *ret);
    buf_init(&ret->text, ANSWER_BYTES_MAX);
    ret->prompt_tokens = n_prompt;
    ret->cached_tokens = reused;
    detok_init(&stream.detok, s->tokenizer);
    err = run(s, slot, submitted, &stream, interrupted, ret, reterr);
    if (!err)
        err = stream_end(&stream, reterr);
    if (err) {
        unit_cancel(s->unit, slot);
        generation_deinit(ret);
    }
    return err;
}

void generation_deinit(struct generation *g)
{
    buf_deinit(&g->text);
}

static double ms(uint64_t ns)
{
    return (double)ns * 1e-6;
}

// Tokens a second, the first left out.
static double decode_rate(const struct generation *g)
{
    return g->decode_ns ? (double)(g->output_tokens - 1) * 1e9 / (double)g->decode_ns : 0;
}

void generation_print_stats(const struct generation *g, const struct session *s)
{
    const struct hist *h = &g->inter_token;
    printf("  prompt tokens      %10" PRIu32 "   (%" PRIu32 " cached)\n", g->prompt_tokens, g->cached_tokens);
    printf("  output tokens      %10" PRIu32 "\n", g->output_tokens);
    printf("  TTFT               %10.2f ms\n", ms(g->ttft_ns));
    printf("  per token P50      %10.2f ms\n", ms(hist_quantile(h, 0.5)));
    printf("  per token P99      %10.2f ms\n", ms(hist_quantile(h, 0.99)));
    printf("  per token max      %10.2f ms\n", ms(h->max));
    printf("  decode             %10.2f tokens/s\n", decode_rate(g));
    printf("  kernels            %10s   (%" PRIu32 " threads)\n", unit_kernels(s->unit)->name, s->threads);
}

json_t *generation_json(const struct generation *g, const struct session *s,
                        const struct sampling_flags *flags)
{
    static const char *const REASONS[] = {
        [FINISH_STOP] = "stop", [FINISH_LENGTH] = "length", [FINISH_INTERRUPTED] = "interrupted"};
    const struct hist *h = &g->inter_token;
    char hex[HASH_HEX_BYTES], seed[24];
    hash128_hex(s->plan.header->hash, hex);
    snprintf(seed, sizeof seed, "%" PRIu64,
             flags->sampling.seed); // JSON numbers hold 53 bits for many readers
    json_t *usage = json_pack("{s:i, s:i, s:i}", "prompt_tokens", (int)g->prompt_tokens, "cached_tokens",
                              (int)g->cached_tokens, "completion_tokens", (int)g->output_tokens);
    json_t *times = json_pack("{s:f, s:f, s:f, s:f, s:f}", "ttft_ms", ms(g->ttft_ns), "per_token_p50_ms",
                              ms(hist_quantile(h, 0.5)), "per_token_p99_ms", ms(hist_quantile(h, 0.99)),
                              "per_token_max_ms", ms(h->max), "decode_tokens_per_s", decode_rate(g));
    return json_pack("{s:o, s:s, s:o, s:o, s:s, s:s, s:s, s:i}", "text",
                     cli_json_text((const char *)g->text.ptr, g->text.len), "finish_reason",
                     REASONS[g->finish], "usage", usage, "timings", times, "seed", seed, "plan", hex, "isa",
                     unit_kernels(s->unit)->name, "threads", (int)s->threads);
}
