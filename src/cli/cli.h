// What the subcommands share: their table, option values, messages, exit codes, progress.
//
// Each cmd_*.c is one subcommand, thin: options, calls into the library, output. Results go to standard
// output, messages and progress to standard error. Only this folder may print, exit, read the environment or
// the terminal.
#pragma once

#include <argp.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

// Exit codes besides those of enum iso_err (see `isochron --help`).
#define CLI_EXIT_OK    0
#define CLI_EXIT_USAGE 2

int cmd_compile(int argc, char **argv);
int cmd_inspect(int argc, char **argv);
int cmd_fit(int argc, char **argv);
int cmd_generate(int argc, char **argv);
int cmd_chat(int argc, char **argv);
int cmd_bench(int argc, char **argv);
int cmd_eval(int argc, char **argv);
int cmd_serve(int argc, char **argv);
int cmd_replay(int argc, char **argv);
int cmd_unit(int argc, char **argv);

// The end of each command's help.
#define CLI_EXIT_CODES_HELP \
    "Exit codes: 0 on success, 2 on a wrong command line; `isochron --help` lists all."

// Parses with argp; exits with CLI_EXIT_USAGE on a wrong command line. Long options may have one dash (-np).
void cli_parse(const struct argp *argp, int argc, char **argv, void *input);

// Prints the error, as one sentence on standard error or with json as an object on standard output, and
// returns the process's exit code.
int cli_fail(const struct iso_errinfo *e, bool json);

// Option values. A wrong one ends the process through argp_error, naming option, value and what is allowed.
// The argument of an option that may be given once.
void cli_once(const struct argp_state *state, const char *option, const char **at, const char *arg);
uint32_t cli_u32(const struct argp_state *state, const char *option, const char *text, uint32_t min,
                 uint32_t max);
uint64_t cli_u64(const struct argp_state *state, const char *option, const char *text);
float cli_float(const struct argp_state *state, const char *option, const char *text, float min, float max);
// A number with an optional unit: 512MiB, 8GiB, 8G, 1000000.
uint64_t cli_bytes(const struct argp_state *state, const char *option, const char *text);

// Prints a JSON value on one line and frees it; NULL is one that there was no memory for. Returns the exit
// code. That the line arrived is checked at the program's end.
int cli_print_json(json_t *value);
// A string from outside as JSON: bytes that are no UTF-8 become U+FFFD.
json_t *cli_json_text(const char *bytes, size_t n);

// "95.1 MiB" into a small static-free buffer.
struct cli_size {
    char text[24];
};
struct cli_size cli_size(uint64_t bytes);

// Progress on standard error: a bar on a terminal, else a line every tenth. `title` and `unit` must outlive it.
struct cli_progress {
    const char *title, *unit;
    bool quiet, terminal, shown;
    uint32_t last_tenth;
    uint64_t started_ns, drawn_ns;
};
// `unit` names what is counted; NULL: bytes.
void cli_progress_begin(struct cli_progress *p, const char *title, const char *unit, bool quiet);
// Fits compile_progress and plan_progress; context is the struct cli_progress.
void cli_progress_update(void *context, uint64_t done, uint64_t total);
void cli_progress_end(struct cli_progress *p);
