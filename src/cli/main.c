// isochron: the command line. Dispatches to one subcommand per file.
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/num.h"
#include "cli/cli.h"

static const struct {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *summary;
} COMMANDS[] = {
    {"compile", cmd_compile, "turn a model file into a plan"},
    {"inspect", cmd_inspect, "show what a model file or a plan holds"},
    {"fit", cmd_fit, "show how much memory a model takes, and whether it fits"},
    {"generate", cmd_generate, "continue a text"},
    {"chat", cmd_chat, "talk to a model, in turns or with one prompt"},
    {"eval", cmd_eval, "measure a model's quality, alone or against another"},
    {"serve", cmd_serve, "serve models to clients of OpenAI's API"},
    {"replay", cmd_replay, "answer again what a server answered, and compare"},
    {"bench", cmd_bench, "measure speed and steadiness on this machine"},
    {"unit", cmd_unit, NULL}, // that serve starts
};

static void print_help(FILE *out)
{
    fputs("isochron " ISO_VERSION ": deterministic inference for edge machines\n\n"
          "Usage: isochron COMMAND [OPTION...] [FILE]\n\nCommands:\n",
          out);
    for (size_t i = 0; i < ARRAY_LEN(COMMANDS) && COMMANDS[i].summary; i++)
        fprintf(out, "  %-10s %s\n", COMMANDS[i].name, COMMANDS[i].summary);
    fputs("\n`isochron COMMAND --help` describes a command's options.\n\n"
          "Exit codes:\n"
          "   0  success\n",
          out);
    for (int code = ISO_OK + 1; code < ISO_ERR_COUNT; code++)
        fprintf(out, "  %2d  %s\n", iso_err_exit_code((enum iso_err)code),
                iso_err_message((enum iso_err)code));
}

// A standard descriptor that the caller closed must not be given to a file that we open: messages would be
// written into it. Reading from what stands there now gives the end, writing an error.
static void fill_standard_descriptors(void)
{
    int fd;
    do
        fd = open("/dev/null", O_RDONLY);
    while (fd >= 0 && fd <= STDERR_FILENO);
    if (fd >= 0)
        close(fd);
}

// What was printed must have arrived, or the exit code says that it didn't.
static int finish(int code)
{
    errno = 0; // stays so where an earlier write failed
    if ((fflush(stdout) == 0 && !ferror(stdout)) || code != CLI_EXIT_OK)
        return code;
    fprintf(stderr, "isochron: writing to standard output failed%s%s\n", errno ? ": " : "",
            errno ? strerror(errno) : "");
    return iso_err_exit_code(ISO_E_IO);
}

static int run(int argc, char **argv)
{
    if (argc < 2) {
        print_help(stderr);
        return CLI_EXIT_USAGE;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 || strcmp(argv[1], "-?") == 0 ||
        strcmp(argv[1], "help") == 0) {
        print_help(stdout);
        return CLI_EXIT_OK;
    }
    if (strcmp(argv[1], "--version") == 0) {
        puts("isochron " ISO_VERSION);
        return CLI_EXIT_OK;
    }
    for (size_t i = 0; i < ARRAY_LEN(COMMANDS); i++) {
        if (strcmp(argv[1], COMMANDS[i].name) != 0)
            continue;
        char name[32]; // argp names the program by argv[0] in its messages
        snprintf(name, sizeof name, "isochron %s", COMMANDS[i].name);
        argv[1] = name;
        return COMMANDS[i].run(argc - 1, argv + 1);
    }
    struct iso_errinfo e;
    (void)iso_fail(&e, ISO_E_USAGE, 0, NULL, "there is no command \"%s\"; `isochron --help` lists them",
                   argv[1]);
    return cli_fail(&e, false);
}

int main(int argc, char **argv)
{
    fill_standard_descriptors();
    return finish(run(argc, argv));
}
