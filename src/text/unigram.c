#include "text/unigram.h"

#include <string.h>

#include "base/utf8.h"

#define UNKNOWN_PENALTY 10.0
#define NOWHERE         UINT32_MAX

// The best way to a place in the text: the token that ends there, and where it begins.
struct step {
    double score; // of all tokens up to there
    uint32_t id, from;
};

size_t unigram_work_bytes(size_t n)
{
    return (n + 1) * sizeof(struct step);
}

static void offer(struct step *to, double score, uint32_t id, uint32_t from)
{
    if (to->from == NOWHERE || score > to->score)
        *to = (struct step){.score = score, .id = id, .from = from};
}

// Every token that begins at `at`, by way of the edges from the root.
static void offer_tokens(const struct tok_view *v, struct strv piece, uint32_t at, uint32_t character,
                         struct step *steps)
{
    double before = steps[at].score;
    bool alone = false;
    uint32_t node = 0;
    for (uint32_t n = 0; at + n < piece.len && n < TOK_UNIGRAM_BYTES_MAX; n++) {
        uint32_t edge = tok_merge_find(v, node, (uint8_t)piece.ptr[at + n]);
        if (edge == TOK_NONE)
            break;
        node = edge + 1;
        uint32_t id = v->merges[edge].merged;
        if (id == TOK_NONE)
            continue;
        offer(&steps[at + n + 1], v->scores[id] + before, id, at);
        alone = alone || n + 1 == character;
    }
    if (!alone)
        offer(&steps[at + character], v->least_score - UNKNOWN_PENALTY + before, v->header->roles[TOK_UNK],
              at);
}

// Tokens of the bytes of unknown text, or the unknown token; ids from the end backwards.
static bool put_unknown(const struct tok_view *v, struct strv text, uint32_t *ids, size_t *left)
{
    uint32_t whole = tok_key_find(v, text); // the unknown token's own name
    bool has_bytes = whole == TOK_NONE;
    for (size_t i = 0; i < text.len; i++)
        has_bytes = has_bytes && v->header->byte_ids[(uint8_t)text.ptr[i]] != TOK_NONE;
    if (*left < (has_bytes ? text.len : 1))
        return false;
    if (!has_bytes)
        ids[--*left] = whole == TOK_NONE ? v->header->roles[TOK_UNK] : whole;
    for (size_t i = text.len; has_bytes && i-- > 0;)
        ids[--*left] = v->header->byte_ids[(uint8_t)text.ptr[i]];
    return true;
}

bool unigram_encode(const struct tok_view *v, void *work, struct strv piece, uint32_t *ids, size_t max,
                    size_t *ret_n)
{
    ASSERT(piece.len <= TOK_TEXT_BYTES_MAX);
    struct step *steps = work;
    uint32_t unknown = v->header->roles[TOK_UNK];
    for (size_t i = 0; i <= piece.len; i++)
        steps[i] = (struct step){.from = NOWHERE};
    for (size_t at = 0, length; at < piece.len; at += length) {
        uint32_t cp;
        length = utf8_decode((const uint8_t *)piece.ptr + at, piece.len - at, &cp);
        ASSERT(length > 0);
        offer_tokens(v, piece, (uint32_t)at, (uint32_t)length, steps);
    }
    // Back from the end: the last ids first, at the end of ids[].
    size_t left = max;
    for (size_t end = piece.len; end > 0;) {
        size_t from = steps[end].from;
        bool fits = left > 0;
        if (steps[end].id != unknown) {
            if (fits)
                ids[--left] = steps[end].id;
        } else {
            while (from > 0 && steps[from].id == unknown)
                from = steps[from].from;
            fits = put_unknown(v, (struct strv){piece.ptr + from, end - from}, ids, &left);
        }
        if (!fits)
            return false;
        end = from;
    }
    *ret_n = max - left;
    memmove(ids, ids + left, *ret_n * sizeof *ids);
    return true;
}
