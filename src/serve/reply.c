#include "serve/reply.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/num.h"
#include "base/utf8.h"

void reply_init(struct reply *r, uint64_t call_seed)
{
    *r = (struct reply){.call_seed = call_seed};
    buf_init(&r->content, REPLY_TEXT_MAX);
    buf_init(&r->reasoning, REPLY_TEXT_MAX);
}

static void clear_calls(struct reply *r)
{
    for (uint32_t i = 0; i < r->n_calls; i++)
        buf_deinit(&r->calls[i].arguments);
    r->n_calls = 0;
}

void reply_deinit(struct reply *r)
{
    clear_calls(r);
    free(r->calls);
    buf_deinit(&r->content);
    buf_deinit(&r->reasoning);
    json_decref(r->logprobs);
    *r = (struct reply){0};
}

void reply_reset(struct reply *r)
{
    clear_calls(r);
    buf_reset(&r->content);
    buf_reset(&r->reasoning);
    json_decref(r->logprobs);
    r->logprobs = NULL;
}

bool reply_is_empty(const struct reply *r)
{
    return r->content.len == 0 && r->reasoning.len == 0 && r->n_calls == 0 && !r->logprobs;
}

// ---- Pieces ----

static struct reply_call *call_at(struct reply *r, uint32_t index)
{
    if (r->n_calls > 0 && r->calls[r->n_calls - 1].index == index)
        return &r->calls[r->n_calls - 1];
    if (r->n_calls == r->calls_max) {
        uint32_t max = r->calls_max ? 2 * r->calls_max : 2;
        struct reply_call *calls = realloc(r->calls, max * sizeof *calls);
        if (!calls)
            return NULL;
        r->calls = calls;
        r->calls_max = max;
    }
    struct reply_call *call = &r->calls[r->n_calls++];
    *call = (struct reply_call){.index = index};
    buf_init(&call->arguments, REPLY_TEXT_MAX);
    return call;
}

enum iso_err reply_add(void *context, enum split_kind kind, uint32_t call, struct strv text)
{
    struct reply *r = context;
    if (kind == SPLIT_CONTENT)
        return buf_append_strv(&r->content, text);
    if (kind == SPLIT_REASONING)
        return buf_append_strv(&r->reasoning, text);
    struct reply_call *c = call_at(r, call);
    if (!c)
        return ISO_E_NOMEM;
    if (kind == SPLIT_CALL_ARGUMENTS)
        return buf_append_strv(&c->arguments, text);
    size_t n = num_min(text.len, SPLIT_NAME_MAX);
    memcpy(c->name, text.ptr, n);
    c->name[n] = '\0';
    c->named = true;
    return ISO_OK;
}

// ---- JSON ----

static json_t *string_of(const struct buf *b)
{
    return json_stringn(b->len ? (const char *)b->ptr : "", b->len);
}

// Nine letters and digits, as Mistral's templates want them; the same request has the same ones again.
static void call_id(const struct reply *r, uint32_t index, char out[10])
{
    static const char DIGITS[] = "0123456789abcdefghijklmnopqrstuvwxyz";
    uint64_t h = hash64_seeded(&index, sizeof index, r->call_seed);
    for (int i = 0; i < 9; i++, h /= 36)
        out[i] = DIGITS[h % 36];
    out[9] = '\0';
}

// `chunk`: with the number, and with what is new alone.
static json_t *calls_json(const struct reply *r, bool chunk)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < r->n_calls; i++) {
        const struct reply_call *c = &r->calls[i];
        char id[10];
        call_id(r, c->index, id);
        json_t *function = json_pack("{s:o}", "arguments", string_of(&c->arguments));
        json_t *call = json_pack("{s:o}", "function", function);
        if (c->named) {
            json_object_set_new(function, "name", json_string(c->name));
            json_object_set_new(call, "id", json_string(id));
            json_object_set_new(call, "type", json_string("function"));
        }
        if (chunk)
            json_object_set_new(call, "index", json_integer(c->index));
        json_array_append_new(list, call);
    }
    return list;
}

json_t *reply_message(const struct reply *r)
{
    json_t *m =
        json_pack("{s:s, s:o, s:n}", "role", "assistant", "content",
                  r->content.len == 0 && r->n_calls > 0 ? json_null() : string_of(&r->content), "refusal");
    if (r->reasoning.len > 0)
        json_object_set_new(m, "reasoning_content", string_of(&r->reasoning));
    if (r->n_calls > 0)
        json_object_set_new(m, "tool_calls", calls_json(r, false));
    return m;
}

json_t *reply_delta(const struct reply *r, bool first)
{
    json_t *d = first ? json_pack("{s:s, s:s}", "role", "assistant", "content", "") : json_object();
    if (r->content.len > 0)
        json_object_set_new(d, "content", string_of(&r->content));
    if (r->reasoning.len > 0)
        json_object_set_new(d, "reasoning_content", string_of(&r->reasoning));
    if (r->n_calls > 0)
        json_object_set_new(d, "tool_calls", calls_json(r, true));
    return d;
}

json_t *reply_logprobs(const struct reply *r, bool chat)
{
    if (!r->logprobs)
        return json_null();
    if (chat)
        return json_pack("{s:O, s:n}", "content", r->logprobs, "refusal");
    return json_incref(r->logprobs);
}

// ---- Probabilities ----

static json_t *clean_text(struct strv s)
{
    char text[3 * TOK_TOKEN_BYTES_MAX];
    size_t out = 0;
    for (size_t i = 0; i < s.len && out + UTF8_MAX_BYTES <= sizeof text;) {
        const uint8_t *at = (const uint8_t *)s.ptr + i;
        uint32_t cp = UTF8_REPLACEMENT;
        size_t len = utf8_decode(at, s.len - i, &cp);
        i += len ? len : utf8_invalid_length(at, s.len - i);
        out += utf8_encode(cp, (uint8_t *)text + out);
    }
    return json_stringn(text, out);
}

json_t *reply_token_text(const struct language *l, uint32_t token)
{
    return clean_text(tok_piece(l->tokenizer, token));
}

static json_t *bytes_of(struct strv s)
{
    json_t *list = json_array();
    for (size_t i = 0; i < s.len; i++)
        json_array_append_new(list, json_integer((uint8_t)s.ptr[i]));
    return list;
}

static json_t *chat_entry(const struct language *l, uint32_t token, float logprob)
{
    return json_pack("{s:o, s:f, s:o}", "token", reply_token_text(l, token), "logprob", (double)logprob,
                     "bytes", bytes_of(tok_piece(l->tokenizer, token)));
}

bool reply_add_chat_logprob(struct reply *r, const struct language *l, const struct channel_event *e,
                            uint32_t n_top)
{
    json_t *top = json_array(), *entry = chat_entry(l, e->token, e->logprob);
    for (uint32_t i = 0; i < n_top && e->top[i].id != LOGPROBS_NONE; i++)
        json_array_append_new(top, chat_entry(l, e->top[i].id, e->top[i].logprob));
    if (!r->logprobs)
        r->logprobs = json_array();
    return json_object_set_new(entry, "top_logprobs", top) == 0 &&
           json_array_append_new(r->logprobs, entry) == 0;
}

// Two tokens of the same text (as parts of characters become U+FFFD) would be one key: the first one stays.
static void add_top(json_t *top, const struct language *l, uint32_t token, float logprob)
{
    json_t *text = reply_token_text(l, token);
    if (text && !json_object_getn(top, json_string_value(text), json_string_length(text)))
        json_object_setn_new(top, json_string_value(text), json_string_length(text),
                             json_real((double)logprob));
    json_decref(text);
}

// The most probable ones, and the token itself where it is none of them: n_top + 1 at most, as in OpenAI's API.
static json_t *text_top(const struct language *l, uint32_t token, const struct channel_event *e,
                        uint32_t n_top)
{
    json_t *top = json_object();
    for (uint32_t i = 0; i < n_top && e->top[i].id != LOGPROBS_NONE; i++)
        add_top(top, l, e->top[i].id, e->top[i].logprob);
    add_top(top, l, token, e->logprob);
    return top;
}

bool reply_add_text_logprob(struct reply *r, const struct language *l, uint32_t token,
                            const struct channel_event *e, uint32_t n_top)
{
    if (!r->logprobs)
        r->logprobs =
            json_pack("{s:[], s:[], s:[], s:[]}", "tokens", "token_logprobs", "top_logprobs", "text_offset");
    json_t *text = reply_token_text(l, token);
    bool good = json_array_append(json_object_get(r->logprobs, "tokens"), text) == 0 &&
                json_array_append_new(json_object_get(r->logprobs, "token_logprobs"),
                                      e ? json_real((double)e->logprob) : json_null()) == 0 &&
                json_array_append_new(json_object_get(r->logprobs, "top_logprobs"),
                                      e && n_top > 0 ? text_top(l, token, e, n_top) : json_null()) == 0 &&
                json_array_append_new(json_object_get(r->logprobs, "text_offset"),
                                      json_integer((json_int_t)r->text_offset)) == 0;
    // In characters, as OpenAI's API counts.
    const char *s = json_string_value(text);
    for (size_t i = 0; i < json_string_length(text); i++)
        r->text_offset += ((uint8_t)s[i] & 0xC0) != 0x80;
    json_decref(text);
    return good;
}
