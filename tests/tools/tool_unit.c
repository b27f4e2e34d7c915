// Runs requests on a unit as a script says, and prints what each of them computed, for the tests in
// tests/property and tests/golden.
//
//   tool_unit compile MODEL.gguf PLAN MAX-SEQ-LEN SLOTS BATCH-TOKENS f16|q8
//   tool_unit run PLAN < SCRIPT
//
// The script, a command a line:
//   open isa=NAME threads=N chunk=N reuse=0|1   a new unit, nothing cached; ends the one before
//   submit NAME option=VALUE ... : ID ...       the request's name, its options and prompt; where all slots
//                                               are taken, steps are computed until one is free
//   step N                                      computes N steps
//   cancel NAME                                 ends the newest request of this name, where it still runs
//   drain                                       computes until nothing is left
// Options: output, temperature, top_p, min_p, penalty, top_k, choice, seed, eog=1 (end at such a token),
// score=1.
//
// For each request, when it ends, a line of JSON: name, reused (prompt tokens), finish, tokens, and for each
// event XXH3 (64 bits) of its logits' bytes.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/hash.h"
#include "compile/compile.h"
#include "unit/unit.h"

#define NAME_BYTES 32
#define LINE_BYTES ((size_t)1 << 20)

struct running {
    char name[NAME_BYTES];
    bool used;
    uint32_t reused, n;
    uint32_t *tokens; // [max_seq_len]
    uint64_t *hashes; // [max_seq_len]
};

struct state {
    struct plan plan;
    struct unit *unit; // NULL before the first "open"
    struct running *slots;
};

_Noreturn static void fail(const char *what)
{
    fprintf(stderr, "tool_unit: %s\n", what);
    exit(2);
}

_Noreturn static void fail_with(const struct iso_errinfo *e)
{
    fprintf(stderr, "tool_unit: %s: %s\n", iso_err_name(e->code), e->text);
    exit(iso_err_exit_code(e->code));
}

static uint32_t number(const char *text)
{
    char *end;
    unsigned long n = strtoul(text, &end, 10);
    if (end == text || *end || n > UINT32_MAX)
        fail("a number is expected");
    return (uint32_t)n;
}

static void print_end(struct running *r, const char *finish)
{
    printf("{\"name\": \"%s\", \"reused\": %u, \"finish\": \"%s\", \"tokens\": [", r->name, r->reused,
           finish);
    for (uint32_t i = 0; i < r->n; i++)
        printf("%s%u", i ? ", " : "", r->tokens[i]);
    printf("], \"logits\": [");
    for (uint32_t i = 0; i < r->n; i++)
        printf("%s\"%016llx\"", i ? ", " : "", (unsigned long long)r->hashes[i]);
    printf("]}\n");
    r->used = false;
}

// One step; false where there was nothing to do.
static bool step(struct state *s)
{
    static const char *const FINISHES[] = {[UNIT_EOG] = "eog",
                                           [UNIT_LENGTH] = "length",
                                           [UNIT_SCORED] = "scored",
                                           [UNIT_NONFINITE] = "nonfinite"};
    struct unit_result result = unit_step(s->unit);
    uint32_t vocab = s->plan.header->model.vocab;
    for (uint32_t i = 0; i < result.n; i++) {
        const struct unit_event *e = &result.events[i];
        struct running *r = &s->slots[e->slot];
        ASSERT(r->used && r->n < s->plan.header->limits.max_seq_len);
        r->tokens[r->n] = e->finish == UNIT_NONFINITE ? 0 : e->token;
        r->hashes[r->n++] = hash64(unit_logits(s->unit, e->row), vocab * sizeof(float));
        if (e->finish != UNIT_RUNNING)
            print_end(r, FINISHES[e->finish]);
    }
    return result.rows > 0;
}

static void cancel_all(struct state *s, const char *name)
{
    for (uint32_t i = 0; i < s->plan.header->limits.slots; i++) {
        if (s->slots[i].used && (!name || !strcmp(s->slots[i].name, name))) {
            unit_cancel(s->unit, i);
            print_end(&s->slots[i], "cancelled");
        }
    }
}

// Splits "key=value" in place; NULL where there is no '='.
static const char *value_of(char *word)
{
    char *equals = strchr(word, '=');
    if (!equals)
        return NULL;
    *equals = 0;
    return equals + 1;
}

static void run_open(struct state *s, char *rest)
{
    struct unit_config config = {.threads = 1};
    struct iso_errinfo e;
    enum isa isa;
    for (char *save, *word = strtok_r(rest, " ", &save); word; word = strtok_r(NULL, " ", &save)) {
        const char *value = value_of(word);
        if (!value)
            fail("open: key=value is expected");
        if (!strcmp(word, "isa") && isa_from_name(value, &isa) && kernels_get(isa))
            config.kernels = kernels_get(isa);
        else if (!strcmp(word, "threads"))
            config.threads = number(value);
        else if (!strcmp(word, "chunk"))
            config.chunk_tokens = number(value);
        else if (!strcmp(word, "reuse"))
            config.no_prefix_reuse = number(value) == 0;
        else
            fail("open: unknown option, or an ISA that this machine has not");
    }
    if (s->unit) {
        cancel_all(s, NULL);
        unit_close(s->unit);
    }
    if (unit_open(&s->plan, &config, &s->unit, &e))
        fail_with(&e);
}

static void set_option(struct unit_request *r, const char *key, const char *value)
{
    struct sampling *p = &r->sampling;
    if (!strcmp(key, "output"))
        r->max_output = number(value);
    else if (!strcmp(key, "temperature"))
        p->temperature = strtof(value, NULL);
    else if (!strcmp(key, "top_p"))
        p->top_p = strtof(value, NULL);
    else if (!strcmp(key, "min_p"))
        p->min_p = strtof(value, NULL);
    else if (!strcmp(key, "penalty"))
        p->repeat_penalty = strtof(value, NULL);
    else if (!strcmp(key, "top_k"))
        p->top_k = number(value);
    else if (!strcmp(key, "choice"))
        p->choice = number(value);
    else if (!strcmp(key, "seed"))
        p->seed = strtoull(value, NULL, 10);
    else if (!strcmp(key, "eog"))
        r->ignore_eog = number(value) == 0;
    else if (!strcmp(key, "score"))
        r->score = number(value) != 0;
    else
        fail("submit: unknown option");
}

static void run_submit(struct state *s, char *rest)
{
    struct unit_request request = {.max_output = 1, .sampling = SAMPLING_GREEDY, .ignore_eog = true};
    struct iso_errinfo e;
    uint32_t slot, reused, max = s->plan.header->limits.max_seq_len;
    uint32_t *prompt = malloc(max * sizeof *prompt);
    char *save, *word = strtok_r(rest, " ", &save);
    if (!word || strlen(word) >= NAME_BYTES || !prompt)
        fail("submit: a short name is expected");
    const char *name = word;
    while ((word = strtok_r(NULL, " ", &save)) && strcmp(word, ":") != 0) {
        const char *value = value_of(word);
        if (!value)
            fail("submit: key=value is expected");
        set_option(&request, word, value);
    }
    while ((word = strtok_r(NULL, " ", &save)) && request.n_prompt < max)
        prompt[request.n_prompt++] = number(word);
    request.prompt = prompt;
    enum iso_err err = unit_submit(s->unit, &request, &slot, &reused, &e);
    while (err == ISO_E_BUSY && step(s))
        err = unit_submit(s->unit, &request, &slot, &reused, &e);
    if (err)
        fail_with(&e);
    free(prompt);
    struct running *r = &s->slots[slot];
    ASSERT(!r->used);
    r->used = true;
    r->n = 0;
    r->reused = reused;
    memcpy(r->name, name, strlen(name) + 1);
}

static void run_line(struct state *s, char *line)
{
    line[strcspn(line, "\n")] = 0;
    char *rest = strchr(line, ' ');
    if (rest)
        *rest++ = 0;
    else
        rest = line + strlen(line);
    if (!strcmp(line, "open"))
        run_open(s, rest);
    else if (!s->unit)
        fail("the script must begin with open");
    else if (!strcmp(line, "submit"))
        run_submit(s, rest);
    else if (!strcmp(line, "cancel"))
        cancel_all(s, rest);
    else if (!strcmp(line, "step"))
        for (uint32_t n = number(rest); n > 0 && step(s); n--)
            continue;
    else if (!strcmp(line, "drain"))
        while (step(s))
            continue;
    else
        fail("unknown command");
}

static int run(const char *path)
{
    struct state s = {0};
    struct iso_errinfo e;
    char *line = malloc(LINE_BYTES);
    if (plan_load(path, NULL, NULL, &s.plan, &e))
        fail_with(&e);
    uint32_t slots = s.plan.header->limits.slots, max = s.plan.header->limits.max_seq_len;
    s.slots = calloc(slots, sizeof *s.slots);
    if (!line || !s.slots)
        fail("no memory");
    for (uint32_t i = 0; i < slots; i++) {
        s.slots[i].tokens = malloc(max * sizeof *s.slots[i].tokens);
        s.slots[i].hashes = malloc(max * sizeof *s.slots[i].hashes);
        if (!s.slots[i].tokens || !s.slots[i].hashes)
            fail("no memory");
    }
    while (fgets(line, (int)LINE_BYTES, stdin))
        run_line(&s, line);
    if (s.unit) {
        cancel_all(&s, NULL);
        unit_close(s.unit);
    }
    for (uint32_t i = 0; i < slots; i++) {
        free(s.slots[i].tokens);
        free(s.slots[i].hashes);
    }
    free(s.slots);
    free(line);
    plan_close(&s.plan);
    return 0;
}

static int compile(char **argv)
{
    struct iso_errinfo e;
    struct program program;
    struct compile_options o = {.max_seq_len = number(argv[2]),
                                .slots = number(argv[3]),
                                .batch_tokens = number(argv[4]),
                                .kv_type = !strcmp(argv[5], "q8") ? KV_Q8 : KV_F16};
    if (program_open(argv[0], &o, &program, &e))
        fail_with(&e);
    enum iso_err err = program_write(&program, argv[1], NULL, NULL, &e);
    program_close(&program);
    if (err)
        fail_with(&e);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 8 && !strcmp(argv[1], "compile"))
        return compile(argv + 2);
    if (argc == 3 && !strcmp(argv[1], "run"))
        return run(argv[2]);
    fail("usage: tool_unit compile MODEL PLAN MAX-SEQ-LEN SLOTS BATCH-TOKENS f16|q8, or tool_unit run PLAN");
}
