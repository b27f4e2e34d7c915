// Plans that somebody made by hand: what the checks let through must execute without touching anything but
// its own memory, and the result may depend on nothing else.
//
// An input is a list of edits to a valid plan of a tiny model: fields of header, tensors and operations set
// or moved, operations swapped, copied and dropped, weights changed. Places and checksums are then made right
// (optionally), so that the checks behind them are reached. A plan that is accepted runs on a unit whose
// kernels test every range they are given. It runs twice, over different rubbish in arena and KV pool, in
// chunks of different size, alone and beside another sequence: the logits must be the same bytes.
#include <stddef.h>
#include <stdint.h>

#include "../unit/tiny_plan.h"
#include "plan/arena_layout.h"
#include "plan/plan_check.h"
#include "unit/unit_internal.h"

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define TENSORS_MAX       128
#define OPS_MAX           128
#define EDITS_MAX         64
#define WEIGHTS_BYTES_MAX (512 * KIB)
#define POOL_BYTES_MAX    (24 * MIB) // of the account, which counts 5 MiB for the program
#define PROMPT_MAX        18u        // a block of 16 tokens and a bit

enum flags {
    FIX_WEIGHTS = 1, // weights get the bytes of their shape and places one after the other
    FIX_ARENA = 2,   // values get the places that the layout gives
    FIX_HASHES = 4,
    CHUNK_SHIFT = 3, // 3 bits: chunk of the second run, less 1
    BASE_SHIFT = 6,  // 2 bits
};

// what: 3 bits for which of the edits of a kind, then the bits below.
enum edit_bits {
    VALUE_SMALL = 0x08,    // of the value only 8 bits count
    VALUE_TIMES_16 = 0x10, // 12 bits, times 16: sizes and places are such
    EDIT_RAW = 0x60,       // of the assembled bytes
    EDIT_OPS = 0x40,       // of the order of operations and their operands; otherwise of fields
    VALUE_ADD = 0x80,      // the value is added to the field
};

struct edit {
    uint8_t what, field;
    uint16_t index;
    uint32_t value;
};

struct image {
    struct plan_header h;
    struct plan_tensor tensors[TENSORS_MAX];
    struct plan_op ops[OPS_MAX];
    const uint8_t *tokenizer, *template;
    uint8_t weights[WEIGHTS_BYTES_MAX];
};

static struct image bases[4];

// The plan's memory stays: the image points into it. Weights are repeated, so that edits may make them
// larger.
static void read_base(struct image *im, const struct tiny_model *m, const struct compile_options *options)
{
    const struct tiny_plan p = tiny_plan_make(m, options);
    const struct plan_section *s = p.h->sections;
    ASSERT(p.h->n_tensors <= TENSORS_MAX && p.h->n_ops <= OPS_MAX);
    im->h = *p.h;
    memcpy(im->tensors, p.tensors, s[PLAN_TENSORS].bytes);
    memcpy(im->ops, p.ops, s[PLAN_OPS].bytes);
    im->tokenizer = p.bytes + s[PLAN_TOKENIZER].offset;
    im->template = p.bytes + s[PLAN_TEMPLATE].offset;
    for (uint64_t at = 0; at < sizeof im->weights; at++)
        im->weights[at] = p.bytes[s[PLAN_WEIGHTS].offset + at % s[PLAN_WEIGHTS].bytes];
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc;
    (void)argv;
    static struct tiny_model m;
    struct tiny_shape floats = TINY_LLAMA;
    struct compile_options options = {.max_seq_len = 32, .slots = 2, .batch_tokens = 32};
    tiny_init(&m, &TINY_LLAMA);
    tiny_str(&m, "tokenizer.chat_template", "{{ messages }}");
    read_base(&bases[0], &m, &options);
    floats.type = GGML_BF16;
    floats.layers = 1;
    floats.untied = true;
    tiny_init(&m, &floats);
    read_base(&bases[1], &m, &options);
    tiny_init(&m, &TINY_QWEN2);
    options.kv_type = KV_Q8;
    read_base(&bases[2], &m, &options);
    tiny_init(&m, &TINY_WIDE);
    tiny_tensor(&m, "blk.0.attn_v.weight")->type = GGML_Q6_K;
    tiny_tensor(&m, "blk.0.attn_output.weight")->type = GGML_Q2_K;
    tiny_tensor(&m, "blk.0.ffn_up.weight")->type = GGML_IQ4_XS;
    tiny_tensor(&m, "blk.0.ffn_down.weight")->type = GGML_Q3_K;
    read_base(&bases[3], &m, &options);
    return 0;
}

// Kernels that look at what they are given before they compute.

static struct {
    const struct plan *plan;
    const struct unit *unit;
} running;

// Some weight begins there and has these bytes.
static void expect_weights(const void *at, uint64_t bytes)
{
    const struct plan_header *h = running.plan->header;
    uint64_t offset = (uint64_t)((uintptr_t)at - (uintptr_t)running.plan->weights);
    bool found = false;
    for (uint32_t i = 0; i < h->n_tensors && !found; i++) {
        const struct plan_tensor *t = &running.plan->tensors[i];
        found = t->kind >= PLAN_MATRIX && t->offset == offset && bytes <= t->bytes;
    }
    ASSERT(found && offset + bytes <= h->sections[PLAN_WEIGHTS].bytes && (uintptr_t)at % PANEL_ALIGN == 0);
}

// Some value has these columns of so many rows.
static void expect_rows(const void *at, uint64_t stride, uint64_t row_bytes, uint32_t rows)
{
    const struct plan_header *h = running.plan->header;
    uint64_t offset = (uint64_t)((uintptr_t)at - (uintptr_t)running.unit->arena);
    bool found = rows == 0; // where no logits are wanted in this step
    for (uint32_t i = 0; i < h->n_tensors && !found; i++) {
        const struct plan_tensor *t = &running.plan->tensors[i];
        found = t->kind < PLAN_MATRIX && stride == plan_row_bytes(t->dtype, t->cols) && offset >= t->offset &&
                offset - t->offset + row_bytes <= stride && rows * stride <= t->bytes &&
                t->offset + t->bytes <= h->arena_bytes;
    }
    ASSERT(found && (uintptr_t)at % sizeof(float) == 0);
}

static void expect_matmul(const struct matmul_args *a, enum dtype type, uint32_t end)
{
    ASSERT(end <= num_div_up(a->n, PANEL_LANES));
    expect_weights(a->w, num_div_up(a->n, PANEL_LANES) * panel_layout(type, a->k).bytes);
    if (a->bias)
        expect_weights(a->bias, a->n * sizeof(float));
    uint64_t row_bytes = plan_row_bytes(dtype_is_grouped(type) ? DT_A8 : DT_F32, a->k);
    expect_rows(a->x, dtype_is_grouped(type) ? row_bytes : a->x_stride, row_bytes, a->rows);
    expect_rows(a->y, a->y_stride, a->n * sizeof(float), a->rows);
}

#define CHECKED_MATMUL(type)                                                                         \
    static void matmul_##type(const struct matmul_args *a, uint32_t panel_begin, uint32_t panel_end) \
    {                                                                                                \
        expect_matmul(a, DT_##type, panel_end);                                                      \
        kernels_best()->matmul[DT_##type](a, panel_begin, panel_end);                                \
    }
CHECKED_MATMUL(F32)
CHECKED_MATMUL(F16)
CHECKED_MATMUL(BF16)
CHECKED_MATMUL(Q4_0)
CHECKED_MATMUL(Q4_1)
CHECKED_MATMUL(Q5_0)
CHECKED_MATMUL(Q5_1)
CHECKED_MATMUL(Q8_0)
CHECKED_MATMUL(Q2_K)
CHECKED_MATMUL(Q3_K)
CHECKED_MATMUL(Q4_K)
CHECKED_MATMUL(Q5_K)
CHECKED_MATMUL(Q6_K)
CHECKED_MATMUL(IQ4_NL)
CHECKED_MATMUL(IQ4_XS)
CHECKED_MATMUL(W6)

static void rmsnorm(const struct norm_args *a, uint32_t begin, uint32_t end)
{
    uint64_t gain_bytes = a->cols * sizeof(float), bytes = a->heads * gain_bytes;
    expect_weights(a->gain, gain_bytes);
    expect_rows(a->x, a->x_stride, bytes, end);
    expect_rows(a->y, a->y_stride, bytes, end);
    kernels_best()->rmsnorm(a, begin, end);
}

static void quantize(const struct quantize_args *a, uint32_t begin, uint32_t end)
{
    ASSERT(end <= a->rows);
    expect_rows(a->x, a->x_stride, a->cols * sizeof(float), end);
    expect_rows(a->y, plan_row_bytes(DT_A8, a->cols), plan_row_bytes(DT_A8, a->cols), a->rows);
    kernels_best()->quantize(a, begin, end);
}

static void expect_three(const struct rows_args *a, uint32_t end)
{
    uint64_t bytes = a->cols * sizeof(float);
    expect_rows(a->a, a->a_stride, bytes, end);
    expect_rows(a->b, a->b_stride, bytes, end);
    expect_rows(a->y, a->y_stride, bytes, end);
}

static void add(const struct rows_args *a, uint32_t begin, uint32_t end)
{
    expect_three(a, end);
    kernels_best()->add(a, begin, end);
}

static void silu_mul(const struct rows_args *a, uint32_t begin, uint32_t end)
{
    expect_three(a, end);
    kernels_best()->silu_mul(a, begin, end);
}

static void gelu_mul(const struct rows_args *a, uint32_t begin, uint32_t end)
{
    expect_three(a, end);
    kernels_best()->gelu_mul(a, begin, end);
}

static void rope(const struct rope_args *a, uint32_t begin, uint32_t end)
{
    expect_rows(a->x, a->x_stride, (uint64_t)a->heads * a->head_dim * sizeof(float), end);
    for (uint32_t i = begin; i < end; i++)
        expect_weights(a->table, (a->rows[i].position + 1ull) * a->head_dim * sizeof(float));
    kernels_best()->rope(a, begin, end);
}

static void expect_kv(const uint8_t *pool, const struct kv_layout *kv, uint32_t layer,
                      const struct kv_ref *ref)
{
    const struct plan_limits *l = &running.plan->header->limits;
    uint64_t blocks = plan_kv_blocks(l);
    ASSERT(pool == running.unit->kv_pool && layer < kv->layers && ref->position < l->max_seq_len);
    ASSERT(pool + blocks * kv_block_bytes(kv) <= (const uint8_t *)running.unit);
    for (uint32_t i = 0; i <= ref->position / KV_BLOCK_TOKENS; i++)
        ASSERT(ref->blocks[i] < blocks);
}

static void kv_store(const struct kv_store_args *a, uint32_t begin, uint32_t end)
{
    uint64_t bytes = (uint64_t)a->layout.kv_heads * a->layout.head_dim * sizeof(float);
    expect_rows(a->k, a->k_stride, bytes, end);
    expect_rows(a->v, a->v_stride, bytes, end);
    for (uint32_t i = begin; i < end; i++)
        expect_kv(a->pool, &a->layout, a->layer, &a->rows[i]);
    kernels_best()->kv_store(a, begin, end);
}

static void attention(const struct attention_args *a, uint32_t begin, uint32_t end)
{
    uint32_t rows = a->n_rows;
    ASSERT(end <= rows * a->layout.kv_heads);
    uint64_t bytes = (uint64_t)a->heads * a->layout.head_dim * sizeof(float);
    expect_rows(a->q, a->q_stride, bytes, rows);
    expect_rows(a->y, a->y_stride, bytes, rows);
    for (uint32_t i = 0; i < rows; i++)
        expect_kv(a->pool, &a->layout, a->layer, &a->rows[i]);
    kernels_best()->attention(a, begin, end);
}

static void embed(const struct embed_args *a, uint32_t begin, uint32_t end)
{
    uint64_t panel_bytes = panel_layout(a->dtype, a->cols).bytes;
    expect_rows(a->y, a->y_stride, a->cols * sizeof(float), end);
    for (uint32_t i = begin; i < end; i++)
        expect_weights(a->w, (a->ids[i] / PANEL_LANES + 1) * panel_bytes);
    kernels_best()->embed(a, begin, end);
}

static struct kernels checked_kernels(void)
{
    struct kernels k = *kernels_best();
    k.matmul[DT_F32] = matmul_F32;
    k.matmul[DT_F16] = matmul_F16;
    k.matmul[DT_BF16] = matmul_BF16;
    k.matmul[DT_Q4_0] = matmul_Q4_0;
    k.matmul[DT_Q4_1] = matmul_Q4_1;
    k.matmul[DT_Q5_0] = matmul_Q5_0;
    k.matmul[DT_Q5_1] = matmul_Q5_1;
    k.matmul[DT_Q8_0] = matmul_Q8_0;
    k.matmul[DT_Q2_K] = matmul_Q2_K;
    k.matmul[DT_Q3_K] = matmul_Q3_K;
    k.matmul[DT_Q4_K] = matmul_Q4_K;
    k.matmul[DT_Q5_K] = matmul_Q5_K;
    k.matmul[DT_Q6_K] = matmul_Q6_K;
    k.matmul[DT_IQ4_NL] = matmul_IQ4_NL;
    k.matmul[DT_IQ4_XS] = matmul_IQ4_XS;
    k.matmul[DT_W6] = matmul_W6;
    k.rmsnorm = rmsnorm;
    k.quantize = quantize;
    k.add = add;
    k.silu_mul = silu_mul;
    k.gelu_mul = gelu_mul;
    k.rope = rope;
    k.kv_store = kv_store;
    k.attention = attention;
    k.embed = embed;
    return k;
}

// From edits to a plan's bytes.

static void set_u32(void *at, size_t bytes, uint32_t index, uint32_t value, bool add)
{
    uint32_t *words = at;
    uint32_t *word = &words[index % (bytes / sizeof *words)];
    *word = add ? *word + value : value;
}

static struct plan_ref *ref_of(struct plan_op *op, uint32_t index)
{
    index %= PLAN_IN_MAX + 1;
    return index == PLAN_IN_MAX ? &op->out : &op->in[index];
}

static void edit_ops(struct image *im, const struct edit *e)
{
    struct plan_op *ops = im->ops, *op = &ops[e->index % im->h.n_ops], kept = *op;
    uint32_t other = e->value % im->h.n_ops;
    switch (e->what & 7) {
    case 0:
        *op = ops[other];
        ops[other] = kept;
        break;
    case 1: // a copy before `other`
        if (im->h.n_ops == OPS_MAX)
            break;
        memmove(&ops[other + 1], &ops[other], (im->h.n_ops - other) * sizeof *ops);
        ops[other] = kept;
        im->h.n_ops++;
        break;
    case 2:
        if (im->h.n_ops == 1)
            break;
        im->h.n_ops--;
        memmove(op, op + 1, (size_t)(ops + im->h.n_ops - op) * sizeof *ops);
        break;
    case 3:
        *ref_of(op, e->field) = *ref_of(&ops[other], e->value >> 16);
        break;
    default:
        op->code = e->value % PLAN_CODE_COUNT;
    }
}

static void edit_image(struct image *im, const struct edit *e)
{
    struct plan_tensor *t = &im->tensors[e->index % im->h.n_tensors];
    bool add = e->what & VALUE_ADD;
    switch (e->what & 7) {
    case 0:
        set_u32(&im->h.limits, sizeof im->h.limits, e->field, e->value, add);
        break;
    case 1:
        set_u32(&im->h.model.vocab, 8 * sizeof(uint32_t), e->field, e->value, add);
        break;
    case 2:
        set_u32(&t->kind, 4 * sizeof(uint32_t), e->field, e->value, add);
        break;
    case 3:
        set_u32(t, sizeof *t, e->field, e->value, add);
        break;
    case 4:
        set_u32(&im->ops[e->index % im->h.n_ops], sizeof im->ops[0], e->field, e->value, add);
        break;
    case 5:
        if (im->h.n_tensors < TENSORS_MAX)
            im->tensors[im->h.n_tensors++] = *t;
        break;
    case 6:
        im->weights[e->value % sizeof im->weights] = e->field;
        break;
    default:
        im->h.logits = e->value % im->h.n_tensors;
    }
}

static bool is_sized(const struct plan_tensor *t)
{
    return t->kind >= PLAN_MATRIX && t->kind < PLAN_KIND_COUNT && t->dtype < DT_A8 &&
           t->cols <= PLAN_COLS_MAX && t->rows <= PLAN_COLS_MAX &&
           t->cols % dtype_inputs((enum dtype)t->dtype) == 0;
}

static void fix_weights(struct image *im)
{
    uint64_t at = 0;
    for (uint32_t i = 0; i < im->h.n_tensors; i++) {
        struct plan_tensor *t = &im->tensors[i];
        if (!is_sized(t))
            continue;
        t->offset = at;
        t->bytes = plan_weight_bytes(t, &im->h.limits);
        at += t->bytes;
    }
    im->h.sections[PLAN_WEIGHTS].bytes = num_min(at, WEIGHTS_BYTES_MAX);
}

// Only where nothing else is wrong does the check come to the places; then all is as arena_layout asks for.
static void fix_arena(struct image *im)
{
    struct arena scratch;
    struct iso_errinfo e = {0};
    uint64_t bytes = 0;
    if (im->h.limits.kv_type >= KV_TYPE_COUNT || im->h.logits >= im->h.n_tensors || im->h.model.layers == 0 ||
        im->h.model.layers > PLAN_LAYERS_MAX || im->h.model.head_dim == 0)
        return; // the header's check comes before
    if (arena_init(&scratch, PLAN_CHECK_SCRATCH_BYTES))
        return;
    if (plan_check_program(&im->h, im->tensors, im->ops, &scratch, &e) == ISO_E_FORMAT &&
        (strcmp(e.field, "arena_bytes") == 0 || strstr(e.text, "another place")) &&
        arena_layout(im->tensors, im->h.n_tensors, im->ops, im->h.n_ops, &im->h.limits, &scratch, &bytes) ==
            ISO_OK)
        im->h.arena_bytes = bytes;
    arena_deinit(&scratch);
}

// The plan's bytes, exactly as many as it has so that the sanitizer sees any read past them.
static uint8_t *assemble(struct image *im, uint64_t *ret_n)
{
    const void *sources[PLAN_SECTION_COUNT] = {im->tensors, im->ops, im->tokenizer, im->template,
                                               im->weights};
    struct plan_section *s = im->h.sections;
    uint64_t at = sizeof im->h;
    s[PLAN_TENSORS].bytes = im->h.n_tensors * sizeof im->tensors[0];
    s[PLAN_OPS].bytes = im->h.n_ops * sizeof im->ops[0];
    for (int i = 0; i < PLAN_SECTION_COUNT; i++) {
        s[i].offset = num_align(at, PLAN_ALIGN);
        at = s[i].offset + s[i].bytes;
    }
    im->h.file_bytes = *ret_n = at;
    void *bytes = NULL;
    ASSERT(posix_memalign(&bytes, PLAN_ALIGN, at) == 0);
    memset(bytes, 0, at);
    for (int i = 0; i < PLAN_SECTION_COUNT; i++)
        memcpy((uint8_t *)bytes + s[i].offset, sources[i], s[i].bytes);
    memcpy(bytes, &im->h, sizeof im->h);
    return bytes;
}

// From a plan to logits.

static void submit(struct unit *u, uint32_t tokens, uint32_t first_token, uint32_t *ret_slot)
{
    const struct plan_header *h = u->plan->header;
    uint32_t prompt[PROMPT_MAX], n = (uint32_t)num_min(tokens, h->limits.max_seq_len - 1);
    for (uint32_t i = 0; i < n; i++)
        prompt[i] = (first_token + i * 7) % h->model.vocab;
    struct unit_request request = {
        .prompt = prompt, .n_prompt = n, .max_output = 1, .sampling = SAMPLING_GREEDY};
    struct iso_errinfo e;
    ASSERT(unit_submit(u, &request, ret_slot, NULL, &e) == ISO_OK);
}

// The logits of one answer, computed over `rubbish`. `beside`: another sequence is computed with it.
static void run(struct unit *u, uint8_t rubbish, uint32_t chunk, bool beside, float *ret)
{
    const struct plan_header *h = u->plan->header;
    uint32_t slot, other;
    memset(u->arena, rubbish, (size_t)((uint8_t *)u - u->arena));
    u->chunk_tokens = chunk;
    if (beside)
        submit(u, PROMPT_MAX / 4, 1, &other);
    submit(u, PROMPT_MAX, 0, &slot);
    bool done = false;
    for (struct unit_result r = unit_step(u); r.rows > 0; r = unit_step(u)) {
        for (uint32_t i = 0; i < r.n; i++) {
            if (r.events[i].slot != slot)
                continue;
            ASSERT(!done);
            done = true;
            memcpy(ret, unit_logits(u, r.events[i].row), h->model.vocab * sizeof *ret);
        }
    }
    ASSERT(done);
}

static void execute(const struct plan *plan, uint32_t chunk)
{
    const struct kernels kernels = checked_kernels();
    const struct unit_config config = {
        .kernels = &kernels, .threads = 1, .pool_bytes_max = POOL_BYTES_MAX, .no_prefix_reuse = true};
    const struct plan_header *h = plan->header;
    struct unit *u;
    struct iso_errinfo e;
    if (unit_open(plan, &config, &u, &e))
        return; // too large
    running.plan = plan;
    running.unit = u;
    float *once = malloc(h->model.vocab * sizeof *once), *again = malloc(h->model.vocab * sizeof *again);
    ASSERT(once && again);
    run(u, 0x3C, h->limits.batch_tokens, false, once); // 0.01 as f32, 1 as f16: what it reaches stays finite
    run(u, 0xFF, chunk, h->limits.slots > 1, again);   // NaN
    for (uint32_t i = 0; i < h->model.vocab; i++)
        if (memcmp(&once[i], &again[i], sizeof *once) != 0)
            ASSERT(once[i] != once[i] && again[i] != again[i]); // which NaN it is depends on the tile's size
    free(once);
    free(again);
    unit_close(u);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0)
        return 0;
    static struct image im;
    struct edit edits[EDITS_MAX], e;
    uint32_t n_edits = 0;
    uint8_t flags = data[0];
    im = bases[(flags >> BASE_SHIFT) % ARRAY_LEN(bases)];
    for (size_t at = 1; size - at >= sizeof e && n_edits < EDITS_MAX; at += sizeof e) {
        memcpy(&e, data + at, sizeof e);
        if (e.what & VALUE_TIMES_16)
            e.value = (e.value & 0xFFF) * 16;
        else if (e.what & VALUE_SMALL)
            e.value &= 0xFF;
        if ((e.what & EDIT_RAW) == EDIT_RAW)
            edits[n_edits++] = e;
        else if (e.what & EDIT_OPS)
            edit_ops(&im, &e);
        else
            edit_image(&im, &e);
    }
    if (flags & FIX_WEIGHTS)
        fix_weights(&im);
    if (flags & FIX_ARENA)
        fix_arena(&im);
    uint64_t n;
    uint8_t *bytes = assemble(&im, &n);
    struct tiny_plan p = {.bytes = bytes, .n = n, .h = (struct plan_header *)bytes};
    tiny_plan_rehash(&p);
    bool changed = false;
    for (uint32_t i = 0; i < n_edits; i++) {
        uint64_t at = ((uint64_t)edits[i].index << 8 | edits[i].field) % n;
        changed |= (uint8_t)edits[i].value != 0;
        bytes[at] ^= (uint8_t)edits[i].value;
    }
    if (flags & FIX_HASHES)
        tiny_plan_rehash(&p);
    struct plan plan;
    struct iso_errinfo error = {0};
    enum iso_err err = plan_attach(bytes, n, &plan, &error);
    ASSERT(!err || (error.code == err && error.text[0] != '\0'));
    ASSERT(err || !changed || n_edits > 1 || flags & FIX_HASHES); // one change is always seen
    if (!err)
        execute(&plan, 1 + (flags >> CHUNK_SHIFT & 7));
    free(bytes);
    return 0;
}
