// Tiny whole models as GGUF bytes, to compile in tests: a list of keys and tensors that a test may change, so
// that anything can be made wrong, then written with pseudo-random finite weights. The same model and seed
// give the same bytes.
#pragma once

#include <stdint.h>
#include <string.h>

#include "gguf_build.h"

#define TINY_KEYS_MAX    48
#define TINY_TENSORS_MAX (1024 * 12 + 8)
#define TINY_BYTES_MAX   ((size_t)64 << 20)
#define TINY_VOCAB_MAX   90 // one character a token

struct tiny_key {
    char name[64];
    enum gguf_type type; // GGUF_U32, GGUF_F32 or GGUF_STR
    uint32_t u;
    float f;
    const char *s;
};

struct tiny_tensor {
    char name[GGUF_NAME_BYTES_MAX + 1];
    enum ggml_type type;
    uint64_t dims[2]; // of vectors: n, 0
};

struct tiny_model {
    uint32_t vocab;
    uint64_t seed;
    struct tiny_key keys[TINY_KEYS_MAX];
    uint32_t n_keys;
    struct tiny_tensor tensors[TINY_TENSORS_MAX];
    uint32_t n_tensors;
};

struct tiny_shape {
    const char *arch;
    uint32_t layers, hidden, heads, kv_heads, head_dim, ffn, vocab, context;
    enum ggml_type type;
    bool bias, untied;
};

static const struct tiny_shape TINY_LLAMA = {
    .arch = "llama",
    .layers = 2,
    .hidden = 32,
    .heads = 2,
    .kv_heads = 1,
    .head_dim = 16,
    .ffn = 64,
    .vocab = 40,
    .context = 64,
    .type = GGML_Q4_0,
};

static const struct tiny_shape TINY_QWEN2 = {
    .arch = "qwen2",
    .layers = 2,
    .hidden = 64,
    .heads = 4,
    .kv_heads = 2,
    .head_dim = 16,
    .ffn = 96,
    .vocab = 50,
    .context = 64,
    .type = GGML_Q5_1,
    .bias = true,
};

// Wide enough for types with blocks of 256.
static const struct tiny_shape TINY_WIDE = {
    .arch = "llama",
    .layers = 1,
    .hidden = 256,
    .heads = 2,
    .kv_heads = 1,
    .head_dim = 128,
    .ffn = 256,
    .vocab = 40,
    .context = 64,
    .type = GGML_Q4_K,
};

static inline struct tiny_key *tiny_key(struct tiny_model *m, const char *name)
{
    for (uint32_t i = 0; i < m->n_keys; i++)
        if (strcmp(m->keys[i].name, name) == 0)
            return &m->keys[i];
    ASSERT(m->n_keys < TINY_KEYS_MAX);
    struct tiny_key *k = &m->keys[m->n_keys++];
    *k = (struct tiny_key){0};
    snprintf(k->name, sizeof k->name, "%s", name);
    return k;
}

static inline void tiny_u32(struct tiny_model *m, const char *name, uint32_t u)
{
    struct tiny_key *k = tiny_key(m, name);
    k->type = GGUF_U32;
    k->u = u;
}

static inline void tiny_f32(struct tiny_model *m, const char *name, float f)
{
    struct tiny_key *k = tiny_key(m, name);
    k->type = GGUF_F32;
    k->f = f;
}

static inline void tiny_str(struct tiny_model *m, const char *name, const char *s)
{
    struct tiny_key *k = tiny_key(m, name);
    k->type = GGUF_STR;
    k->s = s;
}

static inline void tiny_drop_key(struct tiny_model *m, const char *name)
{
    *tiny_key(m, name) = m->keys[m->n_keys - 1];
    m->n_keys--;
}

static inline void tiny_add(struct tiny_model *m, enum ggml_type type, uint64_t k, uint64_t n,
                            const char *name)
{
    ASSERT(m->n_tensors < TINY_TENSORS_MAX);
    struct tiny_tensor *t = &m->tensors[m->n_tensors++];
    *t = (struct tiny_tensor){.type = type, .dims = {k, n}};
    snprintf(t->name, sizeof t->name, "%s", name);
}

static inline struct tiny_tensor *tiny_tensor(struct tiny_model *m, const char *name)
{
    for (uint32_t i = 0; i < m->n_tensors; i++)
        if (strcmp(m->tensors[i].name, name) == 0)
            return &m->tensors[i];
    ASSERT(!"the test names a tensor of the model");
    return NULL;
}

static inline void tiny_drop_tensor(struct tiny_model *m, const char *name)
{
    struct tiny_tensor *t = tiny_tensor(m, name), *end = m->tensors + m->n_tensors--;
    memmove(t, t + 1, (size_t)(end - t - 1) * sizeof *t);
}

static inline void tiny_layer(struct tiny_model *m, const struct tiny_shape *s, uint32_t layer)
{
    uint64_t q = (uint64_t)s->heads * s->head_dim, kv = (uint64_t)s->kv_heads * s->head_dim;
    const struct {
        const char *name;
        enum ggml_type type;
        uint64_t k, n;
    } ROWS[] = {
        {"attn_norm.weight", GGML_F32, s->hidden, 0},
        {"attn_q.weight", s->type, s->hidden, q},
        {"attn_k.weight", s->type, s->hidden, kv},
        {"attn_v.weight", s->type, s->hidden, kv},
        {"attn_output.weight", s->type, q, s->hidden},
        {"ffn_norm.weight", GGML_F32, s->hidden, 0},
        {"ffn_gate.weight", s->type, s->hidden, s->ffn},
        {"ffn_up.weight", s->type, s->hidden, s->ffn},
        {"ffn_down.weight", s->type, s->ffn, s->hidden},
        {"attn_q.bias", GGML_F32, q, 0},
        {"attn_k.bias", GGML_F32, kv, 0},
        {"attn_v.bias", GGML_F32, kv, 0},
    };
    for (size_t i = 0; i < ARRAY_LEN(ROWS) - (s->bias ? 0 : 3); i++) {
        char name[GGUF_NAME_BYTES_MAX + 1];
        snprintf(name, sizeof name, "blk.%u.%s", layer, ROWS[i].name);
        tiny_add(m, ROWS[i].type, ROWS[i].k, ROWS[i].n, name);
    }
}

static inline void tiny_init(struct tiny_model *m, const struct tiny_shape *s)
{
    memset(m, 0, sizeof *m);
    m->vocab = s->vocab;
    m->seed = 1;
    const struct {
        const char *name;
        uint32_t value;
    } KEYS[] = {
        {"block_count", s->layers},
        {"embedding_length", s->hidden},
        {"feed_forward_length", s->ffn},
        {"attention.head_count", s->heads},
        {"attention.head_count_kv", s->kv_heads},
        {"attention.key_length", s->head_dim},
        {"attention.value_length", s->head_dim},
        {"context_length", s->context},
    };
    char key[64];
    tiny_str(m, "general.architecture", s->arch);
    tiny_str(m, "general.name", "Tiny");
    for (size_t i = 0; i < ARRAY_LEN(KEYS); i++) {
        snprintf(key, sizeof key, "%s.%s", s->arch, KEYS[i].name);
        tiny_u32(m, key, KEYS[i].value);
    }
    snprintf(key, sizeof key, "%s.attention.layer_norm_rms_epsilon", s->arch);
    tiny_f32(m, key, 1e-5f);
    tiny_add(m, s->type, s->hidden, s->vocab, "token_embd.weight");
    tiny_add(m, GGML_F32, s->hidden, 0, "output_norm.weight");
    if (s->untied)
        tiny_add(m, s->type, s->hidden, s->vocab, "output.weight");
    for (uint32_t i = 0; i < s->layers; i++)
        tiny_layer(m, s, i);
}

static inline uint64_t tiny_random(uint64_t *state)
{
    uint64_t z = (*state += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

// One block of any codes whose scale, minimum or value is finite and of a magnitude of about 1/8.
static inline void tiny_block(struct buf *b, enum ggml_type type, uint64_t *state)
{
    static const struct {
        enum ggml_type type;
        uint32_t d, m; // where they stand, 0 and 0: at the beginning
    } HALVES[] = {{GGML_Q4_1, 0, 2}, {GGML_Q5_1, 0, 2}, {GGML_Q2_K, 80, 82},  {GGML_Q3_K, 108, 108},
                  {GGML_Q4_K, 0, 2}, {GGML_Q5_K, 0, 2}, {GGML_Q6_K, 208, 208}};
    uint8_t block[256];
    uint32_t bytes = ggml_type_info(type)->block_bytes;
    for (uint32_t i = 0; i < bytes; i++)
        block[i] = (uint8_t)tiny_random(state);
    uint32_t r = (uint32_t)tiny_random(state);
    uint16_t half = (uint16_t)((r & 0x83FF) | 0x3000), half2 = (uint16_t)((r >> 16 & 0x83FF) | 0x3000);
    uint32_t single = (r & 0x807FFFFF) | 0x3E000000;
    if (type == GGML_F32)
        memcpy(block, &single, sizeof single);
    else if (type == GGML_BF16)
        memcpy(block, (uint8_t *)&single + 2, 2);
    else {
        uint32_t d = 0, m = 0;
        for (size_t i = 0; i < ARRAY_LEN(HALVES); i++)
            if (HALVES[i].type == type)
                d = HALVES[i].d, m = HALVES[i].m;
        memcpy(block + m, &half2, sizeof half2);
        memcpy(block + d, &half, sizeof half);
    }
    gb_bytes(b, block, bytes);
}

static inline void tiny_vocabulary(const struct tiny_model *m, struct buf *b)
{
    ASSERT(m->vocab >= 2 && m->vocab <= TINY_VOCAB_MAX);
    gb_kv_str(b, "tokenizer.ggml.model", "gpt2");
    gb_kv_str(b, "tokenizer.ggml.pre", "smollm");
    gb_array(b, "tokenizer.ggml.tokens", GGUF_STR, m->vocab);
    for (uint32_t i = 0; i + 1 < m->vocab; i++) {
        char token[2] = {(char)('!' + i)};
        gb_str(b, token);
    }
    gb_str(b, "<|endoftext|>");
    gb_array(b, "tokenizer.ggml.token_type", GGUF_I32, m->vocab);
    for (uint32_t i = 0; i < m->vocab; i++)
        gb_u32(b, i + 1 == m->vocab ? 3 : 1);
    gb_array(b, "tokenizer.ggml.merges", GGUF_STR, 0);
    gb_kv_u32(b, "tokenizer.ggml.eos_token_id", m->vocab - 1);
}

#define TINY_VOCABULARY_KEYS 6

static inline uint64_t tiny_blocks(const struct tiny_tensor *t)
{
    return t->dims[0] / ggml_type_info(t->type)->block_elements * (t->dims[1] ? t->dims[1] : 1);
}

// Appends the file to *b.
static inline void tiny_write(const struct tiny_model *m, struct buf *b)
{
    uint64_t offset = 0, state = m->seed;
    gb_begin(b, m->n_tensors, m->n_keys + TINY_VOCABULARY_KEYS);
    for (uint32_t i = 0; i < m->n_keys; i++) {
        const struct tiny_key *k = &m->keys[i];
        gb_key(b, k->name, k->type);
        if (k->type == GGUF_STR)
            gb_str(b, k->s);
        else if (k->type == GGUF_F32)
            gb_f32(b, k->f);
        else
            gb_u32(b, k->u);
    }
    tiny_vocabulary(m, b);
    for (uint32_t i = 0; i < m->n_tensors; i++) {
        const struct tiny_tensor *t = &m->tensors[i];
        gb_tensor(b, t->name, t->type, t->dims[1] ? 2 : 1, t->dims, offset);
        offset = num_align(offset + tiny_blocks(t) * ggml_type_info(t->type)->block_bytes, 32);
    }
    gb_data(b, 32, 0);
    for (uint32_t i = 0; i < m->n_tensors; i++) {
        for (uint64_t n = tiny_blocks(&m->tensors[i]); n > 0; n--)
            tiny_block(b, m->tensors[i].type, &state);
        gb_data(b, 32, 0);
    }
}
