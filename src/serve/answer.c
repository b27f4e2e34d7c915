#include "serve/answer.h"

#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/num.h"

#define CLOSING_TOKENS_MAX 16

struct answer_spec *answer_spec_new(uint32_t prompt_max)
{
    struct answer_spec *s = calloc(1, sizeof *s);
    if (!s)
        return NULL;
    s->prompt = calloc(prompt_max ? prompt_max : 1, sizeof *s->prompt);
    s->sampling = SAMPLING_GREEDY;
    s->thinking_budget = ANSWER_NO_BUDGET;
    if (s->prompt)
        return s;
    free(s);
    return NULL;
}

void answer_spec_free(struct answer_spec *s)
{
    if (s)
        free(s->prompt);
    free(s);
}

static enum iso_err emit(struct answer *a, struct strv text)
{
    if (text.len == 0)
        return ISO_OK;
    return a->spec->split ? split_push(&a->split, text) : a->on_piece(a->context, SPLIT_CONTENT, 0, text);
}

static enum iso_err push_text(struct answer *a, struct strv text, bool *ret_stopped)
{
    char out[DETOK_OUT_MAX + STOP_HELD_MAX];
    ASSERT(text.len <= DETOK_OUT_MAX);
    size_t n = stop_push(&a->stop, text, out, ret_stopped);
    return emit(a, (struct strv){out, n});
}

// What the text machines still hold back. The stop string may end in the last character's replacement.
static enum iso_err end_text(struct answer *a)
{
    char piece[DETOK_FLUSH_MAX], held[STOP_HELD_MAX];
    bool stopped;
    size_t n = detok_flush(&a->detok, piece);
    enum iso_err err = push_text(a, (struct strv){piece, n}, &stopped);
    if (!err)
        err = emit(a, (struct strv){held, stop_flush(&a->stop, held)});
    if (!err && a->spec->split)
        err = split_end(&a->split);
    return err;
}

static enum iso_err end(struct answer *a, enum answer_finish finish, enum answer_next *ret_next)
{
    a->finish = finish;
    *ret_next = ANSWER_END;
    return end_text(a);
}

static bool is_thinking(const struct answer *a)
{
    return a->spec->split && split_is_thinking(&a->split);
}

// A token's text; a control token that begins tool calls has its name for text.
static enum iso_err push_token(struct answer *a, uint32_t token, bool *ret_stopped)
{
    char piece[DETOK_OUT_MAX];
    size_t n = detok_push(&a->detok, token, piece);
    struct strv text = {piece, n};
    a->n_reasoning += is_thinking(a);
    a->output[a->n_output++] = token;
    if (a->spec->split && a->spec->style != SPLIT_NONE && token == a->language->call_marker)
        text = tok_piece(a->language->tokenizer, token);
    return push_text(a, text, ret_stopped);
}

// Closes the reasoning by tokens of our own, as far as there is room.
static enum iso_err close_reasoning(struct answer *a, enum answer_next *ret_next, struct iso_errinfo *reterr)
{
    uint32_t ids[CLOSING_TOKENS_MAX];
    size_t n;
    bool stopped = false;
    enum iso_err err = tok_encode(a->language->tokenizer, ANSWER_THINK_CLOSING, TOK_SPECIAL, false, ids,
                                  CLOSING_TOKENS_MAX, &n, reterr);
    if (err)
        return err;
    for (size_t i = 0; i < n && a->n_output < a->spec->max_output && !err && !stopped; i++)
        err = push_token(a, ids[i], &stopped);
    if (err)
        return iso_fail(reterr, err, 0, NULL, "the answer's text could not be kept");
    *ret_next = ANSWER_RESUME;
    if (stopped || a->n_output == a->spec->max_output)
        err = end(a, stopped ? ANSWER_STOP : ANSWER_LENGTH, ret_next);
    return err;
}

static bool budget_is_used(const struct answer *a)
{
    return is_thinking(a) && a->n_reasoning >= a->spec->thinking_budget;
}

static enum iso_err open_text(struct answer *a, struct iso_errinfo *reterr)
{
    const struct answer_spec *s = a->spec;
    struct strv stop[STOP_STRINGS_MAX];
    for (uint32_t i = 0; i < s->n_stop; i++)
        stop[i] = (struct strv){s->stop[i], s->stop_bytes[i]};
    enum iso_err err = stop_init(&a->stop, stop, s->n_stop, reterr);
    if (err)
        return err;
    detok_init(&a->detok, a->language->tokenizer);
    a->output = malloc(s->max_output * sizeof *a->output);
    if (!a->output)
        return iso_fail(reterr, ISO_E_NOMEM, 0, NULL, "the system refused memory for an answer");
    if (s->split && split_push(&a->split, strv_from(s->forced)))
        return iso_fail(reterr, ISO_E_NOMEM, 0, NULL, "the system refused memory for an answer");
    return ISO_OK;
}

enum iso_err answer_open(struct answer *a, const struct answer_spec *spec, const struct language *language,
                         split_piece *on_piece, void *context, enum answer_next *ret_next,
                         struct iso_errinfo *reterr)
{
    *a = (struct answer){.spec = spec, .language = language, .on_piece = on_piece, .context = context};
    split_init(&a->split, spec->style, spec->thinking, on_piece, context);
    *ret_next = ANSWER_GO_ON;
    enum iso_err err = open_text(a, reterr);
    if (!err && budget_is_used(a))
        err = close_reasoning(a, ret_next, reterr);
    if (err)
        answer_close(a);
    return err;
}

void answer_close(struct answer *a)
{
    split_deinit(&a->split);
    free(a->output);
    a->output = NULL;
}

enum iso_err answer_push(struct answer *a, uint32_t token, enum unit_finish finish,
                         enum answer_next *ret_next, struct iso_errinfo *reterr)
{
    bool stopped = false;
    enum iso_err err = ISO_OK;
    ASSERT(a->finish == ANSWER_RUNNING && a->n_output < a->spec->max_output);
    *ret_next = ANSWER_GO_ON;
    if (finish != UNIT_EOG)
        err = push_token(a, token, &stopped);
    if (!err && (stopped || finish == UNIT_EOG))
        err = end(a, ANSWER_STOP, ret_next);
    else if (!err && a->n_output == a->spec->max_output)
        err = end(a, ANSWER_LENGTH, ret_next);
    else if (!err && budget_is_used(a))
        return close_reasoning(a, ret_next, reterr);
    if (err)
        return iso_fail(reterr, err, 0, NULL, "the answer's text could not be kept");
    return ISO_OK;
}

const char *answer_finish_name(const struct answer *a)
{
    if (a->finish == ANSWER_STOP && a->split.n_calls > 0)
        return "tool_calls";
    return a->finish == ANSWER_STOP ? "stop" : "length";
}

struct unit_request answer_request(const struct answer *a, uint32_t *into)
{
    const struct answer_spec *s = a->spec;
    memcpy(into, s->prompt, s->n_prompt * sizeof *into);
    if (a->n_output > 0)
        memcpy(into + s->n_prompt, a->output, a->n_output * sizeof *into);
    struct unit_request r = {.prompt = into,
                             .n_prompt = s->n_prompt + a->n_output,
                             .max_output = s->max_output - a->n_output,
                             .sampling = s->sampling,
                             .n_prior = a->n_output,
                             .ignore_eog = s->ignore_eog};
    r.sampling.bias = s->bias;
    r.sampling.choice = a->choice;
    return r;
}
