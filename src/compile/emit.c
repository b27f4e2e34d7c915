// Writing the plan: header and sections in order, the weights' hash computed as they stream, the header last.
#include <inttypes.h>
#include <stddef.h>
#include <string.h>
#include <sys/statvfs.h>

#include "base/assert.h"
#include "base/file.h"
#include "base/fpenv.h"
#include "base/num.h"
#include "compile/calibration.h"
#include "compile/compile.h"
#include "compile/pack.h"
#include "compile/workers.h"

struct emitter {
    struct file_writer file;
    struct hash_stream *hash;
    uint8_t *buffer;
    struct workers *workers;
    float *importance, *feedback; // of the matrix that is being packed
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

// A matrix that the workers pack.
struct matrix {
    struct emitter *e;
    const struct program *p;
    uint32_t id;
    struct pack_fit fit;
};

// A block of the inputs' factors: importance, then feedback, then scratch.
#define FACTOR_BYTES ((uint64_t)FIT_BLOCK * (FIT_BLOCK + 1) * sizeof(float))

static enum iso_err make_factor(void *context, uint32_t number, uint8_t *buffer, struct iso_errinfo *reterr)
{
    const struct matrix *m = context;
    float *importance = (float *)buffer;
    (void)reterr;
    calibration_factor(m->p->products_of[m->id], number, (double *)(buffer + FACTOR_BYTES), importance,
                       (float(*)[FIT_BLOCK])(importance + FIT_BLOCK));
    return ISO_OK;
}

static enum iso_err take_factor(void *context, uint32_t number, const uint8_t *buffer,
                                struct iso_errinfo *reterr)
{
    const struct matrix *m = context;
    uint64_t first = (uint64_t)number * FIT_BLOCK, n = num_min(FIT_BLOCK, m->p->tensors[m->id].cols - first);
    (void)reterr;
    memcpy(m->e->importance + first, buffer, n * sizeof(float));
    memcpy(m->e->feedback + first * FIT_BLOCK, buffer + FIT_BLOCK * sizeof(float),
           n * FIT_BLOCK * sizeof(float));
    return ISO_OK;
}

// Sets m->fit: from the calibration, or every input alike.
static enum iso_err prepare_fit(struct matrix *m, struct iso_errinfo *reterr)
{
    struct emitter *e = m->e;
    uint32_t cols = m->p->tensors[m->id].cols;
    m->fit = (struct pack_fit){.importance = e->importance};
    if (m->p->products_of[m->id]) {
        m->fit.feedback = e->feedback;
        return workers_run(e->workers, (uint32_t)num_div_up(cols, FIT_BLOCK), make_factor, take_factor, m,
                           reterr);
    }
    for (uint32_t i = 0; i < cols; i++)
        e->importance[i] = 1;
    return ISO_OK;
}

static enum iso_err make_piece(void *context, uint32_t number, uint8_t *buffer, struct iso_errinfo *reterr)
{
    const struct matrix *m = context;
    return pack_piece(m->p, m->id, number, &m->fit, buffer, reterr);
}

static enum iso_err take_piece(void *context, uint32_t number, const uint8_t *buffer,
                               struct iso_errinfo *reterr)
{
    const struct matrix *m = context;
    uint64_t bytes = pack_piece_bytes(m->p, m->id), left = m->p->tensors[m->id].bytes - number * bytes;
    return emit_packed(m->e, buffer, num_min(bytes, left), reterr);
}

static enum iso_err emit_matrix(struct emitter *e, const struct program *p, uint32_t id,
                                struct iso_errinfo *reterr)
{
    struct matrix m = {.e = e, .p = p, .id = id};
    uint64_t pieces = num_div_up(p->tensors[id].bytes, pack_piece_bytes(p, id));
    enum iso_err err = pack_is_fitted(p, id) ? prepare_fit(&m, reterr) : ISO_OK;
    return err ? err : workers_run(e->workers, (uint32_t)pieces, make_piece, take_piece, &m, reterr);
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
        err =
            kind == PLAN_MATRIX ? emit_matrix(e, p, i, reterr) : pack_tensor(p, i, e->buffer, &sink, reterr);
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

static enum iso_err open_buffers(struct emitter *e, const struct program *p, struct arena *buffer,
                                 struct iso_errinfo *reterr)
{
    uint64_t piece = FACTOR_BYTES + CALIBRATION_SCRATCH_BYTES, cols = 1;
    uint32_t threads = p->threads ? p->threads : workers_usable();
    for (uint32_t i = 0; i < p->header.n_tensors; i++)
        if (p->tensors[i].kind == PLAN_MATRIX) {
            piece = num_max(piece, pack_piece_buffer(p, i));
            cols = num_max(cols, p->tensors[i].cols);
        }
    e->hash = hash_stream_open();
    uint64_t bytes = pack_buffer_bytes(p), factors = cols * sizeof(float);
    if (!e->hash || arena_init(buffer, bytes + factors * (FIT_BLOCK + 1) + 3 * ARENA_ALIGN))
        return iso_fail(reterr, ISO_E_NOMEM, 0, NULL, "the system refused memory to pack weights");
    e->buffer = arena_alloc(buffer, bytes);
    e->importance = arena_alloc(buffer, factors);
    e->feedback = arena_alloc(buffer, factors * FIT_BLOCK);
    return workers_open((uint32_t)num_min(threads, WORKERS_MAX), piece, &e->workers, reterr);
}

// Said before any work; that the space is there then too, nobody can promise.
static enum iso_err check_space(const struct file_writer *file, const struct program *p,
                                struct iso_errinfo *reterr)
{
    struct statvfs fs;
    uint64_t needed = program_other_bytes(p) + p->weights_bytes;
    if (fstatvfs(file->fd, &fs))
        return ISO_OK; // writing will say what is wrong
    uint64_t available = (uint64_t)fs.f_bavail * fs.f_frsize;
    if (needed <= available)
        return ISO_OK;
    return iso_fail(reterr, ISO_E_IO, 0, NULL,
                    "%s: the plan takes %" PRIu64 " bytes and the file system has %" PRIu64 " left, %" PRIu64
                    " too few",
                    file->final_path, needed, available, needed - available);
}

enum iso_err program_check_target(const struct program *p, const char *plan_path, struct iso_errinfo *reterr)
{
    struct file_writer file;
    enum iso_err err = file_write_begin(plan_path, &file, reterr);
    if (err)
        return err;
    err = check_space(&file, p, reterr);
    file_write_abandon(&file);
    return err;
}

enum iso_err program_write(struct program *p, const char *plan_path, compile_progress *progress,
                           void *context, struct iso_errinfo *reterr)
{
    struct emitter e = {.progress = progress, .context = context, .weights_total = p->weights_bytes};
    struct arena buffer = {0};
    enum iso_err err = file_write_begin(plan_path, &e.file, reterr);
    if (err)
        return err;
    err = check_space(&e.file, p, reterr);
    if (!err)
        err = open_buffers(&e, p, &buffer, reterr);
    struct fpenv env = fpenv_enter(); // the rotary table is computed
    if (!err)
        err = emit_all(&e, p, reterr);
    fpenv_leave(env);
    hash_stream_close(e.hash);
    workers_close(e.workers);
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
