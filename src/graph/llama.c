// The llama family: llama 1 to 3, SmolLM2, Mistral without sliding window; with biases on Q, K and V, qwen2.
//
//   x = embedding[id]                                              [rows][hidden]
//   per layer:  h = rmsnorm(x);  q, k, v = h Wq, h Wk, h Wv (+ b)  [rows][heads | kv_heads | kv_heads * head_dim]
//               rotate q and k;  store k and v;  x += attention(q) Wo
//               h = rmsnorm(x);  x += (silu(h Wgate) * (h Wup)) Wdown   [rows][ffn] inside
//   logits = rmsnorm(x of wanted rows) Whead     [rows wanted][vocab]; Whead may be the embedding
#include "graph/blocks.h"

#include <inttypes.h>

struct layer_weights {
    uint32_t attn_norm, q, k, v, bias_q, bias_k, bias_v, out, ffn_norm, gate, up, down;
};

static enum iso_err find_layer(struct builder *b, const struct family *family, uint32_t i,
                               struct layer_weights *w)
{
    const struct ir_model *m = &b->g->model;
    uint32_t q_cols = m->heads * m->head_dim, kv_cols = m->kv_heads * m->head_dim;
    uint32_t q_mix = family->rope_interleaved ? m->heads : 0,
             k_mix = family->rope_interleaved ? m->kv_heads : 0;
    enum iso_err err = blocks_vector(b, "blk.%u.attn_norm.weight", i, m->hidden, false, 0, &w->attn_norm);
    if (!err)
        err = blocks_matrix(b, "blk.%u.attn_q.weight", i, q_cols, m->hidden, q_mix, &w->q);
    if (!err)
        err = blocks_matrix(b, "blk.%u.attn_k.weight", i, kv_cols, m->hidden, k_mix, &w->k);
    if (!err)
        err = blocks_matrix(b, "blk.%u.attn_v.weight", i, kv_cols, m->hidden, 0, &w->v);
    if (!err)
        err = blocks_vector(b, "blk.%u.attn_q.bias", i, q_cols, true, q_mix, &w->bias_q);
    if (!err)
        err = blocks_vector(b, "blk.%u.attn_k.bias", i, kv_cols, true, k_mix, &w->bias_k);
    if (!err)
        err = blocks_vector(b, "blk.%u.attn_v.bias", i, kv_cols, true, 0, &w->bias_v);
    if (!err)
        err = blocks_matrix(b, "blk.%u.attn_output.weight", i, m->hidden, q_cols, 0, &w->out);
    if (!err)
        err = blocks_vector(b, "blk.%u.ffn_norm.weight", i, m->hidden, false, 0, &w->ffn_norm);
    if (!err)
        err = blocks_matrix(b, "blk.%u.ffn_gate.weight", i, m->ffn, m->hidden, 0, &w->gate);
    if (!err)
        err = blocks_matrix(b, "blk.%u.ffn_up.weight", i, m->ffn, m->hidden, 0, &w->up);
    if (!err)
        err = blocks_matrix(b, "blk.%u.ffn_down.weight", i, m->hidden, m->ffn, 0, &w->down);
    return err;
}

static void add_layer(struct graph *g, uint32_t layer, const struct layer_weights *w, uint32_t x,
                      uint32_t rope)
{
    const struct ir_model *m = &g->model;
    uint32_t first = g->n_ops, h = blocks_rmsnorm(g, x, w->attn_norm);
    uint32_t q = blocks_matmul(g, h, w->q, w->bias_q);
    uint32_t k = blocks_matmul(g, h, w->k, w->bias_k);
    uint32_t v = blocks_matmul(g, h, w->v, w->bias_v);
    graph_add_op(g, IR_ROPE, ir_whole(g, q), ir_whole(g, rope), ir_none(), ir_whole(g, q));
    graph_add_op(g, IR_ROPE, ir_whole(g, k), ir_whole(g, rope), ir_none(), ir_whole(g, k));
    graph_add_op(g, IR_KV_STORE, ir_whole(g, k), ir_whole(g, v), ir_none(), ir_none());
    uint32_t a = graph_add_value(g, IR_BATCH, DT_F32, m->heads * m->head_dim);
    graph_add_op(g, IR_ATTENTION, ir_whole(g, q), ir_none(), ir_none(), ir_whole(g, a));
    blocks_add(g, x, blocks_matmul(g, a, w->out, IR_NONE));

    h = blocks_rmsnorm(g, x, w->ffn_norm);
    uint32_t gate = blocks_matmul(g, h, w->gate, IR_NONE);
    uint32_t up = blocks_matmul(g, h, w->up, IR_NONE);
    uint32_t inner = graph_add_value(g, IR_BATCH, DT_F32, m->ffn);
    graph_add_op(g, IR_SILU_MUL, ir_whole(g, gate), ir_whole(g, up), ir_none(), ir_whole(g, inner));
    blocks_add(g, x, blocks_matmul(g, inner, w->down, IR_NONE));
    for (uint32_t i = first; i < g->n_ops; i++)
        g->ops[i].layer = layer;
}

// The vocabulary is as long as the embedding matrix.
static enum iso_err find_vocab(struct builder *b)
{
    const struct gguf_tensor *t = gguf_tensor_find(b->file, "token_embd.weight");
    if (!t)
        return iso_fail(b->reterr, ISO_E_FORMAT, 0, "token_embd.weight",
                        "tensor \"token_embd.weight\" is missing");
    if (t->dims[1] > IR_VOCAB_MAX)
        return iso_fail(b->reterr, ISO_E_UNSUPPORTED, 0, "token_embd.weight",
                        "the vocabulary has %" PRIu64 " tokens; the limit is %d", t->dims[1], IR_VOCAB_MAX);
    b->g->model.vocab = (uint32_t)t->dims[1];
    return ISO_OK;
}

static enum iso_err llama_build(struct builder *b, const struct family *family)
{
    struct graph *g = b->g;
    struct ir_model *m = &g->model;
    uint32_t embedding, final_norm, head;
    enum iso_err err = find_vocab(b);
    if (!err)
        err = blocks_matrix(b, "token_embd.weight", 0, m->vocab, m->hidden, 0, &embedding);
    if (!err)
        err = blocks_vector(b, "output_norm.weight", 0, m->hidden, false, 0, &final_norm);
    if (err)
        return err;
    head = embedding;
    if (gguf_tensor_find(b->file, "output.weight")) {
        err = blocks_matrix(b, "output.weight", 0, m->vocab, m->hidden, 0, &head);
        if (err)
            return err;
    }
    uint32_t rope =
        graph_add_tensor(g, (struct ir_tensor){.kind = IR_ANGLES, .dtype = DT_F32, .cols = m->head_dim});
    uint32_t x = graph_add_value(g, IR_BATCH, DT_F32, m->hidden);
    graph_add_op(g, IR_EMBED, ir_whole(g, embedding), ir_none(), ir_none(), ir_whole(g, x));
    for (uint32_t i = 0; i < m->layers; i++) {
        struct layer_weights w;
        err = find_layer(b, family, i, &w);
        if (err)
            return err;
        add_layer(g, i, &w, x, rope);
    }
    uint32_t last = graph_add_value(g, IR_LOGITS, DT_F32, m->hidden);
    graph_add_op(g, IR_GATHER, ir_whole(g, x), ir_none(), ir_none(), ir_whole(g, last));
    g->logits = blocks_matmul(g, blocks_rmsnorm(g, last, final_norm), head, IR_NONE);
    return ISO_OK;
}

const struct family FAMILY_LLAMA = {.arch = "llama", .rope_interleaved = true, .build = llama_build};
const struct family FAMILY_QWEN2 = {.arch = "qwen2", .rope_interleaved = false, .build = llama_build};
