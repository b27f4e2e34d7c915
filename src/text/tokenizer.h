// Tokenizer, equal id for id to Hugging Face `tokenizers` (0.23): byte-level BPE with the supported pre-tokenizers
// (pretok.h), and SentencePiece's BPE and unigram models, which are of characters, write spaces as U+2581, and fall back to
// a token for each byte where a character has none.
//
// Two sides. The compiler calls tok_build, which turns a model's vocabulary into one position-independent
// block of bytes for the plan. A runtime calls tok_open on that block, which checks it wholly (it may be
// hostile) and uses it in place.
//
// Ownership and threading: the block must outlive the tokenizer. A tokenizer owns one workspace, sized at
// tok_open; nothing is allocated afterwards. One thread at a time: open one tokenizer per thread over the
// same block. The const functions may run beside each other and beside tok_encode.
//
// Text: any bytes. With SentencePiece U+2581 in a text is a space, as it is in its tokens. Each maximal invalid part of UTF-8 is read as one U+FFFD, as Python's errors="replace"
// does. A byte for which the vocabulary has no token is left out, as Hugging Face does without an unknown
// token (SmolLM2 lacks six control characters and planes 4 to 11, all unassigned).
//
// Time: linear in the text but for the merge heap's logarithm; no input takes more than about a second for a
// megabyte.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/strv.h"

#define TOK_NONE UINT32_MAX // "no such token"

#define TOK_TOKENS_MAX        1048576u
#define TOK_MERGES_MAX        1048576u
#define TOK_EDGES_MAX         4194304u           // of the tree of a unigram vocabulary
#define TOK_SCORE_MAX         1e6                // of unigram, and its negative
#define TOK_TOKEN_BYTES_MAX   1024u              // decoded bytes of one token
#define TOK_UNIGRAM_BYTES_MAX 256u               // the same where it is unigram
#define TOK_SPECIAL_BYTES_MAX 256u               // of one control, unknown or user-defined token
#define TOK_VOCAB_BYTES_MAX   (64u << 20)        // decoded bytes of all tokens
#define TOK_TEXT_BYTES_MAX    ((size_t)16 << 20) // upper limit of tok_open's text_bytes_max
#define TOK_TEXT_BYTES_TOKEN  16u                // four times what a token of any language's text usually has
#define TOK_TEXT_BYTES_MIN    ((size_t)64 << 10)

// ggml's token types. Byte tokens belong to SentencePiece alone: "<0x41>" is the byte 0x41.
enum tok_type {
    TOK_TYPE_NORMAL = 1,
    TOK_TYPE_UNKNOWN = 2,
    TOK_TYPE_CONTROL = 3,
    TOK_TYPE_USER_DEFINED = 4,
    TOK_TYPE_UNUSED = 5,
    TOK_TYPE_BYTE = 6,
};

enum tok_role { TOK_BOS, TOK_EOS, TOK_EOT, TOK_PAD, TOK_UNK, TOK_ROLE_COUNT };

struct tok_pair {
    struct strv left, right;
};

// "left right" at the first space after the first byte; false where there is none.
bool tok_pair_split(struct strv text, struct tok_pair *ret);

// Where SentencePiece puts a space in front: of the text where it begins with none; of every stretch between special
// tokens; of those that begin with none.
enum tok_prefix { TOK_PREFIX_NONE, TOK_PREFIX_FIRST, TOK_PREFIX_EACH, TOK_PREFIX_LACKING, TOK_PREFIX_COUNT };

// A vocabulary as model files give it. Views only; nothing is kept after tok_build.
struct tok_source {
    struct strv pre; // name of the pre-tokenizer (pretok.h)
    uint32_t n_tokens, n_merges, n_eog;
    const struct strv *tokens; // normal tokens in GPT-2's byte-to-unicode alphabet, others literally; with
                               // SentencePiece all literally, but U+2581 for a space
    const int32_t *types;      // enum tok_type, one for each token; refused where NULL
    const struct tok_pair *merges; // best first
    const float *scores;   // SentencePiece's without merges: any two tokens that make a third, the one of the
                           // highest score first; else NULL
    const double *unigram; // SentencePiece's unigram model: the tokens' scores, and no merges; else NULL
    const uint32_t *eog;   // tokens that end a generation, beside those that tok_is_eog names
    uint32_t roles[TOK_ROLE_COUNT]; // TOK_NONE where absent
    enum tok_prefix prefix;
    bool add_bos, add_eos;
};

// Appends the block to *out (the caller aligns it to 16) and leaves *out as it was on failure. The same
// source gives the same bytes on any machine. Refused: unknown pre-tokenizers and types, texts outside the
// alphabet, duplicates, merges of tokens that don't exist or into a token that text must not become, ids out
// of range, anything over the limits above.
enum iso_err tok_build(const struct tok_source *src, struct buf *out,
                       struct iso_errinfo *reterr) ISO_MUST_USE;

struct tokenizer;

// Opens a block of n bytes at a 16-byte aligned address for texts of up to text_bytes_max (1 to
// TOK_TEXT_BYTES_MAX) bytes. ISO_E_FORMAT or ISO_E_VERSION for a bad block, ISO_E_NOMEM.
enum iso_err tok_open(const void *blob, size_t n, size_t text_bytes_max, struct tokenizer **ret,
                      struct iso_errinfo *reterr) ISO_MUST_USE;
// NULL is allowed.
void tok_close(struct tokenizer *t);
// A text_bytes_max that is generous for prompts of this many tokens.
size_t tok_text_bytes_for(uint32_t tokens);
// Bytes that a tokenizer takes beside its block, all of them touched when it is opened.
size_t tok_runtime_bytes(size_t text_bytes_max);

// Whether text may name control tokens: TOK_PLAIN for what users write (a control token's text is ordinary
// text there), TOK_SPECIAL for a rendered chat template. User-defined tokens are found in both.
enum tok_mode { TOK_PLAIN, TOK_SPECIAL };

// Writes the ids of text to ids[0..max) and their number to *ret_n. With `edges`, adds BOS in front and EOS
// at the end where the model asks for them. ISO_E_LIMIT where the text (also after normalization) is longer
// than text_bytes_max, or has more than max tokens; ids[] is then unspecified.
enum iso_err tok_encode(struct tokenizer *t, struct strv text, enum tok_mode mode, bool edges, uint32_t *ids,
                        size_t max, size_t *ret_n, struct iso_errinfo *reterr) ISO_MUST_USE;

uint32_t tok_count(const struct tokenizer *t);
uint32_t tok_merge_count(const struct tokenizer *t);
// The pre-tokenizer's name.
const char *tok_pre(const struct tokenizer *t);
bool tok_adds_bos(const struct tokenizer *t);
bool tok_adds_eos(const struct tokenizer *t);
// The id with a role, or TOK_NONE.
uint32_t tok_role(const struct tokenizer *t, enum tok_role role);

// For any id; one past the vocabulary (a model may have more outputs than tokens) counts as unused.
// The token's raw bytes (not always whole characters), valid as long as the block.
struct strv tok_piece(const struct tokenizer *t, uint32_t id);
enum tok_type tok_type_of(const struct tokenizer *t, uint32_t id);
bool tok_is_control(const struct tokenizer *t, uint32_t id);
// Ends a generation: the model's EOS and EOT, and control tokens with a name known to mean that
// (<|endoftext|>, <|end_of_text|>, <|im_end|>, <|eot_id|>, <|eom_id|>, <end_of_turn>), and those of tok_source.
bool tok_is_eog(const struct tokenizer *t, uint32_t id);
// The token with exactly these bytes (special ones first), or TOK_NONE.
uint32_t tok_find(const struct tokenizer *t, struct strv bytes);
