#include "model/model_formats.h"

#include <inttypes.h>
#include <stdio.h>

#include "base/assert.h"
#include "formats/gguf.h"

static const char *const KEYS[MODEL_KEY_COUNT] = {
#define X(name, gguf, hf) [MODEL_##name] = gguf,
    MODEL_KEY_LIST(X)
#undef X
};

static enum iso_err copy_tensors(struct model *m, struct iso_errinfo *reterr)
{
    m->n_tensors = m->gguf->n_tensors;
    m->tensors = arena_array(&m->arena, m->n_tensors, sizeof *m->tensors);
    if (!m->tensors)
        return iso_fail(reterr, ISO_E_LIMIT, 0, NULL, "too many tensors for the compiler's memory");
    for (uint32_t i = 0; i < m->n_tensors; i++) {
        const struct gguf_tensor *t = &m->gguf->tensors[i];
        m->tensors[i] = (struct model_tensor){
            .name = t->name, .type = t->type, .n_dims = t->n_dims, .offset = t->offset, .bytes = t->bytes};
        memcpy(m->tensors[i].dims, t->dims, sizeof t->dims);
    }
    return ISO_OK;
}

static enum iso_err open_model(struct model *m, struct iso_errinfo *reterr)
{
    enum iso_err err = gguf_open(m->path, &m->gguf, reterr);
    if (!err)
        err = gguf_get_str(m->gguf, "general.architecture", &m->arch, reterr);
    if (!err && gguf_has(m->gguf, "general.name"))
        err = gguf_get_str(m->gguf, "general.name", &m->name, reterr);
    if (!err)
        err = copy_tensors(m, reterr);
    return err ? iso_fail_prefix(reterr, m->path) : ISO_OK;
}

static void close_model(struct model *m)
{
    gguf_close(m->gguf);
}

static enum iso_err read_tensor(const struct model *m, const struct model_tensor *tensor, uint64_t at,
                                void *dst, size_t n, struct iso_errinfo *reterr)
{
    return gguf_read(m->gguf, &m->gguf->tensors[tensor - m->tensors], at, dst, n, reterr);
}

// "<arch>.<key>"; empty and false where GGUF has no such key.
static bool find_key(const struct model *m, enum model_key key, char out[MODEL_KEY_TEXT_MAX])
{
    out[0] = '\0';
    if (KEYS[key][0] == '\0')
        return false;
    int n = snprintf(out, MODEL_KEY_TEXT_MAX, "%.*s.%s", STRV_ARG(m->arch), KEYS[key]);
    return n < MODEL_KEY_TEXT_MAX;
}

static bool has_key(const struct model *m, enum model_key key)
{
    char text[MODEL_KEY_TEXT_MAX];
    return find_key(m, key, text) && gguf_has(m->gguf, text);
}

static enum iso_err get_u32(const struct model *m, enum model_key key, uint32_t *ret,
                            struct iso_errinfo *reterr)
{
    char text[MODEL_KEY_TEXT_MAX];
    (void)find_key(m, key, text);
    return gguf_get_u32(m->gguf, text, ret, reterr);
}

static enum iso_err get_f32(const struct model *m, enum model_key key, float *ret, struct iso_errinfo *reterr)
{
    char text[MODEL_KEY_TEXT_MAX];
    (void)find_key(m, key, text);
    return gguf_get_f32(m->gguf, text, ret, reterr);
}

static enum iso_err get_str(const struct model *m, enum model_key key, struct strv *ret,
                            struct iso_errinfo *reterr)
{
    char text[MODEL_KEY_TEXT_MAX];
    (void)find_key(m, key, text);
    return gguf_get_str(m->gguf, text, ret, reterr);
}

static bool is_set(const struct model *m, enum model_key key, bool or_one)
{
    char text[MODEL_KEY_TEXT_MAX], value[GGUF_SCALAR_TEXT_MAX];
    const struct gguf_kv *kv = find_key(m, key, text) ? gguf_find(m->gguf, text) : NULL;
    if (!kv)
        return false;
    if (!gguf_scalar_text(kv, value))
        return true;
    return strcmp(value, "0") != 0 && strcmp(value, "false") != 0 && !(or_one && strcmp(value, "1") == 0);
}

static enum iso_err get_template(const struct model *m, struct strv *ret, const char **ret_key,
                                 struct iso_errinfo *reterr)
{
    static const char KEY[] = "tokenizer.chat_template";
    struct strv text = {0};
    enum iso_err err = gguf_has(m->gguf, KEY) ? gguf_get_str(m->gguf, KEY, &text, reterr) : ISO_OK;
    if (err)
        return err;
    *ret = text;
    if (ret_key)
        *ret_key = KEY;
    return ISO_OK;
}

static const char *tensor_path(const struct model *m, const struct model_tensor *tensor)
{
    (void)tensor;
    return m->path;
}

static void key_text(const struct model *m, enum model_key key, char out[MODEL_KEY_TEXT_MAX])
{
    (void)find_key(m, key, out);
}

static bool get_layer_type(const struct model *m, uint32_t layer, struct strv *ret)
{
    (void)m;
    (void)layer;
    (void)ret;
    return false;
}

static const struct json_t *get_config(const struct model *m)
{
    (void)m;
    return NULL;
}

const struct model_reader MODEL_READER_GGUF = {
    .open = open_model,
    .close = close_model,
    .read = read_tensor,
    .tensor_path = tensor_path,
    .key_text = key_text,
    .has = has_key,
    .get_u32 = get_u32,
    .get_f32 = get_f32,
    .get_str = get_str,
    .is_set = is_set,
    .layer_type = get_layer_type,
    .config = get_config,
    .vocabulary = model_gguf_vocabulary,
    .template = get_template,
};
