// Which endpoint a request is for, whether it may ask, and its body as JSON. These fit struct http_config; context is the struct
// server.
#pragma once

#include "serve/http.h"

bool routes_head(void *context, struct http_request *r);
void routes_request(void *context, struct http_request *r);
void routes_refused(void *context, struct http_request *r, unsigned status, const char *why);
void routes_gone(void *context, struct http_request *r);
void routes_caught_up(void *context, struct http_request *r);
