#include "serve/params.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "base/num.h"
#include "formats/json_file.h"
#include "serve/messages.h"

#define GENERATES (PARAMS_CHAT | PARAMS_COMPLETIONS | PARAMS_BATCH)
#define TEXTS     (PARAMS_COMPLETIONS | PARAMS_BATCH)

// A value that is given: not null. NULL where it is not.
typedef enum iso_err read_field(struct params *p, const char *name, const json_t *value,
                                struct iso_errinfo *reterr);

static enum iso_err wrong(struct iso_errinfo *reterr, const char *name, const char *what)
{
    return iso_fail(reterr, ISO_E_USAGE, 0, name, "%s must be %s", name, what);
}

static enum iso_err read_model(struct params *p, const char *name, const json_t *v,
                               struct iso_errinfo *reterr)
{
    if (!json_is_string(v))
        return wrong(reterr, name, "a string");
    p->model = json_strv(v);
    return ISO_OK;
}

static enum iso_err read_messages(struct params *p, const char *name, const json_t *v,
                                  struct iso_errinfo *reterr)
{
    (void)name;
    p->messages = v;
    return messages_check(v, reterr);
}

static enum iso_err read_tools(struct params *p, const char *name, const json_t *v,
                               struct iso_errinfo *reterr)
{
    (void)name;
    enum iso_err err = tools_check(v, reterr);
    if (!err && json_array_size(v) > 0)
        p->tools = v;
    return err;
}

static enum iso_err read_tool_choice(struct params *p, const char *name, const json_t *v,
                                     struct iso_errinfo *reterr)
{
    const char *word = json_string_value(v);
    const char *function = json_string_value(json_object_get(json_object_get(v, "function"), "name"));
    if (word && strcmp(word, "auto") == 0)
        p->tool_choice = TOOLS_AUTO;
    else if (word && strcmp(word, "none") == 0)
        p->tool_choice = TOOLS_NONE;
    else if (word && strcmp(word, "required") == 0)
        p->tool_choice = TOOLS_REQUIRED;
    else if (function)
        p->tool_choice = TOOLS_NAMED;
    else
        return wrong(reterr, name,
                     "\"none\", \"auto\", \"required\" or "
                     "{\"type\": \"function\", \"function\": {\"name\": ...}}");
    p->tool_name = function;
    return ISO_OK;
}

static enum iso_err read_template_kwargs(struct params *p, const char *name, const json_t *v,
                                         struct iso_errinfo *reterr)
{
    if (!json_is_object(v))
        return wrong(reterr, name, "an object");
    p->template_kwargs = v;
    return ISO_OK;
}

static enum iso_err read_prompt(struct params *p, const char *name, const json_t *v,
                                struct iso_errinfo *reterr)
{
    if (p->prompt)
        return iso_fail(reterr, ISO_E_USAGE, 0, name, "%s: the text is given twice, under two names", name);
    p->prompt = v;
    return ISO_OK;
}

static enum iso_err add_stop(struct params *p, const char *name, const json_t *v, struct iso_errinfo *reterr)
{
    struct answer_spec *s = &p->base;
    size_t n = json_string_length(v);
    if (!json_is_string(v) || n == 0 || n > STOP_BYTES_MAX)
        return iso_fail(reterr, ISO_E_USAGE, 0, name,
                        "%s must be a string of 1 to %d bytes, or a list of such strings", name,
                        STOP_BYTES_MAX);
    memcpy(s->stop[s->n_stop], json_string_value(v), n);
    s->stop_bytes[s->n_stop++] = (uint16_t)n;
    return ISO_OK;
}

static enum iso_err read_stop(struct params *p, const char *name, const json_t *v, struct iso_errinfo *reterr)
{
    enum iso_err err = ISO_OK;
    if (!json_is_array(v))
        return add_stop(p, name, v, reterr);
    if (json_array_size(v) > STOP_STRINGS_MAX)
        return iso_fail(reterr, ISO_E_USAGE, 0, name, "%s has %zu strings; at most %d are taken", name,
                        json_array_size(v), STOP_STRINGS_MAX);
    for (size_t i = 0; i < json_array_size(v) && !err; i++)
        err = add_stop(p, name, json_array_get(v, i), reterr);
    return err;
}

static enum iso_err read_seed(struct params *p, const char *name, const json_t *v, struct iso_errinfo *reterr)
{
    // A number beside it that is over 64 bits makes all of the body's numbers real ones (json_parse).
    double real = json_real_value(v), limit = (double)JSON_WHOLE_MAX;
    bool whole = json_is_real(v) && real >= -limit && real <= limit && real == (double)(int64_t)real;
    if (!json_is_integer(v) && !whole)
        return wrong(reterr, name, "a whole number of 64 bits");
    p->base.sampling.seed = (uint64_t)(whole ? (json_int_t)real : json_integer_value(v));
    p->seed_given = true;
    return ISO_OK;
}

static bool parse_token(const char *text, uint32_t *ret)
{
    uint64_t id = 0;
    if (!*text)
        return false;
    for (; *text; text++) {
        if (*text < '0' || *text > '9' || id >= PLAN_VOCAB_MAX)
            return false;
        id = 10 * id + (uint64_t)(*text - '0');
    }
    *ret = (uint32_t)num_min(id, UINT32_MAX);
    return id < PLAN_VOCAB_MAX;
}

static enum iso_err read_logit_bias(struct params *p, const char *name, const json_t *v,
                                    struct iso_errinfo *reterr)
{
    struct sampling *s = &p->base.sampling;
    const char *key;
    json_t *bias;
    if (!json_is_object(v) || json_object_size(v) > SAMPLING_BIAS_MAX)
        return iso_fail(reterr, ISO_E_USAGE, 0, name, "%s must be an object of at most %d tokens", name,
                        SAMPLING_BIAS_MAX);
    json_object_foreach((json_t *)v, key, bias)
    {
        double value = json_number_value(bias);
        uint32_t id;
        if (!parse_token(key, &id) || !json_is_number(bias) || !(value >= -100 && value <= 100))
            return iso_fail(reterr, ISO_E_USAGE, 0, name,
                            "%s: \"%.40s\" must be a token's number with a bias of -100 to 100", name, key);
        p->base.bias[s->n_bias++] = (struct logit_bias){id, (float)value};
    }
    return ISO_OK;
}

static enum iso_err read_logprobs(struct params *p, const char *name, const json_t *v,
                                  struct iso_errinfo *reterr)
{
    uint64_t n;
    if (json_is_boolean(v)) { // as chat has it; top_logprobs says how many
        if (json_is_true(v) && p->n_top == LOGPROBS_NONE)
            p->n_top = 0;
        return ISO_OK;
    }
    if (!json_whole(v, LOGPROBS_TOP_MAX, &n))
        return iso_fail(reterr, ISO_E_USAGE, 0, name,
                        "%s must be a whole number from 0 to %d, or true or false", name, LOGPROBS_TOP_MAX);
    p->n_top = (uint32_t)n;
    return ISO_OK;
}

static enum iso_err read_chat_logprobs(struct params *p, const char *name, const json_t *v,
                                       struct iso_errinfo *reterr)
{
    return json_is_boolean(v) ? read_logprobs(p, name, v, reterr) : wrong(reterr, name, "true or false");
}

static enum iso_err read_top_logprobs(struct params *p, const char *name, const json_t *v,
                                      struct iso_errinfo *reterr)
{
    uint64_t n;
    if (!json_whole(v, LOGPROBS_TOP_MAX, &n))
        return iso_fail(reterr, ISO_E_USAGE, 0, name, "%s must be a whole number from 0 to %d", name,
                        LOGPROBS_TOP_MAX);
    if (!json_is_true(json_object_get(p->body, "logprobs")) && n > 0)
        return iso_fail(reterr, ISO_E_USAGE, 0, name, "%s needs logprobs to be true", name);
    if (n > 0)
        p->n_top = (uint32_t)n;
    return ISO_OK;
}

static enum iso_err read_stream_options(struct params *p, const char *name, const json_t *v,
                                        struct iso_errinfo *reterr)
{
    const json_t *usage = json_object_get(v, "include_usage");
    if (!json_is_object(v) || (usage && !json_is_boolean(usage) && !json_is_null(usage)))
        return wrong(reterr, name, "an object whose include_usage is true or false");
    if (!json_is_true(json_object_get(p->body, "stream")))
        return iso_fail(reterr, ISO_E_USAGE, 0, name, "%s needs stream to be true", name);
    p->include_usage = json_is_true(usage);
    return ISO_OK;
}

static enum iso_err read_response_format(struct params *p, const char *name, const json_t *v,
                                         struct iso_errinfo *reterr)
{
    (void)p;
    const char *type = json_string_value(json_object_get(v, "type"));
    if (!type)
        return wrong(reterr, name, "an object with a type");
    if (strcmp(type, "text") == 0)
        return ISO_OK;
    return iso_fail(reterr, ISO_E_UNSUPPORTED, 0, name, "%s of type \"%.40s\" is not supported; \"text\" is",
                    name, type);
}

static enum iso_err read_suffix(struct params *p, const char *name, const json_t *v,
                                struct iso_errinfo *reterr)
{
    (void)p;
    if (json_is_string(v) && json_string_length(v) == 0)
        return ISO_OK;
    return iso_fail(reterr, ISO_E_UNSUPPORTED, 0, name, "%s is not supported: text is continued at its end",
                    name);
}

static enum iso_err read_best_of(struct params *p, const char *name, const json_t *v,
                                 struct iso_errinfo *reterr)
{
    uint64_t n;
    (void)p;
    if (json_whole(v, 1, &n) && n == 1)
        return ISO_OK;
    return iso_fail(reterr, ISO_E_UNSUPPORTED, 0, name,
                    "%s other than 1 is not supported; n gives several answers", name);
}

static enum iso_err read_encoding_format(struct params *p, const char *name, const json_t *v,
                                         struct iso_errinfo *reterr)
{
    const char *word = json_string_value(v);
    p->base64 = word && strcmp(word, "base64") == 0;
    return p->base64 || (word && strcmp(word, "float") == 0) ? ISO_OK
                                                             : wrong(reterr, name, "\"float\" or \"base64\"");
}

static enum iso_err read_dimensions(struct params *p, const char *name, const json_t *v,
                                    struct iso_errinfo *reterr)
{
    (void)p, (void)v;
    return iso_fail(reterr, ISO_E_UNSUPPORTED, 0, name, "%s is not supported: a model's rows have one width",
                    name);
}

static enum iso_err read_user(struct params *p, const char *name, const json_t *v, struct iso_errinfo *reterr)
{
    (void)p;
    return json_is_string(v) ? ISO_OK : wrong(reterr, name, "a string");
}

static enum iso_err read_max_tokens(struct params *p, const char *name, const json_t *v,
                                    struct iso_errinfo *reterr)
{
    uint64_t n;
    if (!json_whole(v, PLAN_SEQ_MAX, &n))
        return iso_fail(reterr, ISO_E_USAGE, 0, name, "%s must be a whole number from 1 to %d", name,
                        PLAN_SEQ_MAX);
    if (p->max_tokens_given && p->max_tokens != n)
        return iso_fail(reterr, ISO_E_USAGE, 0, name,
                        "max_tokens and max_completion_tokens differ; one is enough");
    p->max_tokens = (uint32_t)n;
    p->max_tokens_is_zero = n == 0;
    p->max_tokens_given = true;
    return ISO_OK;
}

static enum iso_err read_top_k(struct params *p, const char *name, const json_t *v,
                               struct iso_errinfo *reterr)
{
    uint64_t n = 0;
    bool off = json_is_number(v) && json_number_value(v) == -1.0;
    if (!off && !json_whole(v, PLAN_VOCAB_MAX, &n))
        return iso_fail(reterr, ISO_E_USAGE, 0, name,
                        "%s must be a whole number from 1 to %d, or 0 or -1 for all", name, PLAN_VOCAB_MAX);
    p->base.sampling.top_k = (uint32_t)n;
    return ISO_OK;
}

static enum iso_err read_temperature(struct params *p, const char *name, const json_t *v,
                                     struct iso_errinfo *reterr)
{
    double t = json_number_value(v);
    if (!json_is_number(v) || !(t == 0 || ((float)t >= SAMPLING_TEMPERATURE_MIN && t <= 100)))
        return iso_fail(reterr, ISO_E_USAGE, 0, name, "%s must be 0, or a number from %g to 100", name,
                        (double)SAMPLING_TEMPERATURE_MIN);
    p->base.sampling.temperature = (float)t;
    return ISO_OK;
}

enum kind { SPECIAL, REAL, WHOLE, FLAG };

#define AT(member)       offsetof(struct params, member)
#define SAMPLING(member) AT(base.sampling.member)

static const struct field {
    const char *name;
    unsigned endpoints;
    enum kind kind;
    read_field *read; // of SPECIAL
    size_t at;        // of the others: float, uint32_t, bool
    double min, max;
} FIELDS[] = {
    {"model", ~0u, SPECIAL, read_model, 0, 0, 0},
    {"messages", PARAMS_CHAT | PARAMS_TOKENIZE, SPECIAL, read_messages, 0, 0, 0},
    {"prompt", TEXTS | PARAMS_TOKENIZE, SPECIAL, read_prompt, 0, 0, 0},
    {"prompts", PARAMS_BATCH, SPECIAL, read_prompt, 0, 0, 0},
    {"content", PARAMS_TOKENIZE, SPECIAL, read_prompt, 0, 0, 0},
    {"input", PARAMS_EMBEDDINGS, SPECIAL, read_prompt, 0, 0, 0},
    {"tokens", PARAMS_DETOKENIZE, SPECIAL, read_prompt, 0, 0, 0},
    {"max_tokens", GENERATES, SPECIAL, read_max_tokens, 0, 0, 0},
    {"max_completion_tokens", PARAMS_CHAT, SPECIAL, read_max_tokens, 0, 0, 0},
    {"temperature", GENERATES, SPECIAL, read_temperature, 0, 0, 0},
    {"top_p", GENERATES, REAL, NULL, SAMPLING(top_p), 0, 1},
    {"top_k", GENERATES, SPECIAL, read_top_k, 0, 0, 0},
    {"min_p", GENERATES, REAL, NULL, SAMPLING(min_p), 0, 1},
    {"presence_penalty", GENERATES, REAL, NULL, SAMPLING(presence_penalty), -2, 2},
    {"frequency_penalty", GENERATES, REAL, NULL, SAMPLING(frequency_penalty), -2, 2},
    {"repetition_penalty", GENERATES, REAL, NULL, SAMPLING(repeat_penalty), 0.01, 100},
    {"seed", GENERATES, SPECIAL, read_seed, 0, 0, 0},
    {"n", PARAMS_CHAT | PARAMS_COMPLETIONS, WHOLE, NULL, AT(n), 1, PARAMS_CHOICES_MAX},
    {"stop", GENERATES, SPECIAL, read_stop, 0, 0, 0},
    {"logit_bias", GENERATES, SPECIAL, read_logit_bias, 0, 0, 0},
    {"logprobs", TEXTS, SPECIAL, read_logprobs, 0, 0, 0},
    {"logprobs", PARAMS_CHAT, SPECIAL, read_chat_logprobs, 0, 0, 0},
    {"top_logprobs", PARAMS_CHAT, SPECIAL, read_top_logprobs, 0, 0, 0},
    {"ignore_eos", GENERATES, FLAG, NULL, AT(base.ignore_eog), 0, 0},
    {"stream", PARAMS_CHAT | PARAMS_COMPLETIONS, FLAG, NULL, AT(stream), 0, 0},
    {"stream_options", PARAMS_CHAT | PARAMS_COMPLETIONS, SPECIAL, read_stream_options, 0, 0, 0},
    {"echo", TEXTS, FLAG, NULL, AT(echo), 0, 0},
    {"suffix", TEXTS, SPECIAL, read_suffix, 0, 0, 0},
    {"best_of", TEXTS, SPECIAL, read_best_of, 0, 0, 0},
    {"response_format", GENERATES, SPECIAL, read_response_format, 0, 0, 0},
    {"tools", PARAMS_CHAT | PARAMS_TOKENIZE, SPECIAL, read_tools, 0, 0, 0},
    {"tool_choice", PARAMS_CHAT, SPECIAL, read_tool_choice, 0, 0, 0},
    {"chat_template_kwargs", PARAMS_CHAT | PARAMS_TOKENIZE, SPECIAL, read_template_kwargs, 0, 0, 0},
    {"thinking_budget", PARAMS_CHAT, WHOLE, NULL, AT(base.thinking_budget), 0, PLAN_SEQ_MAX},
    {"encoding_format", PARAMS_EMBEDDINGS, SPECIAL, read_encoding_format, 0, 0, 0},
    {"dimensions", PARAMS_EMBEDDINGS, SPECIAL, read_dimensions, 0, 0, 0},
    {"user", GENERATES | PARAMS_EMBEDDINGS, SPECIAL, read_user, 0, 0, 0},
    {"add_special_tokens", TEXTS | PARAMS_EMBEDDINGS | PARAMS_TOKENIZE, FLAG, NULL, AT(add_special_tokens), 0,
     0},
    {"add_special", PARAMS_TOKENIZE, FLAG, NULL, AT(add_special_tokens), 0, 0},
    {"with_pieces", PARAMS_TOKENIZE, FLAG, NULL, AT(with_pieces), 0, 0},
};

static enum iso_err read_number(const struct field *f, void *to, const json_t *v, struct iso_errinfo *reterr)
{
    double real = json_number_value(v);
    bool whole = f->kind == WHOLE;
    if (!json_is_number(v) || !(real >= f->min && real <= f->max) || (whole && real != (double)(int64_t)real))
        return iso_fail(reterr, ISO_E_USAGE, 0, f->name, "%s must be a %s from %g to %g", f->name,
                        whole ? "whole number" : "number", f->min, f->max);
    if (whole)
        *(uint32_t *)to = (uint32_t)real;
    else
        *(float *)to = (float)real;
    return ISO_OK;
}

static enum iso_err read_one(struct params *p, const struct field *f, const json_t *v,
                             struct iso_errinfo *reterr)
{
    uint8_t *to = (uint8_t *)p + f->at;
    if (json_is_null(v))
        return ISO_OK;
    if (f->kind == SPECIAL)
        return f->read(p, f->name, v, reterr);
    if (f->kind != FLAG)
        return read_number(f, to, v, reterr);
    if (!json_is_boolean(v))
        return wrong(reterr, f->name, "true or false");
    *(bool *)to = json_is_true(v);
    return ISO_OK;
}

// Names go into a header: what is none of an identifier's characters becomes '?'.
static void ignore(struct params *p, const char *name)
{
    size_t at = strlen(p->ignored), n = num_min(strlen(name), 64);
    if (at + n + 8 > sizeof p->ignored) {
        if (at > 0 && p->ignored[at - 1] != '.')
            memcpy(p->ignored + at, ", ...", sizeof ", ...");
        return;
    }
    if (at > 0) {
        memcpy(p->ignored + at, ", ", 2);
        at += 2;
    }
    for (size_t i = 0; i < n; i++)
        p->ignored[at++] = name[i] > ' ' && name[i] < 127 && name[i] != ',' ? name[i] : '?';
    p->ignored[at] = '\0';
}

static enum iso_err check_together(struct params *p, enum params_endpoint endpoint,
                                   struct iso_errinfo *reterr)
{
    struct sampling *s = &p->base.sampling;
    if (p->base.sampling.top_p <= 0)
        s->top_p = 1e-30f; // the most probable token alone reaches it
    if (p->tool_choice != TOOLS_AUTO && p->tool_choice != TOOLS_NONE && !p->tools)
        return iso_fail(reterr, ISO_E_USAGE, 0, "tool_choice", "tool_choice needs tools");
    if (p->tool_choice == TOOLS_NAMED && !tools_have(p->tools, p->tool_name))
        return iso_fail(reterr, ISO_E_USAGE, 0, "tool_choice",
                        "tool_choice names \"%.64s\", which is none of the tools", p->tool_name);
    if (p->tool_choice == TOOLS_NONE)
        p->tools = NULL;
    if (p->max_tokens_is_zero && !(p->echo && endpoint == PARAMS_COMPLETIONS))
        return iso_fail(reterr, ISO_E_USAGE, 0, "max_tokens",
                        "max_tokens must be a whole number from 1 to %d", PLAN_SEQ_MAX);
    if (p->max_tokens_is_zero && p->stream)
        return iso_fail(reterr, ISO_E_USAGE, 0, "max_tokens", "max_tokens of 0 leaves nothing to stream");
    if ((endpoint & PARAMS_CHAT) && !p->messages)
        return iso_fail(reterr, ISO_E_USAGE, 0, "messages", "messages is required");
    if ((endpoint & TEXTS) && !p->prompt)
        return iso_fail(reterr, ISO_E_USAGE, 0, endpoint == PARAMS_BATCH ? "prompts" : "prompt",
                        "%s is required", endpoint == PARAMS_BATCH ? "prompts" : "prompt");
    if (endpoint == PARAMS_EMBEDDINGS && !p->prompt)
        return iso_fail(reterr, ISO_E_USAGE, 0, "input", "input is required");
    if (endpoint == PARAMS_DETOKENIZE && !p->prompt)
        return iso_fail(reterr, ISO_E_USAGE, 0, "tokens", "tokens is required");
    if (endpoint == PARAMS_TOKENIZE && !p->prompt == !p->messages)
        return iso_fail(reterr, ISO_E_USAGE, 0, "prompt", "one of prompt, content and messages is required");
    return ISO_OK;
}

enum iso_err params_read(const json_t *body, enum params_endpoint endpoint, struct params *ret,
                         struct iso_errinfo *reterr)
{
    struct params *p = ret;
    memset(p, 0, sizeof *p);
    p->body = body;
    p->n = 1;
    p->n_top = LOGPROBS_NONE;
    p->add_special_tokens = true;
    p->base.sampling = SAMPLING_GREEDY;
    p->base.sampling.temperature = 1;
    p->base.thinking_budget = ANSWER_NO_BUDGET;
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)body, key, value)
    {
        size_t i = 0;
        while (i < ARRAY_LEN(FIELDS) &&
               !((FIELDS[i].endpoints & endpoint) && strcmp(FIELDS[i].name, key) == 0))
            i++;
        enum iso_err err = ISO_OK;
        if (i < ARRAY_LEN(FIELDS))
            err = read_one(p, &FIELDS[i], value, reterr);
        else
            ignore(p, key);
        if (err)
            return err;
    }
    return check_together(p, endpoint, reterr);
}
