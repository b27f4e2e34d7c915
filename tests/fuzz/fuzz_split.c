// The splitter of answers. The first byte chooses the style, the second what is thought, the third is the seed of the cuts;
// the rest is the answer. However it is cut, the pieces are the same; where nothing else is found, the content is it.
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/num.h"
#include "serve/split.h"

#define HEAD      3
#define PIECE_MAX ((size_t)1 << 20)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void check(bool ok)
{
    if (!ok)
        abort();
}

struct record {
    struct buf text; // kind and call before each run of pieces
    int kind;
    uint32_t call;
    size_t n_content, n_other;
};

static enum iso_err take(void *context, enum split_kind kind, uint32_t call, struct strv text)
{
    struct record *r = context;
    check(text.len > 0 && text.len <= SPLIT_PIECE_MAX && call < SPLIT_CALLS_MAX);
    if ((int)kind != r->kind || call != r->call || kind == SPLIT_CALL_NAME) {
        const uint8_t head[] = {0xFF, 0xFE, (uint8_t)kind, (uint8_t)call};
        check(buf_append(&r->text, head, sizeof head) == ISO_OK);
    }
    r->kind = (int)kind;
    r->call = call;
    *(kind == SPLIT_CONTENT ? &r->n_content : &r->n_other) += text.len;
    check(buf_append_strv(&r->text, text) == ISO_OK);
    return ISO_OK;
}

enum cut { WHOLE, ALL, RANDOM };

static enum iso_err run(const uint8_t *data, size_t n, enum cut cut, struct record *r)
{
    struct split s;
    *r = (struct record){.kind = -1};
    buf_init(&r->text, PIECE_MAX);
    split_init(&s, (enum split_style)(data[0] % 4), (enum split_thinking)(data[1] % 3), take, r);
    enum iso_err err = ISO_OK;
    uint32_t random = data[2];
    for (size_t from = HEAD, to; from < n && !err; from = to) {
        random = random * 1664525 + 1013904223;
        size_t step = cut == WHOLE ? n : cut == ALL ? 1 : random >> 28;
        to = num_min(n, from + step);
        err = split_push(&s, (struct strv){(const char *)data + from, to - from});
        check(s.held.len <= SPLIT_HELD_MAX && s.n_out == 0);
        check(!split_is_thinking(&s) || r->n_content == 0);
    }
    if (!err)
        err = split_end(&s);
    check(err == ISO_OK);
    split_deinit(&s);
    return err;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    if (n < HEAD)
        return 0;
    struct record whole, cut;
    enum iso_err err = run(data, n, WHOLE, &whole);
    for (enum cut c = ALL; c <= RANDOM; c++) {
        check(run(data, n, c, &cut) == err);
        check(strv_equal(buf_strv(&cut.text), buf_strv(&whole.text)));
        buf_deinit(&cut.text);
    }
    // Where the model may think, marks alone may be left out.
    if (whole.n_other == 0 && data[1] % 3 == SPLIT_NO_THINK) {
        check(whole.n_content == n - HEAD);
        check(n == HEAD || memcmp(whole.text.ptr + 4, data + HEAD, n - HEAD) == 0);
    }
    buf_deinit(&whole.text);
    return 0;
}
