// isochron chat FILE [-p TEXT]
#include <editline/readline.h>
#include <errno.h>
#include <langinfo.h>
#include <locale.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <wchar.h>

#include "base/file.h"
#include "base/text_file.h"
#include "cli/cli.h"
#include "cli/conversation.h"
#include "cli/generation.h"

#define HISTORY_LINES_MAX 1000
#define LINE_BYTES_MAX    (((size_t)1 << 20) + 1) // and the zero behind it

struct arguments {
    struct compile_flags compile;
    struct run_flags run;
    struct sampling_flags sampling;
    const char *file, *prompt, *system;
    bool json, stats;
};

static const struct argp_option OPTIONS[] = {
    {"prompt", 'p', "TEXT", 0, "Answer this and end; without it, talk in turns", 0},
    {"system", 'S', "TEXT", 0, "The system message (default: the template's own)", 0},
    {"json", 'j', NULL, 0, "Print each answer as one JSON object instead of streaming", 0},
    {"stats", 's', NULL, 0, "End each answer with a table of times", 0},
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
    case 'S':
        a->system = arg;
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
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

// Set by SIGINT in a chat on a terminal, reset at each prompt; elsewhere SIGINT ends the process.
static volatile sig_atomic_t interrupted;

static void on_interrupt(int signal_number)
{
    (void)signal_number;
    interrupted = 1;
}

static bool print_text(void *context, struct strv text)
{
    (void)context;
    return fwrite(text.ptr, 1, text.len, stdout) == text.len && fflush(stdout) == 0;
}

// One turn: the user's text in, the model's answer out and kept. A turn that fails leaves no trace.
static enum iso_err turn(struct conversation *c, const struct arguments *a, struct strv text,
                         struct iso_errinfo *reterr)
{
    struct generation g;
    uint32_t n = 0;
    enum iso_err err = conversation_add(c, "user", text, reterr);
    if (err)
        return err;
    err = conversation_tokens(c, &n, reterr);
    if (!err)
        err = generation_run(c->session, c->ids, n, &a->sampling, a->json ? NULL : print_text, NULL,
                             &interrupted, &g, reterr);
    if (err) {
        conversation_drop_last(c);
        return iso_fail_prefix(reterr, a->file);
    }
    if (a->json)
        (void)cli_print_json(generation_json(&g, c->session, &a->sampling));
    else
        putchar('\n');
    if (a->stats && !a->json) {
        putchar('\n');
        generation_print_stats(&g, c->session);
    }
    fflush(stdout);
    err = conversation_add(c, "assistant", buf_strv(&g.text), reterr);
    if (err)
        conversation_drop_last(c);
    generation_deinit(&g);
    return err;
}

// Where the lines typed are kept between calls: $XDG_STATE_HOME or ~/.local/state, /isochron/history. False:
// nowhere.
static bool history_path(char *path, size_t size)
{
    const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    char folder[FILE_PATH_MAX - 16];
    if (state && state[0] == '/')
        snprintf(folder, sizeof folder, "%s/isochron", state);
    else if (home && home[0] == '/')
        snprintf(folder, sizeof folder, "%s/.local/state/isochron", home);
    else
        return false;
    snprintf(path, size, "%s/history", folder);
    return file_make_folders(folder, NULL) == ISO_OK;
}

// One byte of the terminal, or none at its end or after a Ctrl-C. SIGINT is let in only while poll waits, so that
// none comes unseen between a look at `interrupted` and a read that would not end.
static bool read_byte(int fd, char *ret)
{
    struct pollfd input = {.fd = fd, .events = POLLIN};
    sigset_t interrupt, before;
    ssize_t n = -1;
    sigemptyset(&interrupt);
    sigaddset(&interrupt, SIGINT);
    pthread_sigmask(SIG_BLOCK, &interrupt, &before);
    do {
        int ready = interrupted ? 0 : ppoll(&input, 1, NULL, &before);
        if (interrupted)
            n = 0;
        else if (ready > 0)
            n = read(fd, ret, 1);
    } while (n < 0 && errno == EINTR);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return n == 1;
}

// One character of the terminal for readline, which calls it EOF where Ctrl-C came too.
static int read_character(FILE *in)
{
    mbstate_t state = {0};
    for (;;) {
        char byte;
        wchar_t c;
        if (!read_byte(fileno(in), &byte))
            return EOF;
        size_t used = mbrtowc(&c, &byte, 1, &state);
        // A Ctrl-D typed while an answer streams comes as a zero; in the line it would only be in the way.
        if (used == 1)
            return (int)c;
        if (used == (size_t)-1) // no character: forget its bytes
            state = (mbstate_t){0};
    }
}

// Line editing counts in characters, so it must know how they are encoded; in the C locale everything but
// ASCII would be lost.
static void prepare_terminal(void)
{
    const struct sigaction on_ctrl_c = {.sa_handler = on_interrupt}; // no SA_RESTART: it ends a read
    setlocale(LC_CTYPE, "");
    if (strcmp(nl_langinfo(CODESET), "UTF-8") != 0)
        setlocale(LC_CTYPE, "C.UTF-8");
    sigaction(SIGINT, &on_ctrl_c, NULL);
    rl_getc_function = read_character;
}

// A line typed on the terminal, to be freed, or NULL at the end of input. Ctrl-C begins it anew.
static char *type_line(void)
{
    for (;;) {
        interrupted = 0;
        char *line = readline("> ");
        if (line || !interrupted)
            return line;
        fputs("\nCtrl-D ends.\n", stderr);
    }
}

// The next line into *line, with a zero behind it that does not count. *ret_end: there is none.
static enum iso_err next_line(bool terminal, struct buf *line, bool *ret_end, struct iso_errinfo *reterr)
{
    enum iso_err err;
    buf_reset(line);
    if (terminal) {
        char *typed = type_line();
        *ret_end = !typed;
        err = typed ? buf_append_strv(line, strv_from(typed)) : ISO_OK;
        free(typed);
    } else {
        err = text_file_line(stdin, line, ret_end, reterr);
        if (err == ISO_E_IO)
            return iso_fail_prefix(reterr, "standard input");
    }
    if (!err)
        err = buf_append_byte(line, 0);
    if (err)
        return iso_fail(reterr, err, 0, NULL, "a line is longer than 1 MiB, or memory for it was refused");
    line->len--;
    return ISO_OK;
}

// What a line starting with '/' asks for.
static enum iso_err command(struct conversation *c, const char *line, bool *ret_end,
                            struct iso_errinfo *reterr)
{
    if (strcmp(line, "/quit") == 0 || strcmp(line, "/exit") == 0) {
        *ret_end = true;
    } else if (strcmp(line, "/reset") == 0) {
        conversation_reset(c);
        fputs("The conversation starts anew.\n", stderr);
    } else if (strcmp(line, "/help") == 0) {
        fputs("/reset starts anew, /quit ends; Ctrl-C stops an answer, Ctrl-D ends. Anything else is said to "
              "the model, with a space before it where it begins with a slash.\n",
              stderr);
    } else {
        return iso_fail(reterr, ISO_E_USAGE, 0, NULL,
                        "there is no command \"%.100s\": /help lists them; what begins with a space is said "
                        "to the model",
                        line);
    }
    return ISO_OK;
}

// A line is a command, a turn or nothing. *ret_end: the chat ends.
static enum iso_err take_line(struct conversation *c, const struct arguments *a, struct strv line,
                              bool *ret_end, struct iso_errinfo *reterr)
{
    if (line.len == 0)
        return ISO_OK;
    if (line.ptr[0] == '/')
        return command(c, line.ptr, ret_end, reterr);
    enum iso_err err = turn(c, a, line, reterr);
    *ret_end = err == ISO_E_IO; // nobody reads the answers
    return err;
}

static int talk(struct conversation *c, const struct arguments *a)
{
    struct iso_errinfo e;
    char path[FILE_PATH_MAX];
    bool terminal = isatty(STDIN_FILENO) == 1 && isatty(STDOUT_FILENO) == 1;
    bool kept = terminal && history_path(path, sizeof path);
    int code = CLI_EXIT_OK;
    bool end = false;
    struct buf line;
    buf_init(&line, LINE_BYTES_MAX);
    if (terminal) {
        const char *name = c->session->plan.header->model.name;
        prepare_terminal();
        fprintf(stderr, "%s. /help lists commands, Ctrl-D ends.\n", name[0] ? name : "The model is ready");
    }
    if (kept) {
        using_history();
        stifle_history(HISTORY_LINES_MAX);
        (void)read_history(path);
    }
    bool asked_to_end = false;
    while (!end && !asked_to_end) {
        enum iso_err err = next_line(terminal, &line, &end, &e);
        if (!err && terminal && line.len > 0)
            add_history((const char *)line.ptr);
        if (!err && !end)
            err = take_line(c, a, buf_strv(&line), &asked_to_end, &e);
        if (err) {
            code = cli_fail(&e, a->json);
            if (e.code == ISO_E_LIMIT && terminal)
                fputs("/reset starts the conversation anew.\n", stderr);
        }
    }
    buf_deinit(&line);
    if (terminal && end)
        putchar('\n'); // Ctrl-D leaves the prompt's line open
    if (kept)
        (void)write_history(path);
    return code;
}

int cmd_chat(int argc, char **argv)
{
    static const struct argp_child CHILDREN[] = {
        {&COMPILE_ARGP, 0, NULL, 0}, {&RUN_ARGP, 0, NULL, 0}, {&SAMPLING_ARGP, 0, NULL, 0}, {0}};
    static const struct argp ARGP = {
        .options = OPTIONS,
        .parser = parse,
        .args_doc = "FILE [-p TEXT]",
        .doc =
            "Talks to a model through its own chat template: FILE is a plan, or a model (GGUF file or "
            "Hugging Face folder) that is compiled "
            "into "
            "the cache first. On a terminal lines are edited and remembered; elsewhere each line of standard "
            "input is a turn.\v" CLI_EXIT_CODES_HELP,
        .children = CHILDREN};
    struct arguments a = {.sampling = sampling_flags_default()};
    struct iso_errinfo e;
    struct session s;
    struct conversation c;
    cli_parse(&ARGP, argc, argv, &a);
    if (session_open(a.file, &a.compile, &a.run, a.json, &s, &e))
        return cli_fail(&e, a.json);
    int code;
    if (conversation_open(&s, a.system, &c, &e)) {
        iso_fail_prefix(&e, a.file);
        code = cli_fail(&e, a.json);
    } else {
        if (!a.prompt)
            code = talk(&c, &a);
        else
            code = turn(&c, &a, strv_from(a.prompt), &e) ? cli_fail(&e, a.json) : CLI_EXIT_OK;
        conversation_close(&c);
    }
    session_close(&s);
    return code;
}
