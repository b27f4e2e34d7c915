// isochron compile MODEL -o m.plan
#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <sys/stat.h>

#include "base/file.h"
#include "base/hash.h"
#include "base/num.h"
#include "cli/calibrate.h"
#include "cli/cli.h"
#include "cli/eval.h"
#include "cli/model_options.h"
#include "plan/plan.h"

struct arguments {
    struct compile_flags compile;
    const char *model, *output, *calibrate;
    uint32_t calibrate_tokens; // 0: the default
    float prune;               // share of KV heads that go; 0: none
    bool json;
};

enum { KEY_LORA = 0x4F00, KEY_CALIBRATE = 0x5000, KEY_CALIBRATE_TOKENS, KEY_PRUNE };

static const struct argp_option OPTIONS[] = {
    {"output", 'o', "FILE", 0, "Where the plan goes (required); it appears whole or not at all", 0},
    {"calibrate", KEY_CALIBRATE, "FILE", 0,
     "Run the model with f16 weights on this text first, and choose the codes of --quant so that what it "
     "computes there "
     "changes least",
     0},
    {"calibrate-tokens", KEY_CALIBRATE_TOKENS, "N", 0, "Read at most this many tokens of it (default: 8192)",
     0},
    {"prune-heads", KEY_PRUNE, "R", 0,
     "Leave out of each layer the share R of its KV heads, with the heads that read them, whose part in what "
     "the layer computes on the text of --calibrate is least",
     0},
    {"lora", KEY_LORA, "DIR", 0,
     "Merge a PEFT adapter (adapter_config.json, adapter_model.safetensors) into the weights of a Hugging "
     "Face folder, before they are quantized; not with --calibrate or --prune-heads",
     0},
    {"json", 'j', NULL, 0, "Print the result as one JSON object", 0},
    {0},
};

static bool has_codes(const struct arguments *a)
{
    return a->compile.options.quant != QUANT_KEEP && a->compile.options.quant != QUANT_F16;
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct arguments *a = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &a->compile;
        return 0;
    case 'o':
        cli_once(state, "output", &a->output, arg);
        return 0;
    case KEY_LORA:
        cli_once(state, "lora", &a->compile.options.lora, arg);
        return 0;
    case KEY_CALIBRATE:
        cli_once(state, "calibrate", &a->calibrate, arg);
        return 0;
    case KEY_CALIBRATE_TOKENS:
        a->calibrate_tokens = cli_u32(state, "calibrate-tokens", arg, 2, EVAL_TOKENS_MAX);
        return 0;
    case KEY_PRUNE:
        a->prune = cli_float(state, "prune-heads", arg, 0.001f, 0.999f);
        return 0;
    case 'j':
        a->json = true;
        return 0;
    case ARGP_KEY_ARG:
        if (a->model)
            argp_error(state, "one model file is expected, and \"%s\" is a second", arg);
        a->model = arg;
        return 0;
    case ARGP_KEY_END:
        if (!a->model)
            argp_error(state, "which model file?");
        if (!a->output || a->output[0] == '\0')
            argp_error(state, "where to? Name the plan with -o FILE");
        if (a->calibrate && !has_codes(a) && a->prune == 0)
            argp_error(state, "--calibrate is of use with --quant w4, w6 or w8 and with --prune-heads");
        if (a->prune > 0 && a->compile.options.lora)
            argp_error(state, "--prune-heads runs the model without the adapter of --lora: give one of them");
        if (a->prune > 0 && !a->calibrate)
            argp_error(state, "--prune-heads needs --calibrate FILE, a text on which the heads are compared");
        if (a->calibrate && a->compile.options.lora)
            argp_error(state, "--calibrate runs the model without the adapter of --lora: give one of them");
        if (a->calibrate_tokens && !a->calibrate)
            argp_error(state, "--calibrate-tokens goes with --calibrate FILE");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static bool is_same(const struct stat *a, const struct stat *b)
{
    return a->st_ino == b->st_ino && a->st_dev == b->st_dev;
}

// Whether the file is what the path names, or lies in the folder that it names.
static bool is_input(const struct stat *file, const char *path)
{
    struct stat st;
    if (stat(path, &st))
        return false;
    bool found = is_same(file, &st);
    DIR *folder = S_ISDIR(st.st_mode) ? opendir(path) : NULL;
    for (const struct dirent *e; folder && !found && (e = readdir(folder));)
        found = fstatat(dirfd(folder), e->d_name, &st, 0) == 0 && is_same(file, &st);
    if (folder)
        closedir(folder);
    return found;
}

// Mistakes that would cost a file that is read, or that are better said before long work, or that the GGUF reader could
// only call "no GGUF file".
static enum iso_err check_files(const struct arguments *a, struct iso_errinfo *reterr)
{
    const char *const INPUTS[] = {a->model, a->compile.options.lora, a->calibrate};
    struct stat output;
    if (plan_is_plan(a->model))
        return iso_fail(reterr, ISO_E_USAGE, 0, NULL,
                        "%s: this is a plan already; compile takes a model file or folder", a->model);
    // A plan is written over, wherever it lies: it is nothing that is read.
    for (size_t i = 0; i < ARRAY_LEN(INPUTS) && !plan_is_plan(a->output) && stat(a->output, &output) == 0;
         i++)
        if (INPUTS[i] && is_input(&output, INPUTS[i]))
            return iso_fail(reterr, ISO_E_USAGE, 0, "output",
                            "%s: -o names a file that is read: %s is it or has it", a->output, INPUTS[i]);
    if (a->calibrate && file_check_readable(a->calibrate, false, reterr))
        return iso_fail_prefix(reterr, a->calibrate);
    return ISO_OK;
}

static bool is_kept(const struct pruning *p, uint32_t layer, uint32_t kv_head)
{
    for (uint32_t i = 0; i < p->kept; i++)
        if (p->which[(uint64_t)layer * p->kept + i] == kv_head)
            return true;
    return false;
}

// What went: into `array`, or as lines where it is NULL.
static void report_pruning(const struct pruning *p, json_t *array)
{
    for (uint32_t i = 0; i < p->layers * p->kv_heads; i++) {
        uint32_t layer = i / p->kv_heads, head = i % p->kv_heads;
        if (is_kept(p, layer, head))
            continue;
        if (array)
            json_array_append_new(array, json_pack("{s:i, s:i, s:f}", "layer", (int)layer, "kv_head",
                                                   (int)head, "share", p->worth[i]));
        else
            printf("layer %" PRIu32 ": without KV head %" PRIu32 " and heads %" PRIu32 " to %" PRIu32
                   ", %.2f%% of what its attention adds\n",
                   layer, head, head * p->heads, (head + 1) * p->heads - 1, 100 * p->worth[i]);
    }
}

static int report(const struct plan_header *h, const struct arguments *a)
{
    const struct pruning *pruning = a->compile.options.pruning;
    char hex[HASH_HEX_BYTES];
    hash128_hex(h->hash, hex);
    if (a->json) {
        json_t *json =
            json_pack("{s:s, s:s, s:I, s:i, s:i, s:i, s:i}", "plan", a->output, "hash", hex, "bytes",
                      (json_int_t)h->file_bytes, "version", PLAN_VERSION, "max_seq_len",
                      (int)h->limits.max_seq_len, "slots", (int)h->limits.slots, "operations", (int)h->n_ops);
        if (pruning) {
            json_t *pruned = json_array();
            report_pruning(pruning, pruned);
            json_object_set_new(json, "pruned", pruned);
        }
        return cli_print_json(json);
    }
    if (pruning)
        report_pruning(pruning, NULL);
    printf("%s: %s, %u operations, max-seq-len %u, slots %u, hash %s\n", a->output,
           cli_size(h->file_bytes).text, h->n_ops, h->limits.max_seq_len, h->limits.slots, hex);
    return CLI_EXIT_OK;
}

// What the options can't have, or the output's place, is said before the model is run, which takes long.
static enum iso_err check_program(const struct arguments *a, struct iso_errinfo *reterr)
{
    struct program program;
    enum iso_err err = program_open(a->model, &a->compile.options, &program, reterr);
    if (err)
        return err;
    err = program_check_target(&program, a->output, reterr);
    program_close(&program);
    return err;
}

// What running the model says: which heads go, and how inputs of the remaining matmuls go together.
static enum iso_err measure(struct arguments *a, struct pruning *pruning, struct calibration *calibration,
                            struct iso_errinfo *reterr)
{
    uint32_t tokens = a->calibrate_tokens ? a->calibrate_tokens : CALIBRATE_TOKENS_DEFAULT;
    struct cli_progress progress;
    enum iso_err err = ISO_OK;
    if (a->prune > 0) {
        err = pruning_open(a->model, a->prune, pruning, reterr);
        a->compile.options.pruning = pruning;
    }
    if (!err && a->calibrate)
        err = check_program(a, reterr);
    if (!err && a->prune > 0) {
        err = calibrate(a->model, a->calibrate, tokens, NULL, a->json, calibration, reterr);
        if (err)
            return err;
        cli_progress_begin(&progress, "comparing heads", "layers", a->json);
        err = pruning_choose(pruning, a->model, calibration, cli_progress_update, &progress, reterr);
        cli_progress_end(&progress);
        calibrate_free(calibration);
    }
    if (!err && a->calibrate && has_codes(a)) {
        err = calibrate(a->model, a->calibrate, tokens, a->compile.options.pruning, a->json, calibration,
                        reterr);
        a->compile.options.calibration = calibration;
    }
    return err;
}

int cmd_compile(int argc, char **argv)
{
    static const struct argp_child CHILDREN[] = {{&COMPILE_ARGP, 0, NULL, 0}, {0}};
    static const struct argp ARGP = {
        .options = OPTIONS,
        .parser = parse,
        .args_doc = "MODEL -o FILE",
        .doc = "Turns a model, a GGUF file or a Hugging Face folder, into a plan: program, packed weights, "
               "tokenizer, "
               "chat template and memory plan in one checksummed file. The same input, "
               "options and version give the same bytes on any machine.\v" CLI_EXIT_CODES_HELP,
        .children = CHILDREN};
    struct arguments a = {0};
    struct iso_errinfo e;
    struct program program;
    struct cli_progress progress;
    cli_parse(&ARGP, argc, argv, &a);
    struct calibration calibration = {0};
    struct pruning pruning = {0};
    int code;
    enum iso_err err = check_files(&a, &e);
    if (!err)
        err = measure(&a, &pruning, &calibration, &e);
    if (!err)
        err = program_open(a.model, &a.compile.options, &program, &e);
    if (err) {
        code = cli_fail(&e, a.json);
    } else {
        cli_progress_begin(&progress, "compiling", NULL, a.json);
        err = program_write(&program, a.output, cli_progress_update, &progress, &e);
        cli_progress_end(&progress);
        code = err ? cli_fail(&e, a.json) : report(&program.header, &a);
        program_close(&program);
    }
    calibrate_free(&calibration);
    pruning_close(&pruning);
    return code;
}
