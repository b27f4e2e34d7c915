#include "plan/plan.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/file.h"
#include "base/num.h"
#include "plan/plan_check.h"

#define READ_CHUNK_BYTES (4 * MIB)

static enum iso_err open_file(const char *path, int *ret_fd, uint64_t *ret_bytes, struct iso_errinfo *reterr)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return iso_fail(reterr, ISO_E_IO, 0, NULL, "opening failed: %s", strerror(errno));
    struct stat st;
    if (fstat(fd, &st) || !S_ISREG(st.st_mode)) {
        close(fd);
        return iso_fail(reterr, ISO_E_IO, 0, NULL, "this is no regular file");
    }
    *ret_fd = fd;
    *ret_bytes = (uint64_t)st.st_size;
    return ISO_OK;
}

static enum iso_err read_header(int fd, uint64_t file_bytes, struct plan_header *ret,
                                struct iso_errinfo *reterr)
{
    struct plan_header h = {0};
    enum iso_err err = file_read_at(fd, 0, &h, num_min(sizeof h, file_bytes), reterr);
    if (!err)
        err = plan_check_header(&h, file_bytes, reterr);
    if (!err)
        *ret = h;
    return err;
}

enum iso_err plan_peek(const char *path, struct plan_header *ret, struct iso_errinfo *reterr)
{
    int fd;
    uint64_t bytes;
    enum iso_err err = open_file(path, &fd, &bytes, reterr);
    if (err)
        return err;
    err = read_header(fd, bytes, ret, reterr);
    close(fd);
    return err;
}

bool plan_is_plan(const char *path)
{
    char magic[sizeof(((struct plan_header *)0)->magic)];
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return false;
    bool is = pread(fd, magic, sizeof magic, 0) == (ssize_t)sizeof magic &&
              memcmp(magic, PLAN_MAGIC, sizeof magic) == 0;
    close(fd);
    return is;
}

// Copies the file into a new memfd, seals it and maps it. *ret_bytes is the mapping's size.
static enum iso_err copy_sealed(int fd, uint64_t bytes, plan_progress *progress, void *context, uint8_t **ret,
                                struct iso_errinfo *reterr)
{
    int mem = memfd_create("isochron-plan", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (mem < 0)
        return iso_fail(reterr, ISO_E_NOMEM, 0, NULL, "creating shared memory failed: %s", strerror(errno));
    enum iso_err err = ISO_OK;
    if (ftruncate(mem, (off_t)bytes))
        err = iso_fail(reterr, ISO_E_NOMEM, 0, NULL, "the system refused %llu bytes of shared memory: %s",
                       (unsigned long long)bytes, strerror(errno));
    for (uint64_t at = 0; at < bytes && !err;) {
        off_t from = (off_t)at;
        ssize_t n = sendfile(mem, fd, &from, num_min(READ_CHUNK_BYTES, bytes - at)); // appends to the memfd
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            err = iso_fail(reterr, ISO_E_IO, at, NULL, "reading at byte %llu failed: %s",
                           (unsigned long long)at, n == 0 ? "the file ended early" : strerror(errno));
        else
            at += (uint64_t)n;
        if (!err && progress)
            progress(context, at, bytes);
    }
    void *map = MAP_FAILED;
    if (!err && fcntl(mem, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL) == 0)
        map = mmap(NULL, bytes, PROT_READ, MAP_SHARED | MAP_POPULATE, mem, 0);
    if (!err && map == MAP_FAILED)
        err = iso_fail(reterr, ISO_E_NOMEM, 0, NULL, "mapping %llu bytes failed: %s",
                       (unsigned long long)bytes, strerror(errno));
    close(mem);
    if (!err)
        *ret = map;
    return err;
}

static enum iso_err check_hashes(const uint8_t *base, const struct plan_header *h, struct iso_errinfo *reterr)
{
    static const char *const NAMES[PLAN_SECTION_COUNT] = {"tensor table", "program", "tokenizer",
                                                          "chat template", "weights"};
    for (int i = 0; i < PLAN_SECTION_COUNT; i++) {
        const struct plan_section *s = &h->sections[i];
        if (!hash128_equal(s->hash, hash128(base + s->offset, s->bytes)))
            return iso_fail(reterr, ISO_E_CORRUPT, s->offset, NAMES[i],
                            "the plan's %s does not match its checksum: the file is damaged", NAMES[i]);
    }
    return ISO_OK;
}

static enum iso_err check_all(const struct plan *p, struct iso_errinfo *reterr)
{
    struct arena scratch;
    enum iso_err err = check_hashes((const uint8_t *)p->header, p->header, reterr);
    if (err)
        return err;
    if (arena_init(&scratch, PLAN_CHECK_SCRATCH_BYTES))
        return iso_fail(reterr, ISO_E_NOMEM, 0, NULL, "the system refused memory to check the plan");
    err = plan_check_program(p->header, p->tensors, p->ops, &scratch, reterr);
    arena_deinit(&scratch);
    return err;
}

enum iso_err plan_load(const char *path, plan_progress *progress, void *context, struct plan *ret,
                       struct iso_errinfo *reterr)
{
    int fd;
    uint64_t bytes;
    struct plan_header header;
    uint8_t *base = NULL;
    enum iso_err err = open_file(path, &fd, &bytes, reterr);
    if (err)
        return err;
    err = read_header(fd, bytes, &header, reterr);
    if (!err)
        err = copy_sealed(fd, bytes, progress, context, &base, reterr);
    close(fd);
    if (err)
        return err;
    struct plan p = {.header = (const struct plan_header *)base,
                     .mapped_bytes = num_align(bytes, PLAN_ALIGN)};
    // The file may have changed since its header was read; what counts is the copy.
    err = plan_check_header(p.header, bytes, reterr);
    if (!err) {
        const struct plan_section *s = p.header->sections;
        p.tensors = (const struct plan_tensor *)(base + s[PLAN_TENSORS].offset);
        p.ops = (const struct plan_op *)(base + s[PLAN_OPS].offset);
        p.weights = base + s[PLAN_WEIGHTS].offset;
        p.tokenizer = base + s[PLAN_TOKENIZER].offset;
        p.tokenizer_bytes = s[PLAN_TOKENIZER].bytes;
        p.chat_template = (struct strv){(const char *)base + s[PLAN_TEMPLATE].offset, s[PLAN_TEMPLATE].bytes};
        err = check_all(&p, reterr);
    }
    if (err)
        plan_close(&p);
    else
        *ret = p;
    return err;
}

void plan_close(struct plan *p)
{
    if (p->header)
        munmap((void *)p->header, p->mapped_bytes);
    *p = (struct plan){0};
}
