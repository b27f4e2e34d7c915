#include "serve/messages.h"

#include <stdio.h>
#include <string.h>

#include "base/num.h"
#include "formats/json_file.h"
#include "serve/language.h"
#include "serve/params.h"

#define AT_BYTES 64

static enum iso_err check_part(const json_t *part, const char *at, size_t i, struct iso_errinfo *reterr)
{
    const char *type = json_string_value(json_object_get(part, "type"));
    if (!type)
        return iso_fail(reterr, ISO_E_USAGE, 0, at, "%s[%zu] must be an object with a type", at, i);
    if (strcmp(type, "text") != 0)
        return iso_fail(reterr, ISO_E_UNSUPPORTED, 0, at,
                        "%s[%zu] is of type \"%.40s\"; this model takes text", at, i, type);
    if (!json_is_string(json_object_get(part, "text")))
        return iso_fail(reterr, ISO_E_USAGE, 0, at, "%s[%zu].text must be a string", at, i);
    return ISO_OK;
}

static enum iso_err check_content(const json_t *message, bool may_lack, size_t n, struct iso_errinfo *reterr)
{
    const json_t *content = json_object_get(message, "content"), *part;
    char at[AT_BYTES];
    size_t i;
    snprintf(at, sizeof at, "messages[%zu].content", n);
    if (json_is_string(content) || (may_lack && (!content || json_is_null(content))))
        return ISO_OK;
    if (!json_is_array(content))
        return iso_fail(reterr, ISO_E_USAGE, 0, at, "%s must be a string or a list of text parts", at);
    json_array_foreach(content, i, part)
    {
        enum iso_err err = check_part(part, at, i, reterr);
        if (err)
            return err;
    }
    return ISO_OK;
}

// Arguments are parsed for the template: within limits, as the body is. What is no JSON stays a text there.
static enum iso_err check_arguments(const json_t *arguments, const char *at, size_t i, size_t *bytes,
                                    struct iso_errinfo *reterr)
{
    json_t *parsed = NULL;
    *bytes += json_string_length(arguments);
    bool over = *bytes > MESSAGES_ARGUMENTS_MAX ||
                json_parse_within(json_strv(arguments), LANGUAGE_ARGUMENTS_MAX, &parsed, NULL) == ISO_E_LIMIT;
    json_decref(parsed);
    if (!over)
        return ISO_OK;
    return iso_fail(
        reterr, ISO_E_USAGE, 0, at,
        "%s[%zu].function.arguments: at most %zu bytes of all calls together are taken, %d values of one, "
        "nested %d deep",
        at, i, MESSAGES_ARGUMENTS_MAX, LANGUAGE_ARGUMENTS_MAX, JSON_DEPTH_MAX);
}

static enum iso_err check_calls(const json_t *calls, size_t n, size_t *bytes, struct iso_errinfo *reterr)
{
    const json_t *call;
    size_t i;
    char at[AT_BYTES];
    snprintf(at, sizeof at, "messages[%zu].tool_calls", n);
    if (!json_is_array(calls))
        return iso_fail(reterr, ISO_E_USAGE, 0, at, "%s must be a list", at);
    json_array_foreach(calls, i, call)
    {
        const json_t *function = json_object_get(call, "function");
        if (!json_is_string(json_object_get(function, "name")) ||
            !json_is_string(json_object_get(function, "arguments")))
            return iso_fail(reterr, ISO_E_USAGE, 0, at,
                            "%s[%zu].function must have a name and arguments, both strings", at, i);
        enum iso_err err = check_arguments(json_object_get(function, "arguments"), at, i, bytes, reterr);
        if (err)
            return err;
    }
    return ISO_OK;
}

static enum iso_err check_message(const json_t *message, size_t n, size_t *argument_bytes,
                                  struct iso_errinfo *reterr)
{
    static const char *const ROLES[] = {"system", "developer", "user", "assistant", "tool"};
    const char *role = json_string_value(json_object_get(message, "role"));
    const json_t *calls = json_object_get(message, "tool_calls");
    char at[AT_BYTES];
    size_t i = 0;
    snprintf(at, sizeof at, "messages[%zu].role", n);
    while (role && i < ARRAY_LEN(ROLES) && strcmp(role, ROLES[i]) != 0)
        i++;
    // "user\0" is none: the template gets all of the text.
    if (!role || i == ARRAY_LEN(ROLES) ||
        json_string_length(json_object_get(message, "role")) != strlen(ROLES[i]))
        return iso_fail(reterr, ISO_E_USAGE, 0, at, "%s must be system, developer, user, assistant or tool",
                        at);
    bool assistant = strcmp(role, "assistant") == 0, has_calls = assistant && calls && !json_is_null(calls);
    enum iso_err err = check_content(message, has_calls, n, reterr);
    if (!err && has_calls)
        err = check_calls(calls, n, argument_bytes, reterr);
    if (!err && strcmp(role, "tool") == 0 && !json_is_string(json_object_get(message, "tool_call_id"))) {
        snprintf(at, sizeof at, "messages[%zu].tool_call_id", n);
        err = iso_fail(reterr, ISO_E_USAGE, 0, at, "%s must be a string", at);
    }
    return err;
}

enum iso_err messages_check(const json_t *messages, struct iso_errinfo *reterr)
{
    const json_t *message;
    size_t i, argument_bytes = 0;
    if (!json_is_array(messages) || json_array_size(messages) == 0 ||
        json_array_size(messages) > PARAMS_MESSAGES_MAX)
        return iso_fail(reterr, ISO_E_USAGE, 0, "messages", "messages must be a list of 1 to %d messages",
                        PARAMS_MESSAGES_MAX);
    json_array_foreach(messages, i, message)
    {
        enum iso_err err = check_message(message, i, &argument_bytes, reterr);
        if (err)
            return err;
    }
    return ISO_OK;
}

static bool is_name(const char *name)
{
    size_t n = 0;
    for (; name[n]; n++) {
        char c = name[n];
        bool fits = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
                    c == '-' || c == '.';
        if (!fits || n == MESSAGES_NAME_MAX)
            return false;
    }
    return n > 0;
}

static const char *tool_name(const json_t *tool)
{
    return json_string_value(json_object_get(json_object_get(tool, "function"), "name"));
}

static enum iso_err check_tool(const json_t *tools, size_t i, struct iso_errinfo *reterr)
{
    const json_t *tool = json_array_get(tools, i), *function = json_object_get(tool, "function");
    const char *type = json_string_value(json_object_get(tool, "type")), *name = tool_name(tool);
    const json_t *description = json_object_get(function, "description"),
                 *parameters = json_object_get(function, "parameters");
    char at[AT_BYTES];
    snprintf(at, sizeof at, "tools[%zu]", i);
    if (!type || strcmp(type, "function") != 0)
        return iso_fail(reterr, ISO_E_USAGE, 0, at, "%s.type must be \"function\"", at);
    if (!name || strlen(name) != json_string_length(json_object_get(function, "name")) || !is_name(name))
        return iso_fail(reterr, ISO_E_USAGE, 0, at,
                        "%s.function.name must be 1 to %d letters, digits, _, - and .", at,
                        MESSAGES_NAME_MAX);
    if (description && !json_is_string(description) && !json_is_null(description))
        return iso_fail(reterr, ISO_E_USAGE, 0, at, "%s.function.description must be a string", at);
    if (parameters && !json_is_object(parameters) && !json_is_null(parameters))
        return iso_fail(reterr, ISO_E_USAGE, 0, at, "%s.function.parameters must be an object", at);
    for (size_t k = 0; k < i; k++)
        if (strcmp(tool_name(json_array_get(tools, k)), name) == 0)
            return iso_fail(reterr, ISO_E_USAGE, 0, at, "%s has the same name as tools[%zu]", at, k);
    return ISO_OK;
}

enum iso_err tools_check(const json_t *tools, struct iso_errinfo *reterr)
{
    enum iso_err err = ISO_OK;
    if (!json_is_array(tools) || json_array_size(tools) > PARAMS_TOOLS_MAX)
        return iso_fail(reterr, ISO_E_USAGE, 0, "tools", "tools must be a list of at most %d tools",
                        PARAMS_TOOLS_MAX);
    for (size_t i = 0; i < json_array_size(tools) && !err; i++)
        err = check_tool(tools, i, reterr);
    return err;
}

bool tools_have(const json_t *tools, const char *name)
{
    for (size_t i = 0; i < json_array_size(tools); i++)
        if (strcmp(tool_name(json_array_get(tools, i)), name) == 0)
            return true;
    return false;
}
