// Plans of tiny models in memory, and their checksums anew after a test has changed something.
#pragma once

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "compile/compile.h"
#include "plan/plan.h"
#include "tiny_model.h"

// A plan's bytes, aligned to pages, and its tables.
struct tiny_plan {
    uint8_t *bytes;
    uint64_t n;
    struct plan_header *h;
    struct plan_tensor *tensors;
    struct plan_op *ops;
};

static inline struct tiny_plan tiny_plan_view(uint8_t *bytes, uint64_t n)
{
    struct tiny_plan p = {.bytes = bytes, .n = n, .h = (struct plan_header *)bytes};
    p.tensors = (struct plan_tensor *)(bytes + p.h->sections[PLAN_TENSORS].offset);
    p.ops = (struct plan_op *)(bytes + p.h->sections[PLAN_OPS].offset);
    return p;
}

static inline uint8_t *tiny_alloc(uint64_t n)
{
    uint8_t *p = aligned_alloc(PLAN_ALIGN, num_align(n, PLAN_ALIGN));
    ASSERT(p);
    return p;
}

static inline struct tiny_plan tiny_plan_copy(const struct tiny_plan *from)
{
    uint8_t *bytes = tiny_alloc(from->n);
    memcpy(bytes, from->bytes, from->n);
    return tiny_plan_view(bytes, from->n);
}

static inline void tiny_plan_free(struct tiny_plan *p)
{
    free(p->bytes);
    *p = (struct tiny_plan){0};
}

static inline struct tiny_plan tiny_plan_read(const char *path)
{
    FILE *f = fopen(path, "rb");
    ASSERT(f && fseek(f, 0, SEEK_END) == 0);
    uint64_t n = (uint64_t)ftell(f);
    rewind(f);
    uint8_t *bytes = tiny_alloc(n);
    ASSERT(fread(bytes, 1, n, f) == n);
    fclose(f);
    return tiny_plan_view(bytes, n);
}

// The compiled plan of a model. Fails the program where it can't be compiled.
static inline struct tiny_plan tiny_plan_make(const struct tiny_model *m,
                                              const struct compile_options *options)
{
    char folder[] = "/tmp/isochron-plan-XXXXXX", model[64], path[sizeof folder + 8];
    struct buf gguf;
    struct program program;
    struct iso_errinfo e = {0};
    buf_init(&gguf, TINY_BYTES_MAX);
    tiny_write(m, &gguf);
    int fd = gb_make_file(&gguf, model);
    ASSERT(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/plan", folder);
    enum iso_err err = program_open(model, options, &program, &e);
    if (!err) {
        err = program_write(&program, path, NULL, NULL, &e);
        program_close(&program);
    }
    if (err)
        fprintf(stderr, "%s\n", e.text);
    ASSERT(!err);
    struct tiny_plan p = tiny_plan_read(path);
    unlink(path);
    rmdir(folder);
    close(fd);
    buf_deinit(&gguf);
    return p;
}

// Makes all checksums right where the sections lie in the file.
static inline void tiny_plan_rehash(struct tiny_plan *p)
{
    for (int i = 0; i < PLAN_SECTION_COUNT; i++) {
        struct plan_section *s = &p->h->sections[i];
        if (s->offset <= p->n && s->bytes <= p->n - s->offset)
            s->hash = hash128(p->bytes + s->offset, s->bytes);
    }
    p->h->hash = hash128(p->h, offsetof(struct plan_header, hash));
}
