#include "serve/error_body.h"

#include <jansson.h>

#include "formats/json_file.h"

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

enum iso_err error_body(struct buf *b, unsigned status, const char *message, const char *param,
                        const char *code)
{
    json_t *json = json_pack("{s:{s:s, s:s, s:s?, s:s?}}", "error", "message", message, "type",
                             error_type(status), "param", param, "code", code);
    buf_reset(b);
    enum iso_err err = json_write(json, JSON_COMPACT, b);
    json_decref(json);
    return err;
}
