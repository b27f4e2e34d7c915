// The compiler's side of the tokenizer: a model's vocabulary, checked, becomes the plan's block.
#include "text/tokenizer.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/num.h"
#include "base/utf8.h"
#include "text/pretok.h"
#include "text/tok_blob.h"

// Names that mean "generation ends here" in any model that has them as control tokens.
static const char *const EOG_NAMES[] = {"<|endoftext|>", "<|end_of_text|>", "<|im_end|>",
                                        "<|eot_id|>",    "<|eom_id|>",      "<end_of_turn>"};

// A merge that the vocabulary's scores give, or an edge of a unigram vocabulary's tree.
struct ranked {
    float score; // of the merged token
    struct tok_merge merge;
};

// Pointers into the block while it is written; the same places as the view's.
struct builder {
    const struct tok_source *src;
    const struct ranked *ranked; // instead of the source's merges; NULL: those
    struct tok_blob_header *header;
    struct tok_view view;
    uint32_t *starts, *token_slots, *merge_slots, *specials;
    struct tok_merge *merges;
    uint8_t *kinds, *bytes;
    struct iso_errinfo *reterr;
};

bool tok_pair_split(struct strv text, struct tok_pair *ret)
{
    const char *space = text.len > 1 ? memchr(text.ptr + 1, ' ', text.len - 1) : NULL;
    if (!space)
        return false;
    size_t n = (size_t)(space - text.ptr);
    *ret = (struct tok_pair){{text.ptr, n}, {space + 1, text.len - n - 1}};
    return true;
}

// GPT-2's alphabet: a byte that prints in Latin-1 stands for itself, the 68 others are U+0100 and up in
// order. Returns -1 for a code point outside it.
static int alphabet_byte(uint32_t cp)
{
    if ((cp >= 33 && cp <= 126) || (cp >= 161 && cp <= 172) || (cp >= 174 && cp <= 255))
        return (int)cp;
    if (cp < 256 || cp >= 256 + 68)
        return -1;
    uint32_t k = cp - 256;
    return (int)(k < 33 ? k : k < 67 ? 127 + (k - 33) : 173);
}

// Decodes text of the alphabet into out[TOK_TOKEN_BYTES_MAX]. False where it isn't that, or too long.
static bool alphabet_decode(struct strv text, uint8_t *out, size_t *ret_n)
{
    size_t n = 0;
    for (size_t i = 0; i < text.len;) {
        uint32_t cp;
        size_t len = utf8_decode((const uint8_t *)text.ptr + i, text.len - i, &cp);
        int byte = len > 0 ? alphabet_byte(cp) : -1;
        if (byte < 0 || n == TOK_TOKEN_BYTES_MAX)
            return false;
        out[n++] = (uint8_t)byte;
        i += len;
    }
    *ret_n = n;
    return true;
}

static enum iso_err check_source(const struct tok_source *src, struct iso_errinfo *reterr)
{
    if (src->n_tokens == 0 || src->n_tokens > TOK_TOKENS_MAX)
        return iso_fail(reterr, ISO_E_LIMIT, 0, "tokens",
                        "the vocabulary has %" PRIu32 " tokens, allowed are 1 to %u", src->n_tokens,
                        TOK_TOKENS_MAX);
    if (src->n_merges > TOK_MERGES_MAX)
        return iso_fail(reterr, ISO_E_LIMIT, 0, "merges",
                        "the vocabulary has %" PRIu32 " merges, at most %u are allowed", src->n_merges,
                        TOK_MERGES_MAX);
    for (uint32_t id = 0; id < src->n_tokens && src->unigram; id++)
        if (!(src->unigram[id] >= -TOK_SCORE_MAX && src->unigram[id] <= TOK_SCORE_MAX)) // a NaN is neither
            return iso_fail(reterr, ISO_E_LIMIT, 0, "scores",
                            "the score of token %" PRIu32
                            " is %g, allowed is up to %g and down to its negative",
                            id, src->unigram[id], TOK_SCORE_MAX);
    if (src->unigram && src->roles[TOK_UNK] == TOK_NONE)
        return iso_fail(reterr, ISO_E_FORMAT, 0, "unknown", "the unigram vocabulary names no unknown token");
    if (!src->types)
        return iso_fail(reterr, ISO_E_FORMAT, 0, "token types", "the vocabulary has no token types");
    for (uint32_t i = 0; i < src->n_eog; i++)
        if (src->eog[i] >= src->n_tokens)
            return iso_fail(reterr, ISO_E_FORMAT, 0, "eos",
                            "token %" PRIu32 ", which ends a generation, is past the vocabulary of %" PRIu32
                            " tokens",
                            src->eog[i], src->n_tokens);
    static const char *const ROLE_NAMES[TOK_ROLE_COUNT] = {"bos", "eos", "eot", "padding", "unknown"};
    for (int i = 0; i < TOK_ROLE_COUNT; i++)
        if (src->roles[i] != TOK_NONE && src->roles[i] >= src->n_tokens)
            return iso_fail(reterr, ISO_E_FORMAT, 0, ROLE_NAMES[i],
                            "the %s token's id %" PRIu32 " is past the vocabulary of %" PRIu32 " tokens",
                            ROLE_NAMES[i], src->roles[i], src->n_tokens);
    if ((src->add_bos && src->roles[TOK_BOS] == TOK_NONE) ||
        (src->add_eos && src->roles[TOK_EOS] == TOK_NONE))
        return iso_fail(reterr, ISO_E_FORMAT, 0, src->add_bos ? "add_bos" : "add_eos",
                        "the model asks for a token at the text's edge but does not name it");
    return ISO_OK;
}

// SentencePiece's text into out[TOK_TOKEN_BYTES_MAX]: U+2581 is a space. False where it is too long or no UTF-8.
static bool marked_decode(struct strv text, uint8_t *out, size_t *ret_n)
{
    size_t n = 0;
    if (!utf8_is_valid((const uint8_t *)text.ptr, text.len))
        return false;
    for (size_t i = 0; i < text.len;) {
        bool mark = text.len - i >= TOK_MARK_BYTES && memcmp(text.ptr + i, TOK_MARK, TOK_MARK_BYTES) == 0;
        if (n == TOK_TOKEN_BYTES_MAX)
            return false;
        out[n++] = mark ? ' ' : (uint8_t)text.ptr[i];
        i += mark ? TOK_MARK_BYTES : 1;
    }
    *ret_n = n;
    return true;
}

// "<0x41>" to 0x41; -1 where it is no such text.
static int byte_of(struct strv text)
{
    static const char DIGITS[] = "0123456789ABCDEF";
    if (text.len != 6 || memcmp(text.ptr, "<0x", 3) != 0 || text.ptr[5] != '>')
        return -1;
    const char *high = memchr(DIGITS, text.ptr[3], 16), *low = memchr(DIGITS, text.ptr[4], 16);
    return high && low ? (int)((high - DIGITS) * 16 + (low - DIGITS)) : -1;
}

static bool is_marked(const struct tok_source *src)
{
    enum pretok_kind kind;
    return pretok_find(src->pre, &kind, NULL) == ISO_OK && pretok_is_sentencepiece(kind);
}

static bool text_decode(const struct tok_source *src, struct strv text, uint8_t *out, size_t *ret_n)
{
    return is_marked(src) ? marked_decode(text, out, ret_n) : alphabet_decode(text, out, ret_n);
}

// The raw bytes of a source token, into out[TOK_TOKEN_BYTES_MAX].
static enum iso_err token_decode(const struct tok_source *src, uint32_t id, uint8_t *out, size_t *ret_n,
                                 struct iso_errinfo *reterr)
{
    struct strv text = src->tokens[id];
    int32_t type = src->types[id];
    int32_t last = is_marked(src) ? TOK_TYPE_BYTE : TOK_TYPE_UNUSED;
    if (type < TOK_TYPE_NORMAL || type > last)
        return iso_fail(reterr, ISO_E_UNSUPPORTED, 0, "token types",
                        "token %" PRIu32 " has type %" PRId32 ", such a vocabulary has 1 to %" PRId32, id,
                        type, last);
    if (type == TOK_TYPE_NORMAL) {
        if (!text_decode(src, text, out, ret_n))
            return iso_fail(reterr, ISO_E_FORMAT, 0, "tokens",
                            "token %" PRIu32 " (%.*s) is not text in the %s of at most %u bytes", id,
                            STRV_ARG(text), is_marked(src) ? "form of UTF-8" : "byte alphabet",
                            TOK_TOKEN_BYTES_MAX);
        return ISO_OK;
    }
    if (type == TOK_TYPE_BYTE) {
        int byte = byte_of(text);
        if (byte < 0)
            return iso_fail(reterr, ISO_E_FORMAT, 0, "tokens",
                            "byte token %" PRIu32 " is \"%.*s\", not \"<0xNN>\"", id, STRV_ARG(text));
        out[0] = (uint8_t)byte;
        *ret_n = 1;
        return ISO_OK;
    }
    size_t max = tok_type_is_special((uint32_t)type) ? TOK_SPECIAL_BYTES_MAX : TOK_TOKEN_BYTES_MAX;
    if (text.len > max)
        return iso_fail(reterr, ISO_E_LIMIT, 0, "tokens",
                        "token %" PRIu32 " is %zu bytes long, the limit is %zu", id, text.len, max);
    if (text.len > 0)
        memcpy(out, text.ptr, text.len);
    *ret_n = text.len;
    return ISO_OK;
}

// Fills the header's counts.
static enum iso_err count(const struct tok_source *src, struct tok_blob_header *h, struct iso_errinfo *reterr)
{
    uint8_t scratch[TOK_TOKEN_BYTES_MAX];
    uint64_t total = 0;
    for (uint32_t id = 0; id < src->n_tokens; id++) {
        size_t n;
        enum iso_err err = token_decode(src, id, scratch, &n, reterr);
        if (err)
            return err;
        total += n;
        h->n_specials += n > 0 && tok_type_is_special((uint32_t)src->types[id]);
    }
    if (total > TOK_VOCAB_BYTES_MAX)
        return iso_fail(reterr, ISO_E_LIMIT, 0, "tokens",
                        "the vocabulary's texts have %" PRIu64 " bytes, the limit is %u", total,
                        TOK_VOCAB_BYTES_MAX);
    h->vocab_bytes = (uint32_t)total;
    h->n_tokens = src->n_tokens;
    h->n_merges = src->n_merges;
    return ISO_OK;
}

// Puts a value into a table with a free slot, at the first one from `hash` on. Where that is farther than a probe may go,
// the block would be refused, and building it would take the square of the entries' number. What was looked for in vain
// before is put next, so that bounds lookups too.
static enum iso_err slot_put(const struct builder *b, uint32_t *slots, uint32_t mask, uint32_t hash,
                             uint32_t value)
{
    uint32_t end = hash + TOK_PROBE_MAX;
    while (slots[hash & mask] != TOK_NONE)
        if (hash++ == end)
            return iso_fail(b->reterr, ISO_E_FORMAT, 0, "tokens",
                            "more than %d of the vocabulary's texts or merges have colliding hashes",
                            TOK_PROBE_MAX);
    slots[hash & mask] = value;
    return ISO_OK;
}

static enum iso_err write_tokens(struct builder *b)
{
    const struct tok_source *src = b->src;
    uint32_t at = 0;
    for (uint32_t id = 0, special = 0; id < src->n_tokens; id++) {
        size_t n;
        uint8_t scratch[TOK_TOKEN_BYTES_MAX]; // `bytes` itself may have less room left than the check needs
        enum iso_err err = token_decode(src, id, scratch, &n, b->reterr);
        if (err)
            return err;
        memcpy(b->bytes + at, scratch, n);
        b->starts[id] = at;
        b->kinds[id] = (uint8_t)src->types[id];
        at += (uint32_t)n;
        b->starts[id + 1] = at;
        if (n > 0 && tok_type_is_special((uint32_t)src->types[id]))
            b->specials[special++] = id;
    }
    return ISO_OK;
}

// Keys: normal tokens first, so that a user-defined token with the bytes of a normal one stays a special
// only.
static enum iso_err write_keys(struct builder *b, uint32_t type)
{
    for (uint32_t id = 0; id < b->src->n_tokens; id++) {
        struct strv bytes = tok_bytes(&b->view, id);
        if (tok_type(&b->view, id) != type || bytes.len == 0)
            continue;
        uint32_t other = tok_key_find(&b->view, bytes);
        if (other != TOK_NONE && type == TOK_TYPE_NORMAL)
            return iso_fail(b->reterr, ISO_E_FORMAT, 0, "tokens",
                            "tokens %" PRIu32 " and %" PRIu32 " are the same text (%.*s)", other, id,
                            STRV_ARG(b->src->tokens[id]));
        if (other != TOK_NONE)
            continue;
        enum iso_err err = slot_put(b, b->token_slots, b->view.token_mask, tok_key_hash(bytes), id);
        if (err)
            return err;
        if (bytes.len == 1 && !is_marked(b->src))
            b->header->byte_ids[(uint8_t)bytes.ptr[0]] = id;
    }
    return ISO_OK;
}

// SentencePiece's tokens of single bytes.
static enum iso_err write_bytes(struct builder *b)
{
    for (uint32_t id = 0; id < b->src->n_tokens; id++) {
        if (tok_type(&b->view, id) != TOK_TYPE_BYTE)
            continue;
        uint32_t *slot = &b->header->byte_ids[(uint8_t)tok_bytes(&b->view, id).ptr[0]];
        if (*slot != TOK_NONE)
            return iso_fail(b->reterr, ISO_E_FORMAT, 0, "tokens",
                            "tokens %" PRIu32 " and %" PRIu32 " are the same byte (%.*s)", *slot, id,
                            STRV_ARG(b->src->tokens[id]));
        *slot = id;
    }
    return ISO_OK;
}

// Order of special tokens for qsort_r: by bytes, then by id so that the order of duplicates is defined.
static int special_compare(const void *left, const void *right, void *context)
{
    const struct tok_view *v = context;
    uint32_t a = *(const uint32_t *)left, b = *(const uint32_t *)right;
    int order = tok_compare(tok_bytes(v, a), tok_bytes(v, b));
    return order != 0 ? order : (a > b) - (a < b);
}

static enum iso_err write_specials(struct builder *b)
{
    uint32_t n = b->header->n_specials;
    qsort_r(b->specials, n, sizeof *b->specials, special_compare, &b->view);
    for (uint32_t i = 1; i < n; i++) {
        struct strv text = tok_bytes(&b->view, b->specials[i]);
        if (strv_equal(tok_bytes(&b->view, b->specials[i - 1]), text))
            return iso_fail(b->reterr, ISO_E_FORMAT, 0, "tokens",
                            "special tokens %" PRIu32 " and %" PRIu32 " are the same text (%.*s)",
                            b->specials[i - 1], b->specials[i], STRV_ARG(text));
    }
    for (uint32_t i = 0; i < n; i++) {
        uint32_t id = b->specials[i];
        for (size_t k = 0; k < ARRAY_LEN(EOG_NAMES) && tok_type(&b->view, id) == TOK_TYPE_CONTROL; k++)
            if (strv_is(tok_bytes(&b->view, id), EOG_NAMES[k]))
                b->kinds[id] |= TOK_KIND_EOG;
    }
    for (uint32_t i = 0; i < b->src->n_eog; i++)
        b->kinds[b->src->eog[i]] |= TOK_KIND_EOG;
    if (b->header->roles[TOK_EOS] != TOK_NONE)
        b->kinds[b->header->roles[TOK_EOS]] |= TOK_KIND_EOG;
    if (b->header->roles[TOK_EOT] != TOK_NONE)
        b->kinds[b->header->roles[TOK_EOT]] |= TOK_KIND_EOG;
    return ISO_OK;
}

// Two texts to a rule. Both and their joint text have to be keys.
static enum iso_err merge_parse(struct builder *b, uint32_t rank, struct tok_merge *ret)
{
    const struct tok_pair *pair = &b->src->merges[rank];
    uint8_t joint[2 * TOK_TOKEN_BYTES_MAX];
    size_t n_left = 0, n_right = 0;
    if (!text_decode(b->src, pair->left, joint, &n_left) ||
        !text_decode(b->src, pair->right, joint + n_left, &n_right) || n_left == 0 || n_right == 0)
        return iso_fail(b->reterr, ISO_E_FORMAT, 0, "merges",
                        "merge %" PRIu32 " (%.*s, %.*s) is not two texts as the vocabulary's tokens are",
                        rank, STRV_ARG(pair->left), STRV_ARG(pair->right));
    const char *bytes = (const char *)joint;
    *ret = (struct tok_merge){
        .left = tok_key_find(&b->view, (struct strv){bytes, n_left}),
        .right = tok_key_find(&b->view, (struct strv){bytes + n_left, n_right}),
        .merged = tok_key_find(&b->view, (struct strv){bytes, n_left + n_right}),
    };
    if (ret->left == TOK_NONE || ret->right == TOK_NONE || ret->merged == TOK_NONE)
        return iso_fail(b->reterr, ISO_E_FORMAT, 0, "merges",
                        "merge %" PRIu32
                        " (%.*s, %.*s) needs a token that is not in the vocabulary as normal text",
                        rank, STRV_ARG(pair->left), STRV_ARG(pair->right));
    return ISO_OK;
}

static enum iso_err write_merges(struct builder *b)
{
    for (uint32_t rank = 0; rank < b->header->n_merges; rank++) {
        struct tok_merge m;
        if (b->ranked) {
            m = b->ranked[rank].merge;
        } else {
            enum iso_err err = merge_parse(b, rank, &m);
            if (err)
                return err;
        }
        uint32_t other = tok_merge_find(&b->view, m.left, m.right);
        if (other != TOK_NONE)
            return iso_fail(b->reterr, ISO_E_FORMAT, 0, "merges",
                            "merges %" PRIu32 " and %" PRIu32 " are the same (tokens %" PRIu32 " and %" PRIu32
                            ")",
                            other, rank, m.left, m.right);
        b->merges[rank] = m;
        enum iso_err err =
            slot_put(b, b->merge_slots, b->view.merge_mask, tok_pair_hash(m.left, m.right), rank);
        if (err)
            return err;
    }
    return ISO_OK;
}

// Everything behind the header, into zeroed memory at `base`.
static enum iso_err write_sections(const struct tok_source *src, const struct ranked *ranked, uint8_t *base,
                                   const struct tok_layout *l, struct iso_errinfo *reterr)
{
    struct builder b = {
        .src = src,
        .ranked = ranked,
        .header = (struct tok_blob_header *)base,
        .view = tok_view_make(base, l),
        .starts = (uint32_t *)(base + l->starts),
        .token_slots = (uint32_t *)(base + l->token_slots),
        .merges = (struct tok_merge *)(base + l->merges),
        .merge_slots = (uint32_t *)(base + l->merge_slots),
        .specials = (uint32_t *)(base + l->specials),
        .kinds = base + l->kinds,
        .bytes = base + l->bytes,
        .reterr = reterr,
    };
    if (src->unigram)
        memcpy(base + l->scores, src->unigram, src->n_tokens * sizeof *src->unigram);
    memset(b.header->byte_ids, 0xFF, sizeof b.header->byte_ids);
    memset(b.token_slots, 0xFF, 4 * (size_t)l->n_token_slots);
    memset(b.merge_slots, 0xFF, 4 * (size_t)l->n_merge_slots);
    enum iso_err err = write_tokens(&b);
    if (!err)
        err = write_keys(&b, TOK_TYPE_NORMAL);
    if (!err)
        err = write_keys(&b, TOK_TYPE_USER_DEFINED);
    if (!err)
        err = write_bytes(&b);
    if (!err)
        err = write_specials(&b);
    if (!err)
        err = write_merges(&b);
    return err;
}

// Appends a block with the source's merges, or with n_ranked others.
static enum iso_err build(const struct tok_source *src, const struct ranked *ranked, uint32_t n_ranked,
                          struct buf *out, struct iso_errinfo *reterr)
{
    struct tok_blob_header h = {.magic = TOK_BLOB_MAGIC, .version = TOK_BLOB_VERSION};
    enum pretok_kind kind;
    enum iso_err err = pretok_find(src->pre, &kind, reterr);
    if (!err)
        err = check_source(src, reterr);
    if (!err)
        err = count(src, &h, reterr);
    if (err)
        return err;
    h.n_merges = ranked ? n_ranked : src->n_merges;
    h.pretok = kind;
    h.flags = (src->add_bos ? TOK_FLAG_ADD_BOS : 0) | (src->add_eos ? TOK_FLAG_ADD_EOS : 0) |
              (src->unigram ? TOK_FLAG_UNIGRAM : 0) | (uint32_t)src->prefix << TOK_PREFIX_SHIFT;
    memcpy(h.roles, src->roles, sizeof h.roles);

    struct tok_layout layout;
    bool counted = tok_layout(&h, &layout);
    ASSERT(counted); // check_source and count hold the same limits
    h.bytes = (uint32_t)layout.end;
    size_t before = out->len;
    uint8_t *base;
    err = buf_append_zeros(out, layout.end, &base);
    if (err)
        return iso_fail(reterr, err, 0, "tokenizer", "no room for the tokenizer's %" PRIu64 " bytes",
                        layout.end);
    ASSERT((uintptr_t)base % TOK_BLOB_ALIGN == 0);
    memcpy(base, &h, sizeof h);
    err = write_sections(src, ranked, base, &layout, reterr);
    struct tok_view view;
    if (!err)
        err = tok_blob_check(base, layout.end, &view, reterr); // also bounds the tables' probes
    if (err)
        out->len = before;
    return err;
}

// Best score first; of equals the token that comes first, then the pair that does.
static int compare_ranked(const void *a, const void *b)
{
    const struct ranked *x = a, *y = b;
    if (x->score != y->score)
        return x->score > y->score ? -1 : 1;
    if (x->merge.merged != y->merge.merged)
        return x->merge.merged < y->merge.merged ? -1 : 1;
    if (x->merge.left != y->merge.left)
        return x->merge.left < y->merge.left ? -1 : 1;
    return (x->merge.right > y->merge.right) - (x->merge.right < y->merge.right);
}

// Every way to make a token of two others, into *out as struct ranked, in order.
static enum iso_err rank_merges(const struct tok_source *src, const struct tok_view *v, struct buf *out,
                                struct iso_errinfo *reterr)
{
    for (uint32_t id = 0; id < src->n_tokens; id++) {
        struct strv bytes = tok_bytes(v, id);
        if (tok_type(v, id) != TOK_TYPE_NORMAL)
            continue;
        if (src->scores[id] != src->scores[id])
            return iso_fail(reterr, ISO_E_FORMAT, 0, "scores",
                            "the score of token %" PRIu32 " is not a number", id);
        for (size_t cut = 1; cut < bytes.len; cut++) {
            struct ranked r = {.score = src->scores[id], .merge = {.merged = id}};
            r.merge.left = tok_key_find(v, (struct strv){bytes.ptr, cut});
            r.merge.right = tok_key_find(v, (struct strv){bytes.ptr + cut, bytes.len - cut});
            if (r.merge.left == TOK_NONE || r.merge.right == TOK_NONE)
                continue;
            if (out->len / sizeof r == TOK_MERGES_MAX || buf_append(out, &r, sizeof r))
                return iso_fail(reterr, ISO_E_LIMIT, 0, "scores",
                                "the vocabulary's tokens make more than %u merges", TOK_MERGES_MAX);
        }
    }
    if (out->len > 0)
        qsort(out->ptr, out->len / sizeof(struct ranked), sizeof(struct ranked), compare_ranked);
    return ISO_OK;
}

static enum iso_err check_unigram(const struct tok_source *src, const struct tok_view *v,
                                  struct iso_errinfo *reterr)
{
    for (uint32_t id = 0; id < src->n_tokens; id++)
        if (tok_type_is_key(tok_type(v, id)) && tok_bytes(v, id).len > TOK_UNIGRAM_BYTES_MAX)
            return iso_fail(reterr, ISO_E_LIMIT, 0, "tokens",
                            "token %" PRIu32 " is %zu bytes long, the limit of a unigram vocabulary is %u",
                            id, tok_bytes(v, id).len, TOK_UNIGRAM_BYTES_MAX);
    return ISO_OK;
}

// The normal tokens in the order of their bytes. User-defined ones are cut out of text before.
static enum iso_err sort_keys(const struct tok_view *v, struct buf *out, struct iso_errinfo *reterr)
{
    for (uint32_t id = 0; id < v->header->n_tokens; id++) {
        struct strv bytes = tok_bytes(v, id);
        if (tok_type(v, id) == TOK_TYPE_NORMAL && bytes.len > 0 && buf_append(out, &id, sizeof id))
            return iso_fail(reterr, ISO_E_NOMEM, 0, "tokens", "the system refused memory for the vocabulary");
    }
    if (out->len > 0)
        qsort_r(out->ptr, out->len / sizeof(uint32_t), sizeof(uint32_t), special_compare,
                (void *)(uintptr_t)v);
    return ISO_OK;
}

// The edges of the tree of their bytes, into *out as struct ranked: of each key those past what it shares with the key
// before it.
static enum iso_err make_edges(const struct tok_view *v, const struct buf *keys, struct buf *out,
                               struct iso_errinfo *reterr)
{
    uint32_t path[TOK_UNIGRAM_BYTES_MAX + 1] = {0}, n_edges = 0; // nodes along the key before
    const uint32_t *ids = (const uint32_t *)keys->ptr;
    struct strv before = {0};
    for (size_t i = 0; i < keys->len / sizeof *ids; i++) {
        struct strv bytes = tok_bytes(v, ids[i]);
        size_t shared = 0;
        while (shared < before.len && shared < bytes.len && before.ptr[shared] == bytes.ptr[shared])
            shared++;
        for (size_t at = shared; at < bytes.len; at++) {
            bool last = at + 1 == bytes.len;
            struct ranked edge = {
                .merge = {.left = path[at], .right = (uint8_t)bytes.ptr[at], .merged = TOK_NONE}};
            edge.merge.merged = last ? ids[i] : TOK_NONE;
            if (n_edges == TOK_EDGES_MAX)
                return iso_fail(reterr, ISO_E_LIMIT, 0, "tokens",
                                "the vocabulary's texts branch more than %u times", TOK_EDGES_MAX);
            if (buf_append(out, &edge, sizeof edge))
                return iso_fail(reterr, ISO_E_NOMEM, 0, "tokens",
                                "the system refused memory for the vocabulary");
            path[at + 1] = ++n_edges;
        }
        before = bytes;
    }
    return ISO_OK;
}

static enum iso_err build_tree(const struct tok_source *src, const struct tok_view *v, struct buf *out,
                               struct iso_errinfo *reterr)
{
    struct buf keys;
    buf_init(&keys, TOK_TOKENS_MAX * sizeof(uint32_t));
    enum iso_err err = check_unigram(src, v, reterr);
    if (!err)
        err = sort_keys(v, &keys, reterr);
    if (!err)
        err = make_edges(v, &keys, out, reterr);
    buf_deinit(&keys);
    return err;
}

// The vocabulary without merges first, to look tokens up in.
static enum iso_err build_by_scores(const struct tok_source *src, struct buf *out, struct iso_errinfo *reterr)
{
    static const struct ranked NONE;
    struct buf plain, ranked;
    buf_init(&plain, out->max);
    buf_init(&ranked, (src->unigram ? TOK_EDGES_MAX : TOK_MERGES_MAX) * sizeof(struct ranked));
    enum iso_err err = build(src, &NONE, 0, &plain, reterr);
    struct tok_view view;
    if (!err)
        err = tok_blob_check(plain.ptr, plain.len, &view, reterr);
    if (!err)
        err = (src->unigram ? build_tree : rank_merges)(src, &view, &ranked, reterr);
    if (!err)
        err = build(src, ranked.len ? (const struct ranked *)ranked.ptr : &NONE,
                    (uint32_t)(ranked.len / sizeof(struct ranked)), out, reterr);
    buf_deinit(&plain);
    buf_deinit(&ranked);
    return err;
}

enum iso_err tok_build(const struct tok_source *src, struct buf *out, struct iso_errinfo *reterr)
{
    return src->scores || src->unigram ? build_by_scores(src, out, reterr) : build(src, NULL, 0, out, reterr);
}
