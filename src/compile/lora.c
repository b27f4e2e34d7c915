#include "compile/lora.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/buf.h"
#include "base/dmath.h"
#include "base/file.h"
#include "base/num.h"
#include "compile/block.h"
#include "formats/folder.h"
#include "formats/json_file.h"
#include "formats/safetensors.h"
#include "graph/ir.h"

#define CONFIG_NAME      "adapter_config.json"
#define WEIGHTS_NAME     "adapter_model.safetensors"
#define CONFIG_BYTES_MAX ((uint64_t)1 << 20)
#define ARENA_BYTES      ((size_t)16 << 30) // of address space: pages become real as they are used
#define PREFIX           "base_model.model."
#define NAME_MAX_BYTES   256
#define TOGETHER         256 // values of a row whose sums are in registers or the nearest cache

// What the adapter has of one tensor.
struct change {
    const float *a, *b; // [r][k], [n][r]; NULL until found
};

struct lora {
    struct arena arena;
    const struct model_tensor *tensors; // the model's
    uint32_t n_tensors;
    struct change *changes; // [n_tensors]
    uint32_t rank;
    float scale;
};

static enum iso_err unsupported(const char *key, const char *what, struct iso_errinfo *reterr)
{
    return iso_fail(reterr, ISO_E_UNSUPPORTED, 0, key, CONFIG_NAME ": %s %s", key, what);
}

static bool is_empty(const json_t *value)
{
    return !value || json_is_null(value) || json_is_false(value) ||
           (json_is_object(value) && json_object_size(value) == 0) ||
           (json_is_array(value) && json_array_size(value) == 0);
}

static enum iso_err read_config(struct lora *l, const json_t *config, struct iso_errinfo *reterr)
{
    // What changes the adapted weights otherwise than lora_add does.
    static const char *const ABSENT[] = {"use_dora",
                                         "modules_to_save",
                                         "rank_pattern",
                                         "alpha_pattern",
                                         "fan_in_fan_out",
                                         "lora_bias",
                                         "trainable_token_indices",
                                         "layer_replication",
                                         "alora_invocation_tokens",
                                         "use_qalora",
                                         "target_parameters",
                                         "use_bdlora",
                                         "megatron_config"};
    uint64_t rank;
    const json_t *type = json_object_get(config, "peft_type"), *bias = json_object_get(config, "bias");
    const json_t *alpha = json_object_get(config, "lora_alpha");
    if (!json_is_string(type) || !strv_is(json_strv(type), "LORA"))
        return unsupported("peft_type", "is not \"LORA\"", reterr);
    for (size_t i = 0; i < ARRAY_LEN(ABSENT); i++)
        if (!is_empty(json_object_get(config, ABSENT[i])))
            return unsupported(ABSENT[i], "is set, which is not supported", reterr);
    // Other ways to begin change the base weights too, so that W + s B A counts something twice.
    const json_t *begun = json_object_get(config, "init_lora_weights");
    if (json_is_string(begun) && !strv_is(json_strv(begun), "gaussian"))
        return unsupported("init_lora_weights", "is other than true, false and \"gaussian\"", reterr);
    if (bias && !(json_is_string(bias) && strv_is(json_strv(bias), "none")))
        return unsupported("bias", "is not \"none\"", reterr);
    if (!json_whole(json_object_get(config, "r"), LORA_RANK_MAX, &rank) || rank == 0)
        return iso_fail(reterr, ISO_E_FORMAT, 0, "r", CONFIG_NAME ": r is no number from 1 to %d",
                        LORA_RANK_MAX);
    if (!json_is_number(alpha) || !(json_number_value(alpha) > 0 && json_number_value(alpha) < 1e6))
        return iso_fail(reterr, ISO_E_FORMAT, 0, "lora_alpha",
                        CONFIG_NAME ": lora_alpha is no number above 0 to 1e6");
    bool root = json_is_true(json_object_get(config, "use_rslora"));
    l->rank = (uint32_t)rank;
    l->scale = (float)(json_number_value(alpha) / (root ? dmath_sqrt((double)rank) : (double)rank));
    return ISO_OK;
}

// The model's tensor that "base_model.model.X.lora_A.weight" is about; *ret_is_b says which of both it is.
static const struct model_tensor *target_of(const struct model *m, struct strv name, bool *ret_is_b)
{
    static const char *const ENDS[] = {".lora_A.weight", ".lora_B.weight"};
    char own[NAME_MAX_BYTES];
    size_t before = strlen(PREFIX), after = strlen(ENDS[0]);
    if (name.len <= before + after || name.len >= sizeof own || memcmp(name.ptr, PREFIX, before) != 0)
        return NULL;
    for (int i = 0; i < 2; i++) {
        if (memcmp(name.ptr + name.len - after, ENDS[i], after) != 0)
            continue;
        *ret_is_b = i == 1;
        snprintf(own, sizeof own, "%.*s.weight", (int)(name.len - before - after), name.ptr + before);
        return model_tensor_find(m, own);
    }
    return NULL;
}

static enum iso_err read_values(struct lora *l, int fd, const struct safetensor *t, const float **ret,
                                struct iso_errinfo *reterr)
{
    uint64_t n = t->dims[0] * t->dims[1];
    uint8_t *raw = arena_alloc(&l->arena, t->bytes);
    float *values = arena_array(&l->arena, n, sizeof *values);
    if (!raw || !values)
        return iso_fail(reterr, ISO_E_LIMIT, 0, NULL, "the adapter is too large for the compiler's memory");
    enum iso_err err = file_read_at(fd, t->offset, raw, t->bytes, reterr);
    uint64_t bad;
    if (!err && ggml_check_values(t->type, raw, n, &bad))
        err = iso_fail(reterr, ISO_E_NONFINITE, 0, NULL, "tensor \"%.*s\" holds a NaN or infinite value",
                       STRV_ARG(t->name));
    if (!err)
        block_values(t->type, raw, n, values);
    if (!err)
        *ret = values;
    return err;
}

static enum iso_err read_tensor(struct lora *l, const struct model *m, int fd, const struct safetensor *t,
                                struct iso_errinfo *reterr)
{
    bool is_b = false;
    const struct model_tensor *target = target_of(m, t->name, &is_b);
    if (!target || target->n_dims != 2)
        return iso_fail(reterr, ISO_E_UNSUPPORTED, t->offset, NULL,
                        "tensor \"%.*s\" changes no weight matrix of the model", STRV_ARG(t->name));
    uint64_t cols = is_b ? l->rank : target->dims[0], rows = is_b ? target->dims[1] : l->rank;
    if (t->n_dims != 2 || t->dims[0] != cols || t->dims[1] != rows)
        return iso_fail(reterr, ISO_E_FORMAT, t->offset, NULL,
                        "tensor \"%.*s\" has shape %" PRIu64 " x %" PRIu64
                        " where model and rank ask for %" PRIu64 " x %" PRIu64,
                        STRV_ARG(t->name), t->dims[1], t->dims[0], rows, cols);
    struct change *c = &l->changes[target - l->tensors];
    return read_values(l, fd, t, is_b ? &c->b : &c->a, reterr);
}

static enum iso_err read_weights(struct lora *l, const struct model *m, int fd, uint64_t bytes,
                                 struct iso_errinfo *reterr)
{
    struct safetensors s;
    enum iso_err err = safetensors_read(fd, bytes, &l->arena, &s, reterr);
    for (uint32_t i = 0; !err && i < s.n_tensors; i++)
        err = read_tensor(l, m, fd, &s.tensors[i], reterr);
    uint32_t changed = 0;
    for (uint32_t i = 0; !err && i < l->n_tensors; i++) {
        const struct change *c = &l->changes[i];
        if (!c->a != !c->b)
            err = iso_fail(reterr, ISO_E_FORMAT, 0, NULL,
                           "of tensor \"%.*s\" there is only one of lora_A and lora_B",
                           STRV_ARG(l->tensors[i].name));
        changed += c->a != NULL;
    }
    if (!err && changed == 0)
        err = iso_fail(reterr, ISO_E_FORMAT, 0, NULL, "there is no tensor in it");
    return err;
}

static enum iso_err read_folder(struct lora *l, const struct model *m, int folder, struct iso_errinfo *reterr)
{
    struct buf text;
    json_t *config = NULL;
    uint64_t bytes;
    int fd;
    buf_init(&text, CONFIG_BYTES_MAX);
    enum iso_err err = folder_read(folder, CONFIG_NAME, CONFIG_BYTES_MAX, &text, reterr);
    if (!err && json_parse(buf_strv(&text), &config, reterr))
        err = iso_fail_prefix(reterr, CONFIG_NAME);
    buf_deinit(&text);
    if (!err)
        err = read_config(l, config, reterr);
    json_decref(config);
    if (!err)
        err = folder_open_file(folder, WEIGHTS_NAME, &fd, &bytes, reterr);
    if (err)
        return err;
    err = read_weights(l, m, fd, bytes, reterr);
    close(fd);
    return err ? iso_fail_prefix(reterr, WEIGHTS_NAME) : ISO_OK;
}

enum iso_err lora_open(const char *path, const struct model *m, struct lora **ret, struct iso_errinfo *reterr)
{
    int folder;
    if (m->format != MODEL_HF)
        return iso_fail(
            reterr, ISO_E_UNSUPPORTED, 0, "lora",
            "%s: an adapter is merged into a Hugging Face folder, whose names it uses, not into a GGUF file",
            path);
    struct lora *l = calloc(1, sizeof *l);
    if (!l || arena_init(&l->arena, ARENA_BYTES)) {
        free(l);
        return iso_fail(reterr, ISO_E_NOMEM, 0, NULL, "%s: the system refused memory for the adapter", path);
    }
    l->tensors = m->tensors;
    l->n_tensors = m->n_tensors;
    l->changes = arena_array(&l->arena, m->n_tensors, sizeof *l->changes);
    enum iso_err err = l->changes ? folder_open(path, &folder, reterr)
                                  : iso_fail(reterr, ISO_E_NOMEM, 0, NULL, "the system refused memory");
    if (!err) {
        err = read_folder(l, m, folder, reterr);
        close(folder);
    }
    if (err) {
        lora_close(l);
        return iso_fail_prefix(reterr, path);
    }
    *ret = l;
    return ISO_OK;
}

void lora_close(struct lora *l)
{
    if (!l)
        return;
    arena_deinit(&l->arena);
    free(l);
}

static const struct change *change_of(const struct lora *l, const struct model_tensor *t)
{
    return &l->changes[t - l->tensors];
}

bool lora_has(const struct lora *l, const struct model_tensor *t)
{
    return l && change_of(l, t)->a;
}

void lora_add(const struct lora *l, const struct model_tensor *t, uint64_t row, float *values)
{
    if (!lora_has(l, t))
        return;
    const struct change *c = change_of(l, t);
    const float *b = c->b + row * l->rank;
    uint64_t k = t->dims[0];
    for (uint64_t first = 0; first < k; first += TOGETHER) {
        float sum[TOGETHER] = {0};
        uint64_t n = num_min(TOGETHER, k - first);
        for (uint32_t j = 0; j < l->rank; j++)
            for (uint64_t i = 0; i < n; i++)
                sum[i] += b[j] * c->a[j * k + first + i];
        for (uint64_t i = 0; i < n; i++)
            values[first + i] += l->scale * sum[i];
    }
}

const struct model_tensor *lora_unused(const struct lora *l, const struct program *p)
{
    for (uint32_t i = 0; i < l->n_tensors; i++) {
        bool used = !l->changes[i].a;
        for (uint32_t t = 0; t < p->header.n_tensors && !used; t++)
            for (uint32_t j = 0; p->tensors[t].kind == PLAN_MATRIX && j < p->n_parts_of[t]; j++)
                used = used || p->parts[p->part_of[t] + j].source == &l->tensors[i];
        if (!used)
            return &l->tensors[i];
    }
    return NULL;
}
