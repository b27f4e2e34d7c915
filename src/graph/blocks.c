#include "graph/blocks.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/num.h"

#define NAME_MAX_BYTES 96

static enum dtype dtype_of(enum ggml_type type)
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

// "<arch>.<name>" as an integer in [min, max]; `fallback` where the key is missing and fallback is not 0.
static enum iso_err read_u32(struct builder *b, const char *arch, const char *name, uint32_t min,
                             uint32_t max, uint32_t fallback, uint32_t *ret)
{
    char key[NAME_MAX_BYTES];
    snprintf(key, sizeof key, "%s.%s", arch, name);
    uint32_t value = fallback;
    if (fallback == 0 || gguf_has(b->file, key)) {
        enum iso_err err = gguf_get_u32(b->file, key, &value, b->reterr);
        if (err)
            return err;
    }
    if (value < min || value > max)
        return iso_fail(b->reterr, ISO_E_UNSUPPORTED, 0, key,
                        "%s is %" PRIu32 "; supported is %" PRIu32 " to %" PRIu32, key, value, min, max);
    *ret = value;
    return ISO_OK;
}

static enum iso_err read_f32(struct builder *b, const char *arch, const char *name, float min, float max,
                             float fallback, float *ret)
{
    char key[NAME_MAX_BYTES];
    snprintf(key, sizeof key, "%s.%s", arch, name);
    float value = fallback;
    if (fallback == 0 || gguf_has(b->file, key)) {
        enum iso_err err = gguf_get_f32(b->file, key, &value, b->reterr);
        if (err)
            return err;
    }
    if (!(value >= min && value <= max))
        return iso_fail(b->reterr, ISO_E_UNSUPPORTED, 0, key, "%s is %g; supported is %g to %g", key,
                        (double)value, (double)min, (double)max);
    *ret = value;
    return ISO_OK;
}

// A parameter that changes the computation in a way that this family's builder does not have: allowed where
// its value, written as a number, is one that changes nothing.
static enum iso_err refuse_unless(struct builder *b, const char *arch, const char *name, const char *neutral)
{
    char key[NAME_MAX_BYTES], text[GGUF_SCALAR_TEXT_MAX];
    snprintf(key, sizeof key, "%s.%s", arch, name);
    const struct gguf_kv *kv = gguf_find(b->file, key);
    if (!kv || (gguf_scalar_text(kv, text) && (strcmp(text, "0") == 0 || strcmp(text, neutral) == 0)))
        return ISO_OK;
    return iso_fail(b->reterr, ISO_E_UNSUPPORTED, 0, key, "%s is set, which is not supported", key);
}

static enum iso_err refuse_variants(struct builder *b, const char *arch)
{
    char key[NAME_MAX_BYTES];
    struct strv scaling;
    enum iso_err err = ISO_OK;
    snprintf(key, sizeof key, "%s.rope.scaling.type", arch);
    if (gguf_has(b->file, key)) {
        err = gguf_get_str(b->file, key, &scaling, b->reterr);
        if (!err && !strv_is(scaling, "none"))
            err = iso_fail(b->reterr, ISO_E_UNSUPPORTED, 0, key,
                           "%s is \"%.*s\", which is not supported; unscaled rotary embeddings are", key,
                           STRV_ARG(scaling));
    } else { // a factor without a type means linear scaling
        err = refuse_unless(b, arch, "rope.scaling.factor", "1");
        if (!err)
            err = refuse_unless(b, arch, "rope.scale_linear", "1");
    }
    static const char *const ZERO_KEYS[] = {"expert_count",           "attention.sliding_window",
                                            "attention.clamp_kqv",    "attention.max_alibi_bias",
                                            "attn_logit_softcapping", "final_logit_softcapping"};
    for (size_t i = 0; i < ARRAY_LEN(ZERO_KEYS) && !err; i++)
        err = refuse_unless(b, arch, ZERO_KEYS[i], "0");
    return err;
}

// The shapes that the kernels take.
static enum iso_err check_heads(struct builder *b, const char *arch)
{
    struct ir_model *m = &b->g->model;
    if (m->heads % m->kv_heads)
        return iso_fail(b->reterr, ISO_E_UNSUPPORTED, 0, "attention.head_count_kv",
                        "%s has %" PRIu32 " heads, no multiple of its %" PRIu32 " KV heads", arch, m->heads,
                        m->kv_heads);
    if (m->head_dim % 16 || m->head_dim > KV_HEAD_DIM_MAX)
        return iso_fail(b->reterr, ISO_E_UNSUPPORTED, 0, "attention.key_length",
                        "the head dimension is %" PRIu32 "; supported are multiples of 16 up to %d",
                        m->head_dim, KV_HEAD_DIM_MAX);
    if ((uint64_t)m->heads * m->head_dim > 65536)
        return iso_fail(b->reterr, ISO_E_UNSUPPORTED, 0, "attention.head_count",
                        "heads times head dimension is %" PRIu64 "; the limit is 65536",
                        (uint64_t)m->heads * m->head_dim);
    return ISO_OK;
}

enum iso_err blocks_read_model(struct builder *b, const struct family *family)
{
    const char *arch = family->arch;
    struct ir_model *m = &b->g->model;
    float base = 0;
    uint32_t value_dim = 0, rope_dim = 0;
    enum iso_err err = refuse_variants(b, arch);
    m->arch = strv_from(arch);
    if (!err)
        err = read_u32(b, arch, "block_count", 1, IR_LAYERS_MAX, 0, &m->layers);
    if (!err)
        err = read_u32(b, arch, "embedding_length", 16, 65536, 0, &m->hidden);
    if (!err)
        err = read_u32(b, arch, "feed_forward_length", 16, 1048576, 0, &m->ffn);
    if (!err)
        err = read_u32(b, arch, "attention.head_count", 1, 1024, 0, &m->heads);
    if (!err)
        err = read_u32(b, arch, "attention.head_count_kv", 1, m->heads, m->heads, &m->kv_heads);
    if (!err)
        err = read_u32(b, arch, "context_length", 1, 4194304, 0, &m->context);
    if (!err && m->hidden / m->heads == 0)
        err = iso_fail(b->reterr, ISO_E_FORMAT, 0, "attention.head_count",
                       "%s has more heads than hidden columns", arch);
    if (!err)
        err = read_u32(b, arch, "attention.key_length", 16, KV_HEAD_DIM_MAX, m->hidden / m->heads,
                       &m->head_dim);
    if (!err)
        err = check_heads(b, arch);
    if (!err)
        err = read_u32(b, arch, "attention.value_length", m->head_dim, m->head_dim, m->head_dim, &value_dim);
    if (!err)
        err = read_u32(b, arch, "rope.dimension_count", m->head_dim, m->head_dim, m->head_dim, &rope_dim);
    if (!err)
        err = read_f32(b, arch, "attention.layer_norm_rms_epsilon", 1e-12f, 1e-2f, 0, &m->norm_epsilon);
    if (!err)
        err = read_f32(b, arch, "rope.freq_base", 1.0f, 1e12f, 10000.0f, &base);
    m->rope_base = base;
    if (!err && gguf_has(b->file, "general.name"))
        err = gguf_get_str(b->file, "general.name", &m->name, b->reterr);
    return err;
}

// The file's tensor called `format` with dims {k, n} (n = 0: one dimension), or NULL where it is missing.
static enum iso_err find_tensor(struct builder *b, const char *format, uint32_t layer, uint32_t n, uint32_t k,
                                const struct gguf_tensor **ret)
{
    char name[NAME_MAX_BYTES];
    snprintf(name, sizeof name, format, layer); // NOLINT: formats are literals of the builders
    const struct gguf_tensor *t = gguf_tensor_find(b->file, name);
    if (!t)
        return iso_fail(b->reterr, ISO_E_FORMAT, 0, name, "tensor \"%s\" is missing", name);
    uint64_t rows = n ? n : 1;
    if (t->dims[0] != k || t->dims[1] != rows || t->dims[2] != 1 || t->dims[3] != 1)
        return iso_fail(b->reterr, ISO_E_FORMAT, t->offset, name,
                        "tensor \"%s\" has shape %" PRIu64 " x %" PRIu64 " x %" PRIu64 " x %" PRIu64
                        " where the parameters ask for %" PRIu32 " x %" PRIu64,
                        name, t->dims[0], t->dims[1], t->dims[2], t->dims[3], k, rows);
    b->used[t - b->file->tensors] = true;
    *ret = t;
    return ISO_OK;
}

enum iso_err blocks_matrix(struct builder *b, const char *format, uint32_t layer, uint32_t n, uint32_t k,
                           uint32_t deinterleave_heads, uint32_t *ret)
{
    const struct gguf_tensor *t;
    enum iso_err err = find_tensor(b, format, layer, n, k, &t);
    if (err)
        return err;
    uint32_t part = graph_add_part(b->g, (struct ir_part){t, deinterleave_heads});
    *ret = graph_add_tensor(
        b->g,
        (struct ir_tensor){
            .kind = IR_MATRIX, .dtype = dtype_of(t->type), .rows = n, .cols = k, .part = part, .n_parts = 1});
    return ISO_OK;
}

enum iso_err blocks_vector(struct builder *b, const char *format, uint32_t layer, uint32_t n, bool optional,
                           uint32_t deinterleave_heads, uint32_t *ret)
{
    const struct gguf_tensor *t;
    char name[NAME_MAX_BYTES];
    snprintf(name, sizeof name, format, layer); // NOLINT: formats are literals of the builders
    if (optional && !gguf_tensor_find(b->file, name)) {
        *ret = IR_NONE;
        return ISO_OK;
    }
    enum iso_err err = find_tensor(b, format, layer, 0, n, &t);
    if (err)
        return err;
    if (t->type != GGML_F32)
        return iso_fail(b->reterr, ISO_E_UNSUPPORTED, t->offset, name,
                        "tensor \"%s\" has type %s; norms and biases are supported as F32", name,
                        ggml_type_info(t->type)->name);
    uint32_t part = graph_add_part(b->g, (struct ir_part){t, deinterleave_heads});
    *ret = graph_add_tensor(
        b->g, (struct ir_tensor){.kind = IR_VECTOR, .dtype = DT_F32, .cols = n, .part = part, .n_parts = 1});
    return ISO_OK;
}

enum iso_err blocks_all_used(struct builder *b)
{
    for (uint32_t i = 0; i < b->file->n_tensors; i++) {
        struct strv name = b->file->tensors[i].name;
        if (!b->used[i])
            return iso_fail(b->reterr, ISO_E_UNSUPPORTED, b->file->tensors[i].offset, NULL,
                            "tensor \"%.*s\" has no place in architecture \"%.*s\" as supported here",
                            STRV_ARG(name), STRV_ARG(b->g->model.arch));
    }
    return ISO_OK;
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
    graph_add_op(g, IR_RMSNORM, ir_whole(g, x), ir_whole(g, gain), ir_none(), ir_whole(g, y));
    return y;
}

void blocks_add(struct graph *g, uint32_t x, uint32_t y)
{
    graph_add_op(g, IR_ADD, ir_whole(g, x), ir_whole(g, y), ir_none(), ir_whole(g, x));
}
