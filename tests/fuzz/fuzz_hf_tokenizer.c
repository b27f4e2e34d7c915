// tokenizer.json: data is the file. What is accepted builds a block that opens and encodes.
#include <stddef.h>
#include <stdint.h>

#include "base/assert.h"
#include "formats/json_file.h"
#include "model/hf.h"

#define ARENA_BYTES ((size_t)64 << 20)
#define TEXT_BYTES  256

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void build(const struct tok_source *src)
{
    static const char TEXT[] = "Hello <0x41>\xE2\x96\x81 w\xC3\xB6rld  123\n<s>";
    struct buf blob;
    struct iso_errinfo e = {0};
    struct tokenizer *t;
    uint32_t ids[TEXT_BYTES + 2];
    size_t n;
    buf_init(&blob, ARENA_BYTES);
    if (tok_build(src, &blob, &e) == ISO_OK) {
        ASSERT(tok_open(blob.ptr, blob.len, TEXT_BYTES, &t, &e) == ISO_OK);
        enum iso_err err = tok_encode(t, STRV_LIT(TEXT), TOK_SPECIAL, true, ids, TEXT_BYTES + 2, &n, &e);
        for (size_t i = 0; !err && i < n; i++)
            ASSERT(ids[i] < tok_count(t));
        tok_close(t);
    } else {
        ASSERT(e.text[0] != '\0');
    }
    buf_deinit(&blob);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    json_t *json;
    struct iso_errinfo e = {0};
    if (json_parse((struct strv){(const char *)data, size}, &json, &e))
        return 0;
    struct hf hf = {.folder = -1, .config = json, .tokenizer_config = json};
    struct arena arena;
    struct tok_source src;
    ASSERT(arena_init(&arena, ARENA_BYTES) == ISO_OK);
    enum iso_err err = hf_vocabulary(&hf, json, &arena, &src, &e);
    ASSERT(err == e.code && (err == ISO_OK || e.text[0] != '\0'));
    if (!err && src.n_tokens < 4096)
        build(&src);
    arena_deinit(&arena);
    json_decref(json);
    return 0;
}
