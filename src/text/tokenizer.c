#include "text/tokenizer.h"

#include <string.h>

#include "base/arena.h"
#include "base/num.h"
#include "base/utf8.h"
#include "text/bpe.h"
#include "text/nfc.h"
#include "text/pretok.h"
#include "text/tok_blob.h"
#include "text/unigram.h"

struct tokenizer {
    struct tok_view view;
    struct arena arena; // holds this struct too
    struct pretok *pretok;
    size_t text_bytes_max;
    uint8_t *clean;           // text_bytes_max: the text with invalid parts replaced
    uint8_t *normal;          // text_bytes_max: one stretch of it, normalized
    void *work;               // of normalizing, then of merging
    bool starts_special[256]; // first bytes of special tokens
};

// Where tok_encode puts ids.
struct sink {
    uint32_t *ids;
    size_t n, max;
};

static size_t work_bytes(size_t text_bytes_max)
{
    uint64_t most = num_max(bpe_work_bytes(text_bytes_max), unigram_work_bytes(text_bytes_max));
    return (size_t)num_max(most, nfc_work_bytes(text_bytes_max));
}

static size_t arena_bytes(size_t text_bytes_max)
{
    return (size_t)(num_align(sizeof(struct tokenizer), ARENA_ALIGN) +
                    2 * num_align(text_bytes_max, ARENA_ALIGN) +
                    num_align(work_bytes(text_bytes_max), ARENA_ALIGN));
}

size_t tok_text_bytes_for(uint32_t tokens)
{
    return num_min(num_max((uint64_t)tokens * TOK_TEXT_BYTES_TOKEN, TOK_TEXT_BYTES_MIN), TOK_TEXT_BYTES_MAX);
}

size_t tok_runtime_bytes(size_t text_bytes_max)
{
    return arena_bytes(text_bytes_max) + pretok_bytes(text_bytes_max);
}

enum iso_err tok_open(const void *blob, size_t n, size_t text_bytes_max, struct tokenizer **ret,
                      struct iso_errinfo *reterr)
{
    ASSERT(text_bytes_max > 0 && text_bytes_max <= TOK_TEXT_BYTES_MAX);
    struct tok_view view;
    enum iso_err err = tok_blob_check(blob, n, &view, reterr);
    if (err)
        return err;
    struct pretok *pretok;
    err = pretok_open(view.header->pretok, text_bytes_max, &pretok, reterr);
    if (err)
        return err;
    struct arena arena;
    err = arena_init(&arena, arena_bytes(text_bytes_max));
    if (err) {
        pretok_close(pretok);
        return iso_fail(reterr, err, 0, "tokenizer", "the system refused %zu bytes for the tokenizer",
                        arena_bytes(text_bytes_max));
    }
    memset(arena.base, 0, arena.cap); // touched: what the account counts is resident from the start
    struct tokenizer *t = arena_alloc(&arena, sizeof *t);
    ASSERT(t);
    *t = (struct tokenizer){.view = view, .pretok = pretok, .text_bytes_max = text_bytes_max};
    t->clean = arena_alloc(&arena, text_bytes_max);
    t->normal = arena_alloc(&arena, text_bytes_max);
    t->work = arena_alloc(&arena, work_bytes(text_bytes_max));
    t->arena = arena;
    ASSERT(t->clean && t->normal && t->work);
    for (uint32_t i = 0; i < view.header->n_specials; i++)
        t->starts_special[(uint8_t)tok_bytes(&view, view.specials[i]).ptr[0]] = true;
    *ret = t;
    return ISO_OK;
}

void tok_close(struct tokenizer *t)
{
    if (!t)
        return;
    pretok_close(t->pretok);
    struct arena arena = t->arena; // t itself lies in it
    arena_deinit(&arena);
}

// Replaces each maximal invalid part by U+FFFD.
static enum iso_err clean_text(struct tokenizer *t, struct strv text, struct strv *ret)
{
    const uint8_t *s = (const uint8_t *)text.ptr;
    if (utf8_is_valid(s, text.len)) {
        *ret = text;
        return ISO_OK;
    }
    size_t n = 0;
    for (size_t i = 0; i < text.len;) {
        uint32_t cp;
        uint8_t bytes[UTF8_MAX_BYTES];
        size_t used = utf8_decode(s + i, text.len - i, &cp);
        if (used == 0) {
            used = utf8_invalid_length(s + i, text.len - i);
            cp = UTF8_REPLACEMENT;
        }
        size_t len = utf8_encode(cp, bytes);
        if (len > t->text_bytes_max - n)
            return ISO_E_LIMIT;
        memcpy(t->clean + n, bytes, len);
        n += len;
        i += used;
    }
    *ret = (struct strv){(const char *)t->clean, n};
    return ISO_OK;
}

// In specials[low..high), which agree on their first `depth` bytes: the first whose byte there is not below
// c.
static uint32_t lower_bound(const struct tok_view *v, uint32_t low, uint32_t high, size_t depth, uint32_t c)
{
    while (low < high) {
        uint32_t mid = low + (high - low) / 2;
        struct strv bytes = tok_bytes(v, v->specials[mid]);
        if (bytes.len <= depth || (uint8_t)bytes.ptr[depth] < c)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

// The longest special token at the start of s[0..n), or TOK_NONE. Narrows the sorted list byte by byte.
static uint32_t longest_special(const struct tok_view *v, const char *s, size_t n)
{
    uint32_t low = 0, high = v->header->n_specials, best = TOK_NONE;
    for (size_t depth = 0; depth < n && low < high; depth++) {
        uint32_t c = (uint8_t)s[depth];
        low = lower_bound(v, low, high, depth, c);
        high = lower_bound(v, low, high, depth, c + 1);
        // A token that ends here stands before all that go on.
        if (low < high && tok_bytes(v, v->specials[low]).len == depth + 1)
            best = v->specials[low];
    }
    return best;
}

// The leftmost special token to cut out of text from `at` on: its place, or the text's end and TOK_NONE. In
// TOK_PLAIN a token that isn't user-defined is stepped over as a whole, as Hugging Face does.
static size_t find_special(const struct tokenizer *t, struct strv text, enum tok_mode mode, size_t at,
                           uint32_t *ret_id)
{
    *ret_id = TOK_NONE;
    while (at < text.len) {
        uint32_t id = TOK_NONE;
        if (t->starts_special[(uint8_t)text.ptr[at]])
            id = longest_special(&t->view, text.ptr + at, text.len - at);
        if (id != TOK_NONE && (mode == TOK_SPECIAL || tok_type(&t->view, id) == TOK_TYPE_USER_DEFINED)) {
            *ret_id = id;
            break;
        }
        at += id == TOK_NONE ? 1 : tok_bytes(&t->view, id).len;
    }
    return at;
}

static enum iso_err too_many(const struct sink *sink, struct iso_errinfo *reterr)
{
    return iso_fail(reterr, ISO_E_LIMIT, 0, "text", "the text has more than %zu tokens", sink->max);
}

static enum iso_err too_long(const struct tokenizer *t, struct iso_errinfo *reterr)
{
    return iso_fail(reterr, ISO_E_LIMIT, 0, "text",
                    "the text is longer than %zu bytes (counted in valid, normalized UTF-8)",
                    t->text_bytes_max);
}

static enum iso_err put_id(struct sink *sink, uint32_t id, struct iso_errinfo *reterr)
{
    if (sink->n == sink->max)
        return too_many(sink, reterr);
    sink->ids[sink->n++] = id;
    return ISO_OK;
}

// SentencePiece's text: U+2581 and a space are one; a space in front where the model wants it.
static bool mark_spaces(struct tokenizer *t, struct strv text, bool first, struct strv *ret)
{
    enum tok_prefix prefix = (enum tok_prefix)((t->view.header->flags & TOK_FLAG_PREFIX) >> TOK_PREFIX_SHIFT);
    bool lacking = text.ptr[0] != ' ' && !strv_starts(text, TOK_MARK);
    size_t n = 0;
    if (prefix == TOK_PREFIX_EACH ||
        (lacking && (prefix == TOK_PREFIX_LACKING || (prefix == TOK_PREFIX_FIRST && first))))
        t->normal[n++] = ' ';
    for (size_t i = 0; i < text.len;) {
        bool mark = text.len - i >= TOK_MARK_BYTES && memcmp(text.ptr + i, TOK_MARK, TOK_MARK_BYTES) == 0;
        if (n == t->text_bytes_max)
            return false;
        t->normal[n++] = mark ? ' ' : (uint8_t)text.ptr[i];
        i += mark ? TOK_MARK_BYTES : 1;
    }
    *ret = (struct strv){(const char *)t->normal, n};
    return true;
}

// Text between special tokens; `first` where none is before it.
static enum iso_err encode_stretch(struct tokenizer *t, struct strv text, bool first, struct sink *sink,
                                   struct iso_errinfo *reterr)
{
    enum pretok_kind kind = t->view.header->pretok;
    if (text.len == 0)
        return ISO_OK;
    if (pretok_is_sentencepiece(kind) && !mark_spaces(t, text, first, &text))
        return too_long(t, reterr);
    if (pretok_normalizes(kind)) {
        size_t n;
        if (nfc_normalize(text, t->work, t->text_bytes_max, t->normal, t->text_bytes_max, &n))
            return too_long(t, reterr);
        text = (struct strv){(const char *)t->normal, n};
    }
    pretok_start(t->pretok, text);
    for (;;) {
        struct strv piece;
        enum iso_err err = pretok_next(t->pretok, &piece, reterr);
        if (err || piece.len == 0)
            return err;
        uint32_t whole = pretok_takes_whole(kind) ? tok_key_find(&t->view, piece) : TOK_NONE;
        if (whole != TOK_NONE) {
            err = put_id(sink, whole, reterr);
            if (err)
                return err;
            continue;
        }
        size_t n, left = sink->max - sink->n;
        if (!(t->view.scores ? unigram_encode : bpe_encode)(&t->view, t->work, piece, sink->ids + sink->n,
                                                            left, &n))
            return too_many(sink, reterr);
        sink->n += n;
    }
}

enum iso_err tok_encode(struct tokenizer *t, struct strv text, enum tok_mode mode, bool edges, uint32_t *ids,
                        size_t max, size_t *ret_n, struct iso_errinfo *reterr)
{
    ASSERT(mode == TOK_PLAIN || mode == TOK_SPECIAL);
    struct sink sink = {ids, 0, max};
    struct strv clean;
    if (text.len > t->text_bytes_max || clean_text(t, text, &clean))
        return too_long(t, reterr);
    enum iso_err err = ISO_OK;
    if (edges && tok_adds_bos(t))
        err = put_id(&sink, tok_role(t, TOK_BOS), reterr);
    for (size_t at = 0; !err && at < clean.len;) {
        uint32_t id;
        size_t end = find_special(t, clean, mode, at, &id);
        err = encode_stretch(t, (struct strv){clean.ptr + at, end - at}, at == 0, &sink, reterr);
        at = end;
        if (!err && id != TOK_NONE) {
            err = put_id(&sink, id, reterr);
            at += tok_bytes(&t->view, id).len;
        }
    }
    if (!err && edges && tok_adds_eos(t))
        err = put_id(&sink, tok_role(t, TOK_EOS), reterr);
    if (!err)
        *ret_n = sink.n;
    return err;
}

uint32_t tok_count(const struct tokenizer *t)
{
    return t->view.header->n_tokens;
}

uint32_t tok_merge_count(const struct tokenizer *t)
{
    return t->view.header->n_merges;
}

const char *tok_pre(const struct tokenizer *t)
{
    return pretok_name(t->view.header->pretok);
}

bool tok_adds_bos(const struct tokenizer *t)
{
    return (t->view.header->flags & TOK_FLAG_ADD_BOS) != 0;
}

bool tok_adds_eos(const struct tokenizer *t)
{
    return (t->view.header->flags & TOK_FLAG_ADD_EOS) != 0;
}

uint32_t tok_role(const struct tokenizer *t, enum tok_role role)
{
    ASSERT(role < TOK_ROLE_COUNT);
    return t->view.header->roles[role];
}

struct strv tok_piece(const struct tokenizer *t, uint32_t id)
{
    return id < tok_count(t) ? tok_bytes(&t->view, id) : (struct strv){0};
}

enum tok_type tok_type_of(const struct tokenizer *t, uint32_t id)
{
    return id < tok_count(t) ? tok_type(&t->view, id) : TOK_TYPE_UNUSED;
}

bool tok_is_control(const struct tokenizer *t, uint32_t id)
{
    return tok_type_of(t, id) == TOK_TYPE_CONTROL;
}

bool tok_is_eog(const struct tokenizer *t, uint32_t id)
{
    return id < tok_count(t) && (t->view.kinds[id] & TOK_KIND_EOG) != 0;
}

uint32_t tok_find(const struct tokenizer *t, struct strv bytes)
{
    const struct tok_view *v = &t->view;
    uint32_t low = 0, high = v->header->n_specials;
    while (low < high) {
        uint32_t mid = low + (high - low) / 2;
        int order = tok_compare(tok_bytes(v, v->specials[mid]), bytes);
        if (order == 0)
            return v->specials[mid];
        if (order < 0)
            low = mid + 1;
        else
            high = mid;
    }
    return tok_key_find(v, bytes);
}
