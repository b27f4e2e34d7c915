// The shape of a conversation and of tools, as OpenAI's API has them. Errors name the place: "messages[2].content[0].type".
#pragma once

#include <jansson.h>
#include <stdbool.h>

#include "base/err.h"

#define MESSAGES_NAME_MAX      64                // of a function
#define MESSAGES_ARGUMENTS_MAX ((size_t)1 << 20) // bytes of the arguments of all earlier tool calls together

// A list of at least one message: roles system, developer, user, assistant, tool; content a text or a list of text parts; an
// assistant's tool_calls; a tool's tool_call_id. ISO_E_UNSUPPORTED names parts that are no text.
enum iso_err messages_check(const json_t *messages, struct iso_errinfo *reterr) ISO_MUST_USE;
// A list of {"type": "function", "function": {"name": letters, digits, _ and -, "description", "parameters"}}, no name twice.
enum iso_err tools_check(const json_t *tools, struct iso_errinfo *reterr) ISO_MUST_USE;
bool tools_have(const json_t *tools, const char *name);
