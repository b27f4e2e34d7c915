#include "compile/pack.h"

#include <inttypes.h>
#include <string.h>

#include "base/assert.h"
#include "base/dmath.h"
#include "base/num.h"
#include "compile/angles.h"
#include "compile/block.h"
#include "compile/lora.h"
#include "kernels/dtype.h"
#include "kernels/half.h"
#include "kernels/kernels.h"

#define PIECE_BYTES ((uint64_t)256 << 10) // of packed weights that a thread makes at a time, or one panel
#define F16_MAX     65504.0f
#define BF16_MAX    0x1.fep127f

// Round to nearest even; x is finite and below the largest bf16.
static uint16_t bf16_from_f32(float x)
{
    uint32_t bits = f32_bits(x);
    return (uint16_t)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

// One row of a source tensor: k inputs of one output.
static uint64_t row_bytes(const struct model_tensor *t)
{
    const struct ggml_type_info *info = ggml_type_info(t->type);
    return t->dims[0] / info->block_elements * info->block_bytes;
}

// Rows of a part's source, of a vector its values.
static uint32_t source_rows(const struct ir_part *part, enum plan_kind kind)
{
    return (uint32_t)(kind == PLAN_MATRIX ? part->source->dims[1] : part->source->dims[0]);
}

static uint32_t part_rows(const struct ir_part *part, enum plan_kind kind)
{
    return part->rows ? part->rows->n * part->rows->unit : source_rows(part, kind);
}

// Which row of the source's `rows` goes to row `i` of the part (see struct ir_part).
static uint64_t source_row(const struct ir_part *part, uint32_t rows, uint32_t i)
{
    if (part->rows)
        i = part->rows->which[i / part->rows->unit] * part->rows->unit + i % part->rows->unit;
    if (part->deinterleave_heads == 0)
        return i;
    uint32_t head_dim = rows / part->deinterleave_heads, half = head_dim / 2;
    uint32_t head = i / head_dim, j = i % head_dim;
    return (uint64_t)head * head_dim + (j < half ? 2 * j : 2 * (j - half) + 1);
}

enum iso_err pack_read_blocks(const struct program *p, const struct model_tensor *t, uint64_t at,
                              uint8_t *dst, uint64_t n, struct iso_errinfo *reterr)
{
    const struct ggml_type_info *info = ggml_type_info(t->type);
    enum iso_err err = model_read(&p->model, t, at, dst, n, reterr);
    uint64_t bad = 0;
    if (!err && ggml_check_values(t->type, dst, n / info->block_bytes, &bad)) {
        (void)iso_fail(reterr, ISO_E_NONFINITE, t->offset + at + bad * info->block_bytes, NULL,
                       "tensor \"%.*s\" holds a NaN or infinite %s in block %" PRIu64, STRV_ARG(t->name),
                       info->block_elements > 1 ? "scale" : "value", at / info->block_bytes + bad);
        err = iso_fail_prefix(reterr, model_tensor_path(&p->model, t));
    }
    return err;
}

// Moves the kept inputs of a row to its beginning; `element_bytes` are those of `elements` inputs.
static void keep_inputs(const struct ir_part *part, uint32_t elements, uint32_t element_bytes, void *row)
{
    if (!part->cols)
        return;
    uint64_t unit = (uint64_t)part->cols->unit / elements * element_bytes;
    for (uint32_t i = 0; i < part->cols->n; i++)
        memmove((uint8_t *)row + i * unit, (uint8_t *)row + part->cols->which[i] * unit, unit);
}

// The part that holds row `row` of a stacked matrix; *ret_row is the source's row, *ret_run how many of the part's rows
// from it on lie together there.
static const struct ir_part *part_of_row(const struct program *p, uint32_t id, uint32_t row,
                                         uint64_t *ret_row, uint32_t *ret_run)
{
    const struct ir_part *part = &p->parts[p->part_of[id]];
    uint32_t n = part_rows(part, PLAN_MATRIX);
    while (row >= n) {
        row -= n;
        n = part_rows(++part, PLAN_MATRIX);
    }
    *ret_row = source_row(part, source_rows(part, PLAN_MATRIX), row);
    *ret_run = part->deinterleave_heads ? 1
               : part->rows             ? part->rows->unit - row % part->rows->unit
                                        : n - row;
    return part;
}

// Rows [first, first + 16) of the stacked parts into `rows`, one after the other; those past the end are
// zero. Rows that lie together in the source are read together.
static enum iso_err read_panel_rows(const struct program *p, uint32_t id, uint32_t first, uint64_t bytes,
                                    uint8_t *rows, struct iso_errinfo *reterr)
{
    uint32_t last = (uint32_t)num_min(first + PANEL_LANES, p->tensors[id].rows), run;
    memset(rows, 0, PANEL_LANES * bytes);
    for (uint32_t row = first; row < last; row += run) {
        uint64_t from;
        const struct ir_part *part = part_of_row(p, id, row, &from, &run);
        const struct ggml_type_info *info = ggml_type_info(part->source->type);
        run = (uint32_t)num_min(last - row, run);
        uint8_t *to = rows + (row - first) * bytes;
        enum iso_err err = pack_read_blocks(p, part->source, from * bytes, to, run * bytes, reterr);
        if (err)
            return err;
        for (uint32_t i = 0; i < run; i++)
            keep_inputs(part, info->block_elements, info->block_bytes, to + i * bytes);
    }
    return ISO_OK;
}

#define LOW_NIBBLES  0x0F0F0F0Fu
#define LOW_QUARTERS 0x03030303u

static void put_word(uint8_t *panel, uint64_t at, uint32_t word)
{
    memcpy(panel + at, &word, sizeof word);
}

// 2-bit numbers of vectors 4p..4p+3 into packed vector p.
static void put_quarters(const uint32_t word[8], uint32_t right, uint8_t *panel, uint64_t at)
{
    for (uint32_t p = 0; p < 2; p++) {
        uint32_t packed = 0;
        for (uint32_t i = 0; i < 4; i++)
            packed |= (word[4 * p + i] >> right & LOW_QUARTERS) << 2 * i;
        put_word(panel, at + 64 * p, packed);
    }
}

// The codes of a group and lane, as kernels/dtype.h says.
static void pack_codes(enum dtype type, const struct panel_layout *at, const uint8_t *code, uint32_t lane,
                       uint64_t group, uint8_t *panel)
{
    uint32_t bits = dtype_info(type)->code_bits, word[8]; // a word is a vector's codes of this lane
    memcpy(word, code, sizeof word);
    if (bits == 8) {
        for (uint32_t v = 0; v < 8; v++)
            put_word(panel, (group * 8 + v) * 64 + 4 * lane, word[v]);
    } else if (bits <= 3) {
        put_quarters(word, 0, panel, group * 128 + 4 * lane);
    } else {
        for (uint32_t p = 0; p < 4; p++) {
            uint32_t low = bits == 6 ? 2 * p : p, high = bits == 6 ? 2 * p + 1 : p + 4;
            put_word(panel, (group * 4 + p) * 64 + 4 * lane,
                     (word[low] & LOW_NIBBLES) | (word[high] & LOW_NIBBLES) << 4);
        }
    }
    if (bits == 6)
        put_quarters(word, 4, panel, at->high + group * 128 + 4 * lane);
    if (bits == 5 || bits == 3) {
        for (uint32_t i = 0; i < GROUP; i++) {
            uint32_t bit = 4 * lane + i % 4; // of word i / 4
            panel[at->high + group * 64 + i / 4 * 8 + bit / 8] |=
                (uint8_t)((code[i] >> (bits - 1) & 1) << bit % 8);
        }
    }
}

// One block of the source: its codes, d and m, and sub-scales.
static void pack_block(enum dtype type, const struct panel_layout *at, const struct block *b, uint32_t lane,
                       uint64_t group, uint8_t *panel)
{
    const struct dtype_info *info = dtype_info(type);
    uint32_t groups = info->subs ? SUPER_GROUPS : 1;
    uint64_t scale = (group / groups * PANEL_LANES + lane) * 2;
    memcpy(panel + at->scales + scale, &b->d, 2);
    if (info->has_min)
        memcpy(panel + at->mins + scale, &b->m, 2);
    for (uint32_t g = 0; g < groups; g++)
        pack_codes(type, at, b->code + g * GROUP, lane, group + g, panel);
    for (uint32_t i = 0; i < groups * info->subs; i++) {
        uint64_t sub = (group * info->subs + i) * PANEL_LANES + lane;
        panel[at->subs + sub] = (uint8_t)b->sub[i];
        if (info->has_min)
            panel[at->min_subs + sub] = (uint8_t)b->min_sub[i];
    }
}

static void pack_panel(const struct plan_tensor *t, enum ggml_type source, const uint8_t *rows,
                       uint64_t bytes, uint8_t *panel)
{
    enum dtype type = (enum dtype)t->dtype;
    const struct dtype_info *info = dtype_info(type);
    const struct panel_layout at = panel_layout(type, t->cols);
    memset(panel, 0, at.bytes);
    for (uint32_t lane = 0; lane < PANEL_LANES; lane++) {
        const uint8_t *row = rows + lane * bytes;
        if (info->float_bytes) {
            for (uint64_t k = 0; k < t->cols; k++)
                memcpy(panel + (k * PANEL_LANES + lane) * info->float_bytes, row + k * info->float_bytes,
                       info->float_bytes);
        } else {
            const struct ggml_type_info *blocks = ggml_type_info(source);
            struct block b;
            for (uint64_t k = 0; k < t->cols; k += blocks->block_elements, row += blocks->block_bytes) {
                block_unpack(source, row, &b);
                pack_block(type, &at, &b, lane, k / GROUP, panel);
            }
        }
    }
}

// Fitted codes and scales of a panel.
static void pack_fitted(const struct plan_tensor *t, uint8_t (*code)[PANEL_LANES][GROUP],
                        uint16_t (*d)[PANEL_LANES], uint8_t *panel)
{
    enum dtype type = (enum dtype)t->dtype;
    const struct panel_layout at = panel_layout(type, t->cols);
    memset(panel, 0, at.bytes);
    memcpy(panel + at.scales, d, t->cols / GROUP * sizeof *d);
    for (uint64_t group = 0; group < t->cols / GROUP; group++)
        for (uint32_t lane = 0; lane < PANEL_LANES; lane++)
            pack_codes(type, &at, code[group][lane], lane, group, panel);
}

// Where the weights of a panel are while they are given another type.
struct fit_scratch {
    float *w;                            // [k][16]
    uint8_t (*code)[PANEL_LANES][GROUP]; // [k / 32]
    uint16_t (*d)[PANEL_LANES];          // [k / 32]
    float *row;                          // with all inputs of the source
    uint8_t *source;                     // the same as the file has it
};

static uint64_t fit_bytes(uint64_t k, uint64_t source_k)
{
    return num_align(k * PANEL_LANES * sizeof(float) + k * PANEL_LANES + k + source_k * sizeof(float),
                     PANEL_ALIGN);
}

static struct fit_scratch fit_scratch_at(uint8_t *base, uint64_t k, uint64_t source_k)
{
    struct fit_scratch s = {.w = (float *)base};
    s.code = (void *)(s.w + k * PANEL_LANES);
    s.d = (void *)(s.code + k / GROUP);
    s.row = (float *)(s.d + k / GROUP);
    s.source = base + fit_bytes(k, source_k);
    return s;
}

// A row as f32, with what an adapter adds, checked to have a place in the plan's type.
static enum iso_err read_weight_row(const struct program *p, uint32_t id, uint32_t row, struct fit_scratch *s,
                                    struct iso_errinfo *reterr)
{
    const struct plan_tensor *t = &p->tensors[id];
    uint64_t from;
    uint32_t run;
    const struct ir_part *part = part_of_row(p, id, row, &from, &run);
    const struct model_tensor *source = part->source;
    uint64_t bytes = row_bytes(source);
    enum iso_err err = pack_read_blocks(p, source, from * bytes, s->source, bytes, reterr);
    if (err)
        return err;
    block_values(source->type, s->source, source->dims[0], s->row);
    lora_add(p->lora, source, from, s->row);
    keep_inputs(part, 1, sizeof *s->row, s->row);
    float most = t->dtype == DT_F32 || t->dtype == DT_BF16 ? BF16_MAX : F16_MAX;
    for (uint32_t k = 0; k < t->cols; k++) {
        if (s->row[k] <= most && s->row[k] >= -most) // a NaN is neither
            continue;
        (void)iso_fail(reterr, ISO_E_LIMIT, 0, NULL, "tensor \"%.*s\" holds %g; as %s a weight is at most %g",
                       STRV_ARG(source->name), (double)s->row[k], dtype_info(t->dtype)->name, (double)most);
        return iso_fail_prefix(reterr, model_tensor_path(&p->model, source));
    }
    return ISO_OK;
}

// Rows [first, first + 16) as f32, beside each other.
static enum iso_err read_weights(const struct program *p, uint32_t id, uint32_t first, struct fit_scratch *s,
                                 struct iso_errinfo *reterr)
{
    const struct plan_tensor *t = &p->tensors[id];
    memset(s->w, 0, (uint64_t)t->cols * PANEL_LANES * sizeof(float));
    for (uint32_t lane = 0; lane < PANEL_LANES && first + lane < t->rows; lane++) {
        enum iso_err err = read_weight_row(p, id, first + lane, s, reterr);
        if (err)
            return err;
        for (uint32_t k = 0; k < t->cols; k++)
            s->w[(uint64_t)k * PANEL_LANES + lane] = s->row[k];
    }
    return ISO_OK;
}

// n weights into a panel of `bytes` bytes, its padding zero.
static void put_floats(enum dtype type, const float *w, uint64_t n, uint8_t *out, uint64_t bytes)
{
    memset(out, 0, bytes);
    if (type == DT_F32)
        memcpy(out, w, n * sizeof *w);
    for (uint64_t i = 0; i < n && type != DT_F32; i++) {
        uint16_t half = type == DT_F16 ? f16_from_f32_saturating(w[i]) : bf16_from_f32(w[i]);
        memcpy(out + 2 * i, &half, 2);
    }
}

static enum iso_err fit_panel(const struct program *p, uint32_t id, uint32_t first,
                              const struct pack_fit *fit, uint8_t *panel, uint8_t *scratch,
                              struct iso_errinfo *reterr)
{
    const struct plan_tensor *t = &p->tensors[id];
    struct fit_scratch s = fit_scratch_at(scratch, t->cols, p->parts[p->part_of[id]].source->dims[0]);
    enum iso_err err = read_weights(p, id, first, &s, reterr);
    if (err)
        return err;
    if (dtype_info(t->dtype)->float_bytes) {
        put_floats((enum dtype)t->dtype, s.w, (uint64_t)t->cols * PANEL_LANES, panel,
                   panel_layout((enum dtype)t->dtype, t->cols).bytes);
        return ISO_OK;
    }
    struct fit_args a = {.dtype = (enum dtype)t->dtype,
                         .k = t->cols,
                         .w = s.w,
                         .importance = fit->importance,
                         .feedback = fit->feedback,
                         .code = s.code,
                         .d = s.d};
    kernels_best()->fit(&a, 0, (t->cols + FIT_BLOCK - 1) / FIT_BLOCK);
    pack_fitted(t, s.code, s.d, panel);
    return ISO_OK;
}

bool pack_is_fitted(const struct program *p, uint32_t id)
{
    for (uint32_t i = 0; i < p->n_parts_of[id]; i++)
        if (ir_dtype_of(p->parts[p->part_of[id] + i].source->type) != p->tensors[id].dtype ||
            lora_has(p->lora, p->parts[p->part_of[id] + i].source))
            return true;
    return false;
}

uint32_t pack_piece_panels(const struct program *p, uint32_t id)
{
    uint64_t bytes = panel_layout((enum dtype)p->tensors[id].dtype, p->tensors[id].cols).bytes;
    return (uint32_t)num_max(1, PIECE_BYTES / bytes);
}

uint64_t pack_piece_bytes(const struct program *p, uint32_t id)
{
    return pack_piece_panels(p, id) *
           panel_layout((enum dtype)p->tensors[id].dtype, p->tensors[id].cols).bytes;
}

uint64_t pack_piece_buffer(const struct program *p, uint32_t id)
{
    uint64_t source = 0;
    for (uint32_t i = 0; i < p->n_parts_of[id]; i++)
        source = num_max(source, row_bytes(p->parts[p->part_of[id] + i].source));
    uint64_t fit = fit_bytes(p->tensors[id].cols, p->parts[p->part_of[id]].source->dims[0]);
    uint64_t scratch = pack_is_fitted(p, id) ? fit + source : PANEL_LANES * source;
    return num_align(pack_piece_bytes(p, id), PANEL_ALIGN) + scratch;
}

enum iso_err pack_piece(const struct program *p, uint32_t id, uint32_t piece, const struct pack_fit *fit,
                        uint8_t *buffer, struct iso_errinfo *reterr)
{
    const struct plan_tensor *t = &p->tensors[id];
    const struct model_tensor *source = p->parts[p->part_of[id]].source;
    uint64_t panel_bytes = panel_layout((enum dtype)t->dtype, t->cols).bytes;
    uint32_t panels = pack_piece_panels(p, id);
    uint8_t *scratch = buffer + num_align(pack_piece_bytes(p, id), PANEL_ALIGN);
    bool fitted = pack_is_fitted(p, id);
    for (uint32_t i = 0; i < panels; i++, buffer += panel_bytes) {
        uint64_t first = ((uint64_t)piece * panels + i) * PANEL_LANES;
        enum iso_err err = ISO_OK;
        if (first >= t->rows)
            break;
        if (fitted)
            err = fit_panel(p, id, (uint32_t)first, fit, buffer, scratch, reterr);
        else
            err = read_panel_rows(p, id, (uint32_t)first, row_bytes(source), scratch, reterr);
        if (err)
            return err;
        if (!fitted)
            pack_panel(t, source->type, scratch, row_bytes(source), buffer);
    }
    return ISO_OK;
}

// n values of a float tensor, as f32.
static enum iso_err read_floats(const struct program *p, const struct model_tensor *t, uint8_t *scratch,
                                uint32_t n, float *ret, struct iso_errinfo *reterr)
{
    uint64_t bytes = (uint64_t)n * ggml_type_info(t->type)->block_bytes;
    enum iso_err err = pack_read_blocks(p, t, 0, scratch, bytes, reterr);
    if (!err)
        block_values(t->type, scratch, n, ret);
    return err;
}

static enum iso_err pack_vector(const struct program *p, uint32_t id, uint8_t *buffer,
                                const struct pack_sink *sink, struct iso_errinfo *reterr)
{
    uint64_t total = plan_weight_bytes(&p->tensors[id], &p->header.limits);
    float *out = (float *)buffer, *in = (float *)(buffer + total);
    memset(out, 0, total);
    for (uint32_t i = 0; i < p->n_parts_of[id]; i++) {
        const struct ir_part *part = &p->parts[p->part_of[id] + i];
        uint32_t n = source_rows(part, PLAN_VECTOR);
        enum iso_err err = read_floats(p, part->source, (uint8_t *)(in + n), n, in, reterr);
        if (err)
            return err;
        for (uint32_t j = 0; j < part_rows(part, PLAN_VECTOR); j++)
            *out++ = in[source_row(part, n, j)] + (part->plus_one ? 1.0f : 0.0f);
    }
    return sink->write(sink->context, buffer, total, reterr);
}

// Cosines and sines of position times frequency, computed in f64 and rounded to f32.
static enum iso_err pack_angles(const struct program *p, uint32_t id, uint8_t *buffer,
                                const struct pack_sink *sink, struct iso_errinfo *reterr)
{
    const struct plan_tensor *t = &p->tensors[id];
    const struct ir_rope *rope = p->rope_of[id];
    uint32_t half = t->cols / 2, positions = p->header.limits.max_seq_len;
    float *row = (float *)buffer;
    double *frequency = (double *)(buffer + t->cols * sizeof(float));
    if (rope->divisors) {
        enum iso_err err = read_floats(p, rope->divisors, (uint8_t *)frequency, half, row, reterr);
        if (err)
            return err;
    }
    angles_frequencies(rope, half, rope->divisors ? row : NULL, frequency);
    uint64_t written = 0, row_size = t->cols * sizeof(float);
    for (uint32_t position = 0; position < positions; position++, written += row_size) {
        for (uint32_t i = 0; i < half; i++) {
            double sine, cosine;
            dmath_sincos((double)position * frequency[i], &sine, &cosine);
            row[i] = (float)(cosine * rope->attention);
            row[half + i] = (float)(sine * rope->attention);
        }
        enum iso_err err = sink->write(sink->context, row, row_size, reterr);
        if (err)
            return err;
    }
    memset(buffer, 0, PANEL_ALIGN);
    return sink->write(sink->context, buffer, t->bytes - written, reterr);
}

static uint64_t longest_part(const struct program *p, uint32_t id)
{
    uint64_t most = 0;
    for (uint32_t i = 0; i < p->n_parts_of[id]; i++)
        most = num_max(most, source_rows(&p->parts[p->part_of[id] + i], PLAN_VECTOR));
    return most;
}

uint64_t pack_buffer_bytes(const struct program *p)
{
    uint64_t most = PANEL_ALIGN;
    for (uint32_t i = 0; i < p->header.n_tensors; i++) {
        const struct plan_tensor *t = &p->tensors[i];
        uint64_t bytes = 0;
        if (t->kind == PLAN_VECTOR)
            bytes = plan_weight_bytes(t, &p->header.limits) + 2 * sizeof(float) * longest_part(p, i);
        else if (t->kind == PLAN_ANGLES)
            bytes = t->cols * (sizeof(float) + sizeof(double)) + PANEL_ALIGN;
        most = num_max(most, bytes);
    }
    return most;
}

enum iso_err pack_tensor(const struct program *p, uint32_t id, uint8_t *buffer, const struct pack_sink *sink,
                         struct iso_errinfo *reterr)
{
    ASSERT(p->tensors[id].kind == PLAN_VECTOR || p->tensors[id].kind == PLAN_ANGLES);
    return p->tensors[id].kind == PLAN_VECTOR ? pack_vector(p, id, buffer, sink, reterr)
                                              : pack_angles(p, id, buffer, sink, reterr);
}
