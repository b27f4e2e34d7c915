// Gemma 3, text: norms before and after both halves of a layer, Q and K normalized head by head, a gated GELU, and
// five layers of six that see only the last `window` keys and turn by a base of their own.
//
//   x = embedding[id] * sqrt(hidden)                                  [rows][hidden]
//   per layer:  h = rmsnorm(x);  q, k, v = h Wq, h Wk, h Wv           [rows][heads | kv_heads | kv_heads * head_dim]
//               q, k = rmsnorm of each head;  rotate q and k;  store k and v;  x += rmsnorm(attention(q) Wo)
//               h = rmsnorm(x);  x += rmsnorm((gelu(h Wgate) * (h Wup)) Wdown)
//   logits = rmsnorm(x of wanted rows) Whead     [rows wanted][vocab]; Whead is the embedding
#include "graph/blocks.h"

#include "base/dmath.h"

#define GLOBAL_EVERY 6        // layers 5, 11, ... see all keys
#define LOCAL_BASE   10000.0f // of the others' angles, where the files don't say
#define LAYERS_27B   62       // of the one size whose scores are scaled otherwise

struct layer_norms {
    uint32_t attn, post_attn, ffn, post_ffn;
};

static enum iso_err find_norms(struct builder *b, uint32_t layer, struct layer_norms *ret)
{
    uint32_t n = b->g->model.hidden;
    enum iso_err err = blocks_gain(b, "blk.%u.attn_norm.weight", layer, n, &ret->attn);
    if (!err)
        err = blocks_gain(b, "blk.%u.post_attention_norm.weight", layer, n, &ret->post_attn);
    if (!err)
        err = blocks_gain(b, "blk.%u.ffn_norm.weight", layer, n, &ret->ffn);
    return err ? err : blocks_gain(b, "blk.%u.post_ffw_norm.weight", layer, n, &ret->post_ffn);
}

static enum iso_err read_angles(struct builder *b, uint32_t *ret_global, uint32_t *ret_local)
{
    struct ir_rope global, local = {.scaling = IR_ROPE_PLAIN, .factor = 1, .attention = 1};
    float base = 0;
    // Other than elsewhere nothing may be missing: the default of the files' own code is not that of the others.
    enum iso_err err = blocks_f32(b, MODEL_ROPE_BASE, 1.0f, 1e12f, 0, &base);
    if (!err)
        err = blocks_read_rope(b, &global);
    if (!err)
        err = blocks_f32(b, MODEL_ROPE_BASE_LOCAL, 1.0f, 1e12f, LOCAL_BASE, &base);
    local.base = (double)base;
    if (!err)
        err = blocks_angles(b, &global, ret_global);
    return err ? err : blocks_angles(b, &local, ret_local);
}

enum iso_err gemma3_build(struct builder *b)
{
    struct graph *g = b->g;
    struct ir_model *m = &g->model;
    uint32_t embedding, x, global, local;
    // GGUF files of the largest size say nothing of its scores.
    if (m->layers == LAYERS_27B && !model_has(b->model, MODEL_QUERY_SCALAR) &&
        !model_has(b->model, MODEL_SCORE_SCALE))
        m->attention_scale = (float)dmath_exp(-0.5 * dmath_log((double)m->hidden / (double)m->heads));
    uint32_t every;
    enum iso_err err = blocks_u32(b, MODEL_WINDOW_EVERY, GLOBAL_EVERY, GLOBAL_EVERY, GLOBAL_EVERY, &every);
    if (!err)
        err = blocks_u32(b, MODEL_WINDOW, 1, UINT32_MAX, 0, &m->window);
    if (!err)
        err = read_angles(b, &global, &local);
    if (!err)
        err = blocks_begin(b, (float)dmath_exp(0.5 * dmath_log((double)m->hidden)), &embedding, &x);
    for (uint32_t i = 0; i < m->layers && !err; i++) {
        uint32_t first = g->n_ops;
        struct layer_norms norm;
        struct attention_weights attention;
        struct ffn_weights ffn;
        uint32_t window;
        err = blocks_layer_window(b, i, (i + 1) % GLOBAL_EVERY != 0, &window);
        if (!err)
            err = find_norms(b, i, &norm);
        if (!err)
            err = blocks_find_attention(b, i, &attention);
        if (!err)
            err = blocks_find_ffn(b, i, &ffn);
        if (err)
            return err;
        uint32_t h = blocks_rmsnorm(g, x, norm.attn);
        h = blocks_attention(g, &attention, h, window ? local : global, window);
        blocks_add(g, x, blocks_rmsnorm(g, h, norm.post_attn));
        h = blocks_rmsnorm(g, x, norm.ffn);
        h = blocks_ffn(g, &ffn, h, IR_GELU_MUL);
        blocks_add(g, x, blocks_rmsnorm(g, h, norm.post_ffn));
        blocks_end_layer(g, first, i);
    }
    return err ? err : blocks_end(b, embedding, x);
}
