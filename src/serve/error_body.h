// Errors as OpenAI's API words them: {"error": {"message", "type", "param", "code"}}.
#pragma once

#include "base/buf.h"
#include "base/err.h"

// The HTTP status's type: "invalid_request_error", "authentication_error", "not_found_error", "rate_limit_error",
// "server_error".
const char *error_type(unsigned status);
// Replaces the buffer's content by the body. param and code may be NULL.
enum iso_err error_body(struct buf *b, unsigned status, const char *message, const char *param,
                        const char *code) ISO_MUST_USE;
