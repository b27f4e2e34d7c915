// The bodies of chat.completion, text_completion and their chunks, batch_completion and embeddings.
#include <inttypes.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "formats/json_file.h"
#include "serve/choice.h"

static bool is_chat(const struct call *c)
{
    return c->kind == CALL_CHAT;
}

static json_t *id_of(const struct call *c)
{
    return json_sprintf("%s-%s", is_chat(c) ? "chatcmpl" : "cmpl", c->id);
}

static json_t *or_null(const char *text)
{
    return text ? json_string(text) : json_null();
}

// What was computed, over the choices of one prompt, or of all (n_specs).
static json_t *usage_of(const struct call *c, uint32_t prompt)
{
    uint64_t in = 0, cached = 0, out = 0, reasoning = 0;
    for (uint32_t i = 0; i < c->n_specs; i++)
        in += prompt == c->n_specs || prompt == i ? c->specs[i]->n_prompt : 0;
    for (uint32_t i = 0; i < c->n_choices; i++) {
        const struct choice *k = &c->choices[i];
        if (prompt != c->n_specs && k->prompt != prompt)
            continue;
        if (i % c->params.n == 0)
            cached += k->cached;
        out += k->answer.n_output;
        reasoning += k->answer.n_reasoning;
    }
    json_t *usage = json_pack("{s:I, s:I, s:I, s:{s:I}}", "prompt_tokens", (json_int_t)in,
                              "completion_tokens", (json_int_t)out, "total_tokens", (json_int_t)(in + out),
                              "prompt_tokens_details", "cached_tokens", (json_int_t)cached);
    if (is_chat(c))
        usage = json_having(usage, "completion_tokens_details",
                            json_pack("{s:I}", "reasoning_tokens", (json_int_t)reasoning));
    return usage;
}

static json_t *proof_of(const struct choice *k)
{
    return json_pack("{s:I, s:s}", "seed", (json_int_t)k->call->params.base.sampling.seed, "digest",
                     k->digest);
}

// ---- Whole answers ----

static json_t *choice_json(const struct choice *k, uint32_t index)
{
    bool chat = is_chat(k->call);
    const struct reply *r = &k->reply;
    json_t *text =
        chat ? reply_message(r) : json_stringn(r->content.len ? (char *)r->content.ptr : "", r->content.len);
    return json_pack("{s:I, s:o, s:o, s:s, s:o}", "index", (json_int_t)index, chat ? "message" : "text", text,
                     "logprobs", reply_logprobs(r, &k->call->engine->language, chat), "finish_reason",
                     choice_finish(k), "isochron", proof_of(k));
}

static json_t *completion_json(const struct call *c, uint32_t first, uint32_t n, uint32_t prompt)
{
    json_t *choices = json_array();
    for (uint32_t i = 0; i < n; i++)
        choices = json_with(choices, choice_json(&c->choices[first + i], i));
    return json_pack("{s:o, s:s, s:I, s:s, s:s, s:o, s:o}", "id", id_of(c), "object",
                     is_chat(c) ? "chat.completion" : "text_completion", "created", (json_int_t)c->created,
                     "model", c->model->name, "system_fingerprint", c->engine->language.hash, "choices",
                     choices, "usage", usage_of(c, prompt));
}

static json_t *batch_json(const struct call *c)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < c->n_choices; i++)
        list = json_with(list, completion_json(c, i, 1, i));
    return json_pack("{s:o, s:s, s:I, s:s, s:s, s:o, s:o}", "id", id_of(c), "object", "batch_completion",
                     "created", (json_int_t)c->created, "model", c->model->name, "system_fingerprint",
                     c->engine->language.hash, "completions", list, "usage", usage_of(c, c->n_specs));
}

static json_t *row_json(const struct choice *k)
{
    uint32_t n = k->call->engine->language.header.model.hidden;
    if (!k->call->params.base64) {
        json_t *list = json_array();
        for (uint32_t i = 0; i < n; i++)
            list = json_with(list, json_real((double)k->row[i]));
        return list;
    }
    size_t bytes = n * sizeof *k->row, max = sodium_base64_ENCODED_LEN(bytes, sodium_base64_VARIANT_ORIGINAL);
    char *text = malloc(max);
    json_t *json = NULL;
    if (text)
        json = json_string(sodium_bin2base64(text, max, (const unsigned char *)k->row, bytes,
                                             sodium_base64_VARIANT_ORIGINAL));
    free(text);
    return json;
}

static json_t *embeddings_json(const struct call *c)
{
    json_t *list = json_array(), *proofs = json_array();
    uint64_t tokens = 0;
    for (uint32_t i = 0; i < c->n_choices; i++) {
        tokens += c->specs[i]->n_prompt;
        list = json_with(list, json_pack("{s:s, s:I, s:o}", "object", "embedding", "index", (json_int_t)i,
                                         "embedding", row_json(&c->choices[i])));
        proofs = json_with(proofs, json_string(c->choices[i].digest));
    }
    return json_pack("{s:s, s:o, s:s, s:s, s:{s:I, s:I}, s:{s:o}}", "object", "list", "data", list, "model",
                     c->model->name, "system_fingerprint", c->engine->language.hash, "usage", "prompt_tokens",
                     (json_int_t)tokens, "total_tokens", (json_int_t)tokens, "isochron", "digests", proofs);
}

// ---- Streams ----

static json_t *chunk_json(const struct call *c, json_t *choices, json_t *usage)
{
    json_t *chunk = json_pack("{s:o, s:s, s:I, s:s, s:s, s:o}", "id", id_of(c), "object",
                              is_chat(c) ? "chat.completion.chunk" : "text_completion", "created",
                              (json_int_t)c->created, "model", c->model->name, "system_fingerprint",
                              c->engine->language.hash, "choices", choices);
    if (c->params.include_usage)
        chunk = json_having(chunk, "usage", usage ? usage : json_null());
    return chunk;
}

json_t *complete_chunk(const struct choice *k, const char *finish, bool first)
{
    const struct call *c = k->call;
    const struct reply *r = &k->reply;
    bool chat = is_chat(c);
    json_t *text = chat ? reply_delta(r, first)
                        : json_stringn(r->content.len ? (char *)r->content.ptr : "", r->content.len);
    json_t *choice = json_pack("{s:I, s:o, s:o, s:o}", "index", (json_int_t)k->index, chat ? "delta" : "text",
                               text, "logprobs", reply_logprobs(r, &k->call->engine->language, chat),
                               "finish_reason", or_null(finish));
    if (finish)
        choice = json_having(choice, "isochron", proof_of(k));
    return chunk_json(c, json_pack("[o]", choice), NULL);
}

static void end_stream(struct call *c)
{
    if (c->params.include_usage)
        call_send(c, chunk_json(c, json_array(), usage_of(c, c->n_specs)));
    if (c->request && !http_write(c->request, STRV_LIT("data: [DONE]\n\n")))
        c->request = NULL;
    if (!c->request) {
        c->client_is_slow = true;
        call_gone(c);
        return;
    }
    call_log(c, 200, NULL);
    http_end(c->request);
    call_close(c);
}

void complete_call(struct call *c)
{
    if (c->params.stream)
        end_stream(c);
    else if (c->kind == CALL_EMBEDDING)
        call_json(c, 200, embeddings_json(c));
    else if (c->kind == CALL_BATCH)
        call_json(c, 200, batch_json(c));
    else
        call_json(c, 200, completion_json(c, 0, c->n_choices, c->n_specs));
}
