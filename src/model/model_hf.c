#include "model/hf.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <unistd.h>

#include "base/file.h"
#include "base/num.h"
#include "formats/folder.h"
#include "formats/json_file.h"

static const char *const KEYS[MODEL_KEY_COUNT] = {
#define X(name, gguf, hf) [MODEL_##name] = hf,
    MODEL_KEY_LIST(X)
#undef X
};

enum iso_err hf_read_json(const struct hf *hf, const char *name, uint64_t max, json_t **ret,
                          struct iso_errinfo *reterr)
{
    struct buf text;
    buf_init(&text, (size_t)max);
    enum iso_err err = folder_read(hf->folder, name, max, &text, reterr);
    if (!err && json_parse(buf_strv(&text), ret, reterr))
        err = iso_fail_prefix(reterr, name);
    buf_deinit(&text);
    return err;
}

static enum iso_err read_optional(const struct hf *hf, const char *name, json_t **ret,
                                  struct iso_errinfo *reterr)
{
    return folder_has(hf->folder, name) ? hf_read_json(hf, name, HF_CONFIG_BYTES_MAX, ret, reterr) : ISO_OK;
}

// What the model is, from config.json; what makes its weights something else than they seem is refused.
static enum iso_err read_identity(struct model *m, struct iso_errinfo *reterr)
{
    const json_t *config = m->hf->config, *classes = json_object_get(config, "architectures");
    const json_t *class = json_array_get(classes, 0);
    if (json_array_size(classes) != 1 || !json_is_string(class))
        return iso_fail(
            reterr, ISO_E_FORMAT, 0, "architectures",
            "config.json: \"architectures\" is no list of one name, so this is no model of one part");
    m->arch = json_strv(class);
    const json_t *quantized = json_at(config, STRV_LIT("quantization_config"));
    if (quantized) {
        const json_t *method = json_object_get(quantized, "quant_method");
        return iso_fail(
            reterr, ISO_E_UNSUPPORTED, 0, "quantization_config",
            "config.json: weights quantized by %s are not supported; F32, F16 and BF16 are, and GGUF files",
            json_is_string(method) ? json_string_value(method) : "some method");
    }
    const json_t *name = json_at(config, STRV_LIT("_name_or_path"));
    if (json_is_string(name) && json_string_length(name) > 0)
        m->name = json_strv(name);
    return ISO_OK;
}

static enum iso_err read_template(struct hf *hf, struct iso_errinfo *reterr)
{
    static const char NAME[] = "chat_template.jinja";
    return folder_has(hf->folder, NAME)
               ? folder_read(hf->folder, NAME, HF_TEMPLATE_BYTES_MAX, &hf->chat_template, reterr)
               : ISO_OK;
}

static enum iso_err open_all(struct model *m, struct iso_errinfo *reterr)
{
    struct hf *hf = m->hf;
    enum iso_err err = folder_open(m->path, &hf->folder, reterr);
    if (!err)
        err = hf_read_json(hf, "config.json", HF_CONFIG_BYTES_MAX, &hf->config, reterr);
    if (!err)
        err = read_identity(m, reterr);
    if (!err)
        err = read_optional(hf, "generation_config.json", &hf->generation, reterr);
    if (!err)
        err = read_optional(hf, "tokenizer_config.json", &hf->tokenizer_config, reterr);
    if (!err)
        err = read_template(hf, reterr);
    return err ? err : hf_open_weights(m, reterr);
}

static enum iso_err open_model(struct model *m, struct iso_errinfo *reterr)
{
    m->hf = arena_alloc(&m->arena, sizeof *m->hf);
    if (!m->hf)
        return iso_fail(reterr, ISO_E_NOMEM, 0, NULL, "%s: the system refused memory to compile", m->path);
    *m->hf = (struct hf){.folder = -1};
    buf_init(&m->hf->chat_template, HF_TEMPLATE_BYTES_MAX);
    return open_all(m, reterr) ? iso_fail_prefix(reterr, m->path) : ISO_OK;
}

static void close_model(struct model *m)
{
    struct hf *hf = m->hf;
    if (!hf)
        return;
    for (uint32_t i = 0; i < hf->n_files; i++)
        close(hf->files[i].fd);
    if (hf->folder >= 0)
        close(hf->folder);
    json_decref(hf->config);
    json_decref(hf->generation);
    json_decref(hf->tokenizer_config);
    buf_deinit(&hf->chat_template);
}

static const struct json_t *get_config(const struct model *m)
{
    return m->hf->config;
}

static const char *tensor_path(const struct model *m, const struct model_tensor *tensor)
{
    return m->hf->files[tensor->file].path;
}

static enum iso_err read_tensor(const struct model *m, const struct model_tensor *tensor, uint64_t at,
                                void *dst, size_t n, struct iso_errinfo *reterr)
{
    return file_read_at(m->hf->files[tensor->file].fd, tensor->offset + at, dst, n, reterr);
}

// The first of a key's alternatives that the file has, else the first.
static struct strv alternative(const struct model *m, enum model_key key, const json_t **ret_value)
{
    struct strv first = {0}, rest = strv_from(KEYS[key]);
    *ret_value = NULL;
    while (rest.len > 0) {
        const char *bar = memchr(rest.ptr, '|', rest.len);
        struct strv path = {rest.ptr, bar ? (size_t)(bar - rest.ptr) : rest.len};
        rest.ptr += path.len + (bar ? 1 : 0);
        rest.len -= path.len + (bar ? 1 : 0);
        first = first.len ? first : path;
        *ret_value = json_at(m->hf->config, path);
        if (*ret_value)
            return path;
    }
    return first;
}

static void key_text(const struct model *m, enum model_key key, char out[MODEL_KEY_TEXT_MAX])
{
    const json_t *value;
    struct strv path = alternative(m, key, &value);
    snprintf(out, MODEL_KEY_TEXT_MAX, "%s%.*s", path.len ? "config.json: " : "", STRV_ARG(path));
}

static bool has_key(const struct model *m, enum model_key key)
{
    const json_t *value;
    (void)alternative(m, key, &value);
    return value != NULL;
}

static enum iso_err bad_value(const struct model *m, enum model_key key, const json_t *value,
                              const char *wanted, struct iso_errinfo *reterr)
{
    char text[MODEL_KEY_TEXT_MAX];
    key_text(m, key, text);
    return iso_fail(reterr, ISO_E_FORMAT, 0, text, value ? "%s is not %s" : "%s is missing; it is %s", text,
                    wanted);
}

static enum iso_err get_u32(const struct model *m, enum model_key key, uint32_t *ret,
                            struct iso_errinfo *reterr)
{
    const json_t *value;
    (void)alternative(m, key, &value);
    uint64_t whole;
    if (!json_whole(value, UINT32_MAX, &whole))
        return bad_value(m, key, value, "an integer from 0 to 4294967295", reterr);
    *ret = (uint32_t)whole;
    return ISO_OK;
}

static enum iso_err get_f32(const struct model *m, enum model_key key, float *ret, struct iso_errinfo *reterr)
{
    const json_t *value;
    (void)alternative(m, key, &value);
    float number = (float)json_number_value(value);
    if (!json_is_number(value) || !isfinite(number))
        return bad_value(m, key, value, "a number that a float32 holds", reterr);
    *ret = number;
    return ISO_OK;
}

static enum iso_err get_str(const struct model *m, enum model_key key, struct strv *ret,
                            struct iso_errinfo *reterr)
{
    const json_t *value;
    (void)alternative(m, key, &value);
    if (!json_is_string(value))
        return bad_value(m, key, value, "a text", reterr);
    *ret = json_strv(value);
    return ISO_OK;
}

static bool is_set(const struct model *m, enum model_key key, bool or_one)
{
    const json_t *value;
    (void)alternative(m, key, &value);
    if (!value || json_is_false(value))
        return false;
    double number = json_number_value(value);
    return !json_is_number(value) || (number != 0 && !(or_one && number == 1));
}

static bool get_layer_type(const struct model *m, uint32_t layer, struct strv *ret)
{
    const json_t *type = json_array_get(json_object_get(m->hf->config, "layer_types"), layer);
    if (!json_is_string(type))
        return false;
    *ret = json_strv(type);
    return true;
}

static enum iso_err get_template(const struct model *m, struct strv *ret, const char **ret_key,
                                 struct iso_errinfo *reterr)
{
    const json_t *text = json_object_get(m->hf->tokenizer_config, "chat_template");
    const char *key = "chat_template.jinja";
    *ret = buf_strv(&m->hf->chat_template);
    if (ret->len == 0) {
        key = "tokenizer_config.json: chat_template";
        for (size_t i = 0; json_is_array(text) && i < json_array_size(text); i++) { // several by name
            const json_t *one = json_array_get(text, i), *name = json_object_get(one, "name");
            if (json_is_string(name) && strv_is(json_strv(name), "default")) {
                text = json_object_get(one, "template");
                break;
            }
        }
        if (text && !json_is_string(text) && !json_is_null(text))
            return iso_fail(
                reterr, ISO_E_FORMAT, 0, "chat_template",
                "tokenizer_config.json: chat_template is neither a text nor a list with a \"default\"");
        if (json_is_string(text))
            *ret = json_strv(text);
    }
    if (ret_key)
        *ret_key = key;
    return ISO_OK;
}

const struct model_reader MODEL_READER_HF = {
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
    .vocabulary = model_hf_vocabulary,
    .template = get_template,
};
