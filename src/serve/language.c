#include "serve/language.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/num.h"
#include "formats/json_file.h"
#include "plan/plan.h"

// The tokenizer's block and the template's source, as large as their own limits let them be.
#define ARENA_BYTES ((uint64_t)1 << 30)

#define THINK_BEGIN "<think>"
#define THINK_END   "</think>"

static const struct {
    enum split_style style;
    const char *sign;   // in a template that writes calls this way
    const char *marker; // begins them, and may be a control token, which gives no text
} STYLES[] = {
    {SPLIT_QWEN, "<tool_call>", "<tool_call>"},
    {SPLIT_MISTRAL, "[TOOL_CALLS]", "[TOOL_CALLS]"},
    {SPLIT_LLAMA, "\"parameters\": ", "<|python_tag|>"},
};

static bool contains(struct strv text, const char *part)
{
    return text.len > 0 && memmem(text.ptr, text.len, part, strlen(part)) != NULL;
}

void language_find_style(struct language *l, struct strv template)
{
    size_t i = 0;
    while (i < ARRAY_LEN(STYLES) && !contains(template, STYLES[i].sign))
        i++;
    l->template_has_tools = i < ARRAY_LEN(STYLES) && contains(template, "tools");
    if (!l->template_has_tools)
        i = 0; // the way that is described to the model then
    l->style = STYLES[i].style;
    uint32_t marker = tok_find(l->tokenizer, strv_from(STYLES[i].marker));
    l->call_marker = marker != TOK_NONE && tok_is_control(l->tokenizer, marker) ? marker : TOK_NONE;
    l->thinks = contains(template, THINK_BEGIN);
}

uint64_t language_bytes(const struct plan_limits *limits)
{
    size_t text = tok_text_bytes_for(limits->max_seq_len);
    return tok_runtime_bytes(text) + (text + 2) * sizeof(uint32_t);
}

enum iso_err language_open(int fd, struct language *ret, struct iso_errinfo *reterr)
{
    struct language l = {0};
    struct strv tokenizer, template;
    if (arena_init(&l.arena, ARENA_BYTES))
        return iso_fail(reterr, ISO_E_NOMEM, 0, NULL, "the system refused memory for the tokenizer");
    enum iso_err err = plan_peek_text(fd, &l.arena, &l.header, &tokenizer, &template, reterr);
    size_t text_bytes = err ? 0 : tok_text_bytes_for(l.header.limits.max_seq_len);
    if (!err)
        err = tok_open(tokenizer.ptr, tokenizer.len, text_bytes, &l.tokenizer, reterr);
    if (!err && tok_count(l.tokenizer) > l.header.model.vocab)
        err = iso_fail(reterr, ISO_E_FORMAT, 0, "tokenizer",
                       "the plan's tokenizer has more tokens than its program");
    if (!err && template.len > 0)
        err = tmpl_open(template, &l.template, reterr);
    if (!err) {
        l.ids_max = text_bytes + 2; // a token is a byte or more; BOS and EOS are none
        l.ids = calloc(l.ids_max, sizeof *l.ids);
        if (!l.ids)
            err = iso_fail(reterr, ISO_E_NOMEM, 0, NULL, "the system refused memory for the tokenizer");
    }
    if (err) {
        language_close(&l);
        return err;
    }
    hash128_hex(l.header.hash, l.hash);
    language_find_style(&l, template);
    *ret = l;
    return ISO_OK;
}

void language_close(struct language *l)
{
    tmpl_close(l->template);
    tok_close(l->tokenizer);
    free(l->ids);
    arena_deinit(&l->arena);
    *l = (struct language){0};
}

enum iso_err language_encode(struct language *l, struct strv text, enum tok_mode mode, bool edges,
                             uint32_t *ret_n, struct iso_errinfo *reterr)
{
    size_t n;
    enum iso_err err = tok_encode(l->tokenizer, text, mode, edges, l->ids, l->ids_max, &n, reterr);
    if (!err)
        *ret_n = (uint32_t)n;
    return err;
}

// ---- The template's context ----

static json_t *role_text(const struct language *l, enum tok_role role)
{
    uint32_t id = tok_role(l->tokenizer, role);
    struct strv piece = id == TOK_NONE ? STRV_LIT("") : tok_piece(l->tokenizer, id);
    return json_stringn(piece.ptr, piece.len);
}

// Arguments of earlier calls come as JSON texts; templates write them as JSON themselves. What is no object stays a text.
static json_t *decoded_call(const json_t *call)
{
    json_t *copy = json_deep_copy(call), *decoded = NULL;
    json_t *function = json_object_get(copy, "function");
    const json_t *arguments = json_object_get(function, "arguments");
    if (json_is_string(arguments) &&
        !json_parse_within(json_strv(arguments), LANGUAGE_ARGUMENTS_MAX, &decoded, NULL) &&
        json_object_set_new(function, "arguments", decoded)) {
        json_decref(copy);
        return NULL;
    }
    return copy;
}

// Parts of a text in one.
static json_t *whole_content(const json_t *parts)
{
    struct buf text;
    const json_t *part;
    size_t i;
    bool failed = false;
    buf_init(&text, LANGUAGE_RENDERED_MAX);
    json_array_foreach(parts, i, part) failed =
        failed || buf_append_strv(&text, json_strv(json_object_get(part, "text")));
    json_t *whole = failed ? NULL : json_stringn(text.len ? (char *)text.ptr : "", text.len);
    buf_deinit(&text);
    return whole;
}

// A message as templates expect it: text in one piece, decoded arguments, and for "developer" the older "system", which
// they know.
static json_t *template_message(const json_t *message)
{
    json_t *out = json_copy((json_t *)message);
    const json_t *content = json_object_get(message, "content"),
                 *calls = json_object_get(message, "tool_calls");
    const json_t *call;
    size_t i;
    if (strcmp(json_string_value(json_object_get(message, "role")), "developer") == 0)
        out = json_having(out, "role", json_string("system"));
    if (json_is_array(content))
        out = json_having(out, "content", whole_content(content));
    else if (!json_is_string(content))
        out = json_having(out, "content", json_string(""));
    if (json_is_array(calls)) {
        json_t *decoded = json_array();
        json_array_foreach(calls, i, call) decoded = json_with(decoded, decoded_call(call));
        out = json_having(out, "tool_calls", decoded);
    }
    return out;
}

// For a template that knows no tools: what such templates say, in our words, before the system message's own text.
static json_t *tools_text(const json_t *tools, const json_t *own)
{
    struct buf text;
    const json_t *tool;
    size_t i;
    buf_init(&text, LANGUAGE_RENDERED_MAX);
    bool failed =
        json_is_string(own) && (buf_append(&text, json_string_value(own), json_string_length(own)) ||
                                buf_append_strv(&text, STRV_LIT("\n\n")));
    failed =
        failed || buf_append_strv(&text, STRV_LIT("You can call these functions, each given as JSON:\n"));
    json_array_foreach(tools, i, tool)
    {
        char *line = json_dumps(tool, JSON_COMPACT);
        failed = failed || !line || buf_append_strv(&text, strv_from(line)) || buf_append_byte(&text, '\n');
        free(line);
    }
    failed =
        failed || buf_append_strv(&text, STRV_LIT("To call one, answer with nothing but\n<tool_call>\n"
                                                  "{\"name\": \"the function's name\", \"arguments\": {its "
                                                  "arguments as JSON}}\n</tool_call>"));
    json_t *string = failed ? NULL : json_stringn((char *)text.ptr, text.len);
    buf_deinit(&text);
    return string;
}

// The same before all messages, or in the system's own.
static json_t *with_tools(json_t *messages, const json_t *tools)
{
    json_t *first = json_array_get(messages, 0);
    const char *role = json_string_value(json_object_get(first, "role"));
    bool has_system = role && strcmp(role, "system") == 0;
    json_t *text = tools_text(tools, has_system ? json_object_get(first, "content") : NULL);
    if (has_system ? json_object_set_new(first, "content", text)
                   : json_array_insert_new(messages, 0,
                                           json_pack("{s:s, s:o}", "role", "system", "content", text))) {
        json_decref(messages);
        return NULL;
    }
    return messages;
}

static json_t *template_messages(const struct language *l, const struct language_chat *chat)
{
    json_t *out = json_array();
    const json_t *message;
    size_t i;
    json_array_foreach(chat->messages, i, message) out = json_with(out, template_message(message));
    return out && chat->tools && !l->template_has_tools ? with_tools(out, chat->tools) : out;
}

enum iso_err language_render(struct language *l, const struct language_chat *chat, struct buf *text,
                             struct iso_errinfo *reterr)
{
    if (!l->template)
        return iso_fail(reterr, ISO_E_UNSUPPORTED, 0, "messages",
                        "the model has no chat template; /v1/completions continues plain text");
    json_t *context = json_pack("{s:o, s:b, s:s, s:o, s:o}", "messages", template_messages(l, chat),
                                "add_generation_prompt", 1, "strftime_now", chat->now, "bos_token",
                                role_text(l, TOK_BOS), "eos_token", role_text(l, TOK_EOS));
    if (chat->tools && l->template_has_tools)
        context = json_having(context, "tools", json_incref((json_t *)chat->tools));
    if (!context || (chat->more && json_object_update_missing(context, (json_t *)chat->more))) {
        json_decref(context);
        return iso_fail(reterr, ISO_E_NOMEM, 0, NULL, "the system refused memory for the conversation");
    }
    enum iso_err err = tmpl_render(l->template, context, text, reterr);
    json_decref(context);
    return err;
}

static struct strv without_space_behind(struct strv s)
{
    while (s.len > 0 && strchr(" \t\r\n", s.ptr[s.len - 1]))
        s.len--;
    return s;
}

static bool ends_with(struct strv s, const char *end)
{
    size_t n = strlen(end);
    return s.len >= n && memcmp(s.ptr + s.len - n, end, n) == 0;
}

enum split_thinking language_thinking(const struct language *l, struct strv rendered)
{
    struct strv end = without_space_behind(rendered);
    if (!l->thinks || ends_with(end, THINK_END))
        return SPLIT_NO_THINK;
    return ends_with(end, THINK_BEGIN) ? SPLIT_IN_THINK : SPLIT_MAY_THINK;
}

size_t language_call_beginning(const struct language *l, const char *name, char *out)
{
    static const char *const BEFORE[] = {[SPLIT_QWEN] = "<tool_call>\n{\"name\": \"",
                                         [SPLIT_LLAMA] = "{\"name\": \"",
                                         [SPLIT_MISTRAL] = "[TOOL_CALLS][{\"name\": \""};
    static const char *const AFTER[] = {[SPLIT_QWEN] = "\", \"arguments\": ",
                                        [SPLIT_LLAMA] = "\", \"parameters\": ",
                                        [SPLIT_MISTRAL] = "\", \"arguments\": "};
    int n = snprintf(out, LANGUAGE_FORCED_MAX, "%s%s%s", BEFORE[l->style], name ? name : "",
                     name ? AFTER[l->style] : "");
    return num_min((uint64_t)n, LANGUAGE_FORCED_MAX - 1);
}
