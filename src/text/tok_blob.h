// The tokenizer as the plan file holds it: one position-independent, little-endian block, used in place.
//
// Sections follow the header in a fixed order, their places computed from the header's counts (tok_layout),
// so the block holds no offsets. Both hash tables are open-addressed with linear probing, at most half full,
// and are part of the block: opening allocates nothing that grows with the vocabulary. tok_blob_check proves
// a block safe to use whoever made it; everything else here relies on that.
//
// A "key" is a token that text can become through merges or whole: normal or user-defined. Control, unknown
// and unused tokens are never keys, so text cannot be merged into one.
#pragma once

#include <endian.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/assert.h"
#include "base/err.h"
#include "base/strv.h"
#include "text/tokenizer.h"

#define TOK_BLOB_MAGIC   "ISO\x1atok" // 8 bytes with its zero
#define TOK_BLOB_VERSION 3
#define TOK_BLOB_ALIGN   16

#define TOK_FLAG_ADD_BOS 1u
#define TOK_FLAG_ADD_EOS 2u
#define TOK_FLAG_PREFIX  0xCu // SentencePiece: enum tok_prefix, shifted
#define TOK_PREFIX_SHIFT 2
#define TOK_FLAG_UNIGRAM 0x10u // tokens have scores, and merges are the edges of a tree (struct tok_merge)
#define TOK_FLAGS_KNOWN  (TOK_FLAG_ADD_BOS | TOK_FLAG_ADD_EOS | TOK_FLAG_PREFIX | TOK_FLAG_UNIGRAM)

#define TOK_MARK       "\xE2\x96\x81" // U+2581, SentencePiece's space
#define TOK_MARK_BYTES 3

static_assert(TOK_PREFIX_COUNT <= (TOK_FLAG_PREFIX >> TOK_PREFIX_SHIFT) + 1, "two bits");

// A kind byte: ggml's token type in the low bits, and whether the token ends a generation.
#define TOK_KIND_TYPE 0x07u
#define TOK_KIND_EOG  0x80u

// Longest run of occupied slots in either hash table: the bound of one probe.
#define TOK_PROBE_MAX 512

static_assert(__BYTE_ORDER == __LITTLE_ENDIAN, "the block is read in place");

struct tok_blob_header {
    uint8_t magic[8];
    uint32_t version;
    uint32_t bytes;  // of the whole block
    uint32_t pretok; // enum pretok_kind
    uint32_t flags;
    uint32_t n_tokens;
    uint32_t n_merges;
    uint32_t n_specials;
    uint32_t vocab_bytes;
    uint32_t roles[TOK_ROLE_COUNT]; // token ids, TOK_NONE where absent
    uint32_t reserved;              // 0
    uint32_t
        byte_ids[256]; // the token of each single byte, TOK_NONE where the vocabulary has none: a key, or
                       // with SentencePiece a byte token
};
static_assert(sizeof(struct tok_blob_header) == 64 + 1024, "file layout");
static_assert(offsetof(struct tok_blob_header, roles) == 40, "file layout");
static_assert(offsetof(struct tok_blob_header, byte_ids) == 64, "file layout");

// The merge of rank r is element r: tokens left, right become merged, whose bytes are theirs in order. Of a unigram
// vocabulary element r is the edge to node r + 1 of the tree of all normal tokens' bytes, from node `left`, 0 being the root, by the
// byte `right`; `merged` is the key that ends there, or TOK_NONE.
struct tok_merge {
    uint32_t left, right, merged;
};
static_assert(sizeof(struct tok_merge) == 12, "file layout");

// Where each section begins, in bytes from the block's start, in the order they stand.
struct tok_layout {
    uint64_t scores;      // double[n_tokens] of a unigram vocabulary, else nothing
    uint64_t starts;      // uint32_t[n_tokens + 1] into bytes
    uint64_t token_slots; // uint32_t[n_token_slots]: a key's id or TOK_NONE, by hash of its bytes
    uint64_t merges;      // struct tok_merge[n_merges]
    uint64_t merge_slots; // uint32_t[n_merge_slots]: a rank or TOK_NONE, by hash of (left, right)
    uint64_t specials;    // uint32_t[n_specials]: ids, ascending by bytes
    uint64_t kinds;       // uint8_t[n_tokens]
    uint64_t bytes;       // uint8_t[vocab_bytes]: every token's raw bytes
    uint64_t end;         // padded to TOK_BLOB_ALIGN
    uint32_t n_token_slots, n_merge_slots; // powers of two, at least twice what they can hold
};

// Pointers into a block.
struct tok_view {
    const struct tok_blob_header *header;
    const double *scores; // NULL where it isn't unigram
    double least_score;
    const uint32_t *starts, *token_slots, *merge_slots, *specials;
    const struct tok_merge *merges;
    const uint8_t *kinds, *bytes;
    uint32_t token_mask, merge_mask;
};

// False where a count is over its limit in tokenizer.h.
bool tok_layout(const struct tok_blob_header *h, struct tok_layout *ret) ISO_MUST_USE;
struct tok_view tok_view_make(const void *blob, const struct tok_layout *l);

// Checks a whole block of n bytes from any source and fills *ret. One pass over each section.
enum iso_err tok_blob_check(const void *blob, size_t n, struct tok_view *ret,
                            struct iso_errinfo *reterr) ISO_MUST_USE;

// The key with exactly these bytes, or TOK_NONE.
uint32_t tok_key_find(const struct tok_view *v, struct strv bytes);
// The rank of the merge of two tokens, or TOK_NONE.
uint32_t tok_merge_find(const struct tok_view *v, uint32_t left, uint32_t right);
// First slots of the two probes, before masking. Part of the file format.
uint32_t tok_key_hash(struct strv bytes);
uint32_t tok_pair_hash(uint32_t left, uint32_t right);
// Order of specials: by bytes, a prefix first. Negative, 0, positive.
int tok_compare(struct strv a, struct strv b);

static inline struct strv tok_bytes(const struct tok_view *v, uint32_t id)
{
    return (struct strv){(const char *)v->bytes + v->starts[id], v->starts[id + 1] - v->starts[id]};
}

static inline uint32_t tok_type(const struct tok_view *v, uint32_t id)
{
    return v->kinds[id] & TOK_KIND_TYPE;
}

static inline bool tok_type_is_key(uint32_t type)
{
    return type == TOK_TYPE_NORMAL || type == TOK_TYPE_USER_DEFINED;
}

// Tokens that are cut out of text before pre-tokenizing.
static inline bool tok_type_is_special(uint32_t type)
{
    return type == TOK_TYPE_CONTROL || type == TOK_TYPE_UNKNOWN || type == TOK_TYPE_USER_DEFINED;
}
