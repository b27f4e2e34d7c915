#include "model/model.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/assert.h"
#include "base/num.h"
#include "formats/gguf.h"
#include "model/model_formats.h"

// Tables of tensors and names; pages become real as they are used.
#define MODEL_ARENA_BYTES (GIB)

static int compare(struct strv a, struct strv b)
{
    int order = memcmp(a.ptr, b.ptr, (size_t)num_min(a.len, b.len));
    return order ? order : (a.len > b.len) - (a.len < b.len);
}

static int compare_tensors(const void *a, const void *b)
{
    return compare((*(const struct model_tensor *const *)a)->name,
                   (*(const struct model_tensor *const *)b)->name);
}

static enum iso_err sort_names(struct model *m, struct iso_errinfo *reterr)
{
    m->by_name = arena_array(&m->arena, m->n_tensors, sizeof *m->by_name);
    if (!m->by_name)
        return iso_fail(reterr, ISO_E_LIMIT, 0, NULL, "%s: too many tensors for the compiler's memory",
                        m->path);
    for (uint32_t i = 0; i < m->n_tensors; i++)
        m->by_name[i] = &m->tensors[i];
    qsort(m->by_name, m->n_tensors, sizeof *m->by_name, compare_tensors);
    return ISO_OK;
}

// A file of a folder, given instead of the folder.
static bool is_of_folder(const char *path)
{
    static const char *const ENDS[] = {".safetensors", ".json"};
    for (size_t i = 0; i < ARRAY_LEN(ENDS); i++) {
        size_t n = strlen(path), end = strlen(ENDS[i]);
        if (n >= end && strcmp(path + n - end, ENDS[i]) == 0)
            return true;
    }
    return false;
}

enum iso_err model_open(const char *path, struct model *ret, struct iso_errinfo *reterr)
{
    struct stat s;
    bool found = stat(path, &s) == 0;
    struct model m = {.format = found && S_ISDIR(s.st_mode) ? MODEL_HF : MODEL_GGUF};
    if (found && m.format == MODEL_GGUF && is_of_folder(path))
        return iso_fail(reterr, ISO_E_USAGE, 0, NULL,
                        "%s: of a Hugging Face model the folder is given, not one of its files", path);
    m.reader = m.format == MODEL_HF ? &MODEL_READER_HF : &MODEL_READER_GGUF;
    if (arena_init(&m.arena, MODEL_ARENA_BYTES))
        return iso_fail(reterr, ISO_E_NOMEM, 0, NULL, "%s: the system refused memory to compile", path);
    m.path = arena_strdup(&m.arena, strv_from(path));
    ASSERT(m.path); // the arena is empty
    enum iso_err err = m.reader->open(&m, reterr);
    if (!err)
        err = sort_names(&m, reterr);
    if (err)
        model_close(&m);
    else
        *ret = m;
    return err;
}

void model_close(struct model *m)
{
    if (m->reader)
        m->reader->close(m);
    arena_deinit(&m->arena);
    *m = (struct model){0};
}

const struct model_tensor *model_tensor_find(const struct model *m, const char *name)
{
    struct strv wanted = strv_from(name);
    uint32_t low = 0, high = m->n_tensors;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        int order = compare(m->by_name[middle]->name, wanted);
        if (order == 0)
            return m->by_name[middle];
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return NULL;
}

enum iso_err model_read(const struct model *m, const struct model_tensor *tensor, uint64_t at, void *dst,
                        size_t n, struct iso_errinfo *reterr)
{
    enum iso_err err = m->reader->read(m, tensor, at, dst, n, reterr);
    return err ? iso_fail_prefix(reterr, model_tensor_path(m, tensor)) : ISO_OK;
}

const char *model_tensor_path(const struct model *m, const struct model_tensor *tensor)
{
    return m->reader->tensor_path(m, tensor);
}

const char *model_key_text(const struct model *m, enum model_key key, char out[MODEL_KEY_TEXT_MAX])
{
    m->reader->key_text(m, key, out);
    return out;
}

bool model_has(const struct model *m, enum model_key key)
{
    return m->reader->has(m, key);
}

enum iso_err model_get_u32(const struct model *m, enum model_key key, uint32_t *ret,
                           struct iso_errinfo *reterr)
{
    return m->reader->get_u32(m, key, ret, reterr);
}

enum iso_err model_get_f32(const struct model *m, enum model_key key, float *ret, struct iso_errinfo *reterr)
{
    return m->reader->get_f32(m, key, ret, reterr);
}

enum iso_err model_get_str(const struct model *m, enum model_key key, struct strv *ret,
                           struct iso_errinfo *reterr)
{
    return m->reader->get_str(m, key, ret, reterr);
}

bool model_is_set(const struct model *m, enum model_key key, bool or_one)
{
    return m->reader->is_set(m, key, or_one);
}

bool model_layer_type(const struct model *m, uint32_t layer, struct strv *ret)
{
    return m->reader->layer_type(m, layer, ret);
}

const struct json_t *model_config(const struct model *m)
{
    return m->reader->config(m);
}

enum iso_err model_vocabulary(const struct model *m, struct arena *arena, struct tok_source *ret,
                              struct iso_errinfo *reterr)
{
    return m->reader->vocabulary(m, arena, ret, reterr);
}

enum iso_err model_template(const struct model *m, struct strv *ret, const char **ret_key,
                            struct iso_errinfo *reterr)
{
    return m->reader->template(m, ret, ret_key, reterr);
}
