// isochron fit FILE --max-seq-len N --slots N [--pool 8GiB]
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/num.h"
#include "base/pages.h"
#include "cli/cli.h"
#include "cli/session.h"
#include "cli/sizing.h"

struct arguments {
    struct compile_flags compile;
    struct run_flags run;
    const char *file;
    bool json;
};

static const struct argp_option OPTIONS[] = {
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

struct verdict {
    struct plan_limits limits;
    struct account account;
    uint64_t total, pool;
    bool pool_given, fits;
    uint32_t largest_seq, largest_slots;
};

static void print_row(const char *name, uint64_t bytes, const char *formula)
{
    printf("  %-12s %16" PRIu64 "  %9.3f GiB  %s\n", name, bytes, (double)bytes / (double)GIB, formula);
}

// "matrices A + vectors B + rotary table C": what the weights' sum is made of under these limits.
static void weights_formula(const struct sizing *s, const struct plan_limits *limits, char *out, size_t size)
{
    uint64_t bytes[PLAN_KIND_COUNT] = {0};
    for (uint32_t i = 0; i < s->header.n_tensors; i++) {
        const struct plan_tensor *t = &s->tensors[i];
        if (t->kind != PLAN_BATCH && t->kind != PLAN_LOGITS)
            bytes[t->kind] += plan_weight_bytes(t, limits);
    }
    snprintf(out, size,
             "packed matrices %" PRIu64 " + vectors %" PRIu64 " + rotary table %" PRIu64 " (%" PRIu32
             " positions x %" PRIu32 " x 4 bytes)",
             bytes[PLAN_MATRIX], bytes[PLAN_VECTOR], bytes[PLAN_ANGLES], limits->max_seq_len,
             s->header.model.head_dim);
}

static void print_account(const struct sizing *s, const struct verdict *v, uint32_t threads)
{
    const struct account *a = &v->account;
    const struct plan_model *m = &s->header.model;
    char formula[256];
    printf("%s (%s), max-seq-len %" PRIu32 ", slots %" PRIu32 ", batch-tokens %" PRIu32
           ", kv %s, threads %" PRIu32 "\n\n",
           m->name[0] ? m->name : "model", m->arch, v->limits.max_seq_len, v->limits.slots,
           v->limits.batch_tokens, v->limits.kv_type == KV_F16 ? "f16" : "q8", threads);
    weights_formula(s, &v->limits, formula, sizeof formula);
    print_row("weights", a->weights, formula);
    snprintf(formula, sizeof formula,
             "the most that is alive at once of %" PRIu32 " rows of values a step and %" PRIu32
             " rows of %" PRIu32 " logits x 4 bytes",
             v->limits.batch_tokens, v->limits.slots, m->vocab);
    print_row("activations", a->activations, formula);
    snprintf(formula, sizeof formula,
             "2 x %" PRIu32 " layers x %" PRIu32 " KV heads x %s%" PRIu32 "%s x %" PRIu64
             " tokens (blocks of 16)",
             m->layers, m->kv_heads, v->limits.kv_type == KV_F16 ? "" : "(", m->head_dim,
             v->limits.kv_type == KV_F16 ? " head_dim x 2 bytes" : " head_dim + 4) bytes",
             a->kv_blocks * KV_BLOCK_TOKENS);
    print_row("KV cache", a->kv, formula);
    snprintf(formula, sizeof formula,
             "tables %" PRIu64 " + plan %" PRIu64 " + stacks %" PRIu64 " + tokenizer %" PRIu64
             " + program %" PRIu64,
             a->runtime_tables, a->runtime_plan, a->runtime_stacks, a->runtime_text, a->runtime_image);
    print_row("runtime", a->runtime, formula);
    print_row("sum", v->total, "");
}

static void print_verdict(const struct verdict *v)
{
    uint64_t apart = v->fits ? v->pool - v->total : v->total - v->pool;
    printf("\n%s: %s %" PRIu64 " bytes (%s), %" PRIu64 " (%s) %s\n", v->fits ? "fits" : "does not fit",
           v->pool_given ? "the pool has" : "this machine has available", v->pool, cli_size(v->pool).text,
           apart, cli_size(apart).text, v->fits ? "to spare" : "too few");
    if (v->largest_seq)
        printf("largest max-seq-len with %" PRIu32 " slots: %" PRIu32 "\n", v->limits.slots, v->largest_seq);
    if (v->largest_slots)
        printf("largest slots with max-seq-len %" PRIu32 ": %" PRIu32 "%s\n", v->limits.max_seq_len,
               v->largest_slots, v->largest_slots == PLAN_SLOTS_MAX ? " (the limit)" : "");
    if (!v->largest_seq && !v->largest_slots)
        printf("neither fewer tokens nor fewer slots alone would make it fit\n");
}

static int print_json(const struct verdict *v, uint32_t threads)
{
    const struct account *a = &v->account;
    json_t *runtime =
        json_pack("{s:I, s:I, s:I, s:I, s:I}", "tables", (json_int_t)a->runtime_tables, "plan",
                  (json_int_t)a->runtime_plan, "stacks", (json_int_t)a->runtime_stacks, "tokenizer",
                  (json_int_t)a->runtime_text, "program", (json_int_t)a->runtime_image);
    json_t *kv = json_pack("{s:I, s:I, s:I}", "blocks", (json_int_t)a->kv_blocks, "block_bytes",
                           (json_int_t)a->kv_block_bytes, "token_bytes", (json_int_t)a->kv_token_bytes);
    return cli_print_json(json_pack(
        "{s:i, s:i, s:i, s:s, s:i, s:I, s:I, s:I, s:I, s:I, s:o, s:o, s:I, s:b, s:i, s:i}", "max_seq_len",
        (int)v->limits.max_seq_len, "slots", (int)v->limits.slots, "batch_tokens",
        (int)v->limits.batch_tokens, "kv", v->limits.kv_type == KV_F16 ? "f16" : "q8", "threads",
        (int)threads, "weights", (json_int_t)a->weights, "activations", (json_int_t)a->activations,
        "kv_cache", (json_int_t)a->kv, "runtime", (json_int_t)a->runtime, "sum", (json_int_t)v->total,
        "runtime_parts", runtime, "kv_parts", kv, "pool", (json_int_t)v->pool, "fits", (int)v->fits,
        "largest_max_seq_len", (int)v->largest_seq, "largest_slots", (int)v->largest_slots));
}

// The limits asked for: the options where given, else those compiled for.
static enum iso_err wanted_limits(const struct arguments *a, const struct plan_header *h,
                                  struct plan_limits *ret, struct iso_errinfo *reterr)
{
    const struct compile_options *o = &a->compile.options;
    struct plan_limits l = h->limits;
    l.max_seq_len = o->max_seq_len ? o->max_seq_len : l.max_seq_len;
    l.slots = o->slots ? o->slots : l.slots;
    l.batch_tokens = o->batch_tokens ? o->batch_tokens : l.batch_tokens;
    if (o->batch_tokens && o->batch_tokens < l.slots)
        return iso_fail(reterr, ISO_E_USAGE, 0, "batch-tokens",
                        "--batch-tokens %" PRIu32 " must be from the number of slots (%" PRIu32 ") to %d",
                        o->batch_tokens, l.slots, PLAN_BATCH_TOKENS_MAX);
    l.batch_tokens = l.batch_tokens < l.slots ? l.slots : l.batch_tokens;
    l.kv_type = a->compile.kv_given ? (uint32_t)o->kv_type : l.kv_type;
    if (l.max_seq_len > h->model.context)
        return iso_fail(reterr, ISO_E_USAGE, 0, "max-seq-len",
                        "--max-seq-len %" PRIu32 " is over the model's context of %" PRIu32 " tokens",
                        l.max_seq_len, h->model.context);
    *ret = l;
    return ISO_OK;
}

int cmd_fit(int argc, char **argv)
{
    static const struct argp_child CHILDREN[] = {{&COMPILE_ARGP, 0, NULL, 0}, {&RUN_ARGP, 0, NULL, 0}, {0}};
    static const struct argp ARGP = {
        .options = OPTIONS,
        .parser = parse,
        .args_doc = "FILE",
        .doc = "Shows what a model file or plan takes: weights, activations, KV cache and runtime, each with "
               "its "
               "formula, and whether that fits the pool (or, without --pool, the memory this machine has "
               "available). "
               "These are the numbers that a running unit maps.\vExit code 0: it fits; 6: it does "
               "not. " CLI_EXIT_CODES_HELP,
        .children = CHILDREN};
    struct arguments a = {0};
    struct iso_errinfo e;
    struct sizing s;
    cli_parse(&ARGP, argc, argv, &a);
    if (sizing_open(a.file, &a.compile, &s, &e))
        return cli_fail(&e, a.json);
    struct verdict v = {.pool_given = a.run.pool_bytes > 0, .pool = a.run.pool_bytes};
    uint32_t threads = session_threads(&a.run);
    int code;
    if (wanted_limits(&a, &s.header, &v.limits, &e)) {
        iso_fail_prefix(&e, a.file);
        code = cli_fail(&e, a.json);
    } else {
        v.pool = v.pool_given ? v.pool : pages_available();
        v.account = sizing_account(&s, &v.limits, threads);
        v.total = account_total(&v.account);
        v.fits = v.total <= v.pool;
        v.largest_seq = sizing_largest_seq(&s, &v.limits, threads, v.pool);
        v.largest_slots = sizing_largest_slots(&s, &v.limits, threads, v.pool);
        code = v.fits ? CLI_EXIT_OK : iso_err_exit_code(ISO_E_NOFIT);
        if (a.json) {
            (void)print_json(&v, threads);
        } else {
            print_account(&s, &v, threads);
            print_verdict(&v);
        }
    }
    sizing_close(&s);
    return code;
}
