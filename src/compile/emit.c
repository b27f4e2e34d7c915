// Writing the plan: header and sections in order, the weights' hash computed as they stream, the header last.
#include <stddef.h>
#include <string.h>

#include "base/assert.h"
#include "base/file.h"
#include "base/fpenv.h"
#include "base/num.h"
#include "compile/compile.h"
#include "compile/pack.h"

struct emitter {
    struct file_writer file;
    struct hash_stream *hash;
    uint8_t *buffer;
    uint64_t weights_done;
    compile_progress *progress;
    void *context;
    uint64_t weights_total;
};

static enum iso_err emit_zeros_to(struct emitter *e, uint64_t offset, struct iso_errinfo *reterr)
{
    static const uint8_t ZEROS[PLAN_ALIGN];
    ASSERT(offset >= e->file.bytes && offset - e->file.bytes <= sizeof ZEROS);
    return file_write(&e->file, ZEROS, offset - e->file.bytes, reterr);
}

static enum iso_err emit_section(struct emitter *e, struct plan_section *s, const void *bytes, uint64_t n,
                                 struct iso_errinfo *reterr)
{
    s->offset = num_align(e->file.bytes, PLAN_ALIGN);
    s->bytes = n;
    s->hash = hash128(bytes, n);
    enum iso_err err = emit_zeros_to(e, s->offset, reterr);
    return err ? err : file_write(&e->file, bytes, n, reterr);
}

static enum iso_err emit_packed(void *context, const void *bytes, size_t n, struct iso_errinfo *reterr)
{
    struct emitter *e = context;
    hash_stream_update(e->hash, bytes, n);
    enum iso_err err = file_write(&e->file, bytes, n, reterr);
    e->weights_done += n;
    if (!err && e->progress)
        e->progress(e->context, e->weights_done, e->weights_total);
    return err;
}

static enum iso_err emit_weights(struct emitter *e, struct program *p, struct iso_errinfo *reterr)
{
    struct plan_section *s = &p->header.sections[PLAN_WEIGHTS];
    const struct pack_sink sink = {.write = emit_packed, .context = e};
    s->offset = num_align(e->file.bytes, PLAN_ALIGN);
    s->bytes = p->weights_bytes;
    enum iso_err err = emit_zeros_to(e, s->offset, reterr);
    for (uint32_t i = 0; i < p->header.n_tensors && !err; i++) {
        uint32_t kind = p->tensors[i].kind;
        if (kind == PLAN_BATCH || kind == PLAN_LOGITS)
            continue;
        ASSERT(e->weights_done == p->tensors[i].offset);
        err = pack_tensor(p, i, e->buffer, &sink, reterr);
    }
    ASSERT(err || e->weights_done == p->weights_bytes);
    s->hash = hash_stream_close(e->hash);
    e->hash = NULL;
    return err;
}

static enum iso_err emit_all(struct emitter *e, struct program *p, struct iso_errinfo *reterr)
{
    struct plan_header *h = &p->header;
    struct plan_section *s = h->sections;
    enum iso_err err = file_write(&e->file, h, sizeof *h, reterr); // its place; the final bytes come last
    if (!err)
        err = emit_section(e, &s[PLAN_TENSORS], p->tensors, h->n_tensors * sizeof *p->tensors, reterr);
    if (!err)
        err = emit_section(e, &s[PLAN_OPS], p->ops, h->n_ops * sizeof *p->ops, reterr);
    if (!err)
        err = emit_section(e, &s[PLAN_TOKENIZER], p->tokenizer, p->tokenizer_bytes, reterr);
    if (!err)
        err = emit_section(e, &s[PLAN_TEMPLATE], p->chat_template.ptr, p->chat_template.len, reterr);
    if (!err)
        err = emit_weights(e, p, reterr);
    if (err)
        return err;
    h->file_bytes = e->file.bytes;
    h->hash = hash128(h, offsetof(struct plan_header, hash));
    return file_write_at(&e->file, 0, h, sizeof *h, reterr);
}

enum iso_err program_write(struct program *p, const char *plan_path, compile_progress *progress,
                           void *context, struct iso_errinfo *reterr)
{
    struct emitter e = {.progress = progress, .context = context, .weights_total = p->weights_bytes};
    struct arena buffer = {0};
    enum iso_err err = file_write_begin(plan_path, &e.file, reterr);
    if (err)
        return err;
    e.hash = hash_stream_open();
    if (!e.hash || arena_init(&buffer, pack_buffer_bytes(p)))
        err = iso_fail(reterr, ISO_E_NOMEM, 0, NULL, "the system refused memory to pack weights");
    e.buffer = buffer.base;
    struct fpenv env = fpenv_enter(); // the rotary table is computed
    if (!err)
        err = emit_all(&e, p, reterr);
    fpenv_leave(env);
    hash_stream_close(e.hash);
    arena_deinit(&buffer);
    if (err)
        file_write_abandon(&e.file);
    else
        err = file_write_finish(&e.file, reterr);
    return err;
}

// The sections as emit_all places them.
uint64_t program_other_bytes(const struct program *p)
{
    uint64_t at = num_align(sizeof p->header, PLAN_ALIGN);
    at = num_align(at + p->header.n_tensors * sizeof *p->tensors, PLAN_ALIGN);
    at = num_align(at + p->header.n_ops * sizeof *p->ops, PLAN_ALIGN);
    at = num_align(at + p->tokenizer_bytes, PLAN_ALIGN);
    return num_align(at + p->chat_template.len, PLAN_ALIGN);
}
