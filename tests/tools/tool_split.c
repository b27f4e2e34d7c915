// Splits answers for the tests: lines of JSON in, {"style": number, "thinking": number, "text": text, "cuts": [places]};
// lines of JSON out, [[kind, call, text], ...], neighbours of the same kind and call put together, or an error's name.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "base/buf.h"
#include "base/num.h"
#include "serve/split.h"

#define TEXT_MAX (4 * MIB)

struct pieces {
    json_t *list;
    struct buf text; // of the piece that may go on
    int kind;
    uint32_t call;
};

static void end_piece(struct pieces *p)
{
    if (p->text.len > 0)
        json_array_append_new(p->list, json_pack("[i, i, s%]", p->kind, p->call, p->text.ptr, p->text.len));
    buf_reset(&p->text);
}

static enum iso_err take(void *context, enum split_kind kind, uint32_t call, struct strv text)
{
    struct pieces *p = context;
    if ((int)kind != p->kind || call != p->call)
        end_piece(p);
    p->kind = (int)kind;
    p->call = call;
    return buf_append_strv(&p->text, text);
}

static json_t *split_line(const json_t *line)
{
    const json_t *text = json_object_get(line, "text"), *cuts = json_object_get(line, "cuts");
    const char *ptr = json_string_value(text);
    size_t n = json_string_length(text);
    struct pieces p = {.list = json_array()};
    buf_init(&p.text, TEXT_MAX);
    struct split s;
    split_init(&s, (enum split_style)json_integer_value(json_object_get(line, "style")),
               (enum split_thinking)json_integer_value(json_object_get(line, "thinking")), take, &p);
    enum iso_err err = ISO_OK;
    for (size_t from = 0, i = 0, to; from < n && !err; from = to, i++) {
        const json_t *cut = json_array_get(cuts, i);
        to = cut ? num_min(n, (size_t)json_integer_value(cut)) : n;
        err = split_push(&s, (struct strv){ptr + from, to - from});
    }
    if (!err)
        err = split_end(&s);
    end_piece(&p);
    split_deinit(&s);
    buf_deinit(&p.text);
    if (!err)
        return p.list;
    json_decref(p.list);
    return json_string(iso_err_name(err));
}

int main(void)
{
    char *text = NULL;
    size_t capacity = 0;
    for (ssize_t len; (len = getline(&text, &capacity, stdin)) > 0;) {
        json_error_t error;
        json_t *line = json_loadb(text, (size_t)len, JSON_ALLOW_NUL, &error);
        if (!line) {
            fprintf(stderr, "tool_split: a line is not JSON: %s\n", error.text);
            return 1;
        }
        json_t *answer = split_line(line);
        char *answer_text = json_dumps(answer, JSON_COMPACT | JSON_ENCODE_ANY);
        puts(answer_text ? answer_text : "\"the output is not UTF-8\"");
        free(answer_text);
        json_decref(answer);
        json_decref(line);
    }
    free(text);
    return 0;
}
