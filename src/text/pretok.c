#include "text/pretok.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "base/arena.h"
#include "base/assert.h"
#include "base/num.h"
#include "base/utf8.h"
#include "text/char_class.h"

// Parts of character classes, over the bytes of char_class.h.
#define LETTERS  "A-Za-z\\x80-\\x83"
#define NUMBERS  "0-9\\x84"
#define SPACES   "\\t-\\r \\x86"
#define NO_LOWER "A-Z\\x80\\x81\\x87" // letters and marks but those of lower case
#define NO_UPPER "a-z\\x80\\x82\\x83\\x87"

// clang-format off
#define GPT2_WORDS                                                          \
    "'s|'t|'re|'ve|'m|'ll|'d"                                               \
    "| ?[" LETTERS "]+| ?[" NUMBERS "]+| ?[^" SPACES LETTERS NUMBERS "]+"   \
    "|[" SPACES "]+(?![^" SPACES "])|[" SPACES "]+"

// qwen2's and Llama 3's expressions differ only in how many digits one piece holds.
#define QWEN2_WORDS(digits)                                                 \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|'\\x83"                                   \
    "|[^\\r\\n" LETTERS NUMBERS "]?[" LETTERS "]+|[" NUMBERS "]" digits     \
    "| ?[^" SPACES LETTERS NUMBERS "]+[\\r\\n]*|[" SPACES "]*[\\r\\n]+"     \
    "|[" SPACES "]+(?![^" SPACES "])|[" SPACES "]+"

// Mistral's Tekken: words end where a lower case letter meets an upper case one.
#define TEKKEN_WORDS                                                        \
    "[^\\r\\n" LETTERS NUMBERS "]?[" NO_LOWER "]*[" NO_UPPER "]+"           \
    "|[^\\r\\n" LETTERS NUMBERS "]?[" NO_LOWER "]+[" NO_UPPER "]*"          \
    "|[" NUMBERS "]| ?[^" SPACES LETTERS NUMBERS "]+[\\r\\n/]*"             \
    "|[" SPACES "]*[\\r\\n]+|[" SPACES "]+(?![^" SPACES "])|[" SPACES "]+"
// clang-format on

// Hugging Face's Digits pre-tokenizer with single digits, which works before the words' one. It asks Rust's
// standard library, which has Unicode 17.
#define SINGLE_DIGITS "[" NUMBERS "\\x85]|[^" NUMBERS "\\x85]+"

// PCRE2's part of the memory: compiled expressions and frames.
#define PRETOK_PCRE2_BYTES ((size_t)64 << 10)

// Ceiling of PCRE2's backtracking: the expressions nest nothing repeated, so frames stay few. Backtracking
// steps are at most about one for each character of white space, so a few for each byte are ample.
#define PRETOK_DEPTH_MAX      100
#define PRETOK_HEAP_KIB       32
#define PRETOK_STEPS_PER_BYTE 4
#define PRETOK_STEPS_BASE     1000

struct rules {
    const char *name;
    const char *segments; // cuts the text first; NULL: one segment
    const char *words;    // cuts a segment into pieces
    bool normalizes, takes_whole;
};

static const struct rules RULES[] = {
    [PRETOK_GPT2] = {"gpt-2", NULL, GPT2_WORDS, false, false},
    [PRETOK_SMOLLM] = {"smollm", SINGLE_DIGITS, GPT2_WORDS, false, false},
    [PRETOK_QWEN2] = {"qwen2", NULL, QWEN2_WORDS(""), true, false},
    [PRETOK_LLAMA_BPE] = {"llama-bpe", NULL, QWEN2_WORDS("{1,3}"), false, true},
    [PRETOK_SENTENCEPIECE] = {"sentencepiece", NULL, "[\\x00-\\xFF]+", false, false},
    [PRETOK_SENTENCEPIECE_WORDS] = {"sentencepiece-words", NULL, " [^ ]*|[^ ]+", false, false},
    [PRETOK_TEKKEN] = {"tekken", NULL, TEKKEN_WORDS, false, true},
};

struct pretok {
    const struct rules *rules;
    struct arena arena; // holds this struct too
    pcre2_code *segments, *words;
    pcre2_match_context *limits;
    pcre2_match_data *match;
    uint8_t *classes; // text_bytes_max: one for each character of the text
    size_t text_bytes_max;
    struct strv text;
    size_t at_byte;                  // in text
    size_t at, segment_end, n_chars; // in classes
};

enum iso_err pretok_find(struct strv name, enum pretok_kind *ret, struct iso_errinfo *reterr)
{
    for (uint32_t kind = PRETOK_GPT2; kind < ARRAY_LEN(RULES); kind++)
        if (strv_is(name, RULES[kind].name)) {
            *ret = kind;
            return ISO_OK;
        }
    return iso_fail(reterr, ISO_E_UNSUPPORTED, 0, "pre-tokenizer",
                    "the pre-tokenizer \"%.*s\" is not supported (known are gpt-2, smollm, qwen2, llama-bpe, "
                    "tekken, sentencepiece, sentencepiece-words)",
                    STRV_ARG(name));
}

const char *pretok_name(uint32_t kind)
{
    return kind < ARRAY_LEN(RULES) ? RULES[kind].name : NULL;
}

bool pretok_normalizes(enum pretok_kind kind)
{
    return RULES[kind].normalizes;
}

bool pretok_is_sentencepiece(enum pretok_kind kind)
{
    return kind == PRETOK_SENTENCEPIECE || kind == PRETOK_SENTENCEPIECE_WORDS;
}

bool pretok_takes_whole(enum pretok_kind kind)
{
    return RULES[kind].takes_whole;
}

// Length of the valid character that begins with this byte.
static size_t utf8_length(uint8_t first)
{
    return first < 0x80 ? 1 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
}

static void *arena_malloc(size_t n, void *arena)
{
    return arena_alloc(arena, n);
}

// Everything goes at once with the arena.
static void arena_free(void *p, void *arena)
{
    (void)p;
    (void)arena;
}

static enum iso_err compile(const char *pattern, pcre2_compile_context *context, pcre2_code **ret,
                            struct iso_errinfo *reterr)
{
    int code;
    PCRE2_SIZE offset;
    // Every match is asked for at one place and may not look for a start elsewhere.
    uint32_t options = PCRE2_ANCHORED | PCRE2_NO_START_OPTIMIZE;
    pcre2_code *compiled =
        pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED, options, &code, &offset, context);
    if (!compiled)
        return iso_fail(reterr, ISO_E_UNSUPPORTED, offset, "pre-tokenizer",
                        "PCRE2 refuses the pre-tokenizer's expression with error %d", code);
    *ret = compiled;
    return ISO_OK;
}

static enum iso_err pretok_init(struct pretok *p, struct iso_errinfo *reterr)
{
    pcre2_general_context *memory = pcre2_general_context_create(arena_malloc, arena_free, &p->arena);
    pcre2_compile_context *context = memory ? pcre2_compile_context_create(memory) : NULL;
    p->limits = memory ? pcre2_match_context_create(memory) : NULL;
    p->match = memory ? pcre2_match_data_create(1, memory) : NULL;
    if (!context || !p->limits || !p->match)
        return iso_fail(reterr, ISO_E_NOMEM, 0, "pre-tokenizer",
                        "PCRE2 needs more than the %zu bytes set apart for it", PRETOK_PCRE2_BYTES);
    pcre2_set_depth_limit(p->limits, PRETOK_DEPTH_MAX);
    pcre2_set_heap_limit(p->limits, PRETOK_HEAP_KIB);
    uint64_t steps = PRETOK_STEPS_PER_BYTE * (uint64_t)p->text_bytes_max + PRETOK_STEPS_BASE;
    pcre2_set_match_limit(p->limits, (uint32_t)num_min(UINT32_MAX, steps));
    enum iso_err err = compile(p->rules->words, context, &p->words, reterr);
    if (!err && p->rules->segments)
        err = compile(p->rules->segments, context, &p->segments, reterr);
    if (err)
        return err;
    // PCRE2 takes the memory of its frames at the first match.
    struct strv piece;
    pretok_start(p, STRV_LIT("a"));
    return pretok_next(p, &piece, reterr);
}

size_t pretok_bytes(size_t text_bytes_max)
{
    return (size_t)(num_align(sizeof(struct pretok), ARENA_ALIGN) + num_align(text_bytes_max, ARENA_ALIGN)) +
           PRETOK_PCRE2_BYTES;
}

enum iso_err pretok_open(enum pretok_kind kind, size_t text_bytes_max, struct pretok **ret,
                         struct iso_errinfo *reterr)
{
    ASSERT(pretok_name(kind) && text_bytes_max > 0);
    struct arena arena;
    enum iso_err err = arena_init(&arena, pretok_bytes(text_bytes_max));
    if (err)
        return iso_fail(reterr, err, 0, "pre-tokenizer", "the system refused %zu bytes for the pre-tokenizer",
                        pretok_bytes(text_bytes_max));
    struct pretok *p = arena_alloc(&arena, sizeof *p);
    uint8_t *classes = arena_alloc(&arena, text_bytes_max);
    ASSERT(p && classes);
    *p = (struct pretok){
        .rules = &RULES[kind], .arena = arena, .classes = classes, .text_bytes_max = text_bytes_max};
    err = pretok_init(p, reterr);
    if (err) {
        pretok_close(p);
        return err;
    }
    *ret = p;
    return ISO_OK;
}

void pretok_close(struct pretok *p)
{
    if (!p)
        return;
    struct arena arena = p->arena; // p itself lies in it
    arena_deinit(&arena);
}

void pretok_start(struct pretok *p, struct strv text)
{
    ASSERT(text.len <= p->text_bytes_max);
    p->text = text;
    p->at_byte = p->at = p->segment_end = p->n_chars = 0;
    for (size_t i = 0; i < text.len;) {
        uint32_t cp = 0;
        size_t len = utf8_decode((const uint8_t *)text.ptr + i, text.len - i, &cp);
        ASSERT(len > 0);
        p->classes[p->n_chars++] = char_class(cp);
        i += len;
    }
}

// End of the match of `code` at the current place in classes[0..end).
static enum iso_err match_end(struct pretok *p, const pcre2_code *code, size_t end, size_t *ret,
                              struct iso_errinfo *reterr)
{
    int n = pcre2_match(code, p->classes, end, p->at, 0, p->match, p->limits);
    if (n < 0)
        return iso_fail(reterr, ISO_E_LIMIT, p->at_byte, "text",
                        "the pre-tokenizer stops at byte %zu of the text with PCRE2's error %d", p->at_byte,
                        n);
    size_t found = pcre2_get_ovector_pointer(p->match)[1];
    ASSERT(found > p->at && found <= end); // the expressions match any character and never nothing
    *ret = found;
    return ISO_OK;
}

enum iso_err pretok_next(struct pretok *p, struct strv *ret_piece, struct iso_errinfo *reterr)
{
    enum iso_err err = ISO_OK;
    if (p->at == p->segment_end && p->at < p->n_chars) {
        size_t segment_end = p->n_chars;
        if (p->segments)
            err = match_end(p, p->segments, p->n_chars, &segment_end, reterr);
        if (err)
            return err;
        p->segment_end = segment_end;
    }
    size_t end = p->at;
    // The subject ends with the segment, so a word's look ahead doesn't see beyond it.
    if (p->at < p->n_chars)
        err = match_end(p, p->words, p->segment_end, &end, reterr);
    if (err)
        return err;
    size_t begin = p->at_byte;
    for (; p->at < end; p->at++)
        p->at_byte += utf8_length((uint8_t)p->text.ptr[p->at_byte]);
    *ret_piece = (struct strv){p->text.ptr + begin, p->at_byte - begin};
    return ISO_OK;
}
