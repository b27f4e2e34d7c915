#include "cli/conversation.h"

#include <stdlib.h>
#include <time.h>

#include "base/buf.h"
#include "base/num.h"
#include "cli/cli.h"

#define RENDERED_BYTES_MAX (64 * MIB)

enum iso_err conversation_open(struct session *s, const char *system, struct conversation *ret,
                               struct iso_errinfo *reterr)
{
    if (!s->template)
        return iso_fail(reterr, ISO_E_UNSUPPORTED, 0, "chat_template",
                        "the model has no chat template; `isochron generate` continues plain text");
    struct conversation c = {.session = s, .messages = json_array()};
    c.ids = calloc(session_prompt_tokens(&s->plan.header->limits), sizeof *c.ids);
    if (!c.messages || !c.ids) {
        conversation_close(&c);
        return iso_fail(reterr, ISO_E_NOMEM, 0, NULL, "the system refused memory for the conversation");
    }
    enum iso_err err = system ? conversation_add(&c, "system", strv_from(system), reterr) : ISO_OK;
    if (err)
        conversation_close(&c);
    else
        *ret = c;
    return err;
}

void conversation_close(struct conversation *c)
{
    json_decref(c->messages);
    free(c->ids);
    *c = (struct conversation){0};
}

void conversation_reset(struct conversation *c)
{
    const char *role = json_string_value(json_object_get(json_array_get(c->messages, 0), "role"));
    size_t kept = role && strv_is(strv_from(role), "system") ? 1 : 0;
    while (json_array_size(c->messages) > kept)
        conversation_drop_last(c);
}

enum iso_err conversation_add(struct conversation *c, const char *role, struct strv text,
                              struct iso_errinfo *reterr)
{
    json_t *content = cli_json_text(text.ptr, text.len);
    json_t *message = content ? json_pack("{s:s, s:o}", "role", role, "content", content) : NULL;
    if (!message || json_array_append_new(c->messages, message))
        return iso_fail(reterr, ISO_E_NOMEM, 0, NULL, "the system refused memory for the conversation");
    return ISO_OK;
}

void conversation_drop_last(struct conversation *c)
{
    (void)json_array_remove(c->messages, json_array_size(c->messages) - 1);
}

static json_t *role_text(const struct tokenizer *t, enum tok_role role)
{
    uint32_t id = tok_role(t, role);
    struct strv piece = id == TOK_NONE ? STRV_LIT("") : tok_piece(t, id);
    return cli_json_text(piece.ptr, piece.len);
}

enum iso_err conversation_tokens(struct conversation *c, uint32_t *ret_n, struct iso_errinfo *reterr)
{
    const struct session *s = c->session;
    struct buf text;
    size_t n = 0;
    char now[32];
    time_t seconds = time(NULL);
    struct tm local;
    strftime(now, sizeof now, "%Y-%m-%dT%H:%M:%S", localtime_r(&seconds, &local));
    json_t *context = json_pack("{s:O, s:b, s:s, s:o, s:o}", "messages", c->messages, "add_generation_prompt",
                                1, "strftime_now", now, "bos_token", role_text(s->tokenizer, TOK_BOS),
                                "eos_token", role_text(s->tokenizer, TOK_EOS));
    if (!context)
        return iso_fail(reterr, ISO_E_NOMEM, 0, NULL, "the system refused memory for the conversation");
    buf_init(&text, RENDERED_BYTES_MAX);
    enum iso_err err = tmpl_render(s->template, context, &text, reterr);
    json_decref(context);
    if (!err) // the template writes BOS itself where the model wants one
        err = tok_encode(s->tokenizer, buf_strv(&text), TOK_SPECIAL, false, c->ids,
                         session_prompt_tokens(&s->plan.header->limits), &n, reterr);
    buf_deinit(&text);
    if (!err)
        *ret_n = (uint32_t)n;
    return err;
}
