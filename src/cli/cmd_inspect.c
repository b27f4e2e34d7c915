// isochron inspect FILE: finds out what the file is; inspect.c shows it.
#include <stdio.h>
#include <sys/stat.h>

#include "cli/cli.h"
#include "cli/inspect.h"
#include "plan/plan.h"

struct arguments {
    const char *file;
    bool json;
};

static const struct argp_option OPTIONS[] = {
    {"json", 'j', NULL, 0, "Print everything as one JSON object", 0},
    {0},
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct arguments *a = state->input;
    switch (key) {
    case 'j':
        a->json = true;
        return 0;
    case ARGP_KEY_ARG:
        if (a->file)
            argp_error(state, "one file is expected, and \"%s\" is a second", arg);
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

int cmd_inspect(int argc, char **argv)
{
    static const struct argp ARGP = {
        .options = OPTIONS,
        .parser = parse,
        .args_doc = "FILE",
        .doc = "Shows what a GGUF file or a Hugging Face folder holds (metadata, tensors) or a plan (model, "
               "limits, "
               "tensors, operations in order, tokenizer, chat template, checksums).\v" CLI_EXIT_CODES_HELP};
    struct arguments a = {0};
    struct iso_errinfo e;
    json_t *document = NULL;
    cli_parse(&ARGP, argc, argv, &a);
    struct stat st;
    bool folder = stat(a.file, &st) == 0 && S_ISDIR(st.st_mode);
    enum iso_err err = folder                 ? inspect_folder(a.file, &document, &e)
                       : plan_is_plan(a.file) ? inspect_plan(a.file, &document, &e)
                                              : inspect_gguf(a.file, &document, &e);
    if (err) {
        if (!folder)
            iso_fail_prefix(&e, a.file);
        return cli_fail(&e, a.json);
    }
    if (a.json)
        return cli_print_json(document);
    inspect_print(document);
    json_decref(document);
    return CLI_EXIT_OK;
}
