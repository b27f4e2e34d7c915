// What a model's files say about its shape and its rotary embedding: read, checked, and refused where a builder has
// no place for it.
#include "graph/blocks.h"

#include <inttypes.h>

#include "base/dmath.h"
#include "base/num.h"

enum iso_err blocks_u32(struct builder *b, enum model_key key, uint32_t min, uint32_t max, uint32_t fallback,
                        uint32_t *ret)
{
    char text[MODEL_KEY_TEXT_MAX];
    uint32_t value = fallback;
    if (fallback == 0 || model_has(b->model, key)) {
        enum iso_err err = model_get_u32(b->model, key, &value, b->reterr);
        if (err)
            return err;
    }
    model_key_text(b->model, key, text);
    if (value < min || value > max)
        return iso_fail(b->reterr, ISO_E_UNSUPPORTED, 0, text,
                        "%s is %" PRIu32 "; supported is %" PRIu32 " to %" PRIu32, text, value, min, max);
    *ret = value;
    return ISO_OK;
}

enum iso_err blocks_f32(struct builder *b, enum model_key key, float min, float max, float fallback,
                        float *ret)
{
    char text[MODEL_KEY_TEXT_MAX];
    float value = fallback;
    if (fallback == 0 || model_has(b->model, key)) {
        enum iso_err err = model_get_f32(b->model, key, &value, b->reterr);
        if (err)
            return err;
    }
    model_key_text(b->model, key, text);
    if (!(value >= min && value <= max))
        return iso_fail(b->reterr, ISO_E_UNSUPPORTED, 0, text, "%s is %g; supported is %g to %g", text,
                        (double)value, (double)min, (double)max);
    *ret = value;
    return ISO_OK;
}

static enum iso_err refuse_set(struct builder *b, enum model_key key, bool or_one)
{
    char text[MODEL_KEY_TEXT_MAX];
    if (!model_is_set(b->model, key, or_one))
        return ISO_OK;
    model_key_text(b->model, key, text);
    return iso_fail(b->reterr, ISO_E_UNSUPPORTED, 0, text, "%s is set, which is not supported", text);
}

// Parameters that change the computation in a way that no builder has.
static enum iso_err refuse_variants(struct builder *b)
{
    static const enum model_key UNSUPPORTED[] = {MODEL_EXPERTS,   MODEL_CLAMP,         MODEL_ALIBI,
                                                 MODEL_SOFTCAP,   MODEL_FINAL_SOFTCAP, MODEL_YARN_LOG,
                                                 MODEL_USE_WINDOW};
    enum iso_err err = ISO_OK;
    for (size_t i = 0; i < ARRAY_LEN(UNSUPPORTED) && !err; i++)
        err = refuse_set(b, UNSUPPORTED[i], false);
    if (!err)
        err = refuse_set(b, MODEL_ROPE_PART, true);
    // Qwen's folders give a window that `use_sliding_window` turns on.
    if (!err && b->family->window == WINDOW_NONE && !model_has(b->model, MODEL_USE_WINDOW))
        err = refuse_set(b, MODEL_WINDOW, false);
    struct strv activation;
    if (err || !model_has(b->model, MODEL_ACTIVATION))
        return err;
    err = model_get_str(b->model, MODEL_ACTIVATION, &activation, b->reterr);
    if (!err && !strv_is(activation, b->family->activation)) {
        char text[MODEL_KEY_TEXT_MAX];
        model_key_text(b->model, MODEL_ACTIVATION, text);
        err = iso_fail(b->reterr, ISO_E_UNSUPPORTED, 0, text,
                       "%s is \"%.*s\"; supported for this model is \"%s\"", text, STRV_ARG(activation),
                       b->family->activation);
    }
    return err;
}

// The shapes that the kernels take.
static enum iso_err check_heads(struct builder *b)
{
    const struct ir_model *m = &b->g->model;
    char text[MODEL_KEY_TEXT_MAX];
    if (m->heads % m->kv_heads)
        return iso_fail(b->reterr, ISO_E_UNSUPPORTED, 0, model_key_text(b->model, MODEL_KV_HEADS, text),
                        "%s has %" PRIu32 " heads, no multiple of its %" PRIu32 " KV heads", b->family->arch,
                        m->heads, m->kv_heads);
    if (m->head_dim % 16 || m->head_dim > KV_HEAD_DIM_MAX)
        return iso_fail(b->reterr, ISO_E_UNSUPPORTED, 0, model_key_text(b->model, MODEL_HEAD_DIM, text),
                        "the head dimension is %" PRIu32 "; supported are multiples of 16 up to %d",
                        m->head_dim, KV_HEAD_DIM_MAX);
    if ((uint64_t)m->heads * m->head_dim > 65536)
        return iso_fail(b->reterr, ISO_E_UNSUPPORTED, 0, model_key_text(b->model, MODEL_HEADS, text),
                        "heads times head dimension is %" PRIu64 "; the limit is 65536",
                        (uint64_t)m->heads * m->head_dim);
    return ISO_OK;
}

static enum iso_err read_heads(struct builder *b)
{
    struct ir_model *m = &b->g->model;
    uint32_t value_dim, rope_dim;
    char text[MODEL_KEY_TEXT_MAX];
    enum iso_err err = blocks_u32(b, MODEL_HEADS, 1, 1024, 0, &m->heads);
    if (!err)
        err = blocks_u32(b, MODEL_KV_HEADS, 1, m->heads, m->heads, &m->kv_heads);
    if (!err && m->hidden / m->heads == 0)
        err = iso_fail(b->reterr, ISO_E_FORMAT, 0, model_key_text(b->model, MODEL_HEADS, text),
                       "%s has more heads than hidden columns", b->family->arch);
    if (!err)
        err = blocks_u32(b, MODEL_HEAD_DIM, 16, KV_HEAD_DIM_MAX, m->hidden / m->heads, &m->head_dim);
    if (!err)
        err = check_heads(b);
    if (!err)
        err = blocks_u32(b, MODEL_VALUE_DIM, m->head_dim, m->head_dim, m->head_dim, &value_dim);
    return err ? err : blocks_u32(b, MODEL_ROPE_DIM, m->head_dim, m->head_dim, m->head_dim, &rope_dim);
}

// 1 / sqrt(head_dim), or of what the files name instead.
static enum iso_err read_attention(struct builder *b)
{
    struct ir_model *m = &b->g->model;
    float squared = 0;
    enum iso_err err = blocks_f32(b, MODEL_QUERY_SCALAR, 1.0f, 65536.0f, (float)m->head_dim, &squared);
    if (err)
        return err;
    // Through exp and log of our own, the same value everywhere.
    m->attention_scale = (float)dmath_exp(-0.5 * dmath_log((double)squared));
    if (model_is_set(b->model, MODEL_SCORE_SCALE, false))
        err = blocks_f32(b, MODEL_SCORE_SCALE, 1e-6f, 1.0f, 0, &m->attention_scale);
    if (!err && b->family->window != WINDOW_NONE && model_is_set(b->model, MODEL_WINDOW, false))
        err = blocks_u32(b, MODEL_WINDOW, 1, UINT32_MAX, 0, &m->window);
    return err;
}

enum iso_err blocks_read_model(struct builder *b)
{
    struct ir_model *m = &b->g->model;
    m->arch = strv_from(b->family->arch);
    m->name = b->model->name;
    enum iso_err err = refuse_variants(b);
    if (!err)
        err = blocks_u32(b, MODEL_LAYERS, 1, IR_LAYERS_MAX, 0, &m->layers);
    if (!err)
        err = blocks_u32(b, MODEL_HIDDEN, 16, 65536, 0, &m->hidden);
    if (!err)
        err = blocks_u32(b, MODEL_FFN, 16, 1048576, 0, &m->ffn);
    if (!err)
        err = blocks_u32(b, MODEL_CONTEXT, 1, 4194304, 0, &m->context);
    if (!err)
        err = read_heads(b);
    if (!err)
        err = blocks_f32(b, MODEL_NORM_EPSILON, 1e-12f, 1e-2f, 0, &m->norm_epsilon);
    return err ? err : read_attention(b);
}

enum iso_err blocks_layer_window(struct builder *b, uint32_t layer, bool windowed, uint32_t *ret)
{
    uint32_t window = b->g->model.window;
    struct strv type;
    if (model_layer_type(b->model, layer, &type)) {
        windowed = strv_is(type, "sliding_attention");
        if ((!windowed && !strv_is(type, "full_attention")) || (windowed && window == 0))
            return iso_fail(b->reterr, ISO_E_UNSUPPORTED, 0, "layer_types",
                            "layer_types calls layer %" PRIu32 " \"%.*s\"; supported for this model is %s",
                            layer, STRV_ARG(type),
                            window ? "full_attention or sliding_attention" : "full_attention");
    }
    *ret = windowed ? window : 0;
    return ISO_OK;
}

static enum iso_err read_scaling(struct builder *b, enum ir_rope_scaling *ret)
{
    static const char *const NAMES[] = {[IR_ROPE_PLAIN] = "none",
                                        [IR_ROPE_LINEAR] = "linear",
                                        [IR_ROPE_LLAMA3] = "llama3",
                                        [IR_ROPE_YARN] = "yarn",
                                        [IR_ROPE_SCALING_COUNT] = "default"};
    char text[MODEL_KEY_TEXT_MAX];
    struct strv name;
    if (!model_has(b->model, MODEL_ROPE_SCALING)) { // a factor without a type means linear scaling
        bool factor = model_is_set(b->model, MODEL_ROPE_FACTOR, true);
        *ret = factor ? IR_ROPE_LINEAR : IR_ROPE_PLAIN;
        return factor ? ISO_OK : refuse_set(b, MODEL_ROPE_LINEAR, true);
    }
    enum iso_err err = model_get_str(b->model, MODEL_ROPE_SCALING, &name, b->reterr);
    if (err)
        return err;
    for (uint32_t i = 0; i < ARRAY_LEN(NAMES); i++) {
        if (strv_is(name, NAMES[i])) {
            *ret = i == IR_ROPE_SCALING_COUNT ? IR_ROPE_PLAIN : (enum ir_rope_scaling)i;
            return ISO_OK;
        }
    }
    model_key_text(b->model, MODEL_ROPE_SCALING, text);
    return iso_fail(b->reterr, ISO_E_UNSUPPORTED, 0, text,
                    "%s is \"%.*s\", which is not supported; none, linear, llama3 and yarn are", text,
                    STRV_ARG(name));
}

// yarn: where the files don't give the factor of cosines and sines, 0.1 ln(factor) + 1. GGUF files' factor is one
// more beside it.
static enum iso_err read_yarn(struct builder *b, struct ir_rope *r)
{
    float fast, slow, given = 1;
    enum iso_err err = blocks_f32(b, MODEL_YARN_FAST, 1e-3f, 1e6f, 32.0f, &fast);
    if (!err)
        err = blocks_f32(b, MODEL_YARN_SLOW, 1e-3f, 1e6f, 1.0f, &slow);
    if (!err)
        err = blocks_f32(b, MODEL_YARN_ATTENTION, 1e-3f, 1e3f, 1.0f, &given);
    if (err)
        return err;
    r->fast = (double)fast;
    r->slow = (double)slow;
    double derived = 0.1 * dmath_log(r->factor) + 1.0;
    if (b->model->format == MODEL_GGUF)
        r->attention = derived * (double)given;
    else
        r->attention = model_has(b->model, MODEL_YARN_ATTENTION) ? (double)given : derived;
    return ISO_OK;
}

enum iso_err blocks_read_rope(struct builder *b, struct ir_rope *ret)
{
    struct ir_model *m = &b->g->model;
    struct ir_rope r = {.factor = 1, .attention = 1};
    float base, factor = 1, low, high;
    enum iso_err err = read_scaling(b, &r.scaling);
    if (!err)
        err = blocks_f32(b, MODEL_ROPE_BASE, 1.0f, 1e12f, 10000.0f, &base);
    if (!err && r.scaling != IR_ROPE_PLAIN)
        err = blocks_f32(b, MODEL_ROPE_FACTOR, 1.0f, 1e4f, 0, &factor);
    if (err)
        return err;
    r.base = (double)base;
    r.factor = (double)factor;
    if (blocks_has(b, "rope_freqs.weight", 0)) {
        err = blocks_floats(b, "rope_freqs.weight", 0, m->head_dim / 2, &r.divisors);
        if (err)
            return err;
    }
    if (r.scaling == IR_ROPE_LLAMA3 || r.scaling == IR_ROPE_YARN) {
        // Without it yarn starts from the context that the files name.
        err = blocks_u32(b, MODEL_ROPE_ORIGINAL, 1, 4194304, r.scaling == IR_ROPE_YARN ? m->context : 0,
                         &r.original);
        if (!err && r.scaling == IR_ROPE_YARN)
            err = read_yarn(b, &r);
    }
    if (!err && r.scaling == IR_ROPE_LLAMA3) {
        err = blocks_f32(b, MODEL_ROPE_LOW, 1e-3f, 1e6f, 0, &low);
        if (!err)
            err = blocks_f32(b, MODEL_ROPE_HIGH, 1e-3f, 1e6f, 0, &high);
        if (err)
            return err;
        r.low = (double)low;
        r.high = (double)high;
        if (r.low >= r.high)
            err = iso_fail(b->reterr, ISO_E_FORMAT, 0, "rope_scaling",
                           "rope_scaling's low_freq_factor (%g) is not below its high_freq_factor (%g)",
                           r.low, r.high);
    }
    // Qwen2.5's folders name the context before scaling.
    if (!err && r.scaling == IR_ROPE_YARN)
        m->context = (uint32_t)num_max(m->context, num_min((uint64_t)(r.original * r.factor), 4194304));
    if (!err)
        *ret = r;
    return err;
}
