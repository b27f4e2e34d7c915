#include "plan/plan.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/assert.h"
#include "base/file.h"
#include "base/num.h"
#include "base/pages.h"
#include "plan/plan_check.h"

#define READ_CHUNK_BYTES (4 * MIB)

static enum iso_err check_regular(int fd, uint64_t *ret_bytes, struct iso_errinfo *reterr)
{
    struct stat st;
    if (fstat(fd, &st) || !S_ISREG(st.st_mode))
        return iso_fail(reterr, ISO_E_IO, 0, NULL, "this is no regular file");
    *ret_bytes = (uint64_t)st.st_size;
    return ISO_OK;
}

static enum iso_err open_file(const char *path, int *ret_fd, uint64_t *ret_bytes, struct iso_errinfo *reterr)
{
    // Without O_NONBLOCK a FIFO would wait here for a writer; on regular files it changes nothing.
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0)
        return iso_fail(reterr, ISO_E_IO, 0, NULL, "opening failed: %s", strerror(errno));
    enum iso_err err = check_regular(fd, ret_bytes, reterr);
    if (err)
        close(fd);
    else
        *ret_fd = fd;
    return err;
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

static enum iso_err check_section(const struct plan_header *h, enum plan_section_id id, const void *bytes,
                                  struct iso_errinfo *reterr)
{
    static const char *const NAMES[PLAN_SECTION_COUNT] = {"tensor table", "program", "tokenizer",
                                                          "chat template", "weights"};
    const struct plan_section *s = &h->sections[id];
    if (hash128_equal(s->hash, hash128(bytes, s->bytes)))
        return ISO_OK;
    return iso_fail(reterr, ISO_E_CORRUPT, s->offset, NAMES[id],
                    "the checksum of the plan's %s does not match: the file is damaged", NAMES[id]);
}

enum iso_err plan_peek_program(const char *path, struct arena *arena, struct plan_header *ret,
                               struct plan_tensor **ret_tensors, struct plan_op **ret_ops,
                               struct iso_errinfo *reterr)
{
    int fd;
    uint64_t bytes;
    struct plan_header h;
    enum iso_err err = open_file(path, &fd, &bytes, reterr);
    if (err)
        return err;
    err = read_header(fd, bytes, &h, reterr);
    struct plan_tensor *tensors = err ? NULL : arena_array(arena, h.n_tensors, sizeof *tensors);
    struct plan_op *ops = err ? NULL : arena_array(arena, h.n_ops, sizeof *ops);
    if (!err && (!tensors || !ops))
        err = iso_fail(reterr, ISO_E_LIMIT, 0, NULL,
                       "the plan's tables need more memory than is given for them");
    if (!err)
        err = file_read_at(fd, h.sections[PLAN_TENSORS].offset, tensors, h.sections[PLAN_TENSORS].bytes,
                           reterr);
    if (!err)
        err = file_read_at(fd, h.sections[PLAN_OPS].offset, ops, h.sections[PLAN_OPS].bytes, reterr);
    close(fd);
    if (!err)
        err = check_section(&h, PLAN_TENSORS, tensors, reterr);
    if (!err)
        err = check_section(&h, PLAN_OPS, ops, reterr);
    if (!err)
        err = plan_check_program(&h, tensors, ops, arena, reterr);
    if (err)
        return err;
    *ret = h;
    *ret_tensors = tensors;
    *ret_ops = ops;
    return ISO_OK;
}

enum iso_err plan_open_file(const char *path, int *ret_fd, struct iso_errinfo *reterr)
{
    uint64_t bytes;
    return open_file(path, ret_fd, &bytes, reterr);
}

static enum iso_err read_section(int fd, const struct plan_header *h, enum plan_section_id id,
                                 struct arena *arena, struct strv *ret, struct iso_errinfo *reterr)
{
    const struct plan_section *s = &h->sections[id];
    char *bytes = arena_alloc(arena, s->bytes);
    if (!bytes)
        return iso_fail(reterr, ISO_E_LIMIT, 0, NULL,
                        "the plan's tokenizer and template need more memory than is given for them");
    enum iso_err err = file_read_at(fd, s->offset, bytes, s->bytes, reterr);
    if (!err)
        err = check_section(h, id, bytes, reterr);
    if (!err)
        *ret = (struct strv){bytes, s->bytes};
    return err;
}

enum iso_err plan_peek_text(int fd, struct arena *arena, struct plan_header *ret, struct strv *ret_tokenizer,
                            struct strv *ret_template, struct iso_errinfo *reterr)
{
    uint64_t bytes;
    struct plan_header h;
    struct strv tokenizer, template;
    enum iso_err err = check_regular(fd, &bytes, reterr);
    if (!err)
        err = read_header(fd, bytes, &h, reterr);
    if (!err)
        err = read_section(fd, &h, PLAN_TOKENIZER, arena, &tokenizer, reterr);
    if (!err)
        err = read_section(fd, &h, PLAN_TEMPLATE, arena, &template, reterr);
    if (err)
        return err;
    *ret = h;
    *ret_tokenizer = tokenizer;
    *ret_template = template;
    return ISO_OK;
}

// What is enough to know a plan by, where a file ends before the rest.
#define PLAN_MAGIC_LEAST 4

bool plan_is_plan(const char *path)
{
    char magic[sizeof(((struct plan_header *)0)->magic)];
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0)
        return false;
    ssize_t n = pread(fd, magic, sizeof magic, 0);
    bool is = n >= PLAN_MAGIC_LEAST && memcmp(magic, PLAN_MAGIC, (size_t)n) == 0;
    close(fd);
    return is;
}

// Reads the file into memory of its own, from then on read-only.
static enum iso_err read_whole(int fd, uint64_t bytes, plan_progress *progress, void *context, uint8_t **ret,
                               struct iso_errinfo *reterr)
{
    uint8_t *base = pages_map(bytes, "isochron-plan");
    if (!base)
        return iso_fail(reterr, ISO_E_NOMEM, 0, NULL, "the system refused %llu bytes of memory",
                        (unsigned long long)bytes);
    enum iso_err err = ISO_OK;
    for (uint64_t at = 0, n; at < bytes && !err; at += n) {
        n = num_min(READ_CHUNK_BYTES, bytes - at);
        err = file_read_at(fd, at, base + at, n, reterr);
        if (!err && progress)
            progress(context, at + n, bytes);
    }
    if (!err && mprotect(base, bytes, PROT_READ))
        err = iso_fail(reterr, ISO_E_NOMEM, 0, NULL, "making %llu bytes read-only failed: %s",
                       (unsigned long long)bytes, strerror(errno));
    if (err)
        pages_unmap(base, bytes);
    else
        *ret = base;
    return err;
}

static bool is_zero(const uint8_t *bytes, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++)
        if (bytes[i] != 0)
            return false;
    return true;
}

// Every byte after the header: sections by their checksums, what lies between must be zero.
static enum iso_err check_bytes(const uint8_t *base, const struct plan_header *h, struct iso_errinfo *reterr)
{
    uint64_t at = sizeof *h;
    for (int i = 0; i < PLAN_SECTION_COUNT; i++) {
        const struct plan_section *s = &h->sections[i];
        if (!is_zero(base + at, s->offset - at))
            return iso_fail(reterr, ISO_E_CORRUPT, at, "padding",
                            "the plan's padding before byte %llu is not zero: the file is damaged",
                            (unsigned long long)s->offset);
        enum iso_err err = check_section(h, (enum plan_section_id)i, base + s->offset, reterr);
        if (err)
            return err;
        at = s->offset + s->bytes;
    }
    return ISO_OK;
}

static enum iso_err check_all(const struct plan *p, struct iso_errinfo *reterr)
{
    struct arena scratch;
    enum iso_err err = check_bytes((const uint8_t *)p->header, p->header, reterr);
    if (err)
        return err;
    if (arena_init(&scratch, PLAN_CHECK_SCRATCH_BYTES))
        return iso_fail(reterr, ISO_E_NOMEM, 0, NULL, "the system refused memory to check the plan");
    err = plan_check_program(p->header, p->tensors, p->ops, &scratch, reterr);
    arena_deinit(&scratch);
    return err;
}

enum iso_err plan_attach(const uint8_t *base, uint64_t bytes, struct plan *ret, struct iso_errinfo *reterr)
{
    ASSERT((uintptr_t)base % PANEL_ALIGN == 0);
    struct plan p = {.header = (const struct plan_header *)base,
                     .mapped_bytes = num_align(bytes, PLAN_ALIGN)};
    enum iso_err err = plan_check_header(p.header, bytes, reterr);
    if (err)
        return err;
    const struct plan_section *s = p.header->sections;
    p.tensors = (const struct plan_tensor *)(base + s[PLAN_TENSORS].offset);
    p.ops = (const struct plan_op *)(base + s[PLAN_OPS].offset);
    p.weights = base + s[PLAN_WEIGHTS].offset;
    p.tokenizer = base + s[PLAN_TOKENIZER].offset;
    p.tokenizer_bytes = s[PLAN_TOKENIZER].bytes;
    p.chat_template = (struct strv){(const char *)base + s[PLAN_TEMPLATE].offset, s[PLAN_TEMPLATE].bytes};
    err = check_all(&p, reterr);
    if (!err)
        *ret = p;
    return err;
}

static enum iso_err load(int fd, uint64_t bytes, plan_progress *progress, void *context, struct plan *ret,
                         struct iso_errinfo *reterr)
{
    struct plan_header header;
    uint8_t *base = NULL;
    enum iso_err err = read_header(fd, bytes, &header, reterr);
    if (!err)
        err = read_whole(fd, bytes, progress, context, &base, reterr);
    if (err)
        return err;
    // The file may have changed since its header was read; what counts is the copy.
    err = plan_attach(base, bytes, ret, reterr);
    if (err)
        pages_unmap(base, bytes);
    return err;
}

enum iso_err plan_load(const char *path, plan_progress *progress, void *context, struct plan *ret,
                       struct iso_errinfo *reterr)
{
    int fd;
    uint64_t bytes;
    enum iso_err err = open_file(path, &fd, &bytes, reterr);
    if (err)
        return err;
    err = load(fd, bytes, progress, context, ret, reterr);
    close(fd);
    return err;
}

enum iso_err plan_load_fd(int fd, plan_progress *progress, void *context, struct plan *ret,
                          struct iso_errinfo *reterr)
{
    uint64_t bytes;
    enum iso_err err = check_regular(fd, &bytes, reterr);
    return err ? err : load(fd, bytes, progress, context, ret, reterr);
}

void plan_close(struct plan *p)
{
    if (p->header)
        pages_unmap((void *)p->header, p->mapped_bytes);
    *p = (struct plan){0};
}
