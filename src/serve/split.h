// Splits an answer's text, as it streams, into reasoning, content and tool calls.
//
// Reasoning: the part of a thinking model's answer between <think> and </think>, at the answer's beginning (white space
// before <think> is passed over; SPLIT_IN_THINK: the prompt already ended with <think>). White space at both ends of the
// reasoning and before the content that follows is left out.
//
// Tool calls, by the model's way of writing them:
//   SPLIT_QWEN     <tool_call>{"name": "f", "arguments": {...}}</tool_call>, several of them, text before and between is
//                  content. Hermes and Qwen 2.5/3; also a list of calls in one pair of tags (SmolLM2).
//   SPLIT_LLAMA    the whole answer is {"name": "f", "parameters": {...}}, also after <|python_tag|>; several, with ";" or
//                  white space between. An answer that doesn't begin so is content, as is what follows anything else.
//   SPLIT_MISTRAL  [TOOL_CALLS] [{"name": "f", "arguments": {...}}, ...]; also [TOOL_CALLS]f{...} (newer ones)
//   SPLIT_NONE     no calls: all is content.
//
// "arguments" and "parameters" mean the same everywhere, the first of them counts; other members are passed over. White
// space is no content where it stands alone beside a call or the reasoning: before, between or behind them.
//
// A call's name comes as one piece as soon as it is known; its arguments follow as the model's own text, byte for byte, as
// they come. Where they are a JSON string, its decoded text is given. Those before the name are held until it is known. A
// call without arguments, or where they are null or "", gives "{}". What turns out not to be a call before its name was
// given (no JSON, no name or an empty one, over SPLIT_NAME_MAX or SPLIT_HELD_MAX bytes) is content, unchanged. Behind the
// name nothing is taken back: at the first byte that can't belong to it (of the arguments only that they nest, at most
// SPLIT_DEPTH_MAX deep, and that no "<" is outside of strings, is looked at) the call is over; a missing brace or closing
// tag is made nothing of, other text is content again. A call that the answer's end cuts off stays as far as it came.
//
// The pieces over all pushes and the end, neighbours of the same kind and call put together, are the same however the text
// is cut into pushes. Content is held back only where it may be the beginning of one of the marks above or white space that
// may be left out; at most SPLIT_HELD_MAX bytes. Text is UTF-8 and is cut between characters only, as are the pieces.
//
// Owns its buffer; not thread-safe. The first error stays: whatever comes then gives it again.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/strv.h"

#define SPLIT_HELD_MAX  ((size_t)16 << 10)
#define SPLIT_WHITE_MAX ((size_t)8 << 10) // of white space that may be left out; more is text
#define SPLIT_CALLS_MAX 64
#define SPLIT_NAME_MAX  256 // bytes, decoded
#define SPLIT_DEPTH_MAX 64  // of arguments: {"a": []} is 2 deep
#define SPLIT_PIECE_MAX 512 // bytes of a piece

enum split_style { SPLIT_NONE, SPLIT_QWEN, SPLIT_LLAMA, SPLIT_MISTRAL };
enum split_thinking { SPLIT_NO_THINK, SPLIT_MAY_THINK, SPLIT_IN_THINK };

enum split_kind { SPLIT_REASONING, SPLIT_CONTENT, SPLIT_CALL_NAME, SPLIT_CALL_ARGUMENTS };
// Takes a piece, never an empty one. `call` numbers the tool calls from 0 (0 for the other kinds); the text is valid during
// the call.
typedef enum iso_err split_piece(void *context, enum split_kind kind, uint32_t call, struct strv text);

// Decodes a JSON string.
struct split_string {
    uint8_t escape;      // bytes of an escape that are past
    uint16_t unit, high; // of \uXXXX; a high surrogate whose low one may follow
};

struct split {
    enum split_style style;
    split_piece *on_piece;
    void *context;
    uint32_t n_calls; // whose names were given
    struct buf held;  // what is not decided yet
    enum iso_err err;

    // Outside of calls.
    enum split_kind kind; // SPLIT_REASONING or SPLIT_CONTENT
    uint32_t marks;       // that may come now, as bits
    uint8_t matched;      // bytes of a mark that `held` ends with
    bool blank;           // nothing but white space since the last call, the reasoning or the beginning
    bool trim;            // white space is dropped
    bool reasoned;

    // Of a call.
    uint8_t place; // where in it; 0: outside
    uint8_t role;  // of the member at hand
    bool list, bare, named, has_arguments, arguments_given;
    bool arguments_text;                // they are a JSON string
    size_t arguments_at, arguments_end; // in `held`, until the name is known
    uint32_t depth;                     // of the value at hand
    bool scalar, in_string, escaped;    // in it
    struct split_string string;
    bool word_too_long;
    size_t n_word;
    char word[SPLIT_NAME_MAX]; // a key or the name, decoded

    // A piece that is being put together.
    enum split_kind out_kind;
    uint32_t out_call;
    size_t n_out;
    char out[SPLIT_PIECE_MAX];
};

void split_init(struct split *s, enum split_style style, enum split_thinking thinking, split_piece *on_piece,
                void *context);
void split_deinit(struct split *s);
// ISO_E_NOMEM, or what on_piece gave. What would be a call beyond SPLIT_CALLS_MAX is content.
enum iso_err split_push(struct split *s, struct strv text) ISO_MUST_USE;
enum iso_err split_end(struct split *s) ISO_MUST_USE;
// Whether the stream is inside the reasoning (for the budget).
bool split_is_thinking(const struct split *s);
