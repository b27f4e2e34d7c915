// The vocabulary of a folder: tokenizer.json as Hugging Face `tokenizers` writes it, of a kind that text/ computes
// exactly; every other part of such a file is refused by name.
#include "model/hf.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/num.h"
#include "formats/folder.h"
#include "formats/json_file.h"
#include "text/tok_blob.h"

#define TOKENIZER_NAME   "tokenizer.json"
#define EOG_MAX          8
#define PAD_TEXT_BYTES   16
#define SCORE_TEXT_BYTES 32

// State of one reading. Views go into copies in `arena`: the JSON is freed at the end.
struct reader {
    const struct hf *hf;
    json_t *json;
    struct arena *arena;
    struct tok_source src;
    struct strv *tokens;
    int32_t *types; // 0: no token has the id so far
    struct iso_errinfo *reterr;
};

static enum iso_err unsupported(struct reader *r, const char *part, const char *what)
{
    return iso_fail(r->reterr, ISO_E_UNSUPPORTED, 0, part,
                    TOKENIZER_NAME
                    ": %s is %s, which is not supported; byte-level BPE with the pre-tokenizers gpt-2, "
                    "smollm, qwen2, llama-bpe and tekken is, and SentencePiece's BPE and unigram",
                    part, what);
}

static enum iso_err malformed(struct reader *r, const char *part, const char *what)
{
    return iso_fail(r->reterr, ISO_E_FORMAT, 0, part, TOKENIZER_NAME ": %s %s", part, what);
}

static enum iso_err bad_id(struct reader *r, const char *part)
{
    return iso_fail(r->reterr, ISO_E_LIMIT, 0, part,
                    TOKENIZER_NAME ": %s holds an id that is no integer from 0 to %u", part,
                    TOK_TOKENS_MAX - 1);
}

static enum iso_err no_memory(struct reader *r)
{
    return iso_fail(r->reterr, ISO_E_LIMIT, 0, NULL, TOKENIZER_NAME " is too long for the compiler's memory");
}

static bool copy_text(struct reader *r, const char *text, size_t n, struct strv *ret)
{
    char *copy = arena_strdup(r->arena, (struct strv){text, n});
    *ret = (struct strv){copy, n};
    return copy != NULL;
}

static struct strv text_at(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    return json_is_string(value) ? json_strv(value) : (struct strv){"", 0};
}

static bool is_absent(const json_t *part)
{
    return !part || json_is_null(part);
}

static bool is_type(const json_t *part, const char *type)
{
    return strv_is(text_at(part, "type"), type);
}

// The parts of a Sequence, or the part itself; element i, or NULL.
static const json_t *element(const json_t *part, const char *list, size_t i)
{
    if (is_type(part, "Sequence"))
        return json_array_get(json_object_get(part, list), i);
    return i == 0 && !is_absent(part) ? part : NULL;
}

// Ids of model.vocab and of added_tokens are sensible numbers; the largest and 1 are the vocabulary's size.
static enum iso_err count_tokens(struct reader *r, json_t *vocab, const json_t *added)
{
    const char *key;
    json_t *value;
    uint64_t id, most = 0;
    if (json_is_array(vocab)) { // unigram's, where an id is a place in the list
        most = num_max(json_array_size(vocab), 1) - 1;
    } else if (!json_is_object(vocab) || json_object_size(vocab) == 0) {
        return malformed(r, "model.vocab", "is no object of tokens");
    }
    if (most >= TOK_TOKENS_MAX)
        return bad_id(r, "model.vocab");
    json_object_foreach(vocab, key, value)
    {
        if (!json_whole(value, TOK_TOKENS_MAX - 1, &id))
            return bad_id(r, "model.vocab");
        most = num_max(most, id);
    }
    for (size_t i = 0; i < json_array_size(added); i++) {
        if (!json_whole(json_object_get(json_array_get(added, i), "id"), TOK_TOKENS_MAX - 1, &id))
            return bad_id(r, "added_tokens");
        most = num_max(most, id);
    }
    r->src.n_tokens = (uint32_t)most + 1;
    return ISO_OK;
}

// An id that count_tokens has seen.
static uint32_t id_of(const json_t *value)
{
    uint64_t id = 0;
    (void)json_whole(value, TOK_TOKENS_MAX - 1, &id);
    return (uint32_t)id;
}

static enum iso_err put_token(struct reader *r, uint32_t id, const char *text, size_t n, int32_t type)
{
    if (!copy_text(r, text, n, &r->tokens[id]))
        return no_memory(r);
    r->types[id] = type;
    return ISO_OK;
}

static bool is_byte_text(const char *text, size_t n)
{
    return n == 6 && memcmp(text, "<0x", 3) == 0 && text[5] == '>';
}

static enum iso_err read_vocab(struct reader *r, json_t *vocab, bool byte_fallback)
{
    const char *key;
    size_t n;
    json_t *value;
    json_object_keylen_foreach(vocab, key, n, value)
    {
        uint32_t id = id_of(value);
        if (r->types[id] != 0)
            return malformed(r, "model.vocab", "has two tokens of one id");
        enum iso_err err =
            put_token(r, id, key, n, byte_fallback && is_byte_text(key, n) ? TOK_TYPE_BYTE : TOK_TYPE_NORMAL);
        if (err)
            return err;
    }
    return ISO_OK;
}

// A score as Hugging Face has it after reading, which decides between cuts of equal sums, as of runs of one character: its
// reader takes the digits as one whole number, rounds that to f64 and divides by a power of ten, which can be off by one
// place. The digits in the file are taken to be the fewest that name the number.
static double score_of(const json_t *value)
{
    double exact = json_number_value(value);
    char text[SCORE_TEXT_BYTES];
    int digits = 17; // they name every number
    for (int low = 1; low < digits;) {
        int fewer = (low + digits) / 2;
        snprintf(text, sizeof text, "%.*e", fewer - 1, exact);
        if (strtod(text, NULL) == exact)
            digits = fewer;
        else
            low = fewer + 1;
    }
    snprintf(text, sizeof text, "%.*e", digits - 1, exact);
    // "-d.ddde-NN"
    const char *end = strchr(text, 'e');
    long exponent = end ? strtol(end + 1, NULL, 10) : 0;
    uint64_t whole = 0;
    bool point = false;
    for (const char *c = text; c < end; c++) {
        point = point || *c == '.';
        if (*c < '0' || *c > '9')
            continue;
        whole = whole * 10 + (uint64_t)(*c - '0');
        exponent -= point;
    }
    if (!end || exponent > 0 || exponent < -300)
        return exact;
    snprintf(text, sizeof text, "1e%ld", -exponent);
    double read = (double)whole / strtod(text, NULL);
    return exact < 0 ? -read : read;
}

// A list of [text, score]. Ids past it, of added tokens, get the least score, so that they don't change which that is.
static enum iso_err read_pieces(struct reader *r, const json_t *vocab, bool byte_fallback)
{
    double *scores = arena_array(r->arena, r->src.n_tokens, sizeof *scores), least = 0;
    if (!scores)
        return no_memory(r);
    uint32_t n = (uint32_t)json_array_size(vocab);
    for (uint32_t id = 0; id < n; id++) {
        const json_t *piece = json_array_get(vocab, id), *text = json_array_get(piece, 0);
        const json_t *score = json_array_get(piece, 1);
        if (!json_is_string(text) || !json_is_number(score))
            return malformed(r, "model.vocab", "holds something that is not a text with a score");
        scores[id] = score_of(score);
        least = id == 0 || scores[id] < least ? scores[id] : least;
        const char *bytes = json_string_value(text);
        size_t length = json_string_length(text);
        bool byte = byte_fallback && is_byte_text(bytes, length);
        enum iso_err err = put_token(r, id, bytes, length, byte ? TOK_TYPE_BYTE : TOK_TYPE_NORMAL);
        if (err)
            return err;
    }
    for (uint32_t id = n; id < r->src.n_tokens; id++)
        scores[id] = least;
    r->src.unigram = scores;
    return ISO_OK;
}

// Added tokens: special ones are control tokens; the others are cut out of any text.
static enum iso_err read_added(struct reader *r, const json_t *added, bool marked)
{
    static const char *const FLAGS[] = {"single_word", "lstrip", "rstrip"};
    for (size_t i = 0; i < json_array_size(added); i++) {
        const json_t *token = json_array_get(added, i), *content = json_object_get(token, "content");
        if (!json_is_string(content) || json_string_length(content) == 0)
            return malformed(r, "added_tokens", "holds a token without content");
        for (size_t f = 0; f < ARRAY_LEN(FLAGS); f++)
            if (json_is_true(json_object_get(token, FLAGS[f])))
                return unsupported(r, "an added token", FLAGS[f]);
        uint32_t id = id_of(json_object_get(token, "id"));
        bool special = json_is_true(json_object_get(token, "special"));
        // Such a text in a prompt is spaces to us, and merges make it.
        if (!special && r->types[id] == TOK_TYPE_NORMAL && marked &&
            strstr(json_string_value(content), TOK_MARK))
            continue;
        enum iso_err err = put_token(r, id, json_string_value(content), json_string_length(content),
                                     special ? TOK_TYPE_CONTROL : TOK_TYPE_USER_DEFINED);
        if (err)
            return err;
    }
    return ISO_OK;
}

// Ids that nothing names: padding of the vocabulary.
static enum iso_err fill_gaps(struct reader *r)
{
    for (uint32_t id = 0; id < r->src.n_tokens; id++) {
        char text[PAD_TEXT_BYTES];
        int n = snprintf(text, sizeof text, "[PAD%" PRIu32 "]", id);
        if (r->types[id] == 0 && put_token(r, id, text, (size_t)n, TOK_TYPE_UNUSED))
            return no_memory(r);
    }
    return ISO_OK;
}

static enum iso_err read_merge(struct reader *r, const json_t *merge, struct tok_pair *ret)
{
    const json_t *left = json_array_get(merge, 0), *right = json_array_get(merge, 1);
    bool copied = true;
    if (json_is_string(merge)) {
        struct strv text;
        copied = copy_text(r, json_string_value(merge), json_string_length(merge), &text);
        if (copied && !tok_pair_split(text, ret))
            return malformed(r, "model.merges", "holds a text without a space between two others");
    } else if (json_array_size(merge) == 2 && json_is_string(left) && json_is_string(right)) {
        copied = copy_text(r, json_string_value(left), json_string_length(left), &ret->left) &&
                 copy_text(r, json_string_value(right), json_string_length(right), &ret->right);
    } else {
        return malformed(r, "model.merges", "holds something that is not two texts");
    }
    return copied ? ISO_OK : no_memory(r);
}

static enum iso_err read_merges(struct reader *r, const json_t *merges)
{
    size_t n = json_array_size(merges);
    if (!json_is_array(merges) || n > TOK_MERGES_MAX)
        return iso_fail(r->reterr, ISO_E_LIMIT, 0, "model.merges",
                        TOKENIZER_NAME ": model.merges is no list of at most %u", TOK_MERGES_MAX);
    struct tok_pair *pairs = arena_array(r->arena, n, sizeof *pairs);
    if (!pairs)
        return no_memory(r);
    for (size_t i = 0; i < n; i++) {
        enum iso_err err = read_merge(r, json_array_get(merges, i), &pairs[i]);
        if (err)
            return err;
    }
    r->src.merges = pairs;
    r->src.n_merges = (uint32_t)n;
    return ISO_OK;
}

// Expressions of the pre-tokenizers that text/pretok.h computes, as their files have them.
#define WORDS(digits)                                                          \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}" digits \
    "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

#define TEKKEN                                                                                   \
    "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+"  \
    "|[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*" \
    "|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

static bool is_byte_level(const json_t *part, bool use_regex)
{
    const json_t *regex = json_object_get(part, "use_regex");
    return is_type(part, "ByteLevel") && !json_is_true(json_object_get(part, "add_prefix_space")) &&
           (regex ? json_is_true(regex) : true) == use_regex;
}

static bool is_split(const json_t *part, const char *regex)
{
    return is_type(part, "Split") && strv_is(text_at(part, "behavior"), "Isolated") &&
           !json_is_true(json_object_get(part, "invert")) &&
           strv_is(text_at(json_object_get(part, "pattern"), "Regex"), regex);
}

static enum iso_err read_byte_level(struct reader *r, const json_t *pre, const json_t *normalizer,
                                    bool ignore_merges)
{
    const json_t *first = element(pre, "pretokenizers", 0), *second = element(pre, "pretokenizers", 1);
    if (element(pre, "pretokenizers", 2))
        return unsupported(r, "pre_tokenizer", "a sequence of more than two");
    if (is_byte_level(first, true) && !second)
        r->src.pre = STRV_LIT("gpt-2");
    else if (is_type(first, "Digits") && json_is_true(json_object_get(first, "individual_digits")) &&
             is_byte_level(second, true))
        r->src.pre = STRV_LIT("smollm");
    else if (is_split(first, WORDS("")) && is_byte_level(second, false))
        r->src.pre = STRV_LIT("qwen2");
    else if (is_split(first, WORDS("{1,3}")) && is_byte_level(second, false))
        r->src.pre = STRV_LIT("llama-bpe");
    else if (is_split(first, TEKKEN) && is_byte_level(second, false))
        r->src.pre = STRV_LIT("tekken");
    else
        return unsupported(r, "pre_tokenizer", "of another kind");
    bool nfc = is_type(normalizer, "NFC");
    if (nfc != strv_is(r->src.pre, "qwen2") || (!nfc && !is_absent(normalizer)))
        return unsupported(r, "normalizer", nfc ? "NFC with this pre-tokenizer" : "of another kind");
    if (ignore_merges != (strv_is(r->src.pre, "llama-bpe") || strv_is(r->src.pre, "tekken")))
        return unsupported(r, "model.ignore_merges", "another than this pre-tokenizer goes with");
    return ISO_OK;
}

static bool replaces_spaces(const json_t *part)
{
    return is_type(part, "Replace") && strv_is(text_at(json_object_get(part, "pattern"), "String"), " ") &&
           strv_is(text_at(part, "content"), TOK_MARK);
}

// SentencePiece: spaces become U+2581, by a normalizer or by Metaspace; a space may be put in front.
static enum iso_err read_sentencepiece(struct reader *r, const json_t *pre, const json_t *normalizer)
{
    const json_t *first = element(normalizer, "normalizers", 0),
                 *second = element(normalizer, "normalizers", 1);
    r->src.pre = STRV_LIT("sentencepiece");
    r->src.prefix = TOK_PREFIX_NONE;
    if (is_type(pre, "Metaspace")) {
        struct strv scheme = text_at(pre, "prepend_scheme");
        if (!json_is_false(json_object_get(pre, "split"))) // where nothing is said it splits
            r->src.pre = STRV_LIT("sentencepiece-words");
        if (!strv_is(text_at(pre, "replacement"), TOK_MARK))
            return unsupported(r, "pre_tokenizer", "Metaspace by another character");
        if (first)
            return unsupported(r, "normalizer", "one beside Metaspace");
        r->src.prefix = strv_is(scheme, "first")   ? TOK_PREFIX_FIRST
                        : strv_is(scheme, "never") ? TOK_PREFIX_NONE
                                                   : TOK_PREFIX_LACKING;
        return ISO_OK;
    }
    // A split at spaces that no longer are there.
    bool split = is_type(pre, "Split") && strv_is(text_at(json_object_get(pre, "pattern"), "String"), " ");
    if (!split && !is_absent(pre))
        return unsupported(r, "pre_tokenizer", "of another kind");
    if (is_type(first, "Prepend") && strv_is(text_at(first, "prepend"), TOK_MARK) && replaces_spaces(second))
        r->src.prefix = TOK_PREFIX_EACH;
    else if (!replaces_spaces(first) || second)
        return unsupported(r, "normalizer", "of another kind");
    return element(normalizer, "normalizers", 2) ? unsupported(r, "normalizer", "a sequence of more than two")
                                                 : ISO_OK;
}

static enum iso_err read_model(struct reader *r)
{
    json_t *model = json_object_get(r->json, "model"), *vocab = json_object_get(model, "vocab");
    const json_t *added = json_object_get(r->json, "added_tokens");
    const json_t *pre = json_object_get(r->json, "pre_tokenizer"),
                 *normalizer = json_object_get(r->json, "normalizer");
    bool byte_fallback = json_is_true(json_object_get(model, "byte_fallback"));
    struct strv type = text_at(model, "type");
    bool unigram = strv_is(type, "Unigram");
    if (!unigram && !strv_is(type, "BPE") && !(type.len == 0 && json_object_get(model, "merges")))
        return unsupported(r, "model.type",
                           type.len ? json_string_value(json_object_get(model, "type")) : "missing");
    if (text_at(model, "continuing_subword_prefix").len || text_at(model, "end_of_word_suffix").len)
        return unsupported(r, "model", "one with a prefix or suffix of words");
    if (unigram != json_is_array(vocab))
        return malformed(r, "model.vocab",
                         unigram ? "is no list of texts and scores" : "is no object of tokens");
    enum iso_err err = count_tokens(r, vocab, added);
    if (err)
        return err;
    r->tokens = arena_array(r->arena, r->src.n_tokens, sizeof *r->tokens);
    r->types = arena_array(r->arena, r->src.n_tokens, sizeof *r->types);
    if (!r->tokens || !r->types)
        return no_memory(r);
    bool marked = unigram || byte_fallback;
    err = unigram ? read_pieces(r, vocab, byte_fallback) : read_vocab(r, vocab, byte_fallback);
    if (!err)
        err = read_added(r, added, marked);
    if (!err)
        err = fill_gaps(r);
    if (!err && !unigram)
        err = read_merges(r, json_object_get(model, "merges"));
    if (!err)
        err = marked ? read_sentencepiece(r, pre, normalizer)
                     : read_byte_level(r, pre, normalizer,
                                       json_is_true(json_object_get(model, "ignore_merges")));
    r->src.tokens = r->tokens;
    r->src.types = r->types;
    return err;
}

// The id of a token by its text, special ones first; TOK_NONE.
static uint32_t find_token(const struct reader *r, struct strv text)
{
    uint32_t found = TOK_NONE;
    for (uint32_t id = 0; text.len > 0 && id < r->src.n_tokens; id++) {
        if (strv_equal(r->tokens[id], text)) {
            found = id;
            if (r->types[id] == TOK_TYPE_CONTROL)
                break;
        }
    }
    return found;
}

// tokenizer_config.json's "bos_token" and the like: a text, or an object with one.
static uint32_t configured_token(const struct reader *r, const char *key)
{
    const json_t *value = json_object_get(r->hf->tokenizer_config, key);
    if (json_is_object(value))
        value = json_object_get(value, "content");
    return json_is_string(value) ? find_token(r, json_strv(value)) : TOK_NONE;
}

// Tokens at the text's edges, as the post-processor's template for one text puts them.
static enum iso_err read_edges(struct reader *r)
{
    const json_t *post = json_object_get(r->json, "post_processor"), *part;
    for (size_t i = 0; (part = element(post, "processors", i)) != NULL; i++) {
        if (is_type(part, "ByteLevel"))
            continue;
        if (!is_type(part, "TemplateProcessing"))
            return unsupported(r, "post_processor", "of another kind");
        const json_t *single = json_object_get(part, "single");
        bool before = true;
        for (size_t j = 0; j < json_array_size(single); j++) {
            const json_t *special = json_object_get(json_array_get(single, j), "SpecialToken");
            if (!special) {
                before = false;
                continue;
            }
            uint32_t id = find_token(r, text_at(special, "id"));
            uint32_t *role = &r->src.roles[before ? TOK_BOS : TOK_EOS];
            bool *add = before ? &r->src.add_bos : &r->src.add_eos;
            if (id == TOK_NONE || *add || (*role != TOK_NONE && *role != id))
                return unsupported(r, "post_processor", "one that adds more than BOS and EOS");
            *role = id;
            *add = true;
        }
    }
    return ISO_OK;
}

static enum iso_err add_eog(struct reader *r, uint32_t *eog, const json_t *id)
{
    uint64_t whole;
    if (is_absent(id))
        return ISO_OK;
    if (!json_whole(id, r->src.n_tokens - 1, &whole) || r->src.n_eog == EOG_MAX)
        return iso_fail(r->reterr, ISO_E_FORMAT, 0, "eos_token_id",
                        "eos_token_id holds what is no token's id, or more than %d", EOG_MAX);
    eog[r->src.n_eog++] = (uint32_t)whole;
    return ISO_OK;
}

// What ends a generation: generation_config.json's, else config.json's.
static enum iso_err read_eog(struct reader *r)
{
    const json_t *ids = json_object_get(r->hf->generation, "eos_token_id");
    if (is_absent(ids))
        ids = json_object_get(r->hf->config, "eos_token_id");
    uint32_t *eog = arena_array(r->arena, EOG_MAX, sizeof *eog);
    if (!eog)
        return no_memory(r);
    r->src.eog = eog;
    if (!json_is_array(ids))
        return add_eog(r, eog, ids);
    enum iso_err err = ISO_OK;
    for (size_t i = 0; i < json_array_size(ids) && !err; i++)
        err = add_eog(r, eog, json_array_get(ids, i));
    return err;
}

static enum iso_err read_roles(struct reader *r)
{
    r->src.roles[TOK_BOS] = configured_token(r, "bos_token");
    r->src.roles[TOK_EOS] = configured_token(r, "eos_token");
    r->src.roles[TOK_EOT] = TOK_NONE;
    r->src.roles[TOK_PAD] = configured_token(r, "pad_token");
    r->src.roles[TOK_UNK] = configured_token(r, "unk_token");
    if (r->src.unigram) {
        uint64_t unknown;
        if (!json_whole(json_object_get(json_object_get(r->json, "model"), "unk_id"), r->src.n_tokens - 1,
                        &unknown))
            return malformed(r, "model.unk_id", "is no token's id");
        r->src.roles[TOK_UNK] = (uint32_t)unknown;
    }
    enum iso_err err = read_edges(r);
    return err ? err : read_eog(r);
}

enum iso_err hf_vocabulary(const struct hf *hf, json_t *tokenizer, struct arena *arena,
                           struct tok_source *ret, struct iso_errinfo *reterr)
{
    struct reader r = {.hf = hf, .json = tokenizer, .arena = arena, .reterr = reterr};
    enum iso_err err = read_model(&r);
    if (!err)
        err = read_roles(&r);
    if (!err)
        *ret = r.src;
    return err;
}

enum iso_err model_hf_vocabulary(const struct model *m, struct arena *arena, struct tok_source *ret,
                                 struct iso_errinfo *reterr)
{
    json_t *tokenizer;
    enum iso_err err = hf_read_json(m->hf, TOKENIZER_NAME, HF_TOKENIZER_BYTES_MAX, &tokenizer, reterr);
    if (err)
        return err;
    err = hf_vocabulary(m->hf, tokenizer, arena, ret, reterr);
    json_decref(tokenizer);
    return err;
}
