#include "serve/error_body.h"

#include <jansson.h>

const char *error_type(unsigned status)
{
    switch (status) {
    case 401:
        return "authentication_error";
    case 403:
        return "permission_error";
    case 404:
        return "not_found_error";
    case 429:
        return "rate_limit_error";
    default:
        return status >= 500 ? "server_error" : "invalid_request_error";
    }
}

static int append(const char *bytes, size_t n, void *context)
{
    return buf_append(context, bytes, n) ? -1 : 0;
}

enum iso_err error_body(struct buf *b, unsigned status, const char *message, const char *param,
                        const char *code)
{
    json_t *json = json_pack("{s:{s:s, s:s, s:s?, s:s?}}", "error", "message", message, "type",
                             error_type(status), "param", param, "code", code);
    buf_reset(b);
    enum iso_err err = json && json_dump_callback(json, append, b, JSON_COMPACT) == 0 ? ISO_OK : ISO_E_NOMEM;
    json_decref(json);
    return err;
}
