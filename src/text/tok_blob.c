#include "text/tok_blob.h"

#include <inttypes.h>
#include <string.h>

#include "base/hash.h"
#include "base/num.h"
#include "text/pretok.h"

static uint32_t slots_for(uint32_t n)
{
    uint32_t slots = 2;
    while (slots < 2 * n)
        slots *= 2;
    return slots;
}

bool tok_layout(const struct tok_blob_header *h, struct tok_layout *ret)
{
    bool unigram = (h->flags & TOK_FLAG_UNIGRAM) != 0;
    if (h->n_tokens == 0 || h->n_tokens > TOK_TOKENS_MAX ||
        h->n_merges > (unigram ? TOK_EDGES_MAX : TOK_MERGES_MAX) || h->n_specials > h->n_tokens ||
        h->vocab_bytes > TOK_VOCAB_BYTES_MAX)
        return false;
    struct tok_layout l = {.n_token_slots = slots_for(h->n_tokens), .n_merge_slots = slots_for(h->n_merges)};
    l.scores = sizeof *h;
    l.starts = l.scores + (unigram ? sizeof(double) * (uint64_t)h->n_tokens : 0);
    l.token_slots = l.starts + 4 * ((uint64_t)h->n_tokens + 1);
    l.merges = l.token_slots + 4 * (uint64_t)l.n_token_slots;
    l.merge_slots = l.merges + sizeof(struct tok_merge) * (uint64_t)h->n_merges;
    l.specials = l.merge_slots + 4 * (uint64_t)l.n_merge_slots;
    l.kinds = l.specials + 4 * (uint64_t)h->n_specials;
    l.bytes = l.kinds + h->n_tokens;
    l.end = num_align(l.bytes + h->vocab_bytes, TOK_BLOB_ALIGN);
    *ret = l;
    return true;
}

struct tok_view tok_view_make(const void *blob, const struct tok_layout *l)
{
    const uint8_t *base = blob;
    return (struct tok_view){
        .header = blob,
        .scores = l->starts > l->scores ? (const double *)(base + l->scores) : NULL,
        .starts = (const uint32_t *)(base + l->starts),
        .token_slots = (const uint32_t *)(base + l->token_slots),
        .merge_slots = (const uint32_t *)(base + l->merge_slots),
        .specials = (const uint32_t *)(base + l->specials),
        .merges = (const struct tok_merge *)(base + l->merges),
        .kinds = base + l->kinds,
        .bytes = base + l->bytes,
        .token_mask = l->n_token_slots - 1,
        .merge_mask = l->n_merge_slots - 1,
    };
}

uint32_t tok_key_hash(struct strv bytes)
{
    return (uint32_t)hash64(bytes.ptr, bytes.len);
}

uint32_t tok_pair_hash(uint32_t left, uint32_t right)
{
    // Fibonacci hashing, twice so that both ids reach the high bits.
    uint64_t x = ((uint64_t)left << 32 | right) * UINT64_C(0x9E3779B97F4A7C15);
    x = (x ^ x >> 32) * UINT64_C(0x9E3779B97F4A7C15);
    return (uint32_t)(x >> 32);
}

uint32_t tok_key_find(const struct tok_view *v, struct strv bytes)
{
    for (uint32_t i = tok_key_hash(bytes);; i++) {
        uint32_t id = v->token_slots[i & v->token_mask];
        if (id == TOK_NONE || strv_equal(tok_bytes(v, id), bytes))
            return id;
    }
}

uint32_t tok_merge_find(const struct tok_view *v, uint32_t left, uint32_t right)
{
    for (uint32_t i = tok_pair_hash(left, right);; i++) {
        uint32_t rank = v->merge_slots[i & v->merge_mask];
        if (rank == TOK_NONE || (v->merges[rank].left == left && v->merges[rank].right == right))
            return rank;
    }
}

int tok_compare(struct strv a, struct strv b)
{
    size_t n = num_min(a.len, b.len);
    int order = n > 0 ? memcmp(a.ptr, b.ptr, n) : 0;
    return order != 0 ? order : (a.len > b.len) - (a.len < b.len);
}

static enum iso_err bad(struct iso_errinfo *reterr, const char *field, const char *what, uint32_t index)
{
    return iso_fail(reterr, ISO_E_FORMAT, 0, field, "the tokenizer's %s %" PRIu32 " %s", field, index, what);
}

static enum iso_err check_header(const void *blob, size_t n, struct tok_layout *ret,
                                 struct iso_errinfo *reterr)
{
    const struct tok_blob_header *h = blob;
    if ((uintptr_t)blob % TOK_BLOB_ALIGN != 0)
        return iso_fail(reterr, ISO_E_FORMAT, 0, "tokenizer", "the tokenizer is not aligned to %d bytes",
                        TOK_BLOB_ALIGN);
    if (n < sizeof *h || memcmp(h->magic, TOK_BLOB_MAGIC, sizeof h->magic) != 0)
        return iso_fail(reterr, ISO_E_FORMAT, 0, "magic", "this is not a tokenizer");
    if (h->version != TOK_BLOB_VERSION)
        return iso_fail(reterr, ISO_E_VERSION, 0, "version",
                        "the tokenizer has version %" PRIu32 ", this program reads %d", h->version,
                        TOK_BLOB_VERSION);
    if (!tok_layout(h, ret))
        return iso_fail(reterr, ISO_E_FORMAT, 0, "counts", "a count of the tokenizer is over its limit");
    if (h->bytes != n || ret->end != n)
        return iso_fail(reterr, ISO_E_FORMAT, 0, "bytes",
                        "the tokenizer is %zu bytes long, its counts need %" PRIu64, n, ret->end);
    if (!pretok_name(h->pretok))
        return bad(reterr, "pre-tokenizer", "is unknown", h->pretok);
    if ((h->flags & ~TOK_FLAGS_KNOWN) != 0 || h->reserved != 0)
        return bad(reterr, "flags", "are unknown", h->flags);
    for (uint32_t i = 0; i < TOK_ROLE_COUNT; i++)
        if (h->roles[i] != TOK_NONE && h->roles[i] >= h->n_tokens)
            return bad(reterr, "role", "names a token that does not exist", i);
    if ((h->flags & TOK_FLAG_ADD_BOS && h->roles[TOK_BOS] == TOK_NONE) ||
        (h->flags & TOK_FLAG_ADD_EOS && h->roles[TOK_EOS] == TOK_NONE))
        return bad(reterr, "flags", "add a token that the vocabulary does not name", h->flags);
    return ISO_OK;
}

static enum iso_err check_tokens(const struct tok_view *v, struct iso_errinfo *reterr)
{
    const struct tok_blob_header *h = v->header;
    if (v->starts[0] != 0 || v->starts[h->n_tokens] != h->vocab_bytes)
        return bad(reterr, "token", "has a wrong start", v->starts[0] != 0 ? 0 : h->n_tokens);
    for (uint32_t id = 0; id < h->n_tokens; id++) {
        // The sum of bounded lengths up to vocab_bytes: no start can pass the end unseen.
        if (v->starts[id + 1] < v->starts[id] || v->starts[id + 1] - v->starts[id] > TOK_TOKEN_BYTES_MAX ||
            v->starts[id + 1] > h->vocab_bytes)
            return bad(reterr, "token", "has a wrong length", id);
        uint32_t type = tok_type(v, id);
        if (type < TOK_TYPE_NORMAL || type > TOK_TYPE_BYTE ||
            (v->kinds[id] & ~(TOK_KIND_TYPE | TOK_KIND_EOG)) != 0)
            return bad(reterr, "token", "has an unknown type", id);
    }
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t id = h->byte_ids[byte];
        if (id == TOK_NONE)
            continue;
        char c = (char)byte;
        if (id >= h->n_tokens ||
            (pretok_is_sentencepiece(h->pretok) ? tok_type(v, id) != TOK_TYPE_BYTE
                                                : !tok_type_is_key(tok_type(v, id))) ||
            !strv_equal(tok_bytes(v, id), (struct strv){&c, 1}))
            return bad(reterr, "token for byte", "is another one", byte);
    }
    return ISO_OK;
}

// Scores, and the edges of the tree: each leads to a new node from one before it.
static enum iso_err check_unigram(struct tok_view *v, struct iso_errinfo *reterr)
{
    const struct tok_blob_header *h = v->header;
    if (!pretok_is_sentencepiece(h->pretok) || h->roles[TOK_UNK] == TOK_NONE)
        return bad(reterr, "flags", "are those of another pre-tokenizer, or there is no unknown token",
                   h->flags);
    v->least_score = v->scores[0];
    for (uint32_t id = 0; id < h->n_tokens; id++) {
        if (!(v->scores[id] >= -TOK_SCORE_MAX && v->scores[id] <= TOK_SCORE_MAX)) // a NaN is neither
            return bad(reterr, "score", "is out of range", id);
        if (v->scores[id] < v->least_score)
            v->least_score = v->scores[id];
    }
    for (uint32_t i = 0; i < h->n_merges; i++) {
        const struct tok_merge *m = &v->merges[i];
        if (m->left > i || m->right > UINT8_MAX ||
            (m->merged != TOK_NONE && (m->merged >= h->n_tokens || !tok_type_is_key(tok_type(v, m->merged)))))
            return bad(reterr, "edge", "leads to no new node or names a token that it must not", i);
    }
    return ISO_OK;
}

static enum iso_err check_merges(const struct tok_view *v, struct iso_errinfo *reterr)
{
    uint32_t n = v->header->n_tokens;
    for (uint32_t rank = 0; rank < v->header->n_merges; rank++) {
        const struct tok_merge *m = &v->merges[rank];
        if (m->left >= n || m->right >= n || m->merged >= n || !tok_type_is_key(tok_type(v, m->merged)))
            return bad(reterr, "merge", "names a token that it must not", rank);
        struct strv left = tok_bytes(v, m->left), right = tok_bytes(v, m->right),
                    all = tok_bytes(v, m->merged);
        if (all.len != left.len + right.len || left.len == 0 || right.len == 0 ||
            memcmp(all.ptr, left.ptr, left.len) != 0 || memcmp(all.ptr + left.len, right.ptr, right.len) != 0)
            return bad(reterr, "merge", "does not join its two tokens", rank);
    }
    return ISO_OK;
}

static enum iso_err check_specials(const struct tok_view *v, struct iso_errinfo *reterr)
{
    struct strv before = {0};
    for (uint32_t i = 0; i < v->header->n_specials; i++) {
        uint32_t id = v->specials[i];
        if (id >= v->header->n_tokens || !tok_type_is_special(tok_type(v, id)))
            return bad(reterr, "special token", "is not special", i);
        struct strv bytes = tok_bytes(v, id);
        // Strictly ascending from the empty text: none is empty, none is there twice.
        if (bytes.len > TOK_SPECIAL_BYTES_MAX || tok_compare(before, bytes) >= 0)
            return bad(reterr, "special token", "is empty, too long, a duplicate or out of order", i);
        before = bytes;
    }
    return ISO_OK;
}

// Every slot in range and every run of occupied slots short enough, around the end too.
static enum iso_err check_slots(const uint32_t *slots, uint32_t mask, uint32_t limit, const char *field,
                                struct iso_errinfo *reterr)
{
    uint32_t run = 0;
    for (uint64_t i = 0; i < 2 * ((uint64_t)mask + 1); i++) {
        uint32_t value = slots[i & mask];
        if (value != TOK_NONE && value >= limit)
            return bad(reterr, field, "is out of range", (uint32_t)(i & mask));
        run = value == TOK_NONE ? 0 : run + 1;
        // A table with no empty slot makes a run of twice its size, and has to be refused as well.
        if (run > num_min(TOK_PROBE_MAX, mask))
            return bad(reterr, field, "ends too long a run (colliding hashes)", (uint32_t)(i & mask));
    }
    return ISO_OK;
}

enum iso_err tok_blob_check(const void *blob, size_t n, struct tok_view *ret, struct iso_errinfo *reterr)
{
    struct tok_layout layout;
    enum iso_err err = check_header(blob, n, &layout, reterr);
    if (err)
        return err;
    struct tok_view v = tok_view_make(blob, &layout);
    if ((err = check_tokens(&v, reterr)) ||
        (err = v.scores ? check_unigram(&v, reterr) : check_merges(&v, reterr)) ||
        (err = check_specials(&v, reterr)) ||
        (err = check_slots(v.token_slots, v.token_mask, v.header->n_tokens, "token slot", reterr)) ||
        (err = check_slots(v.merge_slots, v.merge_mask, v.header->n_merges, "merge slot", reterr)))
        return err;
    for (uint32_t i = 0; i <= v.token_mask; i++)
        if (v.token_slots[i] != TOK_NONE && !tok_type_is_key(tok_type(&v, v.token_slots[i])))
            return bad(reterr, "token slot", "holds a token that text must not become", i);
    *ret = v;
    return ISO_OK;
}
