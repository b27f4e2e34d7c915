// Tokenizes and detokenizes records for tests/property/test_tokenizer.py.
//
//   tool_tokenize VOCABULARY encode|decode < records > results
//
// VOCABULARY is a file as below, or a folder with a Hugging Face tokenizer.json and tokenizer_config.json.
// All numbers are little-endian uint32_t but where said. The vocabulary file: length and bytes of the
// pre-tokenizer's name; count of tokens, each type, length, bytes; count of merges, each length, bytes; five
// ids (BOS, EOS, EOT, PAD, UNK); add_bos, add_eos; enum tok_prefix; whether scores follow, and those as f32, one for
// each token.
// encode: a record is mode (enum tok_mode), edges, length, bytes; its result count, ids, nanoseconds
// (uint64). decode: a record is count, ids; its result length, bytes of the text.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/clock.h"
#include "formats/folder.h"
#include "model/hf.h"
#include "text/detok.h"
#include "text/tokenizer.h"

#define FILE_BYTES_MAX ((size_t)256 << 20)
#define TEXT_BYTES_MAX ((size_t)4 << 20)

struct reader {
    const uint8_t *at, *end;
};

static void die(const char *what)
{
    fprintf(stderr, "tool_tokenize: %s\n", what);
    exit(1);
}

static const void *take(struct reader *r, size_t n)
{
    if (n > (size_t)(r->end - r->at))
        die("input ends early");
    r->at += n;
    return r->at - n;
}

static uint32_t take_u32(struct reader *r)
{
    uint32_t x;
    memcpy(&x, take(r, 4), 4);
    return x;
}

static struct strv take_text(struct reader *r)
{
    size_t n = take_u32(r);
    return (struct strv){take(r, n), n};
}

static void put(const void *bytes, size_t n)
{
    if (fwrite(bytes, 1, n, stdout) != n)
        die("cannot write");
}

static void put_u32(uint32_t x)
{
    put(&x, 4);
}

static struct reader read_all(FILE *f, struct arena *a)
{
    uint8_t *bytes = arena_alloc(a, FILE_BYTES_MAX);
    if (!f || !bytes)
        die("cannot open");
    return (struct reader){bytes, bytes + fread(bytes, 1, FILE_BYTES_MAX, f)};
}

static void build(struct reader r, struct arena *a, struct buf *blob)
{
    struct tok_source src = {.pre = take_text(&r)};
    src.n_tokens = take_u32(&r);
    struct strv *tokens = arena_array(a, src.n_tokens, sizeof *tokens);
    int32_t *types = arena_array(a, src.n_tokens, sizeof *types);
    if (!tokens || !types)
        die("vocabulary too large");
    for (uint32_t i = 0; i < src.n_tokens; i++) {
        types[i] = (int32_t)take_u32(&r);
        tokens[i] = take_text(&r);
    }
    src.n_merges = take_u32(&r);
    struct tok_pair *merges = arena_array(a, src.n_merges, sizeof *merges);
    if (!merges)
        die("vocabulary too large");
    for (uint32_t i = 0; i < src.n_merges; i++)
        if (!tok_pair_split(take_text(&r), &merges[i]))
            die("a merge without a space");
    for (int i = 0; i < TOK_ROLE_COUNT; i++)
        src.roles[i] = take_u32(&r);
    src.add_bos = take_u32(&r) != 0;
    src.add_eos = take_u32(&r) != 0;
    src.prefix = (enum tok_prefix)take_u32(&r);
    if (take_u32(&r)) {
        float *scores = arena_array(a, src.n_tokens, sizeof *scores);
        if (!scores)
            die("vocabulary too large");
        memcpy(scores, take(&r, src.n_tokens * sizeof *scores), src.n_tokens * sizeof *scores);
        src.scores = scores;
    }
    src.tokens = tokens;
    src.types = types;
    src.merges = merges;
    struct iso_errinfo err;
    if (tok_build(&src, blob, &err))
        die(err.text);
}

static json_t *read_json(struct hf *hf, const char *name)
{
    json_t *json;
    struct iso_errinfo e;
    if (hf_read_json(hf, name, HF_TOKENIZER_BYTES_MAX, &json, &e))
        die(e.text);
    return json;
}

static void build_from_folder(const char *path, struct arena *a, struct buf *blob)
{
    struct hf hf = {0};
    struct tok_source src;
    struct iso_errinfo e;
    if (folder_open(path, &hf.folder, &e))
        die(e.text);
    json_t *tokenizer = read_json(&hf, "tokenizer.json");
    hf.tokenizer_config = read_json(&hf, "tokenizer_config.json");
    if (hf_vocabulary(&hf, tokenizer, a, &src, &e) || tok_build(&src, blob, &e))
        die(e.text);
    json_decref(tokenizer);
    json_decref(hf.tokenizer_config);
    close(hf.folder);
}

static void encode(struct tokenizer *t, struct reader *r, uint32_t *ids)
{
    enum tok_mode mode = take_u32(r) != 0 ? TOK_SPECIAL : TOK_PLAIN;
    bool edges = take_u32(r) != 0;
    struct strv text = take_text(r);
    struct iso_errinfo err;
    size_t n;
    uint64_t start = clock_now_ns();
    if (tok_encode(t, text, mode, edges, ids, TEXT_BYTES_MAX, &n, &err))
        die(err.text);
    uint64_t ns = clock_now_ns() - start;
    put_u32((uint32_t)n);
    put(ids, 4 * n);
    put(&ns, 8);
}

static void decode(struct tokenizer *t, struct reader *r, struct buf *text)
{
    char piece[DETOK_OUT_MAX];
    struct detok d;
    detok_init(&d, t);
    buf_reset(text);
    enum iso_err err = ISO_OK;
    for (uint32_t n = take_u32(r); n > 0 && !err; n--)
        err = buf_append(text, piece, detok_push(&d, take_u32(r), piece));
    if (err || buf_append(text, piece, detok_flush(&d, piece)))
        die("text too long");
    put_u32((uint32_t)text->len);
    put(text->ptr, text->len);
}

int main(int argc, char **argv)
{
    if (argc != 3 || (strcmp(argv[2], "encode") != 0 && strcmp(argv[2], "decode") != 0))
        die("wrong arguments");
    struct arena a;
    if (arena_init(&a, 3 * FILE_BYTES_MAX))
        die("no memory");
    struct buf blob, text;
    buf_init(&blob, FILE_BYTES_MAX);
    buf_init(&text, FILE_BYTES_MAX);
    struct stat st;
    if (stat(argv[1], &st) == 0 && S_ISDIR(st.st_mode)) {
        build_from_folder(argv[1], &a, &blob);
    } else {
        FILE *vocabulary = fopen(argv[1], "rb");
        build(read_all(vocabulary, &a), &a, &blob);
        fclose(vocabulary);
    }

    struct tokenizer *t;
    struct iso_errinfo err;
    if (tok_open(blob.ptr, blob.len, TEXT_BYTES_MAX, &t, &err))
        die(err.text);
    uint32_t *ids = arena_array(&a, TEXT_BYTES_MAX, sizeof *ids);
    if (!ids)
        die("no memory");
    struct reader r = read_all(stdin, &a);
    while (r.at < r.end) {
        if (argv[2][0] == 'e')
            encode(t, &r, ids);
        else
            decode(t, &r, &text);
    }
    tok_close(t);
    buf_deinit(&text);
    buf_deinit(&blob);
    arena_deinit(&a);
    return 0;
}
