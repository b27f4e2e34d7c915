#include "cli/cache.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/file.h"
#include "base/hash.h"
#include "plan/plan.h"

// What makes a plan another plan. No padding: its bytes are hashed. The defaults are in it for options not given.
struct cache_key {
    uint64_t bytes, mtime_ns, inode, device;
    uint32_t max_seq_len, slots, batch_tokens, kv_type, quant, quant_head;
    uint32_t max_seq_len_default, slots_default, batch_tokens_default, reserved;
    uint64_t plan_version, program_version, path;
    uint64_t files;   // of a folder
    uint64_t pruning; // 0: none
};
_Static_assert(sizeof(struct cache_key) == 112, "hashed as bytes");

static enum iso_err cache_folder(char *path, size_t size, struct iso_errinfo *reterr)
{
    const char *base = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    if (base && base[0] == '/')
        snprintf(path, size, "%s/isochron/plans", base);
    else if (home && home[0] == '/')
        snprintf(path, size, "%s/.cache/isochron/plans", home);
    else
        return iso_fail(
            reterr, ISO_E_USAGE, 0, NULL,
            "there is no place for compiled plans: set HOME or XDG_CACHE_HOME, or compile to a plan first");
    return file_make_folders(path, reterr);
}

static int compare_names(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

// What changes when a file of the folder does; 0 where it can't be listed, which compiling will say better.
static uint64_t hash_files(const char *folder)
{
    struct dirent **names;
    uint64_t hash = 0;
    int n = scandir(folder, &names, NULL, compare_names);
    for (int i = 0; i < n; i++) {
        char path[FILE_PATH_MAX + 256];
        struct stat st;
        snprintf(path, sizeof path, "%s/%s", folder, names[i]->d_name);
        if (stat(path, &st) == 0 && S_ISREG(st.st_mode)) {
            uint64_t row[] = {hash,
                              hash64(names[i]->d_name, strlen(names[i]->d_name)),
                              (uint64_t)st.st_size,
                              (uint64_t)st.st_mtim.tv_sec * 1000000000u + (uint64_t)st.st_mtim.tv_nsec,
                              st.st_ino,
                              st.st_dev};
            hash = hash64(row, sizeof row);
        }
        free(names[i]);
    }
    if (n >= 0)
        free(names);
    return hash;
}

static uint64_t hash_pruning(const struct pruning *p)
{
    return p ? hash64(p->which, (size_t)p->layers * p->kept * sizeof *p->which) : 0;
}

enum iso_err cache_find(const char *model_path, const struct compile_options *options, char *path,
                        size_t size, bool *ret_hit, struct iso_errinfo *reterr)
{
    struct stat st;
    char folder[FILE_PATH_MAX - 64], real[FILE_PATH_MAX], hex[HASH_HEX_BYTES];
    if (stat(model_path, &st) == 0 && !S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode))
        return iso_fail(reterr, ISO_E_IO, 0, NULL, "%s: is a device, pipe or socket, not a file or folder",
                        model_path);
    if (!realpath(model_path, real) || stat(real, &st))
        return iso_fail(reterr, ISO_E_IO, 0, NULL, "%s: opening failed: %s", model_path, strerror(errno));
    enum iso_err err = cache_folder(folder, sizeof folder, reterr);
    if (err)
        return iso_fail_prefix(reterr, model_path);
    const struct cache_key key = {
        .bytes = (uint64_t)st.st_size,
        .mtime_ns = (uint64_t)st.st_mtim.tv_sec * 1000000000u + (uint64_t)st.st_mtim.tv_nsec,
        .inode = st.st_ino,
        .device = st.st_dev,
        .max_seq_len = options->max_seq_len,
        .slots = options->slots,
        .batch_tokens = options->batch_tokens,
        .kv_type = options->kv_type,
        .quant = options->quant,
        .quant_head = options->quant_head_given ? options->quant_head : UINT32_MAX,
        .max_seq_len_default =
            options->max_seq_len_default ? options->max_seq_len_default : COMPILE_MAX_SEQ_LEN_DEFAULT,
        .slots_default = COMPILE_SLOTS_DEFAULT,
        .batch_tokens_default = COMPILE_BATCH_TOKENS_DEFAULT,
        .plan_version = PLAN_VERSION,
        .program_version = hash64(ISO_VERSION, strlen(ISO_VERSION)),
        .path = hash64(real, strlen(real)),
        .pruning = hash_pruning(options->pruning),
        .files = S_ISDIR(st.st_mode) ? hash_files(real) : 0};
    hash128_hex(hash128(&key, sizeof key), hex);
    snprintf(path, size, "%s/%s.plan", folder, hex);
    struct plan_header header;
    *ret_hit = plan_peek(path, &header, NULL) == ISO_OK;
    return ISO_OK;
}
