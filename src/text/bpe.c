#include "text/bpe.h"

#include "base/utf8.h"
#include "text/pretok.h"

// One symbol of the piece. The symbols left are a list in the order of text; `next` is the array's length at
// its end, `prev` is NO_SYMBOL at its beginning.
struct symbol {
    uint32_t id;
    uint32_t prev, next;
    uint32_t rank; // of the merge with the next one; TOK_NONE where there is none, or this symbol is gone
};

#define NO_SYMBOL UINT32_MAX

// Candidates: rank in the high half, place in the low one, so that the smallest is the next to merge. One is
// stale, and skipped, where the symbol at its place has another rank by now.
struct heap {
    uint64_t *items;
    size_t n, max;
};

size_t bpe_work_bytes(size_t n)
{
    // A merge takes one candidate and adds at most two: never more than twice the symbols.
    return n * (sizeof(struct symbol) + 2 * sizeof(uint64_t));
}

static void heap_push(struct heap *h, uint64_t item)
{
    ASSERT_HOT(h->n < h->max);
    size_t i = h->n++;
    for (; i > 0 && h->items[(i - 1) / 2] > item; i = (i - 1) / 2)
        h->items[i] = h->items[(i - 1) / 2];
    h->items[i] = item;
}

static uint64_t heap_pop(struct heap *h)
{
    uint64_t top = h->items[0], last = h->items[--h->n];
    size_t i = 0;
    for (size_t child; (child = 2 * i + 1) < h->n; i = child) {
        if (child + 1 < h->n && h->items[child + 1] < h->items[child])
            child++;
        if (h->items[child] >= last)
            break;
        h->items[i] = h->items[child];
    }
    h->items[i] = last;
    return top;
}

// Looks up the merge of the symbol at `at` with its next one and makes it a candidate.
static void consider(const struct tok_view *v, struct symbol *symbols, uint32_t n, uint32_t at,
                     struct heap *h)
{
    struct symbol *s = &symbols[at];
    s->rank = s->next < n ? tok_merge_find(v, s->id, symbols[s->next].id) : TOK_NONE;
    if (s->rank != TOK_NONE)
        heap_push(h, (uint64_t)s->rank << 32 | at);
}

static uint32_t add_symbol(struct symbol *symbols, uint32_t n, uint32_t id)
{
    symbols[n] = (struct symbol){.id = id, .prev = n > 0 ? n - 1 : NO_SYMBOL, .next = n + 1};
    return n + 1;
}

// A symbol for each byte.
static uint32_t split_bytes(const struct tok_view *v, struct strv piece, struct symbol *symbols)
{
    uint32_t n = 0;
    for (size_t i = 0; i < piece.len; i++) {
        uint32_t id = v->header->byte_ids[(uint8_t)piece.ptr[i]];
        if (id != TOK_NONE)
            n = add_symbol(symbols, n, id);
    }
    return n;
}

// A symbol for each character; one without a token becomes its bytes, or where they have none, with others beside it,
// the unknown token.
static uint32_t split_characters(const struct tok_view *v, struct strv piece, struct symbol *symbols)
{
    uint32_t n = 0, unknown = v->header->roles[TOK_UNK];
    for (size_t i = 0, length; i < piece.len; i += length) {
        uint32_t cp;
        length = utf8_decode((const uint8_t *)piece.ptr + i, piece.len - i, &cp);
        ASSERT(length > 0);
        uint32_t id = tok_key_find(v, (struct strv){piece.ptr + i, length});
        bool has_bytes = true;
        for (size_t j = 0; j < length; j++)
            has_bytes = has_bytes && v->header->byte_ids[(uint8_t)piece.ptr[i + j]] != TOK_NONE;
        if (id == TOK_NONE && has_bytes) {
            for (size_t j = 0; j < length; j++)
                n = add_symbol(symbols, n, v->header->byte_ids[(uint8_t)piece.ptr[i + j]]);
            continue;
        }
        id = id == TOK_NONE ? unknown : id;
        if (id != TOK_NONE && (id != unknown || n == 0 || symbols[n - 1].id != unknown))
            n = add_symbol(symbols, n, id);
    }
    return n;
}

bool bpe_encode(const struct tok_view *v, void *work, struct strv piece, uint32_t *ids, size_t max,
                size_t *ret_n)
{
    ASSERT(piece.len <= TOK_TEXT_BYTES_MAX);
    struct symbol *symbols = work;
    struct heap heap = {(uint64_t *)(symbols + piece.len), 0, 2 * piece.len};
    uint32_t n = pretok_is_sentencepiece(v->header->pretok) ? split_characters(v, piece, symbols)
                                                            : split_bytes(v, piece, symbols);
    for (uint32_t i = 0; i < n; i++)
        consider(v, symbols, n, i, &heap);

    while (heap.n > 0) {
        uint64_t top = heap_pop(&heap);
        uint32_t rank = (uint32_t)(top >> 32), at = (uint32_t)top;
        struct symbol *s = &symbols[at];
        if (s->rank != rank)
            continue;
        s->id = v->merges[rank].merged;
        symbols[s->next].rank = TOK_NONE;
        s->next = symbols[s->next].next;
        if (s->next < n)
            symbols[s->next].prev = at;
        if (s->prev != NO_SYMBOL)
            consider(v, symbols, n, s->prev, &heap);
        consider(v, symbols, n, at, &heap);
    }

    size_t n_ids = 0;
    for (uint32_t i = 0; i < n; i = symbols[i].next) {
        if (n_ids == max)
            return false;
        ids[n_ids++] = symbols[i].id;
    }
    *ret_n = n_ids;
    return true;
}
