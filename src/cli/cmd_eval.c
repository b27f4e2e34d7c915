// isochron eval FILE --text FILE
#include <inttypes.h>
#include <stdio.h>

#include "base/dmath.h"
#include "base/file.h"
#include "base/num.h"
#include "cli/choices.h"
#include "cli/cli.h"
#include "cli/eval.h"
#include "base/text_file.h"

#define WINDOW_DEFAULT     512
#define PERPLEXITY_LOG_MAX 700.0 // exp of it is told for all that is more: no double holds what is much more
#define SLOTS_DEFAULT      16    // of models compiled for it: rows of logits computed at once

struct arguments {
    struct compile_flags compile;
    struct run_flags run;
    const char *file, *against, *text, *choices;
    uint32_t window, tokens; // 0: not given
    bool json;
};

enum { KEY_AGAINST = 0x4000, KEY_TEXT, KEY_CHOICES, KEY_WINDOW, KEY_TOKENS };

static const struct argp_option OPTIONS[] = {
    {"text", KEY_TEXT, "FILE", 0, "Perplexity on a text", 0},
    {"against", KEY_AGAINST, "OTHER", 0,
     "Compare with another plan or model of the same vocabulary, usually the one of higher precision: KL "
     "divergence, agreement, perplexity, size and speed side by side",
     0},
    {"choices", KEY_CHOICES, "FILE", 0,
     "Accuracy on multiple-choice questions, one JSON object a line: {\"prompt\": TEXT, \"choices\": [TEXT, "
     "...], "
     "\"answer\": NUMBER FROM 0}",
     0},
    {"window", KEY_WINDOW, "N", 0,
     "Tokens of the pieces in which the text is read (default: 512, or max-seq-len)", 0},
    {"tokens", KEY_TOKENS, "N", 0, "Read at most this many tokens of the text", 0},
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
    case KEY_TEXT:
        cli_once(state, "text", &a->text, arg);
        return 0;
    case KEY_AGAINST:
        cli_once(state, "against", &a->against, arg);
        return 0;
    case KEY_CHOICES:
        cli_once(state, "choices", &a->choices, arg);
        return 0;
    case KEY_WINDOW:
        a->window = cli_u32(state, "window", arg, 2, PLAN_SEQ_MAX);
        return 0;
    case KEY_TOKENS:
        a->tokens = cli_u32(state, "tokens", arg, 2, EVAL_TOKENS_MAX);
        return 0;
    case 'j':
        a->json = true;
        return 0;
    case ARGP_KEY_ARG:
        if (a->file)
            argp_error(state,
                       "one model file or plan is expected, and \"%s\" is a second; --against compares", arg);
        a->file = arg;
        return 0;
    case ARGP_KEY_END:
        if (!a->file)
            argp_error(state, "which model file or plan?");
        if (!a->text && !a->choices)
            argp_error(state, "measured on what? Give --text FILE or --choices FILE");
        if (!a->text && (a->window || a->tokens))
            argp_error(state, "--%s goes with --text FILE", a->window ? "window" : "tokens");
        if (a->compile.options.max_seq_len && a->window > a->compile.options.max_seq_len)
            argp_error(state, "--window is %" PRIu32 " and --max-seq-len %" PRIu32, a->window,
                       a->compile.options.max_seq_len);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

// What was measured of each model.
struct measured {
    uint32_t n;
    const char *path[2];
    struct session session[2];
    struct eval_result text;
    struct choices_result choices[2];
};

static double perplexity(const struct eval_side *s)
{
    return dmath_exp(s->nll < PERPLEXITY_LOG_MAX ? s->nll : PERPLEXITY_LOG_MAX);
}

static void print_row(const char *name, const struct measured *m, const double value[2], int digits)
{
    printf("  %-26s", name);
    for (uint32_t i = 0; i < m->n; i++)
        printf(" %14.*f", digits, value[i]);
    putchar('\n');
}

static void print_interval(const char *name, const struct measured *m, const uint32_t right[2])
{
    printf("  %-26s", name);
    for (uint32_t i = 0; i < m->n; i++) {
        struct choices_interval c = choices_interval(right[i], m->choices[i].questions);
        printf("  %5.1f%% (%.1f to %.1f)", 100.0 * right[i] / m->choices[i].questions, 100 * c.low,
               100 * c.high);
    }
    putchar('\n');
}

static void print_text(const struct arguments *a, const struct measured *m)
{
    const struct eval_result *t = &m->text;
    printf("  %-26s", "");
    for (uint32_t i = 0; i < m->n; i++) {
        const struct plan_limits *l = &m->session[i].plan.header->limits;
        char label[32];
        snprintf(label, sizeof label, "%s%s/%s", i ? "against " : "", quant_name(l->quant),
                 quant_name(l->quant_head));
        printf(" %14s", label);
    }
    putchar('\n');
    double size[2], scoring[2], decode[2], ppl[2];
    for (uint32_t i = 0; i < m->n; i++) {
        size[i] = (double)m->session[i].plan.header->file_bytes / (double)MIB;
        ppl[i] = perplexity(&t->side[i]);
        scoring[i] = t->side[i].scoring;
        decode[i] = t->side[i].decode;
    }
    print_row("plan, MiB", m, size, 2);
    if (a->text) {
        print_row("perplexity", m, ppl, 4);
        print_row("scoring, tokens/s", m, scoring, 1);
        print_row("decode, tokens/s", m, decode, 1);
        printf("  %-26s %14" PRIu32 "\n", "tokens scored", t->scored);
    }
    if (a->text && m->n == 2) {
        double ratio = ppl[0] / ppl[1];
        printf("  %-26s %14.4f   (standard error %.4f)\n", "perplexity ratio", ratio, ratio * t->nll_error);
        printf("  %-26s %14.5f   P99 %.5f nats\n", "KL divergence, mean", t->kl_mean, t->kl_p99);
        printf("  %-26s %13.2f%%\n", "same most probable token", 100 * t->top1);
    }
    if (a->choices) {
        const uint32_t right[2] = {m->choices[0].right, m->choices[1].right};
        const uint32_t by_byte[2] = {m->choices[0].right_by_byte, m->choices[1].right_by_byte};
        printf("  %-26s %14" PRIu32 "\n", "questions", m->choices[0].questions);
        print_interval("accuracy (95%)", m, right);
        print_interval("accuracy by byte (95%)", m, by_byte);
    }
}

static json_t *accuracy_json(uint32_t right, uint32_t n)
{
    struct choices_interval c = choices_interval(right, n);
    return json_pack("{s:f, s:f, s:f}", "share", (double)right / n, "low_95", c.low, "high_95", c.high);
}

static json_t *side_json(const struct arguments *a, const struct measured *m, uint32_t i)
{
    const struct plan_header *h = m->session[i].plan.header;
    char hex[HASH_HEX_BYTES];
    hash128_hex(h->hash, hex);
    json_t *o = json_pack("{s:s, s:s, s:s, s:s, s:I}", "file", m->path[i], "plan", hex, "quant",
                          quant_name(h->limits.quant), "quant_embedding", quant_name(h->limits.quant_head),
                          "bytes", (json_int_t)h->file_bytes);
    if (o && a->text) {
        (void)json_object_set_new(o, "perplexity", json_real(perplexity(&m->text.side[i])));
        (void)json_object_set_new(o, "threads", json_integer(m->session[i].threads));
        (void)json_object_set_new(o, "nll", json_real(m->text.side[i].nll));
        (void)json_object_set_new(o, "scoring_tokens_per_s", json_real(m->text.side[i].scoring));
        (void)json_object_set_new(o, "decode_tokens_per_s", json_real(m->text.side[i].decode));
    }
    if (o && a->choices) {
        const struct choices_result *c = &m->choices[i];
        (void)json_object_set_new(o, "accuracy", accuracy_json(c->right, c->questions));
        (void)json_object_set_new(o, "accuracy_by_byte", accuracy_json(c->right_by_byte, c->questions));
    }
    return o;
}

static int print_json(const struct arguments *a, const struct measured *m)
{
    const struct eval_result *t = &m->text;
    json_t *o = json_pack("{s:o}", "model", side_json(a, m, 0));
    if (o && a->text)
        (void)json_object_set_new(o, "tokens_scored", json_integer(t->scored));
    if (o && a->choices)
        (void)json_object_set_new(o, "questions", json_integer(m->choices[0].questions));
    if (o && m->n == 2)
        (void)json_object_set_new(o, "against", side_json(a, m, 1));
    if (o && m->n == 2 && a->text) {
        double ratio = perplexity(&t->side[0]) / perplexity(&t->side[1]);
        (void)json_object_set_new(o, "perplexity_ratio", json_real(ratio));
        (void)json_object_set_new(o, "perplexity_ratio_error", json_real(ratio * t->nll_error));
        (void)json_object_set_new(o, "kl_mean", json_real(t->kl_mean));
        (void)json_object_set_new(o, "kl_p99", json_real(t->kl_p99));
        (void)json_object_set_new(o, "top1", json_real(t->top1));
    }
    return cli_print_json(o);
}

static enum iso_err measure_text(const struct arguments *a, struct measured *m, struct iso_errinfo *reterr)
{
    struct session *sessions[2] = {&m->session[0], &m->session[1]};
    struct cli_progress progress;
    struct eval_text text;
    uint32_t window = a->window ? a->window : WINDOW_DEFAULT;
    for (uint32_t i = 0; i < m->n; i++)
        window = (uint32_t)num_min(window, m->session[i].plan.header->limits.max_seq_len);
    if (a->window > window)
        return iso_fail(reterr, ISO_E_USAGE, 0, "window",
                        "--window is %" PRIu32 " and the plan's max-seq-len %" PRIu32, a->window, window);
    enum iso_err err = eval_text_open(sessions[0], a->text, window, a->tokens, &text, reterr);
    if (err)
        return err;
    cli_progress_begin(&progress, "scoring", "tokens", a->json);
    err = eval_run(sessions, m->path, m->n, &text, &progress, &m->text, reterr);
    cli_progress_end(&progress);
    for (uint32_t i = 0; i < m->n && !err; i++)
        err = eval_speed(sessions[i], &text, &m->text.side[i], reterr);
    eval_text_close(&text);
    return err;
}

// What would stop it after long work is said before.
static enum iso_err check_files(const struct arguments *a, struct iso_errinfo *reterr)
{
    const struct {
        const char *path;
        bool folder;
    } FILES[] = {{a->file, true}, {a->against, true}, {a->text, false}, {a->choices, false}};
    for (size_t i = 0; i < ARRAY_LEN(FILES); i++)
        if (FILES[i].path && file_check_readable(FILES[i].path, FILES[i].folder, reterr))
            return iso_fail_prefix(reterr, FILES[i].path);
    return ISO_OK;
}

static enum iso_err measure_choices(const struct arguments *a, struct measured *m, struct strv questions,
                                    struct iso_errinfo *reterr)
{
    enum iso_err err = ISO_OK;
    for (uint32_t i = 0; i < m->n && !err; i++) {
        struct cli_progress progress;
        cli_progress_begin(&progress, "answering", NULL, a->json);
        err = choices_run(&m->session[i], questions, &progress, &m->choices[i], reterr);
        cli_progress_end(&progress);
    }
    return err ? iso_fail_prefix(reterr, a->choices) : ISO_OK;
}

static enum iso_err measure(const struct arguments *a, struct measured *m, struct iso_errinfo *reterr)
{
    struct session *const sessions[2] = {&m->session[0], &m->session[1]};
    struct buf questions;
    buf_init(&questions, 0);
    enum iso_err err = a->text && m->n == 2 ? eval_check_pair(sessions, reterr) : ISO_OK;
    if (err)
        return err;
    if (a->choices)
        err = text_file_read(a->choices, CHOICES_BYTES_MAX, &questions, reterr);
    for (uint32_t i = 0; i < m->n && !err && a->choices; i++) // before the text is read, which takes long
        err = choices_check(&m->session[i], buf_strv(&questions), reterr);
    if (err)
        iso_fail_prefix(reterr, a->choices);
    if (!err && a->text)
        err = measure_text(a, m, reterr);
    if (!err && a->choices)
        err = measure_choices(a, m, buf_strv(&questions), reterr);
    buf_deinit(&questions);
    return err;
}

// Limits that suit scoring, where a model file is given and they are not.
static void choose_limits(struct arguments *a)
{
    struct compile_options *o = &a->compile.options;
    if (!o->slots)
        o->slots = SLOTS_DEFAULT;
    if (!o->max_seq_len && !a->choices)
        o->max_seq_len_default = a->window ? a->window : WINDOW_DEFAULT;
}

static enum iso_err open_side(const struct arguments *a, struct measured *m, const char *path,
                              struct iso_errinfo *reterr)
{
    struct arguments with = *a;
    if (!plan_is_plan(path))
        choose_limits(&with);
    if (m->n == 1) { // the widths are those of the first alone, what must be alike is the first's
        const struct plan_limits *first = &m->session[0].plan.header->limits;
        with.compile.quant_given = with.compile.options.quant_head_given = false;
        with.compile.options.quant = QUANT_KEEP;
        if (!plan_is_plan(path) && !a->compile.options.slots)
            with.compile.options.slots = first->slots;
        if (!plan_is_plan(path) && !a->compile.options.batch_tokens)
            with.compile.options.batch_tokens = first->batch_tokens;
    }
    enum iso_err err = session_open(path, &with.compile, &a->run, a->json, &m->session[m->n], reterr);
    if (!err)
        m->path[m->n++] = path;
    return err;
}

int cmd_eval(int argc, char **argv)
{
    static const struct argp_child CHILDREN[] = {{&COMPILE_ARGP, 0, NULL, 0}, {&RUN_ARGP, 0, NULL, 0}, {0}};
    static const struct argp ARGP = {
        .options = OPTIONS,
        .parser = parse,
        .args_doc = "FILE",
        .doc = "Measures quality: perplexity on a text, distance from another model, accuracy on questions "
               "of your own. "
               "FILE and OTHER are plans, or models (GGUF file or Hugging Face folder) that are compiled "
               "into the cache "
               "first; --quant and --quant-embedding are those of FILE.\v" CLI_EXIT_CODES_HELP,
        .children = CHILDREN};
    struct arguments a = {0};
    struct measured m = {0};
    struct iso_errinfo e;
    cli_parse(&ARGP, argc, argv, &a);
    enum iso_err err = check_files(&a, &e);
    session_settle_threads(&a.run);
    if (!err)
        err = open_side(&a, &m, a.file, &e);
    if (!err && a.against)
        err = open_side(&a, &m, a.against, &e);
    if (!err)
        err = measure(&a, &m, &e);
    int code = CLI_EXIT_OK;
    if (err)
        code = cli_fail(&e, a.json);
    else if (a.json)
        code = print_json(&a, &m);
    else
        print_text(&a, &m);
    for (uint32_t i = 0; i < m.n; i++)
        session_close(&m.session[i]);
    return code;
}
