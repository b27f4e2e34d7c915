// Endpoints that compute: chat, completions, batches, embeddings; and tokenization, which reads prompts the same way.
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#include "base/assert.h"
#include "base/num.h"
#include "formats/json_file.h"
#include "serve/api.h"
#include "text/detok.h"

#define SEED_BITS 53 // of seeds made here: JSON's numbers hold no more for many readers

// ---- What all begin with ----

// Reads the parameters and finds the model. False: answered.
static bool begin(struct call *c, enum call_kind kind, enum params_endpoint endpoint)
{
    struct server *s = c->server;
    struct iso_errinfo e;
    c->kind = kind;
    c->model = &s->models[0]; // that a wrong request is counted with
    enum iso_err err = params_read(c->body, endpoint, &c->params, &e);
    if (c->params.ignored[0])
        http_add_header(c->request, "X-Isochron-Ignored", c->params.ignored);
    if (err) {
        call_fail(c, &e);
        return false;
    }
    c->model = server_model(s, c->params.model);
    if (!c->model && !c->params.model.ptr) {
        call_error(c, 400, "model", "invalid_value",
                   "model is required where several are served; /v1/models lists them");
        return false;
    }
    if (!c->model) {
        call_error(c, 404, "model", "model_not_found",
                   "there is no model \"%.*s\"; /v1/models lists those that are", STRV_ARG(c->params.model));
        return false;
    }
    c->engine = c->model->engine;
    if (s->draining || !c->engine || c->engine->state != ENGINE_READY) {
        call_refuse(c, REFUSED_NOT_READY, 503, "not_ready",
                    s->draining ? "the server is draining: it takes no new requests"
                                : "the model is not ready yet; try again");
        return false;
    }
    return true;
}

static void make_seed(struct params *p)
{
    if (!p->seed_given && getrandom(&p->base.sampling.seed, sizeof p->base.sampling.seed, 0) < 0)
        p->base.sampling.seed = 0; // can't fail for so few bytes
    if (!p->seed_given)
        p->base.sampling.seed &= (UINT64_C(1) << SEED_BITS) - 1;
}

// ---- Prompts ----

// A new spec with the ids given. NULL: refused and answered.
static struct answer_spec *add_spec(struct call *c, const uint32_t *ids, uint32_t n)
{
    ASSERT(c->n_specs < PARAMS_PROMPTS_MAX);
    struct answer_spec *s = answer_spec_new(n);
    if (!s) {
        call_error(c, 503, NULL, "out_of_memory", "the system refused memory for the prompt");
        return NULL;
    }
    uint32_t *prompt = s->prompt;
    *s = c->params.base;
    s->prompt = prompt;
    s->n_prompt = n;
    memcpy(prompt, ids, n * sizeof *ids);
    c->specs[c->n_specs++] = s;
    return s;
}

// How long an answer may become: as asked, or the default as far as it fits. False: refused and answered.
static bool set_length(struct call *c, struct answer_spec *s, const char *field)
{
    uint32_t max = c->engine->language.header.limits.max_seq_len, n = s->n_prompt;
    uint32_t least = c->params.max_tokens_is_zero ? 0 : c->params.max_tokens ? c->params.max_tokens : 1;
    if (n == 0) {
        call_error(c, 400, field, "empty_prompt", "%s is empty: it has no tokens", field);
        return false;
    }
    if (n > max || least > max - n) {
        c->model->metrics.refused[REFUSED_TOO_LONG]++;
        call_error(c, 400, field, "context_length_exceeded",
                   "%s has %" PRIu32 " tokens and the answer may have %" PRIu32 ": together %" PRIu64
                   ", and this model takes %" PRIu32,
                   field, n, least, (uint64_t)n + least, max);
        return false;
    }
    s->max_output = c->params.max_tokens;
    if (c->params.max_tokens == 0 && !c->params.max_tokens_is_zero)
        s->max_output = (uint32_t)num_min(c->server->config.max_tokens, max - n);
    return true;
}

// ISO_E_LIMIT says that a text is longer than any that fits; others are this server's own.
static bool encode(struct call *c, struct strv text, enum tok_mode mode, bool edges, const char *field,
                   uint32_t *ret_n)
{
    struct iso_errinfo e;
    struct language *l = &c->engine->language;
    enum iso_err err = language_encode(l, text, mode, edges, ret_n, &e);
    if (!err)
        return true;
    if (err == ISO_E_LIMIT)
        (void)iso_fail(&e, err, 0, NULL,
                       "%s has %zu bytes; a prompt of at most %" PRIu32 " tokens may have %zu", field,
                       text.len, l->header.limits.max_seq_len, l->ids_max - 2);
    snprintf(e.field, sizeof e.field, "%s", field);
    call_fail(c, &e);
    return false;
}

// Takes a prompt's text, for echo: the body does not stay. False: refused and answered.
static bool keep_text(struct call *c, uint32_t prompt, json_t *text)
{
    c->kept = json_with(c->kept ? c->kept : json_array(), text);
    if (c->kept) {
        c->prompt_texts[prompt] = json_strv(text);
        return true;
    }
    call_error(c, 503, NULL, "out_of_memory", "the system refused memory for the prompt");
    return false;
}

static bool add_text(struct call *c, const json_t *text, const char *field)
{
    uint32_t n;
    struct strv view = json_strv(text);
    if (c->params.echo && !keep_text(c, c->n_specs, json_incref((json_t *)text)))
        return false;
    return encode(c, view, TOK_PLAIN, c->params.add_special_tokens, field, &n) &&
           add_spec(c, c->engine->language.ids, n) != NULL;
}

static bool bad_tokens(struct call *c, const char *field)
{
    call_error(c, 400, field, "invalid_value",
               "%s must be a string, a list of tokens below %" PRIu32 ", or a list of those", field,
               c->engine->language.header.model.vocab);
    return false;
}

// A list of token ids into language.ids. False: it is none, or too long. Whole numbers may be written with a point.
static bool read_ids(struct call *c, const json_t *list, uint32_t *ret_n)
{
    struct language *l = &c->engine->language;
    size_t n = json_array_size(list);
    for (size_t i = 0; i < n; i++) {
        uint64_t id;
        if (n > l->ids_max || !json_whole(json_array_get(list, i), l->header.model.vocab - 1, &id))
            return false;
        l->ids[i] = (uint32_t)id;
    }
    *ret_n = (uint32_t)n;
    return true;
}

static bool add_tokens(struct call *c, const json_t *list, const char *field)
{
    uint32_t n;
    if (json_array_size(list) > c->engine->language.ids_max) {
        c->model->metrics.refused[REFUSED_TOO_LONG]++;
        call_error(c, 400, field, "context_length_exceeded",
                   "%s has %zu tokens, and this model takes %" PRIu32, field, json_array_size(list),
                   c->engine->language.header.limits.max_seq_len);
        return false;
    }
    if (!read_ids(c, list, &n))
        return bad_tokens(c, field);
    return add_spec(c, c->engine->language.ids, n) != NULL;
}

static bool add_prompt(struct call *c, const json_t *prompt, const char *field)
{
    if (json_is_string(prompt))
        return add_text(c, prompt, field);
    return json_is_array(prompt) ? add_tokens(c, prompt, field) : bad_tokens(c, field);
}

// One prompt or a list of them into c->specs. False: refused and answered.
static bool add_prompts(struct call *c, const char *field)
{
    const json_t *prompt = c->params.prompt, *first = json_array_get(prompt, 0);
    size_t n = json_array_size(prompt);
    char at[32];
    if (!json_is_array(prompt) || json_is_number(first))
        return add_prompt(c, prompt, field);
    if (n == 0) {
        call_error(c, 400, field, "empty_prompt", "%s is empty: it has no tokens", field);
        return false;
    }
    if (n > PARAMS_PROMPTS_MAX) {
        call_error(c, 400, field, "too_many_prompts", "%s has %zu prompts; at most %d are taken", field, n,
                   PARAMS_PROMPTS_MAX);
        return false;
    }
    for (size_t i = 0; i < n; i++) {
        snprintf(at, sizeof at, "%s[%zu]", field, i);
        if (!add_prompt(c, json_array_get(prompt, i), at))
            return false;
    }
    return true;
}

static bool set_lengths(struct call *c, const char *field)
{
    char at[32];
    for (uint32_t i = 0; i < c->n_specs; i++) {
        snprintf(at, sizeof at, c->n_specs > 1 ? "%s[%" PRIu32 "]" : "%s", field, i);
        if (!set_length(c, c->specs[i], at))
            return false;
    }
    return true;
}

static bool check_bias(struct call *c)
{
    uint32_t vocab = c->engine->language.header.model.vocab;
    for (uint32_t i = 0; i < c->params.base.sampling.n_bias; i++) {
        if (c->params.base.bias[i].id < vocab)
            continue;
        call_error(c, 400, "logit_bias", "invalid_value",
                   "logit_bias: token %" PRIu32 " is none of the model's %" PRIu32, c->params.base.bias[i].id,
                   vocab);
        return false;
    }
    return true;
}

// ---- Chat ----

static void local_time(char out[32])
{
    time_t seconds = time(NULL);
    struct tm local;
    strftime(out, 32, "%Y-%m-%dT%H:%M:%S", localtime_r(&seconds, &local));
}

// The conversation's text, with the beginning of a call where one is asked for. False: refused and answered.
static bool render(struct call *c, struct buf *text)
{
    struct language *l = &c->engine->language;
    struct params *p = &c->params;
    struct iso_errinfo e;
    char now[32];
    local_time(now);
    const struct language_chat chat = {p->messages, p->tools, p->template_kwargs, now};
    enum iso_err err = language_render(l, &chat, text, &e);
    if (err) {
        e.code =
            err == ISO_E_FORMAT ? ISO_E_USAGE : err; // the template is fine, the conversation isn't for it
        snprintf(e.field, sizeof e.field, "messages");
        call_fail(c, &e);
        return false;
    }
    p->base.split = true;
    p->base.style = p->tools ? l->style : SPLIT_NONE;
    p->base.thinking = language_thinking(l, buf_strv(text));
    if (p->tool_choice == TOOLS_REQUIRED || p->tool_choice == TOOLS_NAMED) {
        const char *name = p->tool_name;
        if (!name && json_array_size(p->tools) == 1)
            name = json_string_value(
                json_object_get(json_object_get(json_array_get(p->tools, 0), "function"), "name"));
        size_t n = language_call_beginning(l, name, p->base.forced);
        bool open = p->base.thinking == SPLIT_IN_THINK;
        p->base.thinking = SPLIT_NO_THINK;
        if ((open && buf_append_strv(text, ANSWER_THINK_CLOSING)) || buf_append(text, p->base.forced, n)) {
            call_error(c, 503, NULL, "out_of_memory", "the system refused memory for the conversation");
            return false;
        }
    }
    return true;
}

// Renders and encodes the conversation into language.ids.
static bool encode_chat(struct call *c, uint32_t *ret_n)
{
    struct buf text;
    buf_init(&text, LANGUAGE_RENDERED_MAX);
    // The template writes BOS itself where the model wants one.
    bool good = render(c, &text) && encode(c, buf_strv(&text), TOK_SPECIAL, false, "messages", ret_n);
    buf_deinit(&text);
    return good;
}

void api_chat(struct call *c)
{
    uint32_t n;
    if (!begin(c, CALL_CHAT, PARAMS_CHAT) || !check_bias(c))
        return;
    make_seed(&c->params);
    if (!encode_chat(c, &n) || !add_spec(c, c->engine->language.ids, n) || !set_lengths(c, "messages"))
        return;
    (void)call_admit(c);
}

// ---- Completions ----

static bool detok_prompt(struct call *c, uint32_t prompt);

static void generate(struct call *c, const char *field)
{
    if (!check_bias(c))
        return;
    make_seed(&c->params);
    if (!add_prompts(c, field) || !set_lengths(c, field))
        return;
    if (c->n_specs * c->params.n > PARAMS_CHOICES_MAX) {
        call_error(c, 400, "n", "too_many_answers",
                   "n times the number of prompts is %" PRIu32 "; at most %d are answered",
                   c->n_specs * c->params.n, PARAMS_CHOICES_MAX);
        return;
    }
    for (uint32_t i = 0; i < c->n_specs && c->params.echo; i++)
        if (!c->prompt_texts[i].ptr && !detok_prompt(c, i))
            return;
    (void)call_admit(c);
}

void api_completions(struct call *c)
{
    if (!begin(c, CALL_COMPLETION, PARAMS_COMPLETIONS))
        return;
    if (c->params.echo && c->params.stream && c->params.n_top != LOGPROBS_NONE) {
        call_error(c, 400, "echo", "unsupported", "echo with logprobs is not supported in a stream");
        return;
    }
    generate(c, "prompt");
}

void api_batch(struct call *c)
{
    if (!begin(c, CALL_BATCH, PARAMS_BATCH))
        return;
    generate(c, "prompts");
}

void api_embeddings(struct call *c)
{
    if (!begin(c, CALL_EMBEDDING, PARAMS_EMBEDDINGS))
        return;
    if (!c->engine->remote.channel.shared->has_hidden) {
        call_error(c, 400, NULL, "unsupported",
                   "this plan has no rows for embeddings: it was not made by this program's compiler");
        return;
    }
    c->params.max_tokens = 1; // the token after the last; its row is what is wanted
    if (!add_prompts(c, "input") || !set_lengths(c, "input"))
        return;
    (void)call_admit(c);
}

// ---- Tokens ----

// Text of tokens; control tokens give their names, so that it says what is there.
static bool detokenize(const struct language *l, const uint32_t *ids, uint32_t n, bool control,
                       struct buf *out)
{
    struct detok d;
    char piece[DETOK_OUT_MAX];
    bool good = true;
    detok_init(&d, l->tokenizer);
    for (uint32_t i = 0; i < n && good; i++) {
        size_t bytes = detok_push(&d, ids[i], piece);
        good = !buf_append(out, piece, bytes);
        if (good && control && tok_is_control(l->tokenizer, ids[i]))
            good = !buf_append_strv(out, tok_piece(l->tokenizer, ids[i]));
    }
    return good && !buf_append(out, piece, detok_flush(&d, piece));
}

// The text of a prompt that was given as tokens.
static bool detok_prompt(struct call *c, uint32_t prompt)
{
    const struct answer_spec *s = c->specs[prompt];
    struct buf text;
    buf_init(&text, REPLY_TEXT_MAX);
    json_t *whole = NULL;
    if (detokenize(&c->engine->language, s->prompt, s->n_prompt, false, &text))
        whole = json_stringn(text.len ? (char *)text.ptr : "", text.len);
    buf_deinit(&text);
    return keep_text(c, prompt, whole);
}

void api_tokenize(struct call *c)
{
    uint32_t n;
    if (!begin(c, CALL_OTHER, PARAMS_TOKENIZE))
        return;
    struct language *l = &c->engine->language;
    if (c->params.prompt && !json_is_string(c->params.prompt)) {
        call_error(c, 400, "prompt", "invalid_value", "prompt must be a string");
        return;
    }
    bool good = c->params.messages ? encode_chat(c, &n)
                                   : encode(c, json_strv(c->params.prompt), TOK_PLAIN,
                                            c->params.add_special_tokens, "prompt", &n);
    if (!good)
        return;
    json_t *tokens = json_array();
    for (uint32_t i = 0; i < n; i++)
        tokens =
            json_with(tokens, c->params.with_pieces ? json_pack("{s:I, s:o}", "id", (json_int_t)l->ids[i],
                                                                "piece", reply_token_text(l, l->ids[i]))
                                                    : json_integer(l->ids[i]));
    call_json(c, 200,
              json_pack("{s:o, s:I, s:I}", "tokens", tokens, "count", (json_int_t)n, "max_model_len",
                        (json_int_t)l->header.limits.max_seq_len));
}

void api_detokenize(struct call *c)
{
    uint32_t n;
    struct buf text;
    if (!begin(c, CALL_OTHER, PARAMS_DETOKENIZE))
        return;
    if (!json_is_array(c->params.prompt) || !read_ids(c, c->params.prompt, &n)) {
        call_error(c, 400, "tokens", "invalid_value",
                   "tokens must be a list of at most %zu tokens below %" PRIu32, c->engine->language.ids_max,
                   c->engine->language.header.model.vocab);
        return;
    }
    buf_init(&text, REPLY_TEXT_MAX);
    bool good = detokenize(&c->engine->language, c->engine->language.ids, n, true, &text);
    const char *bytes = text.len ? (char *)text.ptr : "";
    call_json(c, 200,
              good ? json_pack("{s:s%, s:s%}", "prompt", bytes, text.len, "content", bytes, text.len) : NULL);
    buf_deinit(&text);
}
