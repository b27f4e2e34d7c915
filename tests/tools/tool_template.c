// Renders chat templates for the tests: lines of JSON in, {"template": text, "context": object}; lines of
// JSON out, {"out": text} or {"error": text, "code": name, "field": text}.
#include <stdio.h>
#include <stdlib.h>

#include <jansson.h>

#include "base/buf.h"
#include "base/num.h"
#include "text/template.h"

#define OUTPUT_MAX (4 * MIB)

static json_t *error_of(enum iso_err err, const struct iso_errinfo *info)
{
    return json_pack("{s:s, s:s, s:s}", "error", info->text, "code", iso_err_name(err), "field", info->field);
}

static json_t *render(const json_t *line)
{
    const json_t *source = json_object_get(line, "template");
    struct strv text = {json_string_value(source), json_string_length(source)};
    struct iso_errinfo info = {0};
    struct tmpl *t = NULL;
    struct buf out;
    buf_init(&out, OUTPUT_MAX);
    enum iso_err err = tmpl_open(text, &t, &info);
    if (!err)
        err = tmpl_render(t, json_object_get(line, "context"), &out, &info);
    json_t *answer = err ? error_of(err, &info) : json_object();
    if (!err)
        json_object_set_new(answer, "out",
                            json_stringn_nocheck(out.len ? (const char *)out.ptr : "", out.len));
    tmpl_close(t);
    buf_deinit(&out);
    return answer;
}

int main(void)
{
    char *text = NULL;
    size_t capacity = 0;
    for (ssize_t len; (len = getline(&text, &capacity, stdin)) > 0;) {
        json_error_t error;
        json_t *line = json_loadb(text, (size_t)len, JSON_ALLOW_NUL, &error);
        if (!line || !json_is_string(json_object_get(line, "template"))) {
            fprintf(stderr, "tool_template: a line is not the JSON expected: %s\n", error.text);
            return 1;
        }
        json_t *answer = render(line);
        char *answer_text = json_dumps(answer, JSON_COMPACT);
        puts(answer_text ? answer_text : "{\"error\": \"the output is not UTF-8\"}");
        free(answer_text);
        json_decref(answer);
        json_decref(line);
    }
    free(text);
    return 0;
}
