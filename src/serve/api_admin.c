// Endpoints for whoever runs the server. They need a key, whatever the address.
#include "serve/api.h"

static bool may(struct call *c)
{
    const struct server *s = c->server;
    if (s->keys && c->key != KEYS_NONE && keys_may_admin(s->keys, c->key))
        return true;
    call_error(c, 403, NULL, "forbidden",
               s->keys ? "this key may not administer the server"
                       : "administering needs a key, and no file of keys is set "
                         "(auth.keys)");
    return false;
}

void api_drain(struct call *c)
{
    const json_t *drain = json_object_get(c->body, "drain");
    if (!may(c))
        return;
    if (drain && !json_is_boolean(drain)) {
        call_error(c, 400, "drain", "invalid_value", "drain must be true or false");
        return;
    }
    server_set_draining(c->server, !json_is_false(drain));
    call_json(c, 200,
              json_pack("{s:b, s:I}", "draining", (int)c->server->draining, "unanswered",
                        (json_int_t)c->server->n_calls - 1));
}

void api_reload(struct call *c)
{
    const json_t *name = json_object_get(c->body, "model");
    struct iso_errinfo e;
    if (!may(c))
        return;
    if (name && !json_is_string(name)) {
        call_error(c, 400, "model", "invalid_value", "model must be a string");
        return;
    }
    struct strv wanted = {json_string_value(name), json_string_length(name)};
    if (!name && c->server->n_models > 1) {
        call_error(c, 400, "model", "invalid_value", "model must say which of the models");
        return;
    }
    c->model = name ? server_model_named(c->server, wanted) : &c->server->models[0];
    if (!c->model) {
        call_error(c, 404, "model", "model_not_found", "there is no model \"%.*s\"", STRV_ARG(wanted));
        return;
    }
    c->kind = CALL_RELOAD;
    if (server_reload(c->model, c, &e))
        call_error(c,
                   e.code == ISO_E_USAGE                           ? 409
                   : e.code == ISO_E_BUSY || e.code == ISO_E_NOFIT ? 503
                                                                   : 500,
                   e.field[0] ? e.field : NULL, "reload_failed", "%s", e.text);
}
