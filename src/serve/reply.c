#include "serve/reply.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/num.h"
#include "base/utf8.h"
#include "formats/json_file.h"

void reply_init(struct reply *r, const struct tokenizer *t, uint64_t call_seed)
{
    *r = (struct reply){.call_seed = call_seed};
    detok_init(&r->detok, t);
    buf_init(&r->probs, REPLY_TEXT_MAX);
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
    buf_deinit(&r->probs);
    *r = (struct reply){0};
}

void reply_reset(struct reply *r)
{
    clear_calls(r);
    buf_reset(&r->content);
    buf_reset(&r->reasoning);
    buf_reset(&r->probs);
}

bool reply_is_empty(const struct reply *r)
{
    return r->content.len == 0 && r->reasoning.len == 0 && r->n_calls == 0 && r->probs.len == 0;
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
static json_t *call_json(const struct reply *r, const struct reply_call *c, bool chunk)
{
    char id[10];
    call_id(r, c->index, id);
    json_t *function = json_pack("{s:o}", "arguments", string_of(&c->arguments));
    if (c->named)
        function = json_having(function, "name", json_string(c->name));
    json_t *call = json_pack("{s:o}", "function", function);
    if (c->named) {
        call = json_having(call, "id", json_string(id));
        call = json_having(call, "type", json_string("function"));
    }
    return chunk ? json_having(call, "index", json_integer(c->index)) : call;
}

static json_t *calls_json(const struct reply *r, bool chunk)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < r->n_calls; i++)
        list = json_with(list, call_json(r, &r->calls[i], chunk));
    return list;
}

json_t *reply_message(const struct reply *r)
{
    json_t *m =
        json_pack("{s:s, s:o, s:n}", "role", "assistant", "content",
                  r->content.len == 0 && r->n_calls > 0 ? json_null() : string_of(&r->content), "refusal");
    if (r->reasoning.len > 0)
        m = json_having(m, "reasoning_content", string_of(&r->reasoning));
    if (r->n_calls > 0)
        m = json_having(m, "tool_calls", calls_json(r, false));
    return m;
}

json_t *reply_delta(const struct reply *r, bool first)
{
    json_t *d = first ? json_pack("{s:s, s:s}", "role", "assistant", "content", "") : json_object();
    if (r->content.len > 0)
        d = json_having(d, "content", string_of(&r->content));
    if (r->reasoning.len > 0)
        d = json_having(d, "reasoning_content", string_of(&r->reasoning));
    if (r->n_calls > 0)
        d = json_having(d, "tool_calls", calls_json(r, true));
    return d;
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
        list = json_with(list, json_integer((uint8_t)s.ptr[i]));
    return list;
}

// In characters, as OpenAI's API counts; of the text that the tokens have together.
static uint32_t characters_of(struct reply *r, uint32_t token)
{
    char piece[DETOK_OUT_MAX];
    size_t n = detok_push(&r->detok, token, piece);
    uint32_t characters = 0;
    for (size_t i = 0; i < n; i++)
        characters += ((uint8_t)piece[i] & 0xC0) != 0x80;
    return characters;
}

enum iso_err reply_add_prob(struct reply *r, uint32_t token, const struct channel_event *e, uint32_t n_top)
{
    struct reply_prob p = {.token = token, .known = e != NULL, .text_offset = r->characters};
    r->characters += characters_of(r, token);
    if (e) {
        p.logprob = e->logprob;
        while (p.n_top < n_top && e->top[p.n_top].id != LOGPROBS_NONE)
            p.n_top++;
        memcpy(p.top, e->top, p.n_top * sizeof *p.top);
    }
    return buf_append(&r->probs, &p, sizeof p);
}

static json_t *chat_entry(const struct language *l, uint32_t token, float logprob)
{
    return json_pack("{s:o, s:f, s:o}", "token", reply_token_text(l, token), "logprob", (double)logprob,
                     "bytes", bytes_of(tok_piece(l->tokenizer, token)));
}

static json_t *chat_prob(const struct language *l, const struct reply_prob *p)
{
    json_t *top = json_array();
    for (uint32_t i = 0; i < p->n_top; i++)
        top = json_with(top, chat_entry(l, p->top[i].id, p->top[i].logprob));
    return json_having(chat_entry(l, p->token, p->logprob), "top_logprobs", top);
}

// Two tokens of the same text (as parts of characters become U+FFFD) would be one key: the first one stays.
static json_t *with_top(json_t *top, const struct language *l, uint32_t token, float logprob)
{
    json_t *text = reply_token_text(l, token), *value = json_real((double)logprob);
    const char *key = json_string_value(text);
    size_t n = json_string_length(text);
    bool good = text && value && top;
    if (good && !json_object_getn(top, key, n))
        good = json_object_setn(top, key, n, value) == 0;
    json_decref(text);
    json_decref(value);
    if (good)
        return top;
    json_decref(top);
    return NULL;
}

// The most probable ones, and the token itself where it is none of them: n_top + 1 at most, as in OpenAI's API.
static json_t *text_top(const struct language *l, const struct reply_prob *p)
{
    if (!p->known || p->n_top == 0)
        return json_null();
    json_t *top = json_object();
    for (uint32_t i = 0; i < p->n_top; i++)
        top = with_top(top, l, p->top[i].id, p->top[i].logprob);
    return with_top(top, l, p->token, p->logprob);
}

json_t *reply_logprobs(const struct reply *r, const struct language *l, bool chat)
{
    if (r->probs.len == 0)
        return json_null();
    const struct reply_prob *p = (const struct reply_prob *)r->probs.ptr, *end = p + r->probs.len / sizeof *p;
    json_t *list = json_array(), *logprobs = json_array(), *tops = json_array(), *offsets = json_array();
    for (; p < end; p++) {
        list = json_with(list, chat ? chat_prob(l, p) : reply_token_text(l, p->token));
        if (chat)
            continue;
        logprobs = json_with(logprobs, p->known ? json_real((double)p->logprob) : json_null());
        tops = json_with(tops, text_top(l, p));
        offsets = json_with(offsets, json_integer(p->text_offset));
    }
    if (!chat)
        return json_pack("{s:o, s:o, s:o, s:o}", "tokens", list, "token_logprobs", logprobs, "top_logprobs",
                         tops, "text_offset", offsets);
    json_decref(logprobs);
    json_decref(tops);
    json_decref(offsets);
    return json_pack("{s:o, s:n}", "content", list, "refusal");
}
