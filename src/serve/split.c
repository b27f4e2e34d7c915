#include "serve/split.h"

#include <string.h>

#include "base/assert.h"
#include "base/num.h"
#include "base/utf8.h"

// What ends plain text. None is the beginning of another, and the first byte of none comes again in it, so that a mark
// that fails can only begin again at the byte where it failed.
enum mark {
    THINK,
    THINK_END,
    QWEN_CALL,
    QWEN_CALL_END,
    LLAMA_TAG,
    LLAMA_CALL,
    MISTRAL_CALLS,
    LIST_NEXT,
    LIST_END,
    MARKS,
};

static const char *const MARK_TEXT[MARKS] = {
    [THINK] = "<think>",
    [THINK_END] = "</think>",
    [QWEN_CALL] = "<tool_call>",
    [QWEN_CALL_END] = "</tool_call>",
    [LLAMA_TAG] = "<|python_tag|>",
    [LLAMA_CALL] = "{",
    [MISTRAL_CALLS] = "[TOOL_CALLS]",
    [LIST_NEXT] = ",",
    [LIST_END] = "]",
};

#define MARK_BYTES_MAX 14 // LLAMA_TAG
#define BIT(mark)      ((uint32_t)1 << (mark))

static_assert(SPLIT_WHITE_MAX + MARK_BYTES_MAX <= SPLIT_HELD_MAX, "a mark behind white space has room");

enum place {
    OUTSIDE,
    AT_CALLS,  // behind the mark: a call, a list of them or, for Mistral, a name
    AT_CALL,   // in a list
    IN_BARE,   // a name without JSON around it
    PAST_BARE, // white space behind it
    AT_KEY,    // or the object's end
    IN_KEY,
    PAST_KEY,
    AT_VALUE,
    IN_NAME,
    IN_TEXT, // arguments as a string
    IN_VALUE,
    PAST_VALUE,
};

enum role { NAME, ARGUMENTS, OTHER };

enum progress { GOES_ON, ENDS, ENDED_BEFORE, BAD };

// ---- Pieces ----

static void give_out(struct split *s)
{
    if (s->err || s->n_out == 0)
        return;
    size_t n = s->n_out;
    s->n_out = 0;
    s->err = s->on_piece(s->context, s->out_kind, s->out_call, (struct strv){s->out, n});
}

static void give_byte(struct split *s, char c)
{
    bool inside_character = ((uint8_t)c & 0xC0) == 0x80;
    bool near_full = s->n_out > SPLIT_PIECE_MAX - UTF8_MAX_BYTES;
    if (s->n_out == SPLIT_PIECE_MAX || (near_full && !inside_character))
        give_out(s);
    if (!s->err)
        s->out[s->n_out++] = c;
}

static void give(struct split *s, enum split_kind kind, struct strv text)
{
    uint32_t call = kind == SPLIT_CALL_ARGUMENTS ? s->n_calls - 1 : 0;
    if (kind != s->out_kind || call != s->out_call)
        give_out(s);
    s->out_kind = kind;
    s->out_call = call;
    for (size_t i = 0; i < text.len && !s->err; i++)
        give_byte(s, text.ptr[i]);
}

static void give_arguments(struct split *s, struct strv text)
{
    s->arguments_given |= text.len > 0;
    give(s, SPLIT_CALL_ARGUMENTS, text);
}

// ---- Strings of JSON ----

#define DECODED_MAX (2 * UTF8_MAX_BYTES) // by one byte: a lone surrogate and what follows it

static bool is_high(uint32_t unit)
{
    return unit >= 0xD800 && unit <= 0xDBFF;
}

static bool is_low(uint32_t unit)
{
    return unit >= 0xDC00 && unit <= 0xDFFF;
}

static size_t flush_high(struct split_string *string, char *out)
{
    if (!string->high)
        return 0;
    string->high = 0;
    return utf8_encode(UTF8_REPLACEMENT, (uint8_t *)out);
}

static size_t put_unit(struct split_string *string, char *out)
{
    uint32_t unit = string->unit, high = string->high;
    if (high && is_low(unit)) {
        string->high = 0;
        return utf8_encode(0x10000 + ((high - 0xD800) << 10) + (unit - 0xDC00), (uint8_t *)out);
    }
    size_t n = flush_high(string, out);
    if (is_high(unit)) {
        string->high = (uint16_t)unit;
        return n;
    }
    return n + utf8_encode(is_low(unit) ? UTF8_REPLACEMENT : unit, (uint8_t *)out + n);
}

static size_t put_byte(struct split_string *string, char c, char *out)
{
    size_t n = flush_high(string, out);
    out[n] = c;
    return n + 1;
}

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

static enum progress string_escape(struct split_string *string, char c, char *out, size_t *ret_n)
{
    static const char LETTER[] = "\"\\/bfnrt", MEANING[] = "\"\\/\b\f\n\r\t";
    if (string->escape > 1) { // of \uXXXX
        int digit = hex_digit(c);
        if (digit < 0)
            return BAD;
        string->unit = (uint16_t)(string->unit << 4 | digit);
        if (++string->escape < 6)
            return GOES_ON;
        *ret_n = put_unit(string, out);
    } else if (c == 'u') {
        string->escape = 2;
        return GOES_ON;
    } else {
        const char *letter = memchr(LETTER, c, sizeof LETTER - 1);
        if (!letter)
            return BAD;
        *ret_n = put_byte(string, MEANING[letter - LETTER], out);
    }
    string->escape = 0;
    return GOES_ON;
}

// Takes a byte behind the opening quote. Writes what it completes to out[DECODED_MAX].
static enum progress string_feed(struct split_string *string, char c, char *out, size_t *ret_n)
{
    *ret_n = 0;
    if (string->escape)
        return string_escape(string, c, out, ret_n);
    if (c == '\\') {
        string->escape = 1;
        return GOES_ON;
    }
    *ret_n = c == '"' ? flush_high(string, out) : put_byte(string, c, out);
    return c == '"' ? ENDS : GOES_ON;
}

// ---- Outside of calls ----

static bool is_space(char c)
{
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

// In the middle of content.
static uint32_t marks_within(const struct split *s)
{
    return s->style == SPLIT_QWEN ? BIT(QWEN_CALL) : s->style == SPLIT_MISTRAL ? BIT(MISTRAL_CALLS) : 0;
}

// Where the answer, or what follows the reasoning, begins.
static uint32_t marks_at_start(const struct split *s)
{
    return s->style == SPLIT_LLAMA ? BIT(LLAMA_TAG) | BIT(LLAMA_CALL) : marks_within(s);
}

static uint32_t marks_past_call(const struct split *s)
{
    uint32_t marks = marks_at_start(s);
    if (s->style == SPLIT_QWEN)
        marks |= BIT(QWEN_CALL_END);
    return s->list ? marks | BIT(LIST_NEXT) | BIT(LIST_END) : marks;
}

// What is held is text after all.
static void settle(struct split *s)
{
    give(s, s->kind, buf_strv(&s->held));
    buf_reset(&s->held);
    s->place = OUTSIDE;
    s->matched = 0;
    s->blank = s->trim = false;
    if (s->kind == SPLIT_CONTENT)
        s->marks = marks_within(s);
}

static void hold(struct split *s, char c)
{
    if (!s->err)
        s->err = buf_append_byte(&s->held, (uint8_t)c);
}

// What was held is markup. White space is what comes next until anything else does.
static void begin_text(struct split *s, enum split_kind kind, bool trim, uint32_t marks)
{
    buf_reset(&s->held);
    s->kind = kind;
    s->place = OUTSIDE;
    s->matched = 0;
    s->blank = true;
    s->trim = trim;
    s->reasoned |= kind == SPLIT_REASONING;
    s->marks = marks;
}

static void begin_call(struct split *s, enum place place)
{
    s->place = (uint8_t)place;
    s->matched = 0;
    s->bare = s->named = s->has_arguments = s->arguments_given = false;
}

// `held` ends with the whole mark.
static void take_mark(struct split *s, enum mark mark)
{
    switch (mark) {
    case THINK:
        begin_text(s, SPLIT_REASONING, true, BIT(THINK_END));
        break;
    case THINK_END:
        begin_text(s, SPLIT_CONTENT, true, marks_at_start(s));
        break;
    case LIST_END:
        s->list = false;
        begin_text(s, SPLIT_CONTENT, false, marks_past_call(s));
        break;
    case QWEN_CALL_END:
        begin_text(s, SPLIT_CONTENT, false, marks_within(s));
        break;
    case LLAMA_CALL:
        begin_call(s, AT_KEY);
        break;
    case LIST_NEXT:
        begin_call(s, AT_CALL);
        break;
    default:
        s->list = false;
        begin_call(s, AT_CALLS);
    }
}

// The mark that the end of `held` and c begin; MARKS: none.
static enum mark mark_with(const struct split *s, char c)
{
    const char *begun = s->matched ? (const char *)s->held.ptr + s->held.len - s->matched : "";
    for (enum mark m = 0; m < MARKS; m++)
        if ((s->marks & BIT(m)) && strncmp(MARK_TEXT[m], begun, s->matched) == 0 &&
            MARK_TEXT[m][s->matched] == c)
            return m;
    return MARKS;
}

// White space, and between Llama's calls also their separator.
static bool is_gap(const struct split *s, char c)
{
    return is_space(c) || (c == ';' && s->n_calls > 0 && (s->marks & BIT(LLAMA_CALL)));
}

static void feed_white(struct split *s, char c)
{
    if (s->trim)
        return;
    if (s->held.len == SPLIT_WHITE_MAX)
        settle(s);
    if (s->kind == SPLIT_REASONING || (s->blank && s->marks))
        hold(s, c);
    else
        give(s, s->kind, (struct strv){&c, 1});
}

static void feed_outside(struct split *s, char c)
{
    enum mark mark = mark_with(s, c);
    if (mark == MARKS && s->matched > 0) {
        settle(s);
        mark = mark_with(s, c);
    }
    if (mark < MARKS) {
        hold(s, c);
        if (MARK_TEXT[mark][++s->matched] == 0)
            take_mark(s, mark);
    } else if (is_gap(s, c)) {
        feed_white(s, c);
    } else {
        settle(s);
        give(s, s->kind, (struct strv){&c, 1});
    }
}

// ---- Calls ----

static void end_call(struct split *s)
{
    if (!s->arguments_given)
        give_arguments(s, STRV_LIT("{}"));
    begin_text(s, SPLIT_CONTENT, false, marks_past_call(s));
}

static void give_held_arguments(struct split *s)
{
    struct strv text = {(const char *)s->held.ptr + s->arguments_at, s->arguments_end - s->arguments_at};
    if (!s->arguments_text) {
        give_arguments(s, text);
        return;
    }
    s->string = (struct split_string){0};
    for (size_t i = 1; i < text.len; i++) { // behind the quote
        char decoded[DECODED_MAX];
        size_t n;
        enum progress p = string_feed(&s->string, text.ptr[i], decoded, &n);
        ASSERT(p != BAD); // it was read before
        give_arguments(s, (struct strv){decoded, n});
    }
}

// False: there are as many calls as can be, so this is none.
static bool give_name(struct split *s)
{
    if (s->n_calls == SPLIT_CALLS_MAX)
        return false;
    give_out(s);
    if (!s->err)
        s->err = s->on_piece(s->context, SPLIT_CALL_NAME, s->n_calls, (struct strv){s->word, s->n_word});
    if (s->err)
        return true;
    s->n_calls++;
    s->named = true;
    if (s->has_arguments)
        give_held_arguments(s);
    buf_reset(&s->held);
    return true;
}

static void begin_word(struct split *s)
{
    s->string = (struct split_string){0};
    s->n_word = 0;
    s->word_too_long = false;
}

static void add_to_word(struct split *s, struct strv text)
{
    s->word_too_long |= text.len > SPLIT_NAME_MAX - s->n_word;
    if (s->word_too_long)
        return;
    memcpy(s->word + s->n_word, text.ptr, text.len);
    s->n_word += text.len;
}

static enum role role_of_key(const struct split *s)
{
    struct strv key = {s->word, s->n_word};
    if (s->word_too_long)
        return OTHER;
    if (strv_is(key, "name") && !s->named)
        return NAME;
    bool arguments = strv_is(key, "arguments") || strv_is(key, "parameters");
    return arguments && !s->has_arguments ? ARGUMENTS : OTHER;
}

static bool is_alnum(char c)
{
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

// A byte of a value of any kind.
static enum progress scan(struct split *s, char c)
{
    if (s->in_string) {
        bool closes = c == '"' && !s->escaped;
        s->escaped = c == '\\' && !s->escaped;
        s->in_string = !closes;
        return closes && s->depth == 0 ? ENDS : GOES_ON;
    }
    if (s->scalar)
        return is_alnum(c) || c == '-' || c == '+' || c == '.' ? GOES_ON : ENDED_BEFORE;
    if (c == '"') {
        s->in_string = true;
    } else if (c == '{' || c == '[') {
        return ++s->depth > SPLIT_DEPTH_MAX ? BAD : GOES_ON;
    } else if (s->depth == 0) {
        s->scalar = is_alnum(c) || c == '-';
        return s->scalar ? GOES_ON : BAD;
    } else if (c == '}' || c == ']') {
        return --s->depth == 0 ? ENDS : GOES_ON;
    }
    return c == '<' ? BAD : GOES_ON;
}

// The next functions take a byte; false: it can't be there.
static bool feed_call(struct split *s, char c);

static void end_value(struct split *s, size_t end)
{
    if (s->role == ARGUMENTS)
        s->arguments_end = end;
    s->place = PAST_VALUE;
    if (s->bare)
        end_call(s);
}

static bool feed_value(struct split *s, char c)
{
    enum progress p = scan(s, c);
    if (p == BAD)
        return false;
    if (p == ENDED_BEFORE) {
        end_value(s, s->held.len);
        return feed_call(s, c);
    }
    if (s->role == ARGUMENTS && s->named)
        give_arguments(s, (struct strv){&c, 1});
    if (p == ENDS)
        end_value(s, s->held.len + 1);
    return true;
}

static bool begin_value(struct split *s, enum role role, char c)
{
    if (role == ARGUMENTS && c == 'n') // null
        role = OTHER;
    s->role = (uint8_t)role;
    begin_word(s);
    if (role == NAME) {
        s->place = IN_NAME;
        return c == '"';
    }
    if (role == ARGUMENTS) {
        s->has_arguments = true;
        s->arguments_at = s->held.len;
        s->arguments_text = c == '"';
    }
    s->place = role == ARGUMENTS && c == '"' ? IN_TEXT : IN_VALUE;
    s->depth = 0;
    s->scalar = s->in_string = s->escaped = false;
    return s->place == IN_TEXT || feed_value(s, c);
}

// In a key, the name, or arguments that are a string.
static bool feed_string(struct split *s, char c)
{
    char decoded[DECODED_MAX];
    size_t n;
    enum progress p = string_feed(&s->string, c, decoded, &n);
    if (p == BAD)
        return false;
    struct strv text = {decoded, n};
    if (s->place != IN_TEXT)
        add_to_word(s, text);
    else if (s->named)
        give_arguments(s, text);
    if (s->place == IN_NAME && (s->word_too_long || (p == ENDS && s->n_word == 0)))
        return false;
    if (p == GOES_ON)
        return true;
    if (s->place == IN_NAME && !give_name(s))
        return false;
    if (s->place == IN_KEY)
        s->place = PAST_KEY;
    else
        end_value(s, s->held.len + 1);
    return true;
}

static bool feed_bare(struct split *s, char c)
{
    if (c == '{') {
        s->bare = true;
        return give_name(s) && begin_value(s, ARGUMENTS, c);
    }
    if (is_space(c)) {
        s->place = PAST_BARE;
        return true;
    }
    add_to_word(s, (struct strv){&c, 1});
    return s->place == IN_BARE && (is_alnum(c) || c == '_' || c == '-' || c == '.') && !s->word_too_long;
}

// `place` follows where c is `wanted`; white space before it is passed over.
static bool expect(struct split *s, char c, char wanted, enum place place)
{
    if (c == wanted)
        s->place = (uint8_t)place;
    return c == wanted || is_space(c);
}

static bool feed_calls(struct split *s, char c)
{
    if (c == '[') {
        s->list = true;
        s->place = AT_CALL;
        return s->style != SPLIT_LLAMA;
    }
    if (s->style == SPLIT_MISTRAL && c != '{' && !is_space(c)) {
        s->place = IN_BARE;
        begin_word(s);
        return feed_bare(s, c);
    }
    return expect(s, c, '{', AT_KEY);
}

static bool feed_key(struct split *s, char c)
{
    if (c == '}' && s->named) {
        end_call(s);
        return true;
    }
    begin_word(s);
    return expect(s, c, '"', IN_KEY);
}

static bool feed_call(struct split *s, char c)
{
    switch ((enum place)s->place) {
    case AT_CALLS:
        return feed_calls(s, c);
    case AT_CALL:
        return expect(s, c, '{', AT_KEY);
    case IN_BARE:
    case PAST_BARE:
        return feed_bare(s, c);
    case AT_KEY:
        return feed_key(s, c);
    case PAST_KEY:
        return expect(s, c, ':', AT_VALUE);
    case AT_VALUE:
        return is_space(c) || begin_value(s, role_of_key(s), c);
    case IN_VALUE:
        return feed_value(s, c);
    case PAST_VALUE:
        return c == '}' ? feed_key(s, c) : expect(s, c, ',', AT_KEY);
    case IN_KEY:
    case IN_NAME:
    case IN_TEXT:
        return feed_string(s, c);
    default:
        ASSERT(false);
        return false;
    }
}

static void feed(struct split *s, char c)
{
    if (s->place == OUTSIDE) {
        feed_outside(s, c);
        return;
    }
    bool fits = feed_call(s, c), waits = s->place != OUTSIDE && !s->named;
    if (fits && waits && s->held.len < SPLIT_HELD_MAX) {
        hold(s, c);
    } else if (!fits || waits) {
        if (s->named)
            end_call(s);
        else
            settle(s);
        feed_outside(s, c);
    }
}

// ---- The whole ----

void split_init(struct split *s, enum split_style style, enum split_thinking thinking, split_piece *on_piece,
                void *context)
{
    *s = (struct split){.style = style, .on_piece = on_piece, .context = context};
    buf_init(&s->held, SPLIT_HELD_MAX);
    uint32_t think = thinking == SPLIT_MAY_THINK ? BIT(THINK) : 0;
    if (thinking == SPLIT_IN_THINK)
        begin_text(s, SPLIT_REASONING, true, BIT(THINK_END));
    else
        begin_text(s, SPLIT_CONTENT, false, marks_at_start(s) | think);
}

void split_deinit(struct split *s)
{
    buf_deinit(&s->held);
}

enum iso_err split_push(struct split *s, struct strv text)
{
    for (size_t i = 0; i < text.len && !s->err; i++)
        feed(s, text.ptr[i]);
    give_out(s);
    return s->err;
}

enum iso_err split_end(struct split *s)
{
    bool apart = s->reasoned || s->n_calls > 0;
    bool white = s->place == OUTSIDE && s->matched == 0;
    bool markup = s->place == OUTSIDE && s->blank && s->n_calls > 0; // cut off behind a call
    if (!(white && apart) && !markup && !(s->place != OUTSIDE && s->named))
        settle(s);
    give_out(s);
    return s->err;
}

bool split_is_thinking(const struct split *s)
{
    return s->kind == SPLIT_REASONING;
}
