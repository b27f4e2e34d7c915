// The tokenizer on hostile input. The first byte chooses, by its remainder of 3: 0, the rest is a block that tok_open is
// given, and, where it opens, a text is encoded with it; 1, the rest is text for a small good tokenizer of one of the
// kinds, which has to come back from the detokenizer as Unicode says; 2, the rest changes bytes of such a tokenizer's
// block: three of a place, one of a value.
#include <stdlib.h>
#include <string.h>

#include "base/num.h"
#include "text/detok.h"
#include "text/pretok.h"
#include "text/stop.h"
#include "text/tokenizer.h"
#include "../unit/tok_small.h"

#define BLOB_MAX ((size_t)1 << 20)
#define TEXT_MAX ((size_t)16 << 10)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static uint32_t ids[TEXT_MAX];

static void check(bool ok)
{
    if (!ok)
        abort();
}

static void fuzz_block(const uint8_t *data, size_t n)
{
    uint8_t *block = aligned_alloc(16, num_align(n, 16) + 16);
    check(block);
    memcpy(block, data, n);
    struct tokenizer *t;
    struct iso_errinfo err;
    if (tok_open(block, n, TEXT_MAX, &t, &err) == ISO_OK) {
        struct strv text = STRV_LIT("<|s|>hello <tool>x he'll 123  \n\xc3\xa9\xff<|e|> hhhheeee lllo");
        size_t n_ids;
        check(tok_encode(t, text, TOK_SPECIAL, true, ids, TEXT_MAX, &n_ids, &err) == ISO_OK);
        struct detok d;
        detok_init(&d, t);
        char out[DETOK_OUT_MAX];
        for (size_t i = 0; i < n_ids; i++)
            check(detok_push(&d, ids[i], out) <= sizeof out);
        for (uint32_t id = 0; id < tok_count(t); id++)
            (void)tok_find(t, tok_piece(t, id));
        tok_close(t);
    }
    free(block);
}

// Byte-level kinds, then unigram.
static const enum pretok_kind KINDS[] = {PRETOK_GPT2, PRETOK_SMOLLM, PRETOK_QWEN2, PRETOK_LLAMA_BPE,
                                         PRETOK_TEKKEN};
#define BYTE_LEVEL ARRAY_LEN(KINDS)

// The good blocks, built at the first use.
static const struct buf *small_block(size_t kind)
{
    static struct small_vocab vocab;
    static struct buf blobs[BYTE_LEVEL + 1];
    if (!blobs[kind].ptr) {
        if (kind < BYTE_LEVEL)
            small_init(&vocab, pretok_name(KINDS[kind]), 0, 255);
        else
            small_init_unigram(&vocab);
        buf_init(&blobs[kind], BLOB_MAX);
        check(tok_build(&vocab.src, &blobs[kind], NULL) == ISO_OK);
    }
    return &blobs[kind];
}

static struct tokenizer *small_tokenizer(size_t kind)
{
    static struct tokenizer *tokenizers[BYTE_LEVEL];
    const struct buf *block = small_block(kind);
    if (!tokenizers[kind])
        check(tok_open(block->ptr, block->len, TEXT_MAX, &tokenizers[kind], NULL) == ISO_OK);
    return tokenizers[kind];
}

static void fuzz_changed(size_t kind, const uint8_t *data, size_t n)
{
    static uint8_t changed[BLOB_MAX];
    const struct buf *block = small_block(kind);
    memcpy(changed, block->ptr, block->len);
    for (; n >= 4; n -= 4, data += 4)
        changed[(data[0] | (size_t)data[1] << 8 | (size_t)data[2] << 16) % block->len] = data[3];
    fuzz_block(changed, block->len);
}

// What the text is after its invalid parts are replaced.
static size_t replace_invalid(const uint8_t *s, size_t n, char *out)
{
    size_t n_out = 0;
    for (size_t i = 0; i < n;) {
        uint32_t cp = UTF8_REPLACEMENT;
        size_t len = utf8_decode(s + i, n - i, &cp);
        i += len > 0 ? len : utf8_invalid_length(s + i, n - i);
        n_out += utf8_encode(cp, (uint8_t *)out + n_out);
    }
    return n_out;
}

static void fuzz_text(size_t kind, const uint8_t *s, size_t n)
{
    static char got[DETOK_OUT_MAX + TEXT_MAX * 3], want[TEXT_MAX * 3];
    struct tokenizer *t = small_tokenizer(kind);
    struct iso_errinfo err;
    size_t n_ids, n_got = 0;
    enum iso_err e =
        tok_encode(t, (struct strv){(const char *)s, n}, TOK_PLAIN, false, ids, TEXT_MAX, &n_ids, &err);
    check(e == ISO_OK || (e == ISO_E_LIMIT && n > TEXT_MAX / 3));
    if (e)
        return;
    struct detok d;
    detok_init(&d, t);
    for (size_t i = 0; i < n_ids; i++)
        n_got += detok_push(&d, ids[i], got + n_got);
    n_got += detok_flush(&d, got + n_got);
    size_t n_want = replace_invalid(s, n, want);
    if (!pretok_normalizes(KINDS[kind]))
        check(n_got == n_want && memcmp(got, want, n_got) == 0);

    // The same text as a stream with a stop string made of its own bytes: all before it comes out.
    struct stop stop;
    struct strv own = {want, num_min(n_want, 1 + kind)};
    if (stop_init(&stop, &own, 1, NULL) != ISO_OK)
        return;
    static char out[TEXT_MAX * 3 + STOP_HELD_MAX];
    bool hit = false;
    check(stop_push(&stop, (struct strv){want, n_want}, out, &hit) == 0 && hit);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    if (n < 1 || n - 1 > TEXT_MAX)
        return 0;
    size_t kind = data[0] / 3;
    if (data[0] % 3 == 0)
        fuzz_block(data + 1, n - 1);
    else if (data[0] % 3 == 1)
        fuzz_text(kind % BYTE_LEVEL, data + 1, n - 1);
    else
        fuzz_changed(kind % (BYTE_LEVEL + 1), data + 1, n - 1);
    return 0;
}
