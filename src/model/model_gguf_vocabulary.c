#include "model/model_formats.h"

#include <inttypes.h>
#include <string.h>

#include "formats/gguf.h"

// Views of all strings of an array.
static enum iso_err read_strings(const struct model *m, struct arena *arena, const char *key, uint64_t max,
                                 const struct strv **ret, uint32_t *ret_n, struct iso_errinfo *reterr)
{
    struct gguf_array array;
    enum iso_err err = gguf_get_array(m->gguf, key, GGUF_STR, &array, reterr);
    if (err)
        return err;
    if (array.n > max)
        return iso_fail(reterr, ISO_E_LIMIT, 0, key, "%s has %" PRIu64 " entries; the limit is %" PRIu64, key,
                        array.n, max);
    struct strv *strings = arena_array(arena, array.n, sizeof *strings);
    if (!strings)
        return iso_fail(reterr, ISO_E_LIMIT, 0, key, "%s is too long for the compiler's memory", key);
    struct gguf_str_iter iter = gguf_str_iter(&array);
    for (uint64_t i = 0; i < array.n; i++)
        (void)gguf_next_str(&iter, &strings[i]);
    *ret = strings;
    *ret_n = (uint32_t)array.n;
    return ISO_OK;
}

static enum iso_err read_types(const struct model *m, struct arena *arena, uint32_t n_tokens,
                               const int32_t **ret, struct iso_errinfo *reterr)
{
    static const char KEY[] = "tokenizer.ggml.token_type";
    struct gguf_array array;
    enum iso_err err = gguf_get_array(m->gguf, KEY, GGUF_I32, &array, reterr);
    if (err)
        return err;
    if (array.n != n_tokens)
        return iso_fail(reterr, ISO_E_FORMAT, 0, KEY, "%s has %" PRIu64 " entries for %" PRIu32 " tokens",
                        KEY, array.n, n_tokens);
    int32_t *types = arena_array(arena, n_tokens, sizeof *types);
    if (!types)
        return iso_fail(reterr, ISO_E_LIMIT, 0, KEY, "%s is too long for the compiler's memory", KEY);
    for (uint32_t i = 0; i < n_tokens; i++)
        types[i] = gguf_array_i32(&array, i);
    *ret = types;
    return ISO_OK;
}

static enum iso_err read_roles(const struct model *m, struct tok_source *src, struct iso_errinfo *reterr)
{
    static const char *const KEYS[TOK_ROLE_COUNT] = {
        [TOK_BOS] = "tokenizer.ggml.bos_token_id",     [TOK_EOS] = "tokenizer.ggml.eos_token_id",
        [TOK_EOT] = "tokenizer.ggml.eot_token_id",     [TOK_PAD] = "tokenizer.ggml.padding_token_id",
        [TOK_UNK] = "tokenizer.ggml.unknown_token_id",
    };
    enum iso_err err = ISO_OK;
    for (int i = 0; i < TOK_ROLE_COUNT && !err; i++) {
        src->roles[i] = TOK_NONE;
        if (gguf_has(m->gguf, KEYS[i]))
            err = gguf_get_u32(m->gguf, KEYS[i], &src->roles[i], reterr);
    }
    if (!err && gguf_has(m->gguf, "tokenizer.ggml.add_bos_token"))
        err = gguf_get_bool(m->gguf, "tokenizer.ggml.add_bos_token", &src->add_bos, reterr);
    if (!err && gguf_has(m->gguf, "tokenizer.ggml.add_eos_token"))
        err = gguf_get_bool(m->gguf, "tokenizer.ggml.add_eos_token", &src->add_eos, reterr);
    return err;
}

static enum iso_err read_merges(const struct model *m, struct arena *arena, struct tok_source *src,
                                struct iso_errinfo *reterr)
{
    static const char KEY[] = "tokenizer.ggml.merges";
    const struct strv *texts;
    enum iso_err err = read_strings(m, arena, KEY, TOK_MERGES_MAX, &texts, &src->n_merges, reterr);
    if (err)
        return err;
    struct tok_pair *pairs = arena_array(arena, src->n_merges, sizeof *pairs);
    if (!pairs)
        return iso_fail(reterr, ISO_E_LIMIT, 0, KEY, "%s is too long for the compiler's memory", KEY);
    for (uint32_t i = 0; i < src->n_merges; i++) {
        if (!tok_pair_split(texts[i], &pairs[i]))
            return iso_fail(reterr, ISO_E_FORMAT, 0, KEY,
                            "merge %" PRIu32 " (%.*s) is not two texts with a space between", i,
                            STRV_ARG(texts[i]));
    }
    src->merges = pairs;
    return ISO_OK;
}

static enum iso_err read_scores(const struct model *m, struct arena *arena, struct tok_source *src,
                                struct iso_errinfo *reterr)
{
    static const char KEY[] = "tokenizer.ggml.scores";
    struct gguf_array array;
    enum iso_err err = gguf_get_array(m->gguf, KEY, GGUF_F32, &array, reterr);
    if (err)
        return err;
    if (array.n != src->n_tokens)
        return iso_fail(reterr, ISO_E_FORMAT, 0, KEY, "%s has %" PRIu64 " entries for %" PRIu32 " tokens",
                        KEY, array.n, src->n_tokens);
    float *scores = arena_array(arena, array.n, sizeof *scores);
    if (!scores)
        return iso_fail(reterr, ISO_E_LIMIT, 0, KEY, "%s is too long for the compiler's memory", KEY);
    for (uint64_t i = 0; i < array.n; i++)
        scores[i] = gguf_array_f32(&array, i);
    src->scores = scores;
    return ISO_OK;
}

// SentencePiece's vocabularies ("llama") have scores, and a space in front of text unless they say otherwise, byte-level
// ones ("gpt2") merges.
static enum iso_err read_kind(const struct model *m, struct arena *arena, struct tok_source *src,
                              struct iso_errinfo *reterr)
{
    static const char SPACE[] = "tokenizer.ggml.add_space_prefix";
    struct strv kind;
    enum iso_err err = gguf_get_str(m->gguf, "tokenizer.ggml.model", &kind, reterr);
    if (err)
        return err;
    if (strv_is(kind, "gpt2")) {
        err = gguf_get_str(m->gguf, "tokenizer.ggml.pre", &src->pre, reterr);
        return err ? err : read_merges(m, arena, src, reterr);
    }
    if (!strv_is(kind, "llama"))
        return iso_fail(reterr, ISO_E_UNSUPPORTED, 0, "tokenizer.ggml.model",
                        "tokenizer \"%.*s\" is not supported; byte-level BPE (\"gpt2\") and SentencePiece's "
                        "(\"llama\") are",
                        STRV_ARG(kind));
    bool space = true;
    src->pre = STRV_LIT("sentencepiece");
    src->add_bos = true; // as llama.cpp has it where the file says nothing
    if (gguf_has(m->gguf, SPACE))
        err = gguf_get_bool(m->gguf, SPACE, &space, reterr);
    src->prefix = space ? TOK_PREFIX_EACH : TOK_PREFIX_NONE;
    return err ? err : read_scores(m, arena, src, reterr);
}

enum iso_err model_gguf_vocabulary(const struct model *m, struct arena *arena, struct tok_source *ret,
                                   struct iso_errinfo *reterr)
{
    struct tok_source src = {0};
    enum iso_err err =
        read_strings(m, arena, "tokenizer.ggml.tokens", TOK_TOKENS_MAX, &src.tokens, &src.n_tokens, reterr);
    if (!err)
        err = read_types(m, arena, src.n_tokens, &src.types, reterr);
    if (!err)
        err = read_kind(m, arena, &src, reterr);
    if (!err)
        err = read_roles(m, &src, reterr);
    if (!err)
        *ret = src;
    return err;
}
