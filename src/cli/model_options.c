#include "cli/model_options.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"

enum {
    KEY_BATCH_TOKENS = 0x1000,
    KEY_KV,
    KEY_QUANT,
    KEY_QUANT_HEAD,
    KEY_SLOTS,
    KEY_THREADS,
    KEY_CPUS,
    KEY_SCHED,
    KEY_ISA,
    KEY_POOL
};

static const struct argp_option COMPILE_OPTIONS[] = {
    {NULL, 0, NULL, 0,
     "How a model file is compiled (a plan has these fixed; given with one, they must agree):", 1},
    {"max-seq-len", 'c', "N", 0,
     "Tokens of one sequence, prompt and output together (default: 4096, or the model's "
     "context where that is shorter)",
     1},
    {"slots", KEY_SLOTS, "N", 0, "Sequences at once (default: 1); also -np", 1},
    {"np", 0, NULL, OPTION_ALIAS | OPTION_HIDDEN, NULL, 1},
    {"kv", KEY_KV, "f16|q8", 0, "Elements of the KV cache (default: f16)", 1},
    {"quant", KEY_QUANT, "WIDTH", 0,
     "Width of the layers' weights: w4, w6 or w8 bits in groups of 32 with a scale, f16, or keep, as the "
     "files have "
     "them (default: keep)",
     1},
    {"quant-embedding", KEY_QUANT_HEAD, "WIDTH", 0,
     "Width of the embedding and the output matrix (default: w6 with --quant w4, else that of --quant)", 1},
    {"batch-tokens", KEY_BATCH_TOKENS, "N", 0,
     "Most tokens computed in one step (default: 128); more makes prefill "
     "faster and steps longer",
     1},
    {0},
};

static enum quant parse_quant(const struct argp_state *state, const char *option, const char *arg)
{
    enum quant quant;
    if (!quant_from_name(arg, &quant))
        argp_error(state, "--%s is \"%s\"; allowed are keep, f16, w8, w6 and w4", option, arg);
    return quant;
}

static error_t parse_compile(int key, char *arg, struct argp_state *state)
{
    struct compile_flags *f = state->input;
    switch (key) {
    case 'c':
        f->options.max_seq_len = cli_u32(state, "max-seq-len", arg, 2, PLAN_SEQ_MAX);
        return 0;
    case KEY_SLOTS:
        f->options.slots = cli_u32(state, "slots", arg, 1, PLAN_SLOTS_MAX);
        return 0;
    case KEY_BATCH_TOKENS:
        f->options.batch_tokens = cli_u32(state, "batch-tokens", arg, 1, PLAN_BATCH_TOKENS_MAX);
        return 0;
    case KEY_QUANT:
        f->options.quant = parse_quant(state, "quant", arg);
        f->quant_given = true;
        return 0;
    case KEY_QUANT_HEAD:
        f->options.quant_head = parse_quant(state, "quant-embedding", arg);
        f->options.quant_head_given = true;
        return 0;
    case KEY_KV:
        if (strcmp(arg, "f16") != 0 && strcmp(arg, "q8") != 0)
            argp_error(state, "--kv is \"%s\"; allowed are f16 and q8", arg);
        f->options.kv_type = strcmp(arg, "q8") == 0 ? KV_Q8 : KV_F16;
        f->kv_given = true;
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

const struct argp COMPILE_ARGP = {.options = COMPILE_OPTIONS, .parser = parse_compile};

static const struct argp_option RUN_OPTIONS[] = {
    {NULL, 0, NULL, 0, "How a plan is run:", 2},
    {"threads", KEY_THREADS, "N", 0, "Threads that compute (default: one for each CPU given or usable)", 2},
    {"cpus", KEY_CPUS, "LIST", 0,
     "CPUs to pin the threads to, as in 0,1 or 2-5 (default: one on each usable CPU where there are as many "
     "threads, else not pinned)",
     2},
    {"sched", KEY_SCHED, "other|fifo", 0,
     "Scheduling of the threads: fifo is real-time, before all others on their CPUs; it is refused where the "
     "host would stop such a thread for a part of each second (default: other)",
     2},
    {"isa", KEY_ISA, "NAME", 0,
     "Instruction set: c, avx2, avx512, amx, neon (default: the fastest this machine has); the "
     "results are the same",
     2},
    {"pool", KEY_POOL, "SIZE", 0,
     "Refuse to start where more memory than this is needed, as in 8GiB (default: what the machine has "
     "available)",
     2},
    {0},
};

static void parse_cpus(struct run_flags *f, const char *arg, const struct argp_state *state)
{
    const char *at = arg;
    f->n_cpus = 0;
    while (*at) {
        char *end;
        unsigned long first = strtoul(at, &end, 10), last = first;
        if (end == at || *at == '-' || *at == '+' || *at == ' ')
            break;
        at = end;
        if (*at == '-') {
            last = strtoul(at + 1, &end, 10);
            if (end == at + 1)
                break;
            at = end;
        }
        if (first > last)
            argp_error(state, "--cpus is \"%s\"; a range goes from the lower number to the higher", arg);
        for (; first <= last && last <= 65535 && f->n_cpus < TEAM_THREADS_MAX; first++)
            f->cpus[f->n_cpus++] = (uint32_t)first;
        if (first <= last)
            argp_error(state, "--cpus \"%s\" names more than %d CPUs or one above 65535", arg,
                       TEAM_THREADS_MAX);
        if (*at == ',' && at[1])
            at++;
        else
            break;
    }
    for (uint32_t i = 0; i < f->n_cpus; i++)
        for (uint32_t j = 0; j < i; j++)
            if (f->cpus[i] == f->cpus[j])
                argp_error(state, "--cpus \"%s\" names CPU %" PRIu32 " twice", arg, f->cpus[i]);
    if (*at || f->n_cpus == 0)
        argp_error(state, "--cpus is \"%s\"; allowed are numbers and ranges, as in 0,1 or 2-5", arg);
}

static void parse_isa(struct run_flags *f, const char *arg, const struct argp_state *state)
{
    char usable[64];
    size_t at = 0;
    if (isa_from_name(arg, &f->isa) && kernels_get(f->isa)) {
        f->isa_given = true;
        return;
    }
    for (int i = 0; i < ISA_COUNT; i++)
        if (kernels_get((enum isa)i)) // all names fit
            at += (size_t)snprintf(usable + at, sizeof usable - at, "%s%s", at ? ", " : "",
                                   isa_name((enum isa)i));
    argp_error(state, "--isa is \"%s\"; this machine can run: %s", arg, usable);
}

static error_t parse_run(int key, char *arg, struct argp_state *state)
{
    struct run_flags *f = state->input;
    switch (key) {
    case KEY_THREADS:
        f->threads = cli_u32(state, "threads", arg, 1, TEAM_THREADS_MAX);
        return 0;
    case KEY_CPUS:
        parse_cpus(f, arg, state);
        return 0;
    case KEY_SCHED:
        f->fifo = strcmp(arg, "fifo") == 0;
        if (!f->fifo && strcmp(arg, "other") != 0)
            argp_error(state, "--sched is \"%s\"; allowed are other and fifo", arg);
        return 0;
    case KEY_ISA:
        parse_isa(f, arg, state);
        return 0;
    case KEY_POOL:
        f->pool_bytes = cli_bytes(state, "pool", arg);
        return 0;
    case ARGP_KEY_END:
        if (f->n_cpus > 0 && f->threads > f->n_cpus)
            argp_error(state, "--threads %" PRIu32 " is more than the %" PRIu32 " CPUs of --cpus", f->threads,
                       f->n_cpus);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

const struct argp RUN_ARGP = {.options = RUN_OPTIONS, .parser = parse_run};

enum iso_err compile_flags_widths_agree(const struct compile_flags *flags, const struct plan_limits *limits,
                                        struct iso_errinfo *reterr)
{
    const struct compile_options *o = &flags->options;
    if (flags->quant_given && (uint32_t)o->quant != limits->quant)
        return iso_fail(reterr, ISO_E_USAGE, 0, "quant",
                        "--quant is %s and the plan was compiled with %s: compile the model again",
                        quant_name(o->quant), quant_name(limits->quant));
    if (o->quant_head_given && (uint32_t)o->quant_head != limits->quant_head)
        return iso_fail(reterr, ISO_E_USAGE, 0, "quant-embedding",
                        "--quant-embedding is %s and the plan was compiled with %s: compile the model again",
                        quant_name(o->quant_head), quant_name(limits->quant_head));
    return ISO_OK;
}

enum iso_err compile_flags_agree(const struct compile_flags *flags, const struct plan_limits *limits,
                                 struct iso_errinfo *reterr)
{
    const struct compile_options *o = &flags->options;
    const struct {
        const char *option;
        uint32_t given, has;
    } ROWS[] = {{"max-seq-len", o->max_seq_len, limits->max_seq_len},
                {"slots", o->slots, limits->slots},
                {"batch-tokens", o->batch_tokens, limits->batch_tokens}};
    for (size_t i = 0; i < sizeof ROWS / sizeof ROWS[0]; i++)
        if (ROWS[i].given && ROWS[i].given != ROWS[i].has)
            return iso_fail(reterr, ISO_E_USAGE, 0, ROWS[i].option,
                            "--%s is %" PRIu32 " and the plan was compiled for %" PRIu32
                            ": compile the model again",
                            ROWS[i].option, ROWS[i].given, ROWS[i].has);
    if (flags->kv_given && (uint32_t)o->kv_type != limits->kv_type)
        return iso_fail(reterr, ISO_E_USAGE, 0, "kv",
                        "--kv differs from what the plan was compiled for: compile the model again");
    return compile_flags_widths_agree(flags, limits, reterr);
}
