// isochron serve MODEL | --config isochron.yaml
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/num.h"
#include "cli/cli.h"
#include "cli/session.h"
#include "serve/server.h"

#define SLOTS_DEFAULT 4 // of a model file that is compiled for serving
#define PRINTED_MAX   ((size_t)1 << 20)

enum { KEY_SETTING = 0x4000, KEY_CONFIG = 0x3000, KEY_PRINT, KEY_HELP, KEY_OTHER = 0x5000 };

// What other servers call it, and short names that this program's other commands have. `instead` NULL: another name of the setting.
static const struct {
    const char *name;
    uint32_t setting;
    const char *instead;
} OTHERS[] = {
    {"c", SETTING_MAX_SEQ_LEN, NULL},
    {"np", SETTING_SLOTS, NULL},
    {"m", SETTING_MODEL, NULL},
    {"host", 0, "--listen ADDRESS:PORT"},
    {"port", 0, "--listen ADDRESS:PORT"},
    {"api-key", 0, "--keys FILE"},
    {"served-model-name", 0, "--alias NAME"},
    {"ctx-size", 0, "--max-seq-len N"},
    {"max-model-len", 0, "--max-seq-len N"},
    {"parallel", 0, "--slots N"},
    {"max-num-seqs", 0, "--slots N"},
};

struct arguments {
    struct serve_config config;
    const char *file; // of --config
    // Settings from flags, which count over the file wherever they stand.
    uint32_t n_flags;
    struct {
        uint32_t setting;
        const char *value;
    } flags[64];
    bool print;
};

static void keep_flag(struct arguments *a, uint32_t setting, const char *value,
                      const struct argp_state *state)
{
    if (a->n_flags == sizeof a->flags / sizeof a->flags[0])
        argp_error(state, "there are too many options");
    a->flags[a->n_flags].setting = setting;
    a->flags[a->n_flags++].value = value;
}

static bool is_other(int key)
{
    return key >= KEY_OTHER && key < KEY_OTHER + (int)ARRAY_LEN(OTHERS);
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct arguments *a = state->input;
    uint32_t n;
    (void)config_settings(&n);
    if (key == KEY_CONFIG) {
        cli_once(state, "config", &a->file, arg);
    } else if (key == KEY_PRINT) {
        a->print = true;
    } else if (is_other(key) && OTHERS[key - KEY_OTHER].instead) {
        argp_error(state, "there is no --%s; here it is %s", OTHERS[key - KEY_OTHER].name,
                   OTHERS[key - KEY_OTHER].instead);
    } else if (is_other(key)) {
        keep_flag(a, OTHERS[key - KEY_OTHER].setting, arg, state);
    } else if (key == KEY_HELP) {
        argp_state_help(state, stdout, ARGP_HELP_STD_HELP);
    } else if (key == ARGP_KEY_ARG) {
        keep_flag(a, SETTING_MODEL, arg, state);
    } else if (key >= KEY_SETTING && key < KEY_SETTING + (int)n) {
        keep_flag(a, (uint32_t)(key - KEY_SETTING), arg, state);
    } else {
        return ARGP_ERR_UNKNOWN;
    }
    return 0;
}

// One option for each setting that has a flag, and the two that are no settings. To be freed.
static struct argp_option *make_options(void)
{
    uint32_t n, at = 0;
    const struct config_setting *settings = config_settings(&n);
    struct argp_option *o = calloc(n + 4 + ARRAY_LEN(OTHERS), sizeof *o);
    if (!o)
        return NULL;
    o[at++] = (struct argp_option){
        "config", KEY_CONFIG, "FILE", 0, "Read settings from this YAML file; flags count over it", 0};
    o[at++] = (struct argp_option){"print-config",
                                   KEY_PRINT,
                                   NULL,
                                   0,
                                   "Print the settings as they would be used, as a YAML file, and end",
                                   0};
    // Elsewhere -h can only mean --help; here it could be --head-timeout, too.
    o[at++] = (struct argp_option){"h", KEY_HELP, NULL, OPTION_HIDDEN, NULL, 0};
    for (uint32_t i = 0; i < n; i++)
        if (settings[i].flag)
            o[at++] = (struct argp_option){
                settings[i].flag, KEY_SETTING + (int)i, settings[i].value, 0, settings[i].help, 0};
    for (size_t i = 0; i < ARRAY_LEN(OTHERS); i++)
        o[at++] = (struct argp_option){OTHERS[i].name, KEY_OTHER + (int)i, "VALUE", OPTION_HIDDEN, NULL, 0};
    return o;
}

static enum iso_err read_settings(struct arguments *a, struct iso_errinfo *reterr)
{
    config_defaults(&a->config);
    enum iso_err err = a->file ? config_read(&a->config, a->file, reterr) : ISO_OK;
    for (uint32_t i = 0; i < a->n_flags && !err; i++)
        err = config_set(&a->config, a->flags[i].setting, a->flags[i].value, reterr);
    return err ? err : config_check(&a->config, reterr);
}

static int print_settings(const struct serve_config *c)
{
    struct buf text;
    buf_init(&text, PRINTED_MAX);
    int code = iso_err_exit_code(config_print(c, &text));
    if (code == CLI_EXIT_OK)
        (void)fwrite(text.ptr, 1, text.len, stdout);
    buf_deinit(&text);
    return code;
}

static enum iso_err settle_compile(const struct serve_config *c, struct compile_flags *flags,
                                   struct iso_errinfo *reterr)
{
    struct compile_options *o = &flags->options;
    *flags = (struct compile_flags){.quant_given = c->quant[0], .kv_given = c->kv[0]};
    o->max_seq_len = c->max_seq_len;
    o->slots = c->slots ? c->slots : SLOTS_DEFAULT;
    o->batch_tokens = c->batch_tokens;
    o->kv_type = strcmp(c->kv, "q8") == 0 ? KV_Q8 : KV_F16;
    o->quant_head_given = c->quant_embedding[0];
    bool good = (!c->quant[0] || quant_from_name(c->quant, &o->quant)) &&
                (!c->quant_embedding[0] || quant_from_name(c->quant_embedding, &o->quant_head));
    return good ? ISO_OK
                : iso_fail(reterr, ISO_E_USAGE, 0, "compile",
                           "compile names no width: keep, f16, w8, w6 and w4 are");
}

// A plan has its limits fixed: what is set must be what it has.
static enum iso_err agree(const struct serve_config *c, const char *path, struct iso_errinfo *reterr)
{
    struct plan_header h;
    enum iso_err err = plan_peek(path, &h, reterr);
    if (err)
        return iso_fail_prefix(reterr, path);
    const struct {
        enum config_id id;
        const char *name;
        uint32_t given, has;
    } ROWS[] = {{SETTING_MAX_SEQ_LEN, "limits.max_seq_len", c->max_seq_len, h.limits.max_seq_len},
                {SETTING_SLOTS, "limits.slots", c->slots, h.limits.slots},
                {SETTING_BATCH_TOKENS, "limits.batch_tokens", c->batch_tokens, h.limits.batch_tokens}};
    char where[FILE_PATH_MAX];
    for (size_t i = 0; i < sizeof ROWS / sizeof ROWS[0]; i++) {
        config_where(c, ROWS[i].id, where, sizeof where);
        if (ROWS[i].given && ROWS[i].given != ROWS[i].has)
            return iso_fail(reterr, ISO_E_USAGE, 0, ROWS[i].name,
                            "%.120s: %s is %" PRIu32 " and the plan %.100s was compiled for %" PRIu32
                            ": leave it out, or compile the model again",
                            where, ROWS[i].name, ROWS[i].given, path, ROWS[i].has);
    }
    struct compile_flags flags;
    err = settle_compile(c, &flags, reterr);
    config_where(c, SETTING_KV, where, sizeof where);
    if (!err && flags.kv_given && (uint32_t)flags.options.kv_type != h.limits.kv_type)
        return iso_fail(reterr, ISO_E_USAGE, 0, "compile.kv",
                        "%.120s: compile.kv is %s and the plan %.100s was compiled for the other: leave it "
                        "out, or compile the model again",
                        where, c->kv, path);
    return err ? err : compile_flags_widths_agree(&flags, &h.limits, reterr);
}

// The audit names the plan by its path. Links stay: a reload may find another file behind them.
static enum iso_err make_absolute(char *path, size_t size, struct iso_errinfo *reterr)
{
    char folder[FILE_PATH_MAX], whole[2 * FILE_PATH_MAX];
    if (path[0] == '/')
        return ISO_OK;
    if (!getcwd(folder, sizeof folder))
        return iso_fail(reterr, ISO_E_IO, 0, "model", "the working folder has no path: %s", strerror(errno));
    int n = snprintf(whole, sizeof whole, "%s/%s", folder, path);
    if (n < 0 || (size_t)n >= size)
        return iso_fail(reterr, ISO_E_LIMIT, 0, "model", "%s: the path is longer than %zu bytes", path,
                        size - 1);
    memcpy(path, whole, (size_t)n + 1);
    return ISO_OK;
}

// The plan of each model, compiled into the cache where it is a model file.
static enum iso_err find_plans(const struct serve_config *c, const struct run_flags *run,
                               struct server_plan *plans, struct iso_errinfo *reterr)
{
    for (uint32_t i = 0; i < c->n_models; i++) {
        const char *path = c->models[i].path;
        struct compile_flags flags;
        enum iso_err err;
        plans[i].is_compiled = !plan_is_plan(path);
        if (plans[i].is_compiled)
            err = settle_compile(c, &flags, reterr);
        else
            err = agree(c, path, reterr);
        if (!err)
            err = session_plan_path(path, &flags, run, false, plans[i].path, sizeof plans[i].path, reterr);
        if (!err)
            err = make_absolute(plans[i].path, sizeof plans[i].path, reterr);
        if (err)
            return err;
    }
    return ISO_OK;
}

static enum iso_err settle_unit(const struct serve_config *c, struct run_flags *run,
                                struct channel_config *channel, struct iso_errinfo *reterr)
{
    const struct config_unit *u = &c->units[0];
    if (c->n_units > 1)
        return iso_fail(reterr, ISO_E_UNSUPPORTED, 0, "units",
                        "units has %" PRIu32 " units; this version serves with one", c->n_units);
    *run = (struct run_flags){
        .threads = u->threads, .n_cpus = u->n_cpus, .fifo = u->fifo, .pool_bytes = u->pool_bytes};
    memcpy(run->cpus, u->cpus, sizeof run->cpus);
    run->isa_given = c->isa[0];
    if (run->isa_given && (!isa_from_name(c->isa, &run->isa) || !kernels_get(run->isa)))
        return iso_fail(reterr, ISO_E_UNSUPPORTED, 0, "isa", "this machine can't run the instruction set %s",
                        c->isa);
    session_settle_threads(run);
    *channel = (struct channel_config){.pool_bytes_max = u->pool_bytes,
                                       .threads = run->threads,
                                       .n_cpus = run->n_cpus,
                                       .fifo = run->fifo,
                                       .isa = run->isa_given ? (uint32_t)run->isa : ISA_COUNT};
    memcpy(channel->cpus, run->cpus, sizeof channel->cpus);
    return ISO_OK;
}

static enum iso_err serve(const struct serve_config *c, struct iso_errinfo *reterr)
{
    static const char *const UNIT_ARGV[] = {"isochron", "unit", NULL};
    static struct server_plan plans[CONFIG_MODELS_MAX];
    struct run_flags run;
    struct channel_config channel;
    enum iso_err err = settle_unit(c, &run, &channel, reterr);
    if (!err)
        err = find_plans(c, &run, plans, reterr);
    return err ? err : server_run(c, plans, &channel, UNIT_ARGV, reterr);
}

int cmd_serve(int argc, char **argv)
{
    static struct arguments a;
    struct iso_errinfo e;
    struct argp_option *options = make_options();
    const struct argp argp = {
        .options = options,
        .parser = parse,
        .args_doc = "MODEL...",
        .doc =
            "Serves models to clients of OpenAI's API. MODEL is a plan or a model file, or NAME=FILE where "
            "there are several.\v" CLI_EXIT_CODES_HELP};
    if (!options)
        return iso_err_exit_code(ISO_E_NOMEM);
    cli_parse(&argp, argc, argv, &a);
    int code;
    if (read_settings(&a, &e))
        code = cli_fail(&e, false);
    else if (a.print)
        code = print_settings(&a.config);
    else
        code = serve(&a.config, &e) ? cli_fail(&e, false) : CLI_EXIT_OK;
    free(options);
    return code;
}
