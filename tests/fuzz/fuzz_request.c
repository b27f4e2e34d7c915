// A request's body: the first byte chooses the endpoint, the rest is the JSON. What is accepted is rendered by a template
// that looks at everything, and its parameters survive the way through the audit.
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/num.h"
#include "formats/json_file.h"
#include "serve/audit.h"
#include "serve/params.h"
#include "../unit/tok_small.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char TEMPLATE[] =
    "{{ tools | tojson if tools is defined }}{% for m in messages %}{{ m.role }}:{{ m.content | trim }}"
    "{% for c in m.tool_calls or [] %}{{ c.function.name }}{{ c.function.arguments | tojson }}{% endfor %}"
    "{% endfor %}{{ enable_thinking }}<think>";

static void open_language(struct language *l)
{
    static struct small_vocab v;
    static struct buf blob; // aligned as malloc does
    struct iso_errinfo e;
    small_init(&v, "gpt-2", 0, 255);
    buf_init(&blob, MIB);
    ASSERT(tok_build(&v.src, &blob, &e) == ISO_OK);
    ASSERT(tok_open(blob.ptr, blob.len, 1000, &l->tokenizer, &e) == ISO_OK);
    ASSERT(tmpl_open(strv_from(TEMPLATE), &l->template, &e) == ISO_OK);
}

static void render(const struct params *p)
{
    static struct language l;
    struct iso_errinfo e;
    struct buf text;
    if (!l.template)
        open_language(&l);
    l.thinks = true;
    for (int with_tools = 0; with_tools < 2; with_tools++) {
        l.template_has_tools = with_tools;
        const struct language_chat chat = {p->messages, p->tools, p->template_kwargs, "2026-12-03T00:00:00"};
        buf_init(&text, LANGUAGE_RENDERED_MAX);
        if (language_render(&l, &chat, &text, &e) == ISO_OK)
            ASSERT(language_thinking(&l, buf_strv(&text)) == SPLIT_IN_THINK);
        buf_deinit(&text);
    }
}

static void round_trip(const struct params *p)
{
    struct answer_spec *back;
    struct iso_errinfo e;
    uint32_t choice;
    struct answer_spec s = p->base;
    s.max_output = p->max_tokens ? p->max_tokens : 1;
    json_t *params = audit_params(&s, 3);
    char *text = json_dumps(params, JSON_COMPACT);
    json_t *read = json_loads(text, JSON_ALLOW_NUL, NULL);
    ASSERT(read && audit_spec(read, 0, &back, &choice, &e) == ISO_OK && choice == 3);
    json_t *again = audit_params(back, choice);
    ASSERT(json_equal(params, again));
    ASSERT(sampling_is_valid(&(struct sampling){.temperature = back->sampling.temperature,
                                                .top_p = back->sampling.top_p,
                                                .min_p = back->sampling.min_p,
                                                .repeat_penalty = back->sampling.repeat_penalty,
                                                .presence_penalty = back->sampling.presence_penalty,
                                                .frequency_penalty = back->sampling.frequency_penalty,
                                                .bias = back->bias,
                                                .n_bias = back->sampling.n_bias},
                             PLAN_VOCAB_MAX));
    answer_spec_free(back);
    json_decref(again);
    json_decref(read);
    json_decref(params);
    free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct iso_errinfo e;
    struct params p;
    json_t *body;
    if (size == 0)
        return 0;
    enum params_endpoint endpoint = (enum params_endpoint)(1 << data[0] % 6);
    if (json_parse_within((struct strv){(const char *)data + 1, size - 1}, PARAMS_VALUES_MAX, &body, &e))
        return 0;
    if (params_read(body, endpoint, &p, &e)) {
        ASSERT(e.text[0] != '\0' && iso_err_http_status(e.code) == 400);
    } else {
        ASSERT(strlen(p.ignored) < sizeof p.ignored);
        if (p.messages)
            render(&p);
        round_trip(&p);
    }
    json_decref(body);
    return 0;
}
