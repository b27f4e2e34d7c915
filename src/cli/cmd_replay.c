// isochron replay AUDIT [--model PLAN]
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/num.h"
#include "base/text_file.h"
#include "cli/cli.h"
#include "cli/session.h"
#include "formats/json_file.h"
#include "serve/audit.h"

#define LINE_BYTES_MAX AUDIT_LINE_MAX
#define SHOWN_MAX      20 // differences that are printed

struct arguments {
    struct run_flags run;
    const char *file, *model;
    bool json, quiet;
};

static const struct argp_option OPTIONS[] = {
    {"model", 'm', "PLAN", 0, "The plan to answer with (default: where each line says that it was)", 0},
    {"json", 'j', NULL, 0, "Print the result as one JSON object; no progress", 0},
    {0},
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct arguments *a = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &a->run;
        return 0;
    case 'm':
        cli_once(state, "model", &a->model, arg);
        return 0;
    case 'j':
        a->json = true;
        return 0;
    case ARGP_KEY_ARG:
        cli_once(state, "audit file", &a->file, arg);
        return 0;
    case ARGP_KEY_END:
        if (!a->file)
            argp_error(state, "which audit file?");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

// A line of the file, as audit.h writes it.
struct entry {
    uint64_t line;
    json_t *json;
    const char *digest, *plan, *plan_path, *id, *finish;
    const json_t *params;
    uint32_t *prompt, *output;
    uint32_t n_prompt, n_output;
};

struct replay {
    const struct arguments *a;
    struct session session;
    struct language language;
    char hash[HASH_HEX_BYTES];    // of the session's plan; "": none is open
    char missing[HASH_HEX_BYTES]; // of the last plan that was not found
    uint64_t same, different, impossible, unreadable;
    json_t *differences;
    uint32_t *room; // [max_seq_len]
    float *row;     // [hidden]
};

// ---- A line ----

static enum iso_err take_ids(const json_t *list, uint32_t **ret, uint32_t *ret_n, struct iso_errinfo *reterr)
{
    size_t n = json_array_size(list);
    uint32_t *ids = n <= PLAN_SEQ_MAX ? calloc(n ? n : 1, sizeof *ids) : NULL;
    if (!ids)
        return iso_fail(reterr, ISO_E_LIMIT, 0, "prompt", "it has more tokens than any sequence");
    for (size_t i = 0; i < n; i++) {
        uint64_t id;
        if (!json_whole(json_array_get(list, i), UINT32_MAX, &id)) {
            free(ids);
            return iso_fail(reterr, ISO_E_FORMAT, 0, "prompt", "a token is no whole number");
        }
        ids[i] = (uint32_t)id;
    }
    *ret = ids;
    *ret_n = (uint32_t)n;
    return ISO_OK;
}

static enum iso_err entry_open(struct strv text, uint64_t line, struct entry *ret, struct iso_errinfo *reterr)
{
    struct entry e = {.line = line};
    enum iso_err err = json_parse(text, &e.json, reterr);
    if (err)
        return err;
    e.digest = json_string_value(json_object_get(e.json, "digest"));
    e.plan = json_string_value(json_object_get(e.json, "plan"));
    e.plan_path = json_string_value(json_object_get(e.json, "plan_path"));
    e.id = json_string_value(json_object_get(e.json, "id"));
    e.finish = json_string_value(json_object_get(e.json, "finish_reason"));
    e.params = json_object_get(e.json, "params");
    if (!e.digest || !e.plan || !e.plan_path || !e.id || !e.finish)
        err = iso_fail(
            reterr, ISO_E_FORMAT, 0, NULL,
            "it is no line of an audit: digest, plan, plan_path, id and finish_reason are strings there");
    if (!err)
        err = take_ids(json_object_get(e.json, "prompt"), &e.prompt, &e.n_prompt, reterr);
    if (!err)
        err = take_ids(json_object_get(e.json, "output"), &e.output, &e.n_output, reterr);
    if (err) {
        free(e.prompt);
        json_decref(e.json);
        return err;
    }
    *ret = e;
    return ISO_OK;
}

static void entry_close(struct entry *e)
{
    free(e->prompt);
    free(e->output);
    json_decref(e->json);
}

// ---- Answering again ----

static void close_plan(struct replay *r)
{
    if (!r->hash[0])
        return;
    session_close(&r->session);
    free(r->room);
    free(r->row);
    r->hash[0] = '\0';
}

// The session answers; its tokenizer, in the shape that an answer wants it.
static void lend_language(struct replay *r)
{
    const struct session *s = &r->session;
    r->language =
        (struct language){.header = *s->plan.header, .tokenizer = s->tokenizer, .call_marker = TOK_NONE};
    language_find_style(&r->language, s->plan.chat_template);
}

// ISO_E_USAGE: the plan of the line is not at hand.
static enum iso_err open_plan(struct replay *r, const struct entry *e, struct iso_errinfo *reterr)
{
    const char *path = r->a->model ? r->a->model : e->plan_path;
    const struct compile_flags as_it_is = {0};
    struct plan_header h;
    char hash[HASH_HEX_BYTES];
    if (strcmp(r->hash, e->plan) == 0)
        return ISO_OK;
    if (plan_peek(path, &h, reterr))
        return iso_fail(reterr, ISO_E_USAGE, 0, "model", "no plan can be read from %.200s", path);
    hash128_hex(h.hash, hash);
    if (strcmp(hash, e->plan) != 0)
        return iso_fail(reterr, ISO_E_USAGE, 0, "plan", "%.200s is plan %s now", path, hash);
    close_plan(r);
    enum iso_err err = session_open(path, &as_it_is, &r->a->run, r->a->json, &r->session, reterr);
    if (err)
        return err;
    memcpy(r->hash, hash, sizeof r->hash);
    r->room = calloc(h.limits.max_seq_len, sizeof *r->room);
    r->row = calloc(h.model.hidden, sizeof *r->row);
    lend_language(r);
    if (!r->room || !r->row)
        return iso_fail(reterr, ISO_E_NOMEM, 0, NULL, "the system refused memory to answer");
    return ISO_OK;
}

static enum iso_err ignore_piece(void *context, enum split_kind kind, uint32_t call, struct strv text)
{
    (void)context, (void)kind, (void)call, (void)text;
    return ISO_OK;
}

// Steps until the unit gives the slot's next token.
static struct unit_event next_event(struct replay *r)
{
    struct unit_result result;
    do
        result = unit_step(r->session.unit);
    while (result.n == 0);
    return result.events[0];
}

static enum iso_err answer_again(struct replay *r, struct answer *a, uint32_t most,
                                 struct iso_errinfo *reterr)
{
    struct unit *u = r->session.unit;
    enum answer_next next = ANSWER_RESUME;
    uint32_t slot = 0;
    enum iso_err err = ISO_OK;
    while (!err && next != ANSWER_END && a->n_output < most) {
        if (next == ANSWER_RESUME) {
            struct unit_request request = answer_request(a, r->room);
            unit_cancel(u, slot);
            err = unit_submit(u, &request, &slot, NULL, reterr);
            if (err)
                return err;
        }
        struct unit_event event = next_event(r);
        if (event.finish == UNIT_NONFINITE)
            err = iso_fail(reterr, ISO_E_NONFINITE, 0, "logits", "a logit is not finite");
        else
            err = answer_push(a, event.token, event.finish, &next, reterr);
    }
    unit_cancel(u, slot);
    return err;
}

static enum iso_err replay_answer(struct replay *r, const struct entry *e, char digest[AUDIT_DIGEST_HEX],
                                  bool *ret_same, struct iso_errinfo *reterr)
{
    struct answer_spec *spec = NULL;
    struct answer a;
    enum answer_next next;
    uint32_t choice;
    enum iso_err err = audit_spec(e->params, e->n_prompt, &spec, &choice, reterr);
    if (err)
        return err;
    if ((uint64_t)e->n_prompt + spec->max_output > r->session.plan.header->limits.max_seq_len) {
        answer_spec_free(spec);
        return iso_fail(reterr, ISO_E_LIMIT, 0, "prompt", "prompt and output don't fit the plan's sequences");
    }
    memcpy(spec->prompt, e->prompt, e->n_prompt * sizeof *e->prompt);
    err = answer_open(&a, spec, &r->language, ignore_piece, NULL, &next, reterr);
    if (!err) {
        a.choice = choice;
        // Of one that was cut off, what there was must be the beginning.
        bool cut = strcmp(e->finish, "abort") == 0 || strcmp(e->finish, "error") == 0;
        if (a.finish == ANSWER_RUNNING && spec->max_output > 0) // 0: only the prompt was wanted
            err = answer_again(r, &a, cut ? e->n_output : UINT32_MAX, reterr);
        const char *finish = spec->max_output > 0 ? answer_finish_name(&a) : "length";
        uint32_t n = cut ? (uint32_t)num_min(a.n_output, e->n_output) : a.n_output;
        json_t *params = audit_params(spec, choice);
        if (!err)
            err = audit_digest(r->hash, params, spec->prompt, spec->n_prompt, a.output, n, digest);
        json_decref(params);
        *ret_same = n == e->n_output && (n == 0 || memcmp(a.output, e->output, n * sizeof *a.output) == 0) &&
                    (cut || strcmp(finish, e->finish) == 0);
        answer_close(&a);
    }
    answer_spec_free(spec);
    return err;
}

static enum iso_err replay_embedding(struct replay *r, const struct entry *e, char digest[AUDIT_DIGEST_HEX],
                                     struct iso_errinfo *reterr)
{
    uint32_t n = r->session.plan.header->model.hidden, slot;
    const struct unit_request request = {.prompt = e->prompt,
                                         .n_prompt = e->n_prompt,
                                         .max_output = 1,
                                         .sampling = SAMPLING_GREEDY,
                                         .ignore_eog = true};
    enum iso_err err = unit_submit(r->session.unit, &request, &slot, NULL, reterr);
    if (err)
        return err;
    struct unit_event event = next_event(r);
    if (!unit_has_hidden(r->session.unit))
        return iso_fail(reterr, ISO_E_USAGE, 0, "plan", "the plan has no rows for embeddings");
    audit_scale_row(unit_hidden(r->session.unit, event.row), n, r->row);
    return audit_digest_row(r->hash, e->prompt, e->n_prompt, r->row, n, digest);
}

static void note_difference(struct replay *r, const struct entry *e, const char *digest)
{
    if (++r->different > SHOWN_MAX)
        return;
    if (!r->a->json && strcmp(digest, e->digest) == 0)
        printf("line %" PRIu64
               ": %s: output, counts or finish_reason in the file are not those of the answer\n",
               e->line, e->id);
    else if (!r->a->json)
        printf("line %" PRIu64 ": %s is answered otherwise: %s instead of %s\n", e->line, e->id, digest,
               e->digest);
    json_array_append_new(r->differences, json_pack("{s:I, s:s, s:s, s:s}", "line", (json_int_t)e->line, "id",
                                                    e->id, "digest", digest, "audited", e->digest));
}

static bool has_counts(const struct entry *e)
{
    uint64_t prompt, output = 0;
    return json_whole(json_object_get(e->json, "prompt_tokens"), UINT32_MAX, &prompt) &&
           prompt == e->n_prompt &&
           json_whole(json_object_get(e->json, "output_tokens"), UINT32_MAX, &output) &&
           output == e->n_output;
}

static enum iso_err replay_entry(struct replay *r, const struct entry *e, struct iso_errinfo *reterr)
{
    char digest[AUDIT_DIGEST_HEX] = "";
    bool same = true;
    enum iso_err err = json_is_null(e->params) ? replay_embedding(r, e, digest, reterr)
                                               : replay_answer(r, e, digest, &same, reterr);
    if (err == ISO_E_NONFINITE) { // an answer that was whole
        note_difference(r, e, "no answer: a logit is not finite");
        return ISO_OK;
    }
    if (err)
        return err;
    if (same && has_counts(e) && strcmp(digest, e->digest) == 0)
        r->same++;
    else
        note_difference(r, e, digest);
    return ISO_OK;
}

// A line that was cut by a full disk, or is none of an audit, keeps no other from being looked at.
static void note_unreadable(struct replay *r, uint64_t line, const struct iso_errinfo *e)
{
    if (++r->unreadable <= SHOWN_MAX && !r->a->json)
        printf("line %" PRIu64 " can't be read: %s\n", line, e->text);
}

static void note_missing(struct replay *r, const struct entry *e, const struct iso_errinfo *why)
{
    r->impossible++;
    if (strcmp(r->missing, e->plan) != 0 && !r->a->json)
        printf("line %" PRIu64 ": plan %.32s is not at hand: %s; --model says where it is\n", e->line,
               e->plan, why->text);
    snprintf(r->missing, sizeof r->missing, "%s", e->plan);
}

static enum iso_err replay_line(struct replay *r, struct strv text, uint64_t line, struct iso_errinfo *reterr)
{
    struct entry e;
    if (entry_open(text, line, &e, reterr)) {
        note_unreadable(r, line, reterr);
        return ISO_OK;
    }
    enum iso_err err = ISO_OK;
    if (!e.params)
        r->impossible++;
    else
        err = open_plan(r, &e, reterr);
    if (err == ISO_E_USAGE) {
        note_missing(r, &e, reterr);
        err = ISO_OK;
    } else if (!err && e.params) {
        err = replay_entry(r, &e, reterr);
        if (err == ISO_E_FORMAT || err == ISO_E_LIMIT ||
            err == ISO_E_USAGE) { // the line's, not the machine's
            note_unreadable(r, line, reterr);
            err = ISO_OK;
        }
    }
    entry_close(&e);
    return err;
}

static enum iso_err replay_file(struct replay *r, FILE *f, struct cli_progress *progress, uint64_t bytes,
                                struct iso_errinfo *reterr)
{
    struct buf text;
    char where[32];
    uint64_t line = 0, done = 0;
    bool end = false;
    enum iso_err err = ISO_OK;
    buf_init(&text, LINE_BYTES_MAX);
    while (!err && !end) {
        buf_reset(&text);
        line++;
        err = text_file_line(f, &text, &end, reterr);
        if (err == ISO_E_LIMIT) {
            note_unreadable(r, line, reterr);
            err = ISO_OK;
        } else if (!err && text.len > 0) {
            err = replay_line(r, buf_strv(&text), line, reterr);
        }
        done += text.len + 1;
        cli_progress_update(progress, num_min(done, bytes), bytes);
    }
    buf_deinit(&text);
    snprintf(where, sizeof where, "line %" PRIu64, line);
    return err ? iso_fail_prefix(reterr, where) : ISO_OK;
}

static int report(const struct replay *r)
{
    int code = r->different    ? iso_err_exit_code(ISO_E_CORRUPT)
               : r->unreadable ? iso_err_exit_code(ISO_E_FORMAT)
               : r->impossible ? iso_err_exit_code(ISO_E_UNSUPPORTED)
                               : CLI_EXIT_OK;
    if (r->a->json) {
        int printed =
            cli_print_json(json_pack("{s:I, s:I, s:I, s:I, s:O}", "same", (json_int_t)r->same, "different",
                                     (json_int_t)r->different, "impossible", (json_int_t)r->impossible,
                                     "unreadable", (json_int_t)r->unreadable, "differences", r->differences));
        return printed ? printed : code;
    }
    printf("%" PRIu64 " answers are the same, %" PRIu64 " differ\n", r->same, r->different);
    if (r->impossible)
        printf("%" PRIu64
               " can't be answered again: their plan is not at hand, or the audit has their digests "
               "alone (audit.detail: digests)\n",
               r->impossible);
    if (r->unreadable)
        printf("%" PRIu64 " lines can't be read\n", r->unreadable);
    return code;
}

static uint64_t file_bytes(FILE *f)
{
    long end = fseek(f, 0, SEEK_END) == 0 ? ftell(f) : 0;
    rewind(f);
    return end > 0 ? (uint64_t)end : 1;
}

int cmd_replay(int argc, char **argv)
{
    static const struct argp_child CHILDREN[] = {{&RUN_ARGP, 0, NULL, 0}, {0}};
    static const struct argp ARGP = {
        .options = OPTIONS,
        .parser = parse,
        .args_doc = "AUDIT",
        .doc = "Answers again what a server answered, from its audit file, and compares: tokens "
               "and digests. Exit code 0: all are the same; 9: some differ; 5: some can't be "
               "answered again.\v" CLI_EXIT_CODES_HELP,
        .children = CHILDREN};
    struct arguments a = {0};
    struct iso_errinfo e;
    struct cli_progress progress;
    cli_parse(&ARGP, argc, argv, &a);
    FILE *f = fopen(a.file, "re");
    if (!f) {
        (void)iso_fail(&e, ISO_E_IO, 0, NULL, "%s: opening failed: %s", a.file, strerror(errno));
        return cli_fail(&e, a.json);
    }
    struct replay r = {.a = &a, .differences = json_array()};
    cli_progress_begin(&progress, "answering again", NULL, a.json);
    enum iso_err err = replay_file(&r, f, &progress, file_bytes(f), &e);
    cli_progress_end(&progress);
    close_plan(&r);
    fclose(f);
    if (err)
        iso_fail_prefix(&e, a.file);
    int code = err ? cli_fail(&e, a.json) : report(&r);
    json_decref(r.differences);
    return code;
}
