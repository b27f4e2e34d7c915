// Graphs: what builders refuse and how they say it, and the operations that come out of builder and passes.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "compile/passes.h"
#include "graph/build.h"
#include "tiny_model.h"

struct built {
    struct buf bytes;
    struct model model;
    struct arena arena;
    struct graph graph;
};

// graph_build on a model; the result is released in any case with release().
static enum iso_err build(const struct tiny_model *m, struct built *b, struct iso_errinfo *e)
{
    *b = (struct built){0};
    buf_init(&b->bytes, TINY_BYTES_MAX);
    tiny_write(m, &b->bytes);
    assert_int_equal(arena_init(&b->arena, GRAPH_ARENA_BYTES), ISO_OK);
    assert_int_equal(graph_init(&b->graph, &b->arena), ISO_OK);
    char path[64];
    int fd = gb_make_file(&b->bytes, path);
    enum iso_err err = model_open(path, &b->model, e);
    close(fd);
    return err ? err : graph_build(&b->model, &b->graph, e);
}

// Of the first table of angles.
static const struct ir_rope *rope_of(const struct graph *g)
{
    for (uint32_t i = 0; i < g->n_tensors; i++)
        if (g->tensors[i].kind == IR_ANGLES)
            return g->tensors[i].rope;
    fail_msg("the graph has no angles");
    return NULL;
}

static void release(struct built *b)
{
    model_close(&b->model);
    arena_deinit(&b->arena);
    buf_deinit(&b->bytes);
}

enum change_kind { SET_U32, SET_F32, SET_STR, DROP_KEY, DROP_TENSOR, ADD_TENSOR, SHAPE, TYPE };

struct refusal {
    enum change_kind kind;
    const char *name; // of a key or tensor
    uint32_t a, b;    // value; dims; type
    float f;
    const char *s;
    enum iso_err code;
    const char *says; // part of the message
};

static void change(struct tiny_model *m, const struct refusal *r)
{
    switch (r->kind) {
    case SET_U32:
        tiny_u32(m, r->name, r->a);
        break;
    case SET_F32:
        tiny_f32(m, r->name, r->f);
        break;
    case SET_STR:
        tiny_str(m, r->name, r->s);
        break;
    case DROP_KEY:
        tiny_drop_key(m, r->name);
        break;
    case DROP_TENSOR:
        tiny_drop_tensor(m, r->name);
        break;
    case ADD_TENSOR:
        tiny_add(m, GGML_F32, r->a, r->b, r->name);
        break;
    case SHAPE:
        tiny_tensor(m, r->name)->dims[0] = r->a;
        tiny_tensor(m, r->name)->dims[1] = r->b;
        break;
    case TYPE:
        tiny_tensor(m, r->name)->type = (enum ggml_type)r->a;
        break;
    }
}

static const struct refusal REFUSALS[] = {
    {SET_STR, "general.architecture", .s = "gemma2", .code = ISO_E_UNSUPPORTED,
     .says = "architecture \"gemma2\" is not supported; supported are llama, mistral, qwen2, qwen3, gemma3"},
    {SET_STR, "general.architecture", .s = "", .code = ISO_E_UNSUPPORTED, .says = "architecture \"\""},
    {DROP_KEY, "general.architecture", .code = ISO_E_FORMAT, .says = "general.architecture"},
    {SET_U32, "general.architecture", 1, .code = ISO_E_FORMAT, .says = "general.architecture"},
    {SET_STR, "llama.rope.scaling.type", .s = "longrope", .code = ISO_E_UNSUPPORTED,
     .says = "llama.rope.scaling.type is \"longrope\", which is not supported; none, linear, llama3 and yarn "
             "are"},
    {SET_STR, "llama.rope.scaling.type", .s = "yarn", .code = ISO_E_FORMAT,
     .says = "llama.rope.scaling.factor"},
    {SET_F32, "llama.rope.scaling.factor", .f = 0.5f, .code = ISO_E_UNSUPPORTED,
     .says = "llama.rope.scaling.factor is 0.5; supported is 1 to 10000"},
    {SET_F32, "llama.rope.scale_linear", .f = 2, .code = ISO_E_UNSUPPORTED,
     .says = "llama.rope.scale_linear"},
    {SET_U32, "llama.expert_count", 8, .code = ISO_E_UNSUPPORTED, .says = "llama.expert_count is set"},
    {SET_U32, "llama.attention.sliding_window", 4096, .code = ISO_E_UNSUPPORTED, .says = "sliding_window"},
    {SET_F32, "llama.attention.clamp_kqv", .f = 8, .code = ISO_E_UNSUPPORTED, .says = "clamp_kqv"},
    {SET_F32, "llama.attention.max_alibi_bias", .f = 8, .code = ISO_E_UNSUPPORTED, .says = "max_alibi_bias"},
    {SET_F32, "llama.attn_logit_softcapping", .f = 50, .code = ISO_E_UNSUPPORTED, .says = "attn_logit_soft"},
    {SET_F32, "llama.final_logit_softcapping", .f = 30, .code = ISO_E_UNSUPPORTED,
     .says = "final_logit_soft"},
    {SET_STR, "llama.expert_count", .s = "0", .code = ISO_E_UNSUPPORTED, .says = "llama.expert_count"},
    {ADD_TENSOR, "rope_freqs.weight", 7, 0, .code = ISO_E_FORMAT,
     .says = "\"rope_freqs.weight\" has shape 7 x 1 x 1 x 1 where the parameters ask for 8 x 1"},
    {ADD_TENSOR, "blk.0.attn_output.bias", 32, 0, .code = ISO_E_UNSUPPORTED,
     .says = "blk.0.attn_output.bias"},
    {ADD_TENSOR, "blk.2.attn_norm.weight", 32, 0, .code = ISO_E_UNSUPPORTED,
     .says = "blk.2.attn_norm.weight"},
    {DROP_TENSOR, "token_embd.weight", .code = ISO_E_FORMAT, .says = "\"token_embd.weight\" is missing"},
    {DROP_TENSOR, "output_norm.weight", .code = ISO_E_FORMAT, .says = "\"output_norm.weight\" is missing"},
    {DROP_TENSOR, "blk.1.attn_k.weight", .code = ISO_E_FORMAT, .says = "\"blk.1.attn_k.weight\" is missing"},
    {DROP_TENSOR, "blk.0.ffn_down.weight", .code = ISO_E_FORMAT,
     .says = "\"blk.0.ffn_down.weight\" is missing"},
    {SHAPE, "blk.0.attn_q.weight", 32, 16, .code = ISO_E_FORMAT,
     .says = "\"blk.0.attn_q.weight\" has shape 32 x 16 x 1 x 1 where the parameters ask for 32 x 32"},
    {SHAPE, "blk.1.ffn_up.weight", 64, 32, .code = ISO_E_FORMAT, .says = "\"blk.1.ffn_up.weight\" has shape"},
    {SHAPE, "output_norm.weight", 64, 0, .code = ISO_E_FORMAT, .says = "\"output_norm.weight\" has shape 64"},
    {SHAPE, "token_embd.weight", 64, 40, .code = ISO_E_FORMAT, .says = "\"token_embd.weight\" has shape 64"},
    {TYPE, "blk.1.ffn_norm.weight", GGML_Q8_0, .code = ISO_E_UNSUPPORTED,
     .says = "\"blk.1.ffn_norm.weight\" has type Q8_0; norms and biases are supported as F32"},
    {SET_U32, "llama.attention.key_length", 24, .code = ISO_E_UNSUPPORTED,
     .says = "the head dimension is 24; supported are multiples of 16 up to 256"},
    {SET_U32, "llama.attention.key_length", 0, .code = ISO_E_UNSUPPORTED, .says = "key_length is 0"},
    {SET_U32, "llama.attention.key_length", 512, .code = ISO_E_UNSUPPORTED, .says = "key_length is 512"},
    {SET_U32, "llama.attention.value_length", 32, .code = ISO_E_UNSUPPORTED,
     .says = "value_length is 32; supported is 16 to 16"},
    {SET_U32, "llama.rope.dimension_count", 8, .code = ISO_E_UNSUPPORTED, .says = "dimension_count is 8"},
    {SET_U32, "llama.attention.head_count", 3, .code = ISO_E_FORMAT, .says = "attn_q.weight\" has shape"},
    {SET_U32, "llama.attention.head_count", 0, .code = ISO_E_UNSUPPORTED, .says = "head_count is 0"},
    {SET_U32, "llama.attention.head_count", 33, .code = ISO_E_FORMAT,
     .says = "more heads than hidden columns"},
    {SET_U32, "llama.attention.head_count", UINT32_MAX, .code = ISO_E_UNSUPPORTED,
     .says = "head_count is 4294"},
    {SET_U32, "llama.attention.head_count_kv", 0, .code = ISO_E_UNSUPPORTED, .says = "head_count_kv is 0"},
    {SET_U32, "llama.attention.head_count_kv", 3, .code = ISO_E_UNSUPPORTED,
     .says = "head_count_kv is 3; supported is 1 to 2"},
    {SET_U32, "llama.block_count", 0, .code = ISO_E_UNSUPPORTED, .says = "block_count is 0"},
    {SET_U32, "llama.block_count", 1000000, .code = ISO_E_UNSUPPORTED, .says = "block_count is 1000000"},
    {SET_U32, "llama.block_count", 3, .code = ISO_E_FORMAT, .says = "\"blk.2.attn_norm.weight\" is missing"},
    {SET_U32, "llama.block_count", 1, .code = ISO_E_UNSUPPORTED,
     .says = "\"blk.1.attn_norm.weight\" has no place"},
    {DROP_KEY, "llama.block_count", .code = ISO_E_FORMAT, .says = "llama.block_count"},
    {SET_U32, "llama.embedding_length", 8, .code = ISO_E_UNSUPPORTED, .says = "embedding_length is 8"},
    {SET_U32, "llama.embedding_length", UINT32_MAX, .code = ISO_E_UNSUPPORTED,
     .says = "embedding_length is 4294"},
    {SET_U32, "llama.feed_forward_length", UINT32_MAX, .code = ISO_E_UNSUPPORTED,
     .says = "feed_forward_length"},
    {SET_U32, "llama.context_length", 0, .code = ISO_E_UNSUPPORTED, .says = "context_length is 0"},
    {SET_U32, "llama.context_length", UINT32_MAX, .code = ISO_E_UNSUPPORTED,
     .says = "context_length is 4294"},
    {SET_F32, "llama.attention.layer_norm_rms_epsilon", .f = 0, .code = ISO_E_UNSUPPORTED,
     .says = "rms_epsilon is 0"},
    {SET_F32, "llama.attention.layer_norm_rms_epsilon", .f = 1, .code = ISO_E_UNSUPPORTED,
     .says = "rms_epsilon is 1"},
    {DROP_KEY, "llama.attention.layer_norm_rms_epsilon", .code = ISO_E_FORMAT, .says = "rms_epsilon"},
    {SET_F32, "llama.rope.freq_base", .f = -1, .code = ISO_E_UNSUPPORTED, .says = "freq_base is -1"},
    {SET_F32, "llama.rope.freq_base", .f = 1e30f, .code = ISO_E_UNSUPPORTED, .says = "freq_base is 1e+30"},
    {SET_F32, "llama.rope.freq_base", .f = __builtin_nanf(""), .code = ISO_E_FORMAT, .says = "freq_base"},
};

static void refusals_name_what_is_wrong(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(REFUSALS); i++) {
        const struct refusal *r = &REFUSALS[i];
        struct tiny_model m;
        struct built b;
        struct iso_errinfo e = {0};
        tiny_init(&m, &TINY_LLAMA);
        change(&m, r);
        enum iso_err err = build(&m, &b, &e);
        if (err != r->code || e.code != r->code || !strstr(e.text, r->says))
            fail_msg("refusal %zu (%s): %s: \"%s\" instead of %s: \"...%s...\"", i, r->name,
                     iso_err_name(err), err ? e.text : "", iso_err_name(r->code), r->says);
        release(&b);
    }
}

static void heads_must_divide(void **state)
{
    (void)state;
    struct tiny_shape shape = TINY_LLAMA;
    struct tiny_model m;
    struct built b;
    struct iso_errinfo e;
    shape.heads = 6;
    shape.kv_heads = 4;
    tiny_init(&m, &shape);
    assert_int_equal(build(&m, &b, &e), ISO_E_UNSUPPORTED);
    assert_non_null(strstr(e.text, "6 heads, no multiple of its 4 KV heads"));
    assert_string_equal(e.field, "llama.attention.head_count_kv");
    release(&b);
}

// What would change something at another value is fine at the one that changes nothing.
static void neutral_values_pass(void **state)
{
    (void)state;
    struct tiny_model m;
    struct built b;
    struct iso_errinfo e = {0};
    tiny_init(&m, &TINY_LLAMA);
    tiny_u32(&m, "llama.expert_count", 0);
    tiny_u32(&m, "llama.attention.sliding_window", 0);
    tiny_f32(&m, "llama.attn_logit_softcapping", 0);
    tiny_f32(&m, "llama.rope.scaling.factor", 1);
    tiny_f32(&m, "llama.rope.scale_linear", 0);
    if (build(&m, &b, &e))
        fail_msg("%s", e.text);
    release(&b);
    tiny_str(&m, "llama.rope.scaling.type", "none");
    tiny_f32(&m, "llama.rope.scaling.factor", 4); // without a type to apply it
    if (build(&m, &b, &e))
        fail_msg("%s", e.text);
    release(&b);
}

static void model_is_read(void **state)
{
    (void)state;
    struct tiny_model m;
    struct built b;
    struct iso_errinfo e = {0};
    tiny_init(&m, &TINY_QWEN2);
    tiny_f32(&m, "qwen2.rope.freq_base", 1e6f);
    assert_int_equal(build(&m, &b, &e), ISO_OK);
    const struct ir_model *r = &b.graph.model;
    assert_true(strv_is(r->arch, "qwen2") && strv_is(r->name, "Tiny"));
    assert_int_equal(r->vocab, 50);
    assert_int_equal(r->hidden, 64);
    assert_int_equal(r->layers, 2);
    assert_int_equal(r->heads, 4);
    assert_int_equal(r->kv_heads, 2);
    assert_int_equal(r->head_dim, 16);
    assert_int_equal(r->ffn, 96);
    assert_int_equal(r->context, 64);
    assert_true(rope_of(&b.graph)->base == 1e6 && r->norm_epsilon == 1e-5f);
    release(&b);
}

// Without the keys that may be missing: as many KV heads as heads, head_dim from the division, base 10000.
static void missing_keys_have_their_defaults(void **state)
{
    (void)state;
    struct tiny_shape shape = TINY_LLAMA;
    struct tiny_model m;
    struct built b;
    struct iso_errinfo e = {0};
    shape.kv_heads = 2;
    tiny_init(&m, &shape);
    tiny_drop_key(&m, "llama.attention.head_count_kv");
    tiny_drop_key(&m, "llama.attention.key_length");
    tiny_drop_key(&m, "llama.attention.value_length");
    tiny_drop_key(&m, "general.name");
    if (build(&m, &b, &e))
        fail_msg("%s", e.text);
    assert_int_equal(b.graph.model.kv_heads, 2);
    assert_int_equal(b.graph.model.head_dim, 16);
    assert_true(rope_of(&b.graph)->base == 10000.0);
    assert_int_equal(b.graph.model.name.len, 0);
    release(&b);
}

static void assert_ops(const struct graph *g, const char *expected)
{
    struct buf text;
    buf_init(&text, 1 << 16);
    for (uint32_t i = 0; i < g->n_ops; i++) {
        gb_bytes(&text, " ", i > 0);
        gb_bytes(&text, ir_code_name(g->ops[i].code), strlen(ir_code_name(g->ops[i].code)));
    }
    gb_u8(&text, 0);
    assert_string_equal((const char *)text.ptr, expected);
    buf_deinit(&text);
}

static void build_and_pass(const struct tiny_model *m, struct built *b)
{
    struct iso_errinfo e = {0};
    if (build(m, b, &e))
        fail_msg("%s", e.text);
    pass_fuse(&b->graph);
    assert_int_equal(pass_quantize(&b->graph), ISO_OK);
}

#define LAYER_BUILT                                                                        \
    " rmsnorm matmul matmul matmul rope rope kv_store attention matmul add rmsnorm matmul" \
    " matmul silu_mul matmul add"
#define LAYER_FUSED                                                                              \
    " rmsnorm quantize matmul rope rope kv_store attention quantize matmul add rmsnorm quantize" \
    " matmul silu_mul quantize matmul add"
#define END_FUSED " gather rmsnorm quantize matmul"

static void builder_gives_the_family(void **state)
{
    (void)state;
    static const struct tiny_shape *const SHAPES[] = {&TINY_LLAMA, &TINY_QWEN2};
    for (size_t i = 0; i < ARRAY_LEN(SHAPES); i++) {
        struct tiny_model m;
        struct built b;
        struct iso_errinfo e = {0};
        tiny_init(&m, SHAPES[i]);
        assert_int_equal(build(&m, &b, &e), ISO_OK);
        assert_ops(&b.graph, "embed" LAYER_BUILT LAYER_BUILT " gather rmsnorm matmul");
        for (uint32_t j = 0, layer = 0; j < b.graph.n_ops; j++) {
            const struct ir_op *op = &b.graph.ops[j];
            if (op->code == IR_ATTENTION || op->code == IR_KV_STORE || op->code == IR_ROPE)
                assert_int_equal(op->layer, layer);
            layer += op->code == IR_ATTENTION;
        }
        release(&b);
    }
}

static void passes_fuse_and_quantize(void **state)
{
    (void)state;
    struct tiny_model m;
    struct built b;
    tiny_init(&m, &TINY_LLAMA);
    build_and_pass(&m, &b);
    const struct graph *g = &b.graph;
    assert_ops(g, "embed" LAYER_FUSED LAYER_FUSED END_FUSED);
    // Q, K and V are columns 0, 32 and 48 of one value; gate and up 0 and 64.
    const struct ir_op *qkv = &g->ops[3], *rope_q = &g->ops[4], *rope_k = &g->ops[5], *store = &g->ops[6];
    assert_int_equal(g->tensors[qkv->in[1].tensor].rows, 64);
    assert_int_equal(g->tensors[qkv->in[1].tensor].n_parts, 3);
    assert_int_equal(g->tensors[qkv->in[0].tensor].dtype, DT_A8);
    assert_int_equal(qkv->in[2].tensor, IR_NONE);
    const struct ir_ref q = {qkv->out.tensor, 0, 32}, k = {qkv->out.tensor, 32, 16},
                        v = {qkv->out.tensor, 48, 16};
    assert_memory_equal(&rope_q->in[0], &q, sizeof q);
    assert_memory_equal(&rope_q->out, &q, sizeof q);
    assert_memory_equal(&rope_k->in[0], &k, sizeof k);
    assert_memory_equal(&store->in[0], &k, sizeof k);
    assert_memory_equal(&store->in[1], &v, sizeof v);
    assert_memory_equal(&g->ops[7].in[0], &q, sizeof q);
    const struct ir_op *silu = &g->ops[14];
    assert_int_equal(silu->in[0].tensor, silu->in[1].tensor);
    assert_int_equal(silu->in[0].col, 0);
    assert_int_equal(silu->in[1].col, 64);
    assert_int_equal(silu->in[1].cols, 64);
    // Llama's Q and K are kept for interleaved pairs, V is not; the parts keep the order.
    const struct ir_part *parts = &g->parts[g->tensors[qkv->in[1].tensor].part];
    assert_int_equal(parts[0].deinterleave_heads, 2);
    assert_int_equal(parts[1].deinterleave_heads, 1);
    assert_int_equal(parts[2].deinterleave_heads, 0);
    assert_true(strv_is(parts[0].source->name, "blk.0.attn_q.weight"));
    assert_true(strv_is(parts[2].source->name, "blk.0.attn_v.weight"));
    release(&b);
}

static void biases_are_fused_with_their_matrices(void **state)
{
    (void)state;
    struct tiny_model m;
    struct built b;
    tiny_init(&m, &TINY_QWEN2);
    build_and_pass(&m, &b);
    assert_ops(&b.graph, "embed" LAYER_FUSED LAYER_FUSED END_FUSED);
    const struct ir_tensor *bias = &b.graph.tensors[b.graph.ops[3].in[2].tensor];
    assert_int_equal(bias->kind, IR_VECTOR);
    assert_int_equal(bias->cols, 64 + 32 + 32);
    assert_int_equal(bias->n_parts, 3);
    assert_int_equal(b.graph.parts[bias->part].deinterleave_heads, 0); // qwen2 keeps halves
    release(&b);
    // V without a bias stays apart; its input is quantized once all the same.
    tiny_drop_tensor(&m, "blk.0.attn_v.bias");
    build_and_pass(&m, &b);
    assert_ops(&b.graph,
               "embed rmsnorm quantize matmul matmul rope rope kv_store attention quantize matmul add"
               " rmsnorm quantize matmul silu_mul quantize matmul add" LAYER_FUSED END_FUSED);
    release(&b);
}

static void mixed_types_are_not_fused(void **state)
{
    (void)state;
    struct tiny_model m;
    struct built b;
    tiny_init(&m, &TINY_LLAMA);
    tiny_tensor(&m, "blk.0.attn_k.weight")->type = GGML_Q8_0;
    tiny_tensor(&m, "blk.0.ffn_up.weight")->type = GGML_F16; // reads f32: nothing quantized for it
    tiny_tensor(&m, "blk.1.attn_v.weight")->type = GGML_Q5_0;
    build_and_pass(&m, &b);
    assert_ops(&b.graph,
               "embed rmsnorm quantize matmul matmul matmul rope rope kv_store attention quantize matmul add"
               " rmsnorm quantize matmul matmul silu_mul quantize matmul add"
               " rmsnorm quantize matmul matmul rope rope kv_store attention quantize matmul add"
               " rmsnorm quantize matmul silu_mul quantize matmul add" END_FUSED);
    const struct graph *g = &b.graph;
    assert_int_equal(g->ops[3].in[0].tensor, g->ops[4].in[0].tensor);
    assert_int_equal(g->ops[3].in[0].tensor, g->ops[5].in[0].tensor);
    const struct ir_op *gate = &g->ops[15], *up = &g->ops[16];
    assert_int_equal(g->tensors[gate->in[0].tensor].dtype, DT_A8);
    assert_int_equal(g->tensors[up->in[0].tensor].dtype, DT_F32);
    release(&b);
}

static void float_weights_need_no_codes(void **state)
{
    (void)state;
    static const enum ggml_type TYPES[] = {GGML_F32, GGML_F16, GGML_BF16};
    for (size_t i = 0; i < ARRAY_LEN(TYPES); i++) {
        struct tiny_shape shape = TINY_LLAMA;
        struct tiny_model m;
        struct built b;
        shape.type = TYPES[i];
        shape.ffn = 40; // no multiple of 16: gate's last panel is not full, so up can't follow it
        tiny_init(&m, &shape);
        build_and_pass(&m, &b);
        assert_ops(&b.graph,
                   "embed rmsnorm matmul rope rope kv_store attention matmul add rmsnorm matmul matmul"
                   " silu_mul matmul add"
                   " rmsnorm matmul rope rope kv_store attention matmul add rmsnorm matmul matmul"
                   " silu_mul matmul add gather rmsnorm matmul");
        release(&b);
    }
}

static void head_is_the_embedding_or_its_own(void **state)
{
    (void)state;
    struct tiny_shape shape = TINY_LLAMA;
    for (int untied = 0; untied < 2; untied++) {
        struct tiny_model m;
        struct built b;
        shape.untied = untied;
        tiny_init(&m, &shape);
        build_and_pass(&m, &b);
        const struct ir_op *first = &b.graph.ops[0], *last = &b.graph.ops[b.graph.n_ops - 1];
        assert_int_equal(first->in[0].tensor == last->in[1].tensor, !untied);
        assert_int_equal(last->out.tensor, b.graph.logits);
        release(&b);
    }
}

// The most layers that a file may say: fused and quantized everywhere (most tensors) and nowhere fused (most
// operations), nothing overflows the tables or the arena.
static void most_layers_fit_the_tables(void **state)
{
    (void)state;
    for (int apart = 0; apart < 2; apart++) {
        static struct tiny_model m;
        struct tiny_shape shape = TINY_LLAMA;
        struct built b;
        shape.layers = IR_LAYERS_MAX;
        shape.bias = shape.untied = true;
        tiny_init(&m, &shape);
        for (uint32_t i = 0; i < m.n_tensors && apart; i++)
            if (strstr(m.tensors[i].name, "attn_k.weight") || strstr(m.tensors[i].name, "ffn_up.weight"))
                m.tensors[i].type = GGML_Q8_0;
        build_and_pass(&m, &b);
        assert_int_equal(b.graph.n_ops, 1 + IR_LAYERS_MAX * (apart ? 20 : 17) + 4);
        release(&b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(refusals_name_what_is_wrong),
        cmocka_unit_test(heads_must_divide),
        cmocka_unit_test(neutral_values_pass),
        cmocka_unit_test(model_is_read),
        cmocka_unit_test(missing_keys_have_their_defaults),
        cmocka_unit_test(builder_gives_the_family),
        cmocka_unit_test(passes_fuse_and_quantize),
        cmocka_unit_test(biases_are_fused_with_their_matrices),
        cmocka_unit_test(mixed_types_are_not_fused),
        cmocka_unit_test(float_weights_need_no_codes),
        cmocka_unit_test(head_is_the_embedding_or_its_own),
        cmocka_unit_test(most_layers_fit_the_tables),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
