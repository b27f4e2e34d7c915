#include "graph/blocks.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/num.h"

#define NAME_MAX_BYTES 96

enum dtype ir_dtype_of(enum ggml_type type)
{
    switch (type) {
    case GGML_F32:
        return DT_F32;
    case GGML_F16:
        return DT_F16;
    case GGML_BF16:
        return DT_BF16;
    case GGML_Q4_0:
        return DT_Q4_0;
    case GGML_Q4_1:
        return DT_Q4_1;
    case GGML_Q5_0:
        return DT_Q5_0;
    case GGML_Q5_1:
        return DT_Q5_1;
    case GGML_Q8_0:
        return DT_Q8_0;
    case GGML_Q2_K:
        return DT_Q2_K;
    case GGML_Q3_K:
        return DT_Q3_K;
    case GGML_Q4_K:
        return DT_Q4_K;
    case GGML_Q5_K:
        return DT_Q5_K;
    case GGML_Q6_K:
        return DT_Q6_K;
    case GGML_IQ4_NL:
        return DT_IQ4_NL;
    case GGML_IQ4_XS:
        return DT_IQ4_XS;
    default:
        ASSERT(!"gguf_open refuses other types");
        return DT_COUNT;
    }
}

// Names of tensors, in GGUF and in Hugging Face's folders.
static const char *const NAMES[][2] = {
    {"token_embd.weight", "model.embed_tokens.weight"},
    {"output_norm.weight", "model.norm.weight"},
    {"output.weight", "lm_head.weight"},
    {"blk.%u.attn_norm.weight", "model.layers.%u.input_layernorm.weight"},
    {"blk.%u.attn_q.weight", "model.layers.%u.self_attn.q_proj.weight"},
    {"blk.%u.attn_k.weight", "model.layers.%u.self_attn.k_proj.weight"},
    {"blk.%u.attn_v.weight", "model.layers.%u.self_attn.v_proj.weight"},
    {"blk.%u.attn_q.bias", "model.layers.%u.self_attn.q_proj.bias"},
    {"blk.%u.attn_k.bias", "model.layers.%u.self_attn.k_proj.bias"},
    {"blk.%u.attn_v.bias", "model.layers.%u.self_attn.v_proj.bias"},
    {"blk.%u.attn_output.weight", "model.layers.%u.self_attn.o_proj.weight"},
    {"blk.%u.attn_q_norm.weight", "model.layers.%u.self_attn.q_norm.weight"},
    {"blk.%u.attn_k_norm.weight", "model.layers.%u.self_attn.k_norm.weight"},
    {"blk.%u.post_attention_norm.weight", "model.layers.%u.post_attention_layernorm.weight"},
    {"blk.%u.ffn_norm.weight", "model.layers.%u.post_attention_layernorm.weight"},
    {"blk.%u.ffn_gate.weight", "model.layers.%u.mlp.gate_proj.weight"},
    {"blk.%u.ffn_up.weight", "model.layers.%u.mlp.up_proj.weight"},
    {"blk.%u.ffn_down.weight", "model.layers.%u.mlp.down_proj.weight"},
    {"blk.%u.post_ffw_norm.weight", "model.layers.%u.post_feedforward_layernorm.weight"},
};

// The model's own name of a tensor; empty where the format has none.
static void tensor_name(const struct builder *b, const char *format, uint32_t layer, char out[NAME_MAX_BYTES])
{
    bool hf = b->model->format == MODEL_HF;
    const char *own = hf ? "" : format;
    for (size_t i = 0; hf && i < ARRAY_LEN(NAMES); i++)
        if (strcmp(NAMES[i][0], format) == 0)
            own = NAMES[i][1];
    if (hf && b->family->hf_ffn_norm && strcmp(format, "blk.%u.ffn_norm.weight") == 0)
        own = b->family->hf_ffn_norm;
    snprintf(out, NAME_MAX_BYTES, own, layer); // NOLINT: formats are literals
}

bool blocks_has(const struct builder *b, const char *format, uint32_t layer)
{
    char name[NAME_MAX_BYTES];
    tensor_name(b, format, layer, name);
    return model_tensor_find(b->model, name) != NULL;
}

// The tensor with dims {k, n} (n = 0: one dimension).
static enum iso_err find_tensor(struct builder *b, const char *format, uint32_t layer, uint32_t n, uint32_t k,
                                const struct model_tensor **ret)
{
    char name[NAME_MAX_BYTES];
    tensor_name(b, format, layer, name);
    const struct model_tensor *t = model_tensor_find(b->model, name);
    if (!t)
        return iso_fail(b->reterr, ISO_E_FORMAT, 0, name, "tensor \"%s\" is missing", name);
    uint64_t rows = n ? n : 1;
    if (t->dims[0] != k || t->dims[1] != rows || t->dims[2] != 1 || t->dims[3] != 1)
        return iso_fail(b->reterr, ISO_E_FORMAT, t->offset, name,
                        "tensor \"%s\" has shape %" PRIu64 " x %" PRIu64 " x %" PRIu64 " x %" PRIu64
                        " where the parameters ask for %" PRIu32 " x %" PRIu64,
                        name, t->dims[0], t->dims[1], t->dims[2], t->dims[3], k, rows);
    b->used[t - b->model->tensors] = true;
    *ret = t;
    return ISO_OK;
}

enum iso_err blocks_matrix(struct builder *b, const char *format, uint32_t layer, uint32_t n, uint32_t k,
                           uint32_t deinterleave_heads, uint32_t *ret)
{
    const struct model_tensor *t;
    enum iso_err err = find_tensor(b, format, layer, n, k, &t);
    if (err)
        return err;
    uint32_t part =
        graph_add_part(b->g, (struct ir_part){.source = t, .deinterleave_heads = deinterleave_heads});
    *ret = graph_add_tensor(b->g, (struct ir_tensor){.kind = IR_MATRIX,
                                                     .dtype = ir_dtype_of(t->type),
                                                     .rows = n,
                                                     .cols = k,
                                                     .part = part,
                                                     .n_parts = 1});
    return ISO_OK;
}

enum iso_err blocks_floats(struct builder *b, const char *format, uint32_t layer, uint32_t n,
                           const struct model_tensor **ret)
{
    const struct model_tensor *t;
    enum iso_err err = find_tensor(b, format, layer, 0, n, &t);
    if (err)
        return err;
    if (ggml_type_info(t->type)->block_elements > 1)
        return iso_fail(b->reterr, ISO_E_UNSUPPORTED, t->offset, NULL,
                        "tensor \"%.*s\" has type %s; norms and biases are supported as F32, F16 and BF16",
                        STRV_ARG(t->name), ggml_type_info(t->type)->name);
    *ret = t;
    return ISO_OK;
}

static enum iso_err add_vector(struct builder *b, const char *format, uint32_t layer, uint32_t n,
                               struct ir_part part, uint32_t *ret)
{
    enum iso_err err = blocks_floats(b, format, layer, n, &part.source);
    if (err)
        return err;
    *ret = graph_add_tensor(
        b->g,
        (struct ir_tensor){
            .kind = IR_VECTOR, .dtype = DT_F32, .cols = n, .part = graph_add_part(b->g, part), .n_parts = 1});
    return ISO_OK;
}

enum iso_err blocks_vector(struct builder *b, const char *format, uint32_t layer, uint32_t n,
                           uint32_t deinterleave_heads, uint32_t *ret)
{
    return add_vector(b, format, layer, n, (struct ir_part){.deinterleave_heads = deinterleave_heads}, ret);
}

enum iso_err blocks_gain(struct builder *b, const char *format, uint32_t layer, uint32_t n, uint32_t *ret)
{
    bool plus_one = b->family->norm_plus_one && b->model->format == MODEL_HF;
    return add_vector(b, format, layer, n, (struct ir_part){.plus_one = plus_one}, ret);
}

enum iso_err blocks_angles(struct builder *b, const struct ir_rope *rope, uint32_t *ret)
{
    struct ir_rope *copy = arena_alloc(b->g->arena, sizeof *copy);
    if (!copy)
        return iso_fail(b->reterr, ISO_E_LIMIT, 0, NULL, "the graph is too large for the compiler's memory");
    *copy = *rope;
    *ret = graph_add_tensor(
        b->g,
        (struct ir_tensor){.kind = IR_ANGLES, .dtype = DT_F32, .cols = b->g->model.head_dim, .rope = copy});
    return ISO_OK;
}

enum iso_err blocks_all_used(struct builder *b)
{
    for (uint32_t i = 0; i < b->model->n_tensors; i++) {
        const struct model_tensor *t = &b->model->tensors[i];
        if (!b->used[i])
            return iso_fail(b->reterr, ISO_E_UNSUPPORTED, t->offset, NULL,
                            "tensor \"%.*s\" has no place in architecture \"%.*s\" as supported here",
                            STRV_ARG(t->name), STRV_ARG(b->g->model.arch));
    }
    return ISO_OK;
}

static enum iso_err find_bias(struct builder *b, const char *format, uint32_t layer, uint32_t n, uint32_t mix,
                              uint32_t *ret)
{
    *ret = IR_NONE;
    return blocks_has(b, format, layer) ? blocks_vector(b, format, layer, n, mix, ret) : ISO_OK;
}

enum iso_err blocks_find_attention(struct builder *b, uint32_t i, struct attention_weights *ret)
{
    const struct ir_model *m = &b->g->model;
    uint32_t q_cols = m->heads * m->head_dim, kv_cols = m->kv_heads * m->head_dim;
    bool mixed = b->family->rope_interleaved && b->model->format == MODEL_GGUF;
    uint32_t q_mix = mixed ? m->heads : 0, k_mix = mixed ? m->kv_heads : 0;
    struct attention_weights w = {.q_norm = IR_NONE, .k_norm = IR_NONE};
    enum iso_err err = blocks_matrix(b, "blk.%u.attn_q.weight", i, q_cols, m->hidden, q_mix, &w.q);
    if (!err)
        err = blocks_matrix(b, "blk.%u.attn_k.weight", i, kv_cols, m->hidden, k_mix, &w.k);
    if (!err)
        err = blocks_matrix(b, "blk.%u.attn_v.weight", i, kv_cols, m->hidden, 0, &w.v);
    if (!err)
        err = find_bias(b, "blk.%u.attn_q.bias", i, q_cols, q_mix, &w.bias_q);
    if (!err)
        err = find_bias(b, "blk.%u.attn_k.bias", i, kv_cols, k_mix, &w.bias_k);
    if (!err)
        err = find_bias(b, "blk.%u.attn_v.bias", i, kv_cols, 0, &w.bias_v);
    if (!err && b->family->qk_norm)
        err = blocks_gain(b, "blk.%u.attn_q_norm.weight", i, m->head_dim, &w.q_norm);
    if (!err && b->family->qk_norm)
        err = blocks_gain(b, "blk.%u.attn_k_norm.weight", i, m->head_dim, &w.k_norm);
    if (!err)
        err = blocks_matrix(b, "blk.%u.attn_output.weight", i, m->hidden, q_cols, 0, &w.out);
    if (!err)
        *ret = w;
    return err;
}

enum iso_err blocks_find_ffn(struct builder *b, uint32_t i, struct ffn_weights *ret)
{
    const struct ir_model *m = &b->g->model;
    struct ffn_weights w;
    enum iso_err err = blocks_matrix(b, "blk.%u.ffn_gate.weight", i, m->ffn, m->hidden, 0, &w.gate);
    if (!err)
        err = blocks_matrix(b, "blk.%u.ffn_up.weight", i, m->ffn, m->hidden, 0, &w.up);
    if (!err)
        err = blocks_matrix(b, "blk.%u.ffn_down.weight", i, m->hidden, m->ffn, 0, &w.down);
    if (!err)
        *ret = w;
    return err;
}

uint32_t blocks_matmul(struct graph *g, uint32_t x, uint32_t matrix, uint32_t bias)
{
    uint32_t y = graph_add_value(g, g->tensors[x].kind, DT_F32, g->tensors[matrix].rows);
    graph_add_op(g, IR_MATMUL, ir_whole(g, x), ir_whole(g, matrix),
                 bias == IR_NONE ? ir_none() : ir_whole(g, bias), ir_whole(g, y));
    return y;
}

uint32_t blocks_rmsnorm(struct graph *g, uint32_t x, uint32_t gain)
{
    uint32_t y = graph_add_value(g, g->tensors[x].kind, DT_F32, g->tensors[x].cols);
    graph_add_op(g, IR_RMSNORM, ir_whole(g, x), ir_whole(g, gain), ir_none(), ir_whole(g, y))->scale =
        g->model.norm_epsilon;
    return y;
}

void blocks_add(struct graph *g, uint32_t x, uint32_t y)
{
    graph_add_op(g, IR_ADD, ir_whole(g, x), ir_whole(g, y), ir_none(), ir_whole(g, x));
}

// Each head of x normalized, in place, then turned by its position's angles.
static void add_head_ops(struct graph *g, uint32_t x, uint32_t gain, uint32_t angles)
{
    if (gain != IR_NONE)
        graph_add_op(g, IR_RMSNORM, ir_whole(g, x), ir_whole(g, gain), ir_none(), ir_whole(g, x))->scale =
            g->model.norm_epsilon;
    graph_add_op(g, IR_ROPE, ir_whole(g, x), ir_whole(g, angles), ir_none(), ir_whole(g, x));
}

uint32_t blocks_attention(struct graph *g, const struct attention_weights *w, uint32_t h, uint32_t angles,
                          uint32_t window)
{
    const struct ir_model *m = &g->model;
    uint32_t q = blocks_matmul(g, h, w->q, w->bias_q);
    uint32_t k = blocks_matmul(g, h, w->k, w->bias_k);
    uint32_t v = blocks_matmul(g, h, w->v, w->bias_v);
    add_head_ops(g, q, w->q_norm, angles);
    add_head_ops(g, k, w->k_norm, angles);
    graph_add_op(g, IR_KV_STORE, ir_whole(g, k), ir_whole(g, v), ir_none(), ir_none());
    uint32_t a = graph_add_value(g, IR_BATCH, DT_F32, m->heads * m->head_dim);
    struct ir_op *op = graph_add_op(g, IR_ATTENTION, ir_whole(g, q), ir_none(), ir_none(), ir_whole(g, a));
    op->scale = m->attention_scale;
    op->window = window;
    return blocks_matmul(g, a, w->out, IR_NONE);
}

uint32_t blocks_ffn(struct graph *g, const struct ffn_weights *w, uint32_t h, enum ir_code act_mul)
{
    uint32_t gate = blocks_matmul(g, h, w->gate, IR_NONE);
    uint32_t up = blocks_matmul(g, h, w->up, IR_NONE);
    uint32_t inner = graph_add_value(g, IR_BATCH, DT_F32, g->model.ffn);
    graph_add_op(g, act_mul, ir_whole(g, gate), ir_whole(g, up), ir_none(), ir_whole(g, inner));
    return blocks_matmul(g, inner, w->down, IR_NONE);
}

void blocks_end_layer(struct graph *g, uint32_t first_op, uint32_t layer)
{
    for (uint32_t i = first_op; i < g->n_ops; i++)
        g->ops[i].layer = layer;
}

// The vocabulary is as long as the embedding matrix.
static enum iso_err find_vocab(struct builder *b)
{
    char name[NAME_MAX_BYTES], text[MODEL_KEY_TEXT_MAX];
    uint32_t said;
    tensor_name(b, "token_embd.weight", 0, name);
    const struct model_tensor *t = model_tensor_find(b->model, name);
    if (!t)
        return iso_fail(b->reterr, ISO_E_FORMAT, 0, name, "tensor \"%s\" is missing", name);
    if (t->dims[1] > IR_VOCAB_MAX)
        return iso_fail(b->reterr, ISO_E_UNSUPPORTED, 0, name,
                        "the vocabulary has %" PRIu64 " tokens; the limit is %d", t->dims[1], IR_VOCAB_MAX);
    b->g->model.vocab = (uint32_t)t->dims[1];
    if (!model_has(b->model, MODEL_VOCAB))
        return ISO_OK;
    enum iso_err err = model_get_u32(b->model, MODEL_VOCAB, &said, b->reterr);
    if (!err && said != b->g->model.vocab) {
        model_key_text(b->model, MODEL_VOCAB, text);
        err = iso_fail(b->reterr, ISO_E_FORMAT, 0, text,
                       "%s is %" PRIu32 ", but tensor \"%s\" has %" PRIu32 " rows", text, said, name,
                       b->g->model.vocab);
    }
    return err;
}

enum iso_err blocks_begin(struct builder *b, float scale, uint32_t *ret_embedding, uint32_t *ret_x)
{
    struct graph *g = b->g;
    struct ir_model *m = &g->model;
    uint32_t embedding;
    enum iso_err err = find_vocab(b);
    if (!err)
        err = blocks_matrix(b, "token_embd.weight", 0, m->vocab, m->hidden, 0, &embedding);
    if (err)
        return err;
    uint32_t x = graph_add_value(g, IR_BATCH, DT_F32, m->hidden);
    graph_add_op(g, IR_EMBED, ir_whole(g, embedding), ir_none(), ir_none(), ir_whole(g, x))->scale = scale;
    *ret_embedding = embedding;
    *ret_x = x;
    return ISO_OK;
}

// The head's weights: its own, or the embedding where the model ties them.
static enum iso_err find_head(struct builder *b, uint32_t embedding, uint32_t *ret)
{
    const struct ir_model *m = &b->g->model;
    char text[MODEL_KEY_TEXT_MAX];
    bool tied = model_is_set(b->model, MODEL_TIED, false);
    if (!tied && !blocks_has(b, "output.weight", 0) && model_has(b->model, MODEL_TIED)) {
        model_key_text(b->model, MODEL_TIED, text);
        return iso_fail(b->reterr, ISO_E_FORMAT, 0, text, "%s is false, but the model has no output matrix",
                        text);
    }
    *ret = embedding;
    if (!blocks_has(b, "output.weight", 0))
        return ISO_OK;
    uint32_t head;
    enum iso_err err = blocks_matrix(b, "output.weight", 0, m->vocab, m->hidden, 0, &head);
    if (!err && !tied) // a tied model's own copy is the embedding once more
        *ret = head;
    return err;
}

enum iso_err blocks_end(struct builder *b, uint32_t embedding, uint32_t x)
{
    struct graph *g = b->g;
    uint32_t final_norm, head;
    enum iso_err err = blocks_gain(b, "output_norm.weight", 0, g->model.hidden, &final_norm);
    if (!err)
        err = find_head(b, embedding, &head);
    if (err)
        return err;
    uint32_t last = graph_add_value(g, IR_LOGITS, DT_F32, g->model.hidden);
    graph_add_op(g, IR_GATHER, ir_whole(g, x), ir_none(), ir_none(), ir_whole(g, last));
    g->logits = blocks_matmul(g, blocks_rmsnorm(g, last, final_norm), head, IR_NONE);
    return ISO_OK;
}
