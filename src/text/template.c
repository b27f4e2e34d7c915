#include "text/template.h"

#include <stdlib.h>

#include "base/assert.h"
#include "base/utf8.h"
#include "text/template_interp.h"
#include "text/template_parse.h"

// Text (the source and, at most as long, its strings without escapes) and nodes.
#define OPEN_MEMORY (2 * TMPL_SOURCE_MAX + TMPL_NODES_MAX * sizeof(struct tmpl_node) + 4 * KIB)

// Copies the source with "\n" for every line end and, as jinja2 does, without one at the very end.
static enum iso_err copy_source(struct tmpl *t, struct strv source)
{
    t->text = arena_alloc(&t->arena, 2 * source.len);
    t->nodes = arena_array(&t->arena, TMPL_NODES_MAX, sizeof *t->nodes);
    if (!t->text || !t->nodes)
        return ISO_E_NOMEM;
    for (size_t i = 0; i < source.len; i++) {
        if (source.ptr[i] != '\r')
            t->text[t->text_len++] = source.ptr[i];
        else if (i + 1 == source.len || source.ptr[i + 1] != '\n')
            t->text[t->text_len++] = '\n';
    }
    if (t->text_len > 0 && t->text[t->text_len - 1] == '\n')
        t->text_len--;
    t->source = tmpl_text(t, 0, t->text_len);
    return ISO_OK;
}

enum iso_err tmpl_open(struct strv source, struct tmpl **ret, struct iso_errinfo *reterr)
{
    if (source.len > TMPL_SOURCE_MAX)
        return iso_fail(reterr, ISO_E_LIMIT, 0, NULL, "the template has %zu bytes, the limit is %d",
                        source.len, (int)TMPL_SOURCE_MAX);
    if (!utf8_is_valid((const uint8_t *)source.ptr, source.len))
        return iso_fail(reterr, ISO_E_FORMAT, 0, NULL, "the template is not valid UTF-8");
    struct tmpl *t = calloc(1, sizeof *t);
    if (!t || arena_init(&t->arena, OPEN_MEMORY)) {
        free(t);
        return iso_fail(reterr, ISO_E_NOMEM, 0, NULL, "no memory for the template");
    }
    enum iso_err err = copy_source(t, source);
    ASSERT(!err);
    err = tmpl_parse(t, reterr);
    if (err) {
        tmpl_close(t);
        return err;
    }
    *ret = t;
    return ISO_OK;
}

void tmpl_close(struct tmpl *t)
{
    if (!t)
        return;
    arena_deinit(&t->arena);
    free(t);
}

static enum iso_err render(struct tmpl_run *r, const json_t *context)
{
    r->vars = tmpl_alloc(r, TMPL_VARS_MAX, sizeof *r->vars);
    if (!r->vars)
        return ISO_E_LIMIT;
    enum iso_err err = tmpl_from_json(r, context, 0, &r->context);
    return err ? err : tmpl_interpret(r);
}

enum iso_err tmpl_render(const struct tmpl *t, const json_t *context, struct buf *out,
                         struct iso_errinfo *reterr)
{
    if (!json_is_object(context))
        return iso_fail(reterr, ISO_E_USAGE, 0, NULL, "the template's context is not an object");
    struct tmpl_run r = {.t = t, .out = out, .reterr = reterr};
    if (arena_init(&r.arena, TMPL_MEMORY_MAX))
        return iso_fail(reterr, ISO_E_NOMEM, 0, NULL, "no memory for the template's values");
    buf_init(&r.scratch, TMPL_MEMORY_MAX);
    size_t before = out->len;
    enum iso_err err = render(&r, context);
    if (err)
        out->len = before;
    buf_deinit(&r.scratch);
    arena_deinit(&r.arena);
    return err;
}
