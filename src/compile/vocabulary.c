#include "compile/vocabulary.h"

#include <inttypes.h>
#include <string.h>

#include "base/buf.h"
#include "base/num.h"
#include "text/template.h"
#include "text/tokenizer.h"

#define SECTION_BYTES_MAX (512 * MIB)
#define EOG_TEXT_BYTES    1024 // the tokenizer is opened only to ask for tokens, not to encode

static enum iso_err find_eog(struct program *p, struct iso_errinfo *reterr)
{
    struct tokenizer *t;
    enum iso_err err = tok_open(p->tokenizer, p->tokenizer_bytes, EOG_TEXT_BYTES, &t, reterr);
    if (err)
        return err;
    struct plan_header *h = &p->header;
    for (uint32_t id = 0; id < tok_count(t) && !err; id++) {
        if (!tok_is_eog(t, id))
            continue;
        if (h->n_eog == PLAN_EOG_MAX)
            err = iso_fail(reterr, ISO_E_LIMIT, 0, "tokenizer", "more than %d tokens end a generation",
                           PLAN_EOG_MAX);
        else
            h->eog[h->n_eog++] = id;
    }
    tok_close(t);
    return err;
}

// A template that can't be interpreted is refused now, not at the first conversation.
static enum iso_err read_template(struct program *p, struct iso_errinfo *reterr)
{
    const char *key = "";
    enum iso_err err = model_template(&p->model, &p->chat_template, &key, reterr);
    if (err || p->chat_template.len == 0)
        return err;
    struct tmpl *t;
    err = tmpl_open(p->chat_template, &t, reterr);
    if (err)
        return iso_fail_prefix(reterr, key);
    tmpl_close(t);
    return ISO_OK;
}

enum iso_err vocabulary_build(struct program *p, struct iso_errinfo *reterr)
{
    struct tok_source src;
    struct buf section;
    enum iso_err err = model_vocabulary(&p->model, &p->arena, &src, reterr);
    if (!err && src.n_tokens > p->header.model.vocab)
        err = iso_fail(reterr, ISO_E_FORMAT, 0, "tokens",
                       "the tokenizer has %" PRIu32 " tokens and the embedding %" PRIu32 " rows",
                       src.n_tokens, p->header.model.vocab);
    if (err)
        return err;
    buf_init(&section, SECTION_BYTES_MAX);
    err = tok_build(&src, &section, reterr);
    if (!err) {
        p->tokenizer = arena_alloc(&p->arena, section.len);
        p->tokenizer_bytes = section.len;
        if (p->tokenizer)
            memcpy(p->tokenizer, section.ptr, section.len);
        else
            err = iso_fail(reterr, ISO_E_LIMIT, 0, NULL,
                           "the vocabulary is too large for the compiler's memory");
    }
    buf_deinit(&section);
    if (!err)
        err = find_eog(p, reterr);
    return err ? err : read_template(p, reterr);
}
