// A small vocabulary for tests: the bytes from `first_byte` to `last_byte`, a few merges over them, special
// tokens of each kind. Ids: the bytes in order, then the rows below.
#pragma once

#include <string.h>

#include "base/utf8.h"
#include "text/tokenizer.h"

#define SMALL_TOKENS_MAX 300

struct small_vocab {
    char texts[SMALL_TOKENS_MAX][16];
    struct strv tokens[SMALL_TOKENS_MAX];
    int32_t types[SMALL_TOKENS_MAX];
    struct tok_pair merges[8];
    double scores[SMALL_TOKENS_MAX]; // of small_init_unigram
    struct tok_source src;
};

// Id of a row: small_id(v, SMALL_HELL).
enum small_row {
    SMALL_HE,
    SMALL_LL,
    SMALL_HELL,
    SMALL_HELLO,
    SMALL_LO,
    SMALL_START,  // <|s|>, control, BOS
    SMALL_END,    // <|e|>, control, EOS
    SMALL_TOOL,   // <tool>, user-defined
    SMALL_TOOL_X, // <tool>x, user-defined
    SMALL_PAD,    // [PAD], unused
    SMALL_ROWS,
};

static inline void small_add(struct small_vocab *v, struct strv text, int32_t type)
{
    uint32_t id = v->src.n_tokens++;
    memcpy(v->texts[id], text.ptr, text.len);
    v->tokens[id] = (struct strv){v->texts[id], text.len};
    v->types[id] = type;
}

static inline void small_init(struct small_vocab *v, const char *pre, int first_byte, int last_byte)
{
    static const struct {
        const char *text;
        int32_t type;
    } ROWS[SMALL_ROWS] = {
        {"he", TOK_TYPE_NORMAL},     {"ll", TOK_TYPE_NORMAL},           {"hell", TOK_TYPE_NORMAL},
        {"hello", TOK_TYPE_NORMAL},  {"lo", TOK_TYPE_NORMAL},           {"<|s|>", TOK_TYPE_CONTROL},
        {"<|e|>", TOK_TYPE_CONTROL}, {"<tool>", TOK_TYPE_USER_DEFINED}, {"<tool>x", TOK_TYPE_USER_DEFINED},
        {"[PAD]", TOK_TYPE_UNUSED},
    };
    static const char *const MERGES[] = {"h e", "l o", "l l", "he ll", "hell o"};
    memset(v, 0, sizeof *v);
    for (int b = first_byte; b <= last_byte; b++) {
        bool prints = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
        uint32_t cp = (uint32_t)(prints ? b : b < 33 ? 256 + b : b < 173 ? 256 + 33 + b - 127 : 256 + 67);
        uint8_t text[UTF8_MAX_BYTES];
        small_add(v, (struct strv){(char *)text, utf8_encode(cp, text)}, TOK_TYPE_NORMAL);
    }
    uint32_t base = v->src.n_tokens;
    for (int i = 0; i < SMALL_ROWS; i++)
        small_add(v, strv_from(ROWS[i].text), ROWS[i].type);
    for (size_t i = 0; i < sizeof MERGES / sizeof *MERGES; i++)
        (void)tok_pair_split(strv_from(MERGES[i]), &v->merges[i]);
    v->src.pre = strv_from(pre);
    v->src.tokens = v->tokens;
    v->src.types = v->types;
    v->src.merges = v->merges;
    v->src.n_merges = sizeof MERGES / sizeof *MERGES;
    for (int i = 0; i < TOK_ROLE_COUNT; i++)
        v->src.roles[i] = TOK_NONE;
    v->src.roles[TOK_BOS] = base + SMALL_START;
    v->src.roles[TOK_EOS] = base + SMALL_END;
    v->src.add_bos = true;
}

static inline uint32_t small_id(const struct small_vocab *v, enum small_row row)
{
    return v->src.n_tokens - SMALL_ROWS + row;
}

// The same rows beside printable ASCII and a space, scored: longer tokens are better. The unknown token is the last.
static inline void small_init_unigram(struct small_vocab *v)
{
    small_init(v, "sentencepiece", '!', '~');
    small_add(v, STRV_LIT("\xE2\x96\x81"), TOK_TYPE_NORMAL);
    v->src.roles[TOK_UNK] = v->src.n_tokens;
    small_add(v, STRV_LIT("<unk>"), TOK_TYPE_UNKNOWN);
    v->src.n_merges = 0;
    v->src.unigram = v->scores;
    for (uint32_t i = 0; i < v->src.n_tokens; i++)
        v->scores[i] = -4.0 / (double)v->tokens[i].len;
}
