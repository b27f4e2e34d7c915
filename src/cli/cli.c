#include "cli/cli.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/num.h"
#include "base/size.h"
#include "base/utf8.h"

#define BAR_WIDTH       30
#define REDRAW_AFTER_NS 100000000u

void cli_parse(const struct argp *argp, int argc, char **argv, void *input)
{
    argp_err_exit_status = CLI_EXIT_USAGE;
    if (argp_parse(argp, argc, argv, ARGP_LONG_ONLY, NULL, input))
        exit(CLI_EXIT_USAGE);
}

int cli_fail(const struct iso_errinfo *e, bool json)
{
    if (json)
        (void)cli_print_json(json_pack("{s:{s:s, s:s, s:s, s:I}}", "error", "code", iso_err_name(e->code),
                                       "message", e->text, "field", e->field, "offset",
                                       (json_int_t)e->offset));
    else
        fprintf(stderr, "isochron: %s\n", e->text);
    return iso_err_exit_code(e->code);
}

uint64_t cli_u64(const struct argp_state *state, const char *option, const char *text)
{
    uint64_t value = 0;
    if (!size_parse_whole(strv_from(text), &value))
        argp_error(state, "--%s is \"%s\"; allowed is a whole number from 0 to %" PRIu64, option, text,
                   UINT64_MAX);
    return value;
}

void cli_once(const struct argp_state *state, const char *option, const char **at, const char *arg)
{
    if (*at)
        argp_error(state, "--%s is given twice: \"%s\" and \"%s\"", option, *at, arg);
    *at = arg;
}

uint32_t cli_u32(const struct argp_state *state, const char *option, const char *text, uint32_t min,
                 uint32_t max)
{
    uint64_t value = 0;
    if (!size_parse_whole(strv_from(text), &value) || value < min || value > max)
        argp_error(state, "--%s is \"%s\"; allowed is a whole number from %" PRIu32 " to %" PRIu32, option,
                   text, min, max);
    return (uint32_t)value;
}

float cli_float(const struct argp_state *state, const char *option, const char *text, float min, float max)
{
    char *end;
    float value = strtof(text, &end);
    if (end == text || *end != '\0' || !(value >= min && value <= max))
        argp_error(state, "--%s is \"%s\"; allowed is a number from %g to %g", option, text, (double)min,
                   (double)max);
    return value;
}

uint64_t cli_bytes(const struct argp_state *state, const char *option, const char *text)
{
    uint64_t bytes = 0;
    if (!size_parse(strv_from(text), &bytes))
        argp_error(
            state,
            "--%s is \"%s\"; allowed is a whole number of bytes with an optional unit, as in 8GiB or 512MiB",
            option, text);
    return bytes;
}

int cli_print_json(json_t *value)
{
    char *text = value ? json_dumps(value, 0) : NULL;
    json_decref(value);
    if (!text) {
        fputs("isochron: the system refused memory for the result\n", stderr);
        return iso_err_exit_code(ISO_E_NOMEM);
    }
    puts(text);
    fflush(stdout);
    free(text);
    return CLI_EXIT_OK;
}

json_t *cli_json_text(const char *bytes, size_t n)
{
    char *text = malloc(3 * n + 1);
    size_t out = 0;
    for (size_t i = 0; text && i < n;) {
        const uint8_t *at = (const uint8_t *)bytes + i;
        uint32_t cp = UTF8_REPLACEMENT;
        size_t len = utf8_decode(at, n - i, &cp);
        i += len ? len : utf8_invalid_length(at, n - i);
        out += utf8_encode(cp, (uint8_t *)text + out);
    }
    json_t *value = text ? json_stringn(text, out) : NULL;
    free(text);
    return value;
}

struct cli_size cli_size(uint64_t bytes)
{
    struct cli_size s;
    if (bytes >= GIB)
        snprintf(s.text, sizeof s.text, "%.2f GiB", (double)bytes / (double)GIB);
    else if (bytes >= MIB)
        snprintf(s.text, sizeof s.text, "%.2f MiB", (double)bytes / (double)MIB);
    else
        snprintf(s.text, sizeof s.text, "%.2f KiB", (double)bytes / (double)KIB);
    return s;
}

void cli_progress_begin(struct cli_progress *p, const char *title, const char *unit, bool quiet)
{
    *p = (struct cli_progress){.title = title,
                               .unit = unit,
                               .quiet = quiet,
                               .terminal = isatty(STDERR_FILENO) == 1,
                               .started_ns = clock_now_ns()};
}

// What there is to do, in the progress's unit.
static struct cli_size amount(const struct cli_progress *p, uint64_t total)
{
    struct cli_size s;
    if (!p->unit)
        return cli_size(total);
    snprintf(s.text, sizeof s.text, "%" PRIu64 " %s", total, p->unit);
    return s;
}

static double seconds_left(const struct cli_progress *p, uint64_t done, uint64_t total, uint64_t now_ns)
{
    return done ? (double)(now_ns - p->started_ns) * 1e-9 * (double)(total - done) / (double)done : 0;
}

static void draw_bar(struct cli_progress *p, uint64_t done, uint64_t total)
{
    uint64_t now = clock_now_ns();
    if (done < total && p->shown && now - p->drawn_ns < REDRAW_AFTER_NS)
        return;
    char bar[BAR_WIDTH + 1];
    uint64_t full = total ? done * BAR_WIDTH / total : BAR_WIDTH;
    memset(bar, '.', BAR_WIDTH);
    memset(bar, '#', full);
    bar[BAR_WIDTH] = '\0';
    fprintf(stderr, "\r%s [%s] %3" PRIu64 "%% of %s, %.0f s left \033[K", p->title, bar,
            total ? done * 100 / total : 100, amount(p, total).text, seconds_left(p, done, total, now));
    p->drawn_ns = now;
    p->shown = true;
}

void cli_progress_update(void *context, uint64_t done, uint64_t total)
{
    struct cli_progress *p = context;
    if (p->quiet)
        return;
    if (p->terminal) {
        draw_bar(p, done, total);
        return;
    }
    uint32_t tenth = total ? (uint32_t)(done * 10 / total) : 10;
    if (tenth == p->last_tenth)
        return;
    p->last_tenth = tenth;
    fprintf(stderr, "%s: %" PRIu32 "0%% of %s, %.0f s left\n", p->title, tenth, amount(p, total).text,
            seconds_left(p, done, total, clock_now_ns()));
}

void cli_progress_end(struct cli_progress *p)
{
    if (p->shown)
        fputc('\n', stderr);
    p->shown = false;
}
