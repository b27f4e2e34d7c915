#include "compile/vocabulary.h"

#include <inttypes.h>
#include <string.h>

#include "base/buf.h"
#include "base/num.h"
#include "text/template.h"
#include "text/tokenizer.h"

#define SECTION_BYTES_MAX (512 * MIB)
#define EOG_TEXT_BYTES    1024 // the tokenizer is opened only to ask for tokens, not to encode

// Views of all strings of an array.
static enum iso_err read_strings(struct program *p, const char *key, uint64_t max, const struct strv **ret,
                                 uint32_t *ret_n, struct iso_errinfo *reterr)
{
    struct gguf_array array;
    enum iso_err err = gguf_get_array(p->file, key, GGUF_STR, &array, reterr);
    if (err)
        return err;
    if (array.n > max)
        return iso_fail(reterr, ISO_E_LIMIT, 0, key, "%s has %" PRIu64 " entries; the limit is %" PRIu64, key,
                        array.n, max);
    struct strv *strings = arena_array(&p->arena, array.n, sizeof *strings);
    if (!strings)
        return iso_fail(reterr, ISO_E_LIMIT, 0, key, "%s is too long for the compiler's memory", key);
    struct gguf_str_iter iter = gguf_str_iter(&array);
    for (uint64_t i = 0; i < array.n; i++)
        (void)gguf_next_str(&iter, &strings[i]);
    *ret = strings;
    *ret_n = (uint32_t)array.n;
    return ISO_OK;
}

static enum iso_err read_types(struct program *p, uint32_t n_tokens, const int32_t **ret,
                               struct iso_errinfo *reterr)
{
    static const char KEY[] = "tokenizer.ggml.token_type";
    struct gguf_array array;
    enum iso_err err = gguf_get_array(p->file, KEY, GGUF_I32, &array, reterr);
    if (err)
        return err;
    if (array.n != n_tokens)
        return iso_fail(reterr, ISO_E_FORMAT, 0, KEY, "%s has %" PRIu64 " entries for %" PRIu32 " tokens",
                        KEY, array.n, n_tokens);
    int32_t *types = arena_array(&p->arena, n_tokens, sizeof *types);
    if (!types)
        return iso_fail(reterr, ISO_E_LIMIT, 0, KEY, "%s is too long for the compiler's memory", KEY);
    for (uint32_t i = 0; i < n_tokens; i++)
        types[i] = gguf_array_i32(&array, i);
    *ret = types;
    return ISO_OK;
}

static enum iso_err read_roles(const struct program *p, struct tok_source *src, struct iso_errinfo *reterr)
{
    static const char *const KEYS[TOK_ROLE_COUNT] = {
        [TOK_BOS] = "tokenizer.ggml.bos_token_id",     [TOK_EOS] = "tokenizer.ggml.eos_token_id",
        [TOK_EOT] = "tokenizer.ggml.eot_token_id",     [TOK_PAD] = "tokenizer.ggml.padding_token_id",
        [TOK_UNK] = "tokenizer.ggml.unknown_token_id",
    };
    enum iso_err err = ISO_OK;
    for (int i = 0; i < TOK_ROLE_COUNT && !err; i++) {
        src->roles[i] = TOK_NONE;
        if (gguf_has(p->file, KEYS[i]))
            err = gguf_get_u32(p->file, KEYS[i], &src->roles[i], reterr);
    }
    if (!err && gguf_has(p->file, "tokenizer.ggml.add_bos_token"))
        err = gguf_get_bool(p->file, "tokenizer.ggml.add_bos_token", &src->add_bos, reterr);
    if (!err && gguf_has(p->file, "tokenizer.ggml.add_eos_token"))
        err = gguf_get_bool(p->file, "tokenizer.ggml.add_eos_token", &src->add_eos, reterr);
    return err;
}

static enum iso_err read_source(struct program *p, struct tok_source *src, struct iso_errinfo *reterr)
{
    struct strv model;
    enum iso_err err = gguf_get_str(p->file, "tokenizer.ggml.model", &model, reterr);
    if (!err && !strv_is(model, "gpt2"))
        err = iso_fail(reterr, ISO_E_UNSUPPORTED, 0, "tokenizer.ggml.model",
                       "tokenizer \"%.*s\" is not supported; byte-level BPE (\"gpt2\") is", STRV_ARG(model));
    if (!err)
        err = gguf_get_str(p->file, "tokenizer.ggml.pre", &src->pre, reterr);
    if (!err)
        err = read_strings(p, "tokenizer.ggml.tokens", TOK_TOKENS_MAX, &src->tokens, &src->n_tokens, reterr);
    if (!err)
        err = read_strings(p, "tokenizer.ggml.merges", TOK_MERGES_MAX, &src->merges, &src->n_merges, reterr);
    if (!err)
        err = read_types(p, src->n_tokens, &src->types, reterr);
    if (!err)
        err = read_roles(p, src, reterr);
    if (!err && src->n_tokens > p->header.model.vocab)
        err = iso_fail(reterr, ISO_E_FORMAT, 0, "tokenizer.ggml.tokens",
                       "the tokenizer has %" PRIu32 " tokens and the embedding %" PRIu32 " rows",
                       src->n_tokens, p->header.model.vocab);
    return err;
}

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
    static const char KEY[] = "tokenizer.chat_template";
    if (!gguf_has(p->file, KEY))
        return ISO_OK;
    enum iso_err err = gguf_get_str(p->file, KEY, &p->chat_template, reterr);
    if (err)
        return err;
    struct tmpl *t;
    err = tmpl_open(p->chat_template, &t, reterr);
    if (err)
        return iso_fail_prefix(reterr, KEY);
    tmpl_close(t);
    return ISO_OK;
}

enum iso_err vocabulary_build(struct program *p, struct iso_errinfo *reterr)
{
    struct tok_source src = {0};
    struct buf section;
    enum iso_err err = read_source(p, &src, reterr);
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
