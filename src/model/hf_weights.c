// The weights of a folder: one safetensors file, or the shards that an index names.
#include "model/hf.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/file.h"
#include "base/num.h"
#include "formats/folder.h"
#include "formats/json_file.h"
#include "formats/safetensors.h"

#define SINGLE_NAME     "model.safetensors"
#define INDEX_NAME      "model.safetensors.index.json"
#define INDEX_BYTES_MAX ((uint64_t)16 << 20)
#define TENSORS_MAX     65536 // of all files

static enum iso_err no_memory(struct iso_errinfo *reterr)
{
    return iso_fail(reterr, ISO_E_LIMIT, 0, NULL,
                    "the weights' headers are too long for the compiler's memory");
}

// Header to tensors of m, whose table has room for TENSORS_MAX.
static enum iso_err read_header(struct model *m, uint32_t file, uint64_t file_bytes,
                                struct iso_errinfo *reterr)
{
    struct safetensors s;
    enum iso_err err = safetensors_read(m->hf->files[file].fd, file_bytes, &m->arena, &s, reterr);
    if (err)
        return err;
    if (s.n_tensors > TENSORS_MAX - m->n_tensors)
        return iso_fail(reterr, ISO_E_LIMIT, 0, NULL, "the folder has more than %d tensors", TENSORS_MAX);
    for (uint32_t i = 0; i < s.n_tensors; i++) {
        const struct safetensor *t = &s.tensors[i];
        struct model_tensor *out = &m->tensors[m->n_tensors++];
        *out = (struct model_tensor){.name = t->name,
                                     .type = t->type,
                                     .n_dims = t->n_dims,
                                     .offset = t->offset,
                                     .bytes = t->bytes,
                                     .file = file};
        memcpy(out->dims, t->dims, sizeof t->dims);
    }
    return ISO_OK;
}

static enum iso_err open_file(struct model *m, const char *name, struct iso_errinfo *reterr)
{
    struct hf *hf = m->hf;
    uint64_t bytes;
    char path[FILE_PATH_MAX];
    int length = snprintf(path, sizeof path, "%s/%s", m->path, name);
    if (length < 0 || (size_t)length >= sizeof path)
        return iso_fail(reterr, ISO_E_LIMIT, 0, "file", "the path of %s is too long", name);
    struct hf_file *file = &hf->files[hf->n_files];
    file->path = arena_strdup(&m->arena, strv_from(path));
    if (!file->path)
        return no_memory(reterr);
    enum iso_err err = folder_open_file(hf->folder, name, &file->fd, &bytes, reterr);
    if (err)
        return err;
    hf->n_files++;
    err = read_header(m, hf->n_files - 1, bytes, reterr);
    return err ? iso_fail_prefix(reterr, name) : ISO_OK;
}

// The index's file of a tensor, as text; false where it has none.
static bool shard_of(const json_t *map, struct strv tensor, struct strv *ret)
{
    const json_t *file = json_object_getn(map, tensor.ptr, tensor.len);
    if (!json_is_string(file))
        return false;
    *ret = json_strv(file);
    return true;
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

// The files that the index names, each once, in order.
static enum iso_err list_shards(struct model *m, json_t *map, const char ***ret, uint32_t *ret_n,
                                struct iso_errinfo *reterr)
{
    const char *key, **names;
    json_t *value;
    uint32_t n = 0, kept = 0;
    size_t most = json_object_size(map);
    names = most <= TENSORS_MAX ? arena_array(&m->arena, most, sizeof *names) : NULL;
    if (!json_is_object(map) || most == 0 || !names)
        return iso_fail(reterr, ISO_E_FORMAT, 0, "weight_map",
                        INDEX_NAME ": weight_map is no object of 1 to %d tensors", TENSORS_MAX);
    json_object_foreach(map, key, value)
    {
        if (!json_is_string(value) || json_string_length(value) != strlen(json_string_value(value)))
            return iso_fail(reterr, ISO_E_FORMAT, 0, "weight_map", INDEX_NAME ": \"%s\" is in no file", key);
        names[n++] = json_string_value(value);
    }
    qsort(names, n, sizeof *names, compare_names);
    for (uint32_t i = 0; i < n; i++)
        if (i == 0 || strcmp(names[i], names[i - 1]) != 0)
            names[kept++] = names[i];
    if (kept > HF_FILES_MAX)
        return iso_fail(reterr, ISO_E_LIMIT, 0, "weight_map",
                        INDEX_NAME " names %" PRIu32 " files; the limit is %d", kept, HF_FILES_MAX);
    *ret = names;
    *ret_n = kept;
    return ISO_OK;
}

// Index and files agree on which tensor is where.
static enum iso_err check_index(const struct model *m, const json_t *map, const char *const *names,
                                struct iso_errinfo *reterr)
{
    for (uint32_t i = 0; i < m->n_tensors; i++) {
        struct strv file;
        const struct model_tensor *t = &m->tensors[i];
        if (!shard_of(map, t->name, &file) || !strv_is(file, names[t->file]))
            return iso_fail(reterr, ISO_E_FORMAT, 0, "weight_map",
                            INDEX_NAME ": tensor \"%.*s\" is in %s, which the index does not say",
                            STRV_ARG(t->name), names[t->file]);
    }
    if (m->n_tensors != json_object_size(map))
        return iso_fail(reterr, ISO_E_FORMAT, 0, "weight_map",
                        INDEX_NAME " names %zu tensors; the files hold %" PRIu32, json_object_size(map),
                        m->n_tensors);
    return ISO_OK;
}

static enum iso_err open_shards(struct model *m, struct iso_errinfo *reterr)
{
    json_t *index;
    const char **names;
    uint32_t n;
    enum iso_err err = hf_read_json(m->hf, INDEX_NAME, INDEX_BYTES_MAX, &index, reterr);
    if (err)
        return err;
    json_t *map = json_object_get(index, "weight_map");
    err = list_shards(m, map, &names, &n, reterr);
    for (uint32_t i = 0; i < n && !err; i++)
        err = open_file(m, names[i], reterr);
    if (!err)
        err = check_index(m, map, names, reterr);
    json_decref(index);
    return err;
}

enum iso_err hf_open_weights(struct model *m, struct iso_errinfo *reterr)
{
    m->hf->files = arena_array(&m->arena, HF_FILES_MAX, sizeof *m->hf->files);
    m->tensors = arena_array(&m->arena, TENSORS_MAX, sizeof *m->tensors);
    if (!m->hf->files || !m->tensors)
        return no_memory(reterr);
    if (folder_has(m->hf->folder, SINGLE_NAME))
        return open_file(m, SINGLE_NAME, reterr);
    if (folder_has(m->hf->folder, INDEX_NAME))
        return open_shards(m, reterr);
    return iso_fail(reterr, ISO_E_IO, 0, "folder",
                    "has neither " SINGLE_NAME " nor " INDEX_NAME
                    "; other kinds of weights (pytorch_model.bin) are not read");
}
