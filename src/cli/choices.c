#include "cli/choices.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/dmath.h"
#include "base/num.h"
#include "cli/eval.h"
#include "formats/json_file.h"

#define Z_95 1.959963984540054 // of the normal distribution

struct question {
    json_t *json;
    struct strv prompt;
    const json_t *choices;
    uint64_t answer;
};

struct reader {
    struct session *session;
    uint32_t *prompt, *whole; // ids
    size_t max;
    struct buf text;
};

struct choices_interval choices_interval(uint32_t right, uint32_t n)
{
    double p = (double)right / n, z2 = Z_95 * Z_95;
    double middle = (p + z2 / (2 * n)) / (1 + z2 / n);
    double half = Z_95 / (1 + z2 / n) * dmath_sqrt(p * (1 - p) / n + z2 / (4.0 * n * n));
    return (struct choices_interval){middle - half, middle + half};
}

static enum iso_err parse_question(struct strv line, struct question *ret, struct iso_errinfo *reterr)
{
    enum iso_err err = json_parse(line, &ret->json, reterr);
    if (err)
        return err;
    const json_t *prompt = json_object_get(ret->json, "prompt"),
                 *answer = json_object_get(ret->json, "answer");
    ret->choices = json_object_get(ret->json, "choices");
    size_t n = json_array_size(ret->choices), wrong = 0;
    while (wrong < n && json_string_length(json_array_get(ret->choices, wrong)) > 0)
        wrong++;
    if (!json_is_string(prompt))
        err = iso_fail(reterr, ISO_E_FORMAT, 0, "prompt", "a question needs a text \"prompt\"");
    else if (n < 2 || n > CHOICES_MAX)
        err = iso_fail(reterr, ISO_E_FORMAT, 0, "choices",
                       "a question needs a list \"choices\" of 2 to %d texts", CHOICES_MAX);
    else if (wrong < n)
        err = iso_fail(reterr, ISO_E_FORMAT, 0, "choices", "choice %zu (from 0) is no text, or empty", wrong);
    else if (!json_whole(answer, n - 1, &ret->answer))
        err = iso_fail(reterr, ISO_E_FORMAT, 0, "answer",
                       "\"answer\" must be the number of the right choice, from 0 to %zu", n - 1);
    if (err) {
        json_decref(ret->json);
        return err;
    }
    ret->prompt = json_strv(prompt);
    return ISO_OK;
}

// The tokens of the whole text, as a token may reach over the border; the choice begins where they differ from the prompt's
// own, at *ret_from.
static enum iso_err tokens_of(struct reader *r, const struct question *q, struct strv choice, uint32_t *ret_n,
                              uint32_t *ret_from, struct iso_errinfo *reterr)
{
    size_t n_prompt = 0, n = 0, from = 0;
    struct tokenizer *t = r->session->tokenizer;
    uint32_t limit = r->session->plan.header->limits.max_seq_len;
    buf_reset(&r->text);
    if (buf_append_strv(&r->text, q->prompt) || buf_append_strv(&r->text, choice))
        return iso_fail(reterr, ISO_E_NOMEM, 0, NULL, "the system refused memory for a question");
    enum iso_err err = tok_encode(t, q->prompt, TOK_PLAIN, true, r->prompt, r->max, &n_prompt, reterr);
    if (!err)
        err = tok_encode(t, buf_strv(&r->text), TOK_PLAIN, true, r->whole, r->max, &n, reterr);
    if (!err && n > limit)
        err =
            iso_fail(reterr, ISO_E_LIMIT, 0, NULL,
                     "a question has %zu tokens; sequences have at most %" PRIu32 " (max-seq-len)", n, limit);
    if (err)
        return err;
    while (from < n_prompt && from < n && r->prompt[from] == r->whole[from])
        from++;
    if (from == 0 || n < 2)
        return iso_fail(reterr, ISO_E_FORMAT, 0, NULL, "the prompt has no token of its own before a choice");
    *ret_n = (uint32_t)n;
    *ret_from = (uint32_t)num_min(from, n - 1);
    return ISO_OK;
}

// The choice's log probability after the prompt.
static enum iso_err score_choice(struct reader *r, const struct question *q, struct strv choice, double *ret,
                                 struct iso_errinfo *reterr)
{
    uint32_t n, from;
    enum iso_err err = tokens_of(r, q, choice, &n, &from, reterr);
    return err ? err : eval_continuation(r->session, r->whole, n, from, ret, reterr);
}

// That the question can be answered.
static enum iso_err check(struct reader *r, const struct question *q, struct choices_result *result,
                          struct iso_errinfo *reterr)
{
    enum iso_err err = ISO_OK;
    for (size_t i = 0; i < json_array_size(q->choices) && !err; i++) {
        uint32_t n, from;
        err = tokens_of(r, q, json_strv(json_array_get(q->choices, i)), &n, &from, reterr);
    }
    result->questions++;
    return err;
}

static enum iso_err answer(struct reader *r, const struct question *q, struct choices_result *result,
                           struct iso_errinfo *reterr)
{
    size_t best = 0, best_by_byte = 0, n = json_array_size(q->choices);
    double most = 0, most_by_byte = 0;
    for (size_t i = 0; i < n; i++) {
        struct strv choice = json_strv(json_array_get(q->choices, i));
        double score;
        enum iso_err err = score_choice(r, q, choice, &score, reterr);
        if (err)
            return err;
        double by_byte = score / (double)choice.len;
        if (i == 0 || score > most)
            most = score, best = i;
        if (i == 0 || by_byte > most_by_byte)
            most_by_byte = by_byte, best_by_byte = i;
    }
    result->questions++;
    result->right += best == q->answer;
    result->right_by_byte += best_by_byte == q->answer;
    return ISO_OK;
}

// What is done with each question.
typedef enum iso_err question_function(struct reader *r, const struct question *q,
                                       struct choices_result *result, struct iso_errinfo *reterr);

static bool is_blank(struct strv line)
{
    size_t n = 0;
    while (n < line.len && strchr(" \t\r", line.ptr[n]) && line.ptr[n] != '\0')
        n++;
    return n == line.len;
}

static enum iso_err run_lines(struct reader *r, struct strv text, question_function *function,
                              struct cli_progress *progress, struct choices_result *ret,
                              struct iso_errinfo *reterr)
{
    uint32_t line = 0;
    for (size_t at = 0; at < text.len;) {
        const char *end = memchr(text.ptr + at, '\n', text.len - at);
        size_t n = end ? (size_t)(end - (text.ptr + at)) : text.len - at;
        struct strv s = {text.ptr + at, n};
        struct question q;
        at += n + 1;
        line++;
        if (is_blank(s))
            continue;
        enum iso_err err = line <= CHOICES_LINES_MAX ? parse_question(s, &q, reterr)
                                                     : iso_fail(reterr, ISO_E_LIMIT, 0, NULL,
                                                                "the limit is %d lines", CHOICES_LINES_MAX);
        if (!err) {
            err = function(r, &q, ret, reterr);
            json_decref(q.json);
        }
        if (err) {
            char where[32];
            snprintf(where, sizeof where, "line %" PRIu32, line);
            return iso_fail_prefix(reterr, where);
        }
        if (progress)
            cli_progress_update(progress, num_min(at, text.len), text.len);
    }
    return ret->questions ? ISO_OK : iso_fail(reterr, ISO_E_FORMAT, 0, NULL, "there is no question in it");
}

static enum iso_err run_text(struct session *s, struct strv text, question_function *function,
                             struct cli_progress *progress, struct choices_result *ret,
                             struct iso_errinfo *reterr)
{
    struct reader r = {.session = s, .max = session_prompt_tokens(&s->plan.header->limits)};
    enum iso_err err;
    *ret = (struct choices_result){0};
    r.prompt = calloc(r.max, sizeof *r.prompt);
    r.whole = calloc(r.max, sizeof *r.whole);
    buf_init(&r.text, CHOICES_BYTES_MAX);
    err = r.prompt && r.whole
              ? run_lines(&r, text, function, progress, ret, reterr)
              : iso_fail(reterr, ISO_E_NOMEM, 0, NULL, "the system refused memory for a question");
    free(r.prompt);
    free(r.whole);
    buf_deinit(&r.text);
    return err;
}

enum iso_err choices_check(struct session *s, struct strv text, struct iso_errinfo *reterr)
{
    struct choices_result result;
    return run_text(s, text, check, NULL, &result, reterr);
}

enum iso_err choices_run(struct session *s, struct strv text, struct cli_progress *progress,
                         struct choices_result *ret, struct iso_errinfo *reterr)
{
    return run_text(s, text, answer, progress, ret, reterr);
}
