// isochron generate FILE -p TEXT
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/generation.h"

struct arguments {
    struct compile_flags compile;
    struct run_flags run;
    struct sampling_flags sampling;
    const char *file, *prompt;
    bool json, stats;
};

static const struct argp_option OPTIONS[] = {
    {"prompt", 'p', "TEXT", 0, "The text to continue (required); control tokens in it are ordinary text", 0},
    {"json", 'j', NULL, 0, "Print the result as one JSON object instead of streaming", 0},
    {"stats", 's', NULL, 0, "End with a table of times", 0},
    {0},
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct arguments *a = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &a->compile;
        state->child_inputs[1] = &a->run;
        state->child_inputs[2] = &a->sampling;
        return 0;
    case 'p':
        a->prompt = arg;
        return 0;
    case 'j':
        a->json = true;
        return 0;
    case 's':
        a->stats = true;
        return 0;
    case ARGP_KEY_ARG:
        if (a->file)
            argp_error(state, "one model file or plan is expected, and \"%s\" is a second", arg);
        a->file = arg;
        return 0;
    case ARGP_KEY_END:
        if (!a->file)
            argp_error(state, "which model file or plan?");
        if (!a->prompt)
            argp_error(state, "what text? Give it with -p TEXT");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static bool print_text(void *context, struct strv text)
{
    (void)context;
    return fwrite(text.ptr, 1, text.len, stdout) == text.len && fflush(stdout) == 0;
}

// Tokens of the prompt; a text without any gets the model's BOS where there is one.
static enum iso_err encode(struct session *s, const char *text, uint32_t *ids, size_t max, size_t *ret_n,
                           struct iso_errinfo *reterr)
{
    enum iso_err err = tok_encode(s->tokenizer, strv_from(text), TOK_PLAIN, true, ids, max, ret_n, reterr);
    uint32_t bos = tok_role(s->tokenizer, TOK_BOS);
    if (!err && *ret_n == 0 && bos != TOK_NONE)
        ids[(*ret_n)++] = bos;
    return err;
}

static int run(const struct arguments *a, struct session *s)
{
    struct iso_errinfo e;
    struct generation g;
    size_t max = session_prompt_tokens(&s->plan.header->limits), n = 0;
    uint32_t *ids = calloc(max, sizeof *ids);
    enum iso_err err = ids ? encode(s, a->prompt, ids, max, &n, &e)
                           : iso_fail(&e, ISO_E_NOMEM, 0, NULL, "the system refused memory for the prompt");
    if (!err)
        err = generation_run(s, ids, (uint32_t)n, &a->sampling, a->json ? NULL : print_text, NULL, NULL, &g,
                             &e);
    free(ids);
    if (err) {
        iso_fail_prefix(&e, a->file);
        return cli_fail(&e, a->json);
    }
    int code = CLI_EXIT_OK;
    if (a->json)
        code = cli_print_json(generation_json(&g, s, &a->sampling));
    else
        putchar('\n');
    if (a->stats && !a->json) {
        putchar('\n');
        generation_print_stats(&g, s);
    }
    generation_deinit(&g);
    return code;
}

int cmd_generate(int argc, char **argv)
{
    static const struct argp_child CHILDREN[] = {
        {&COMPILE_ARGP, 0, NULL, 0}, {&RUN_ARGP, 0, NULL, 0}, {&SAMPLING_ARGP, 0, NULL, 0}, {0}};
    static const struct argp ARGP = {.options = OPTIONS,
                                     .parser = parse,
                                     .args_doc = "FILE -p TEXT",
                                     .doc = "Continues a text with a model: FILE is a plan, or a model (GGUF "
                                            "file or Hugging Face folder) that is "
                                            "compiled into the cache first.\v" CLI_EXIT_CODES_HELP,
                                     .children = CHILDREN};
    struct arguments a = {.sampling = sampling_flags_default()};
    struct iso_errinfo e;
    struct session s;
    cli_parse(&ARGP, argc, argv, &a);
    if (session_open(a.file, &a.compile, &a.run, a.json, &s, &e))
        return cli_fail(&e, a.json);
    int code = run(&a, &s);
    session_close(&s);
    return code;
}
