// The llama family: llama 1 to 3, SmolLM2, Mistral; with biases on Q, K and V, qwen2; with Q and K normalized head by
// head, qwen3.
//
//   x = embedding[id]                                              [rows][hidden]
//   per layer:  h = rmsnorm(x);  q, k, v = h Wq, h Wk, h Wv (+ b)  [rows][heads | kv_heads | kv_heads * head_dim]
//               rotate q and k;  store k and v;  x += attention(q) Wo
//               h = rmsnorm(x);  x += (silu(h Wgate) * (h Wup)) Wdown   [rows][ffn] inside
//   logits = rmsnorm(x of wanted rows) Whead     [rows wanted][vocab]; Whead may be the embedding
#include "graph/blocks.h"

enum iso_err llama_build(struct builder *b)
{
    struct graph *g = b->g;
    const struct ir_model *m = &g->model;
    struct ir_rope rope;
    uint32_t embedding, x, angles;
    enum iso_err err = blocks_read_rope(b, &rope);
    if (!err)
        err = blocks_angles(b, &rope, &angles);
    if (!err)
        err = blocks_begin(b, 1.0f, &embedding, &x);
    for (uint32_t i = 0; i < m->layers && !err; i++) {
        uint32_t first = g->n_ops, attn_norm, ffn_norm, window;
        struct attention_weights attention;
        struct ffn_weights ffn;
        err = blocks_layer_window(b, i, m->window > 0, &window);
        if (!err)
            err = blocks_gain(b, "blk.%u.attn_norm.weight", i, m->hidden, &attn_norm);
        if (!err)
            err = blocks_find_attention(b, i, &attention);
        if (!err)
            err = blocks_gain(b, "blk.%u.ffn_norm.weight", i, m->hidden, &ffn_norm);
        if (!err)
            err = blocks_find_ffn(b, i, &ffn);
        if (err)
            return err;
        uint32_t h = blocks_rmsnorm(g, x, attn_norm);
        blocks_add(g, x, blocks_attention(g, &attention, h, angles, window));
        h = blocks_rmsnorm(g, x, ffn_norm);
        blocks_add(g, x, blocks_ffn(g, &ffn, h, IR_SILU_MUL));
        blocks_end_layer(g, first, i);
    }
    return err ? err : blocks_end(b, embedding, x);
}
