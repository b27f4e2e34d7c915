// libisochron: the public API over plan, unit and tokenizer. Thin: arguments in, errors out, no logic of its
// own.
#include <isochron.h>

#include <stdlib.h>
#include <string.h>

#include "base/num.h"
#include "compile/compile.h"
#include "plan/plan.h"
#include "text/tokenizer.h"
#include "unit/account.h"
#include "unit/team.h"
#include "unit/unit.h"

struct iso_plan {
    struct plan plan;
    struct tokenizer *tokenizer;
    uint64_t text_bytes; // of the tokenizer's workspace
};

struct iso_unit {
    struct unit *unit;
    const iso_plan *plan;
    iso_event *events; // [slots]
    uint32_t rows;     // of logits in the last step
};

// The public codes are the internal ones under names of their own.
_Static_assert((int)ISO_CODE_OK == (int)ISO_OK && (int)ISO_CODE_USAGE == (int)ISO_E_USAGE, "codes");
_Static_assert((int)ISO_CODE_IO == (int)ISO_E_IO && (int)ISO_CODE_FORMAT == (int)ISO_E_FORMAT, "codes");
_Static_assert((int)ISO_CODE_UNSUPPORTED == (int)ISO_E_UNSUPPORTED, "codes");
_Static_assert((int)ISO_CODE_NOFIT == (int)ISO_E_NOFIT && (int)ISO_CODE_LIMIT == (int)ISO_E_LIMIT, "codes");
_Static_assert((int)ISO_CODE_NOMEM == (int)ISO_E_NOMEM && (int)ISO_CODE_CORRUPT == (int)ISO_E_CORRUPT,
               "codes");
_Static_assert((int)ISO_CODE_VERSION == (int)ISO_E_VERSION, "codes");
_Static_assert((int)ISO_CODE_NONFINITE == (int)ISO_E_NONFINITE, "codes");
_Static_assert((int)ISO_CODE_BUSY == (int)ISO_E_BUSY && (int)ISO_CODE_BUSY + 1 == (int)ISO_ERR_COUNT,
               "codes");
_Static_assert(sizeof(((iso_error *)0)->text) == ISO_ERR_TEXT_MAX, "texts are copied whole");
_Static_assert((int)ISO_FINISH_NONE == (int)UNIT_RUNNING && (int)ISO_FINISH_END == (int)UNIT_EOG, "finishes");
_Static_assert((int)ISO_FINISH_LENGTH == (int)UNIT_LENGTH && (int)ISO_FINISH_SCORED == (int)UNIT_SCORED,
               "finishes");
_Static_assert((int)ISO_FINISH_NONFINITE == (int)UNIT_NONFINITE, "finishes");

static iso_code give(enum iso_err err, const struct iso_errinfo *info, iso_error *error)
{
    if (err && error) {
        error->code = (iso_code)err;
        memcpy(error->text, info->text, sizeof error->text);
    }
    return (iso_code)err;
}

static iso_code refuse(enum iso_err err, const char *text, iso_error *error)
{
    struct iso_errinfo info;
    return give(iso_fail(&info, err, 0, NULL, "%s", text), &info, error);
}

const char *iso_version(void)
{
    return ISO_VERSION;
}

iso_code iso_compile(const char *model_path, const char *plan_path, const iso_compile_options *options,
                     iso_error *error)
{
    const iso_compile_options none = {0}, *o = options ? options : &none;
    struct compile_options compile = {.max_seq_len = o->max_seq_len,
                                      .slots = o->slots,
                                      .batch_tokens = o->batch_tokens,
                                      .kv_type = o->kv_q8 ? KV_Q8 : KV_F16};
    struct iso_errinfo info;
    struct program program;
    compile.quant_head_given = o->quant_embedding != NULL;
    if ((o->quant && !quant_from_name(o->quant, &compile.quant)) ||
        (o->quant_embedding && !quant_from_name(o->quant_embedding, &compile.quant_head)))
        return refuse(ISO_E_USAGE, "quant and quant_embedding are w4, w6, w8, f16, keep or NULL", error);
    enum iso_err err = program_open(model_path, &compile, &program, &info);
    if (err)
        return give(err, &info, error);
    err = program_write(&program, plan_path, o->progress, o->context, &info);
    program_close(&program);
    return give(err, &info, error);
}

iso_code iso_plan_open(const char *path, iso_plan **plan, iso_error *error)
{
    struct iso_errinfo info;
    iso_plan *p = calloc(1, sizeof *p);
    if (!p)
        return refuse(ISO_E_NOMEM, "the system refused memory for the plan", error);
    enum iso_err err = plan_load(path, NULL, NULL, &p->plan, &info);
    if (!err) {
        const struct plan_header *h = p->plan.header;
        p->text_bytes = tok_text_bytes_for(h->limits.max_seq_len);
        err = tok_open(p->plan.tokenizer, p->plan.tokenizer_bytes, p->text_bytes, &p->tokenizer, &info);
        if (!err && tok_count(p->tokenizer) > h->model.vocab)
            err = iso_fail(&info, ISO_E_FORMAT, 0, "tokenizer",
                           "the tokenizer has more tokens than the program");
    }
    if (err) {
        iso_fail_prefix(&info, path);
        iso_plan_close(p);
        return give(err, &info, error);
    }
    *plan = p;
    return ISO_CODE_OK;
}

void iso_plan_close(iso_plan *plan)
{
    if (!plan)
        return;
    tok_close(plan->tokenizer);
    plan_close(&plan->plan);
    free(plan);
}

void iso_plan_get_info(const iso_plan *plan, iso_plan_info *info)
{
    const struct plan_header *h = plan->plan.header;
    *info = (iso_plan_info){.architecture = h->model.arch,
                            .name = h->model.name,
                            .chat_template = plan->plan.chat_template.ptr,
                            .chat_template_bytes = plan->plan.chat_template.len,
                            .vocab = h->model.vocab,
                            .context = h->model.context,
                            .max_seq_len = h->limits.max_seq_len,
                            .slots = h->limits.slots,
                            .batch_tokens = h->limits.batch_tokens,
                            .bos = tok_role(plan->tokenizer, TOK_BOS)};
    hash128_hex(h->hash, info->hash);
}

iso_account iso_plan_account(const iso_plan *plan, uint32_t threads)
{
    const struct plan_header *h = plan->plan.header;
    uint64_t weights = h->sections[PLAN_WEIGHTS].bytes;
    struct account a = account_of(h, weights, plan->plan.mapped_bytes - weights, threads ? threads : 1,
                                  tok_runtime_bytes(plan->text_bytes));
    return (iso_account){.weights = a.weights,
                         .activations = a.activations,
                         .kv_cache = a.kv,
                         .runtime = a.runtime,
                         .total = account_total(&a)};
}

iso_code iso_encode(iso_plan *plan, const char *text, size_t bytes, uint32_t flags, uint32_t *ids,
                    size_t capacity, size_t *n, iso_error *error)
{
    struct iso_errinfo info;
    enum tok_mode mode = flags & ISO_ENCODE_SPECIAL ? TOK_SPECIAL : TOK_PLAIN;
    return give(tok_encode(plan->tokenizer, (struct strv){text, bytes}, mode, flags & ISO_ENCODE_EDGES, ids,
                           capacity, n, &info),
                &info, error);
}

const char *iso_token_bytes(const iso_plan *plan, uint32_t id, size_t *bytes)
{
    struct strv piece = tok_is_control(plan->tokenizer, id) ? STRV_LIT("") : tok_piece(plan->tokenizer, id);
    *bytes = piece.len;
    return piece.ptr;
}

int iso_token_ends(const iso_plan *plan, uint32_t id)
{
    return tok_is_eog(plan->tokenizer, id);
}

// The options as the unit takes them; ISO_E_USAGE where one is out of its range.
static enum iso_err unit_config_of(const iso_plan *plan, const iso_unit_options *o, struct unit_config *ret,
                                   struct iso_errinfo *info)
{
    enum isa isa;
    struct unit_config c = {.threads = o->threads ? o->threads : 1,
                            .cpus = o->cpus,
                            .fifo = o->fifo != 0,
                            .pool_bytes_max = o->pool_bytes_max,
                            .extra_bytes = tok_runtime_bytes(plan->text_bytes),
                            .chunk_tokens = o->chunk_tokens,
                            .no_prefix_reuse = o->no_prefix_reuse != 0};
    if (c.threads > TEAM_THREADS_MAX)
        return iso_fail(info, ISO_E_USAGE, 0, "threads", "threads is %u; the limit is %d", c.threads,
                        TEAM_THREADS_MAX);
    if (o->isa && !isa_from_name(o->isa, &isa))
        return iso_fail(info, ISO_E_USAGE, 0, "isa",
                        "isa is \"%.32s\"; known are c, avx2, avx512, amx and neon", o->isa);
    if (o->isa && !kernels_get(isa))
        return iso_fail(info, ISO_E_UNSUPPORTED, 0, "isa",
                        "this machine can't run isa \"%s\"; \"c\" runs everywhere", o->isa);
    c.kernels = o->isa ? kernels_get(isa) : NULL;
    *ret = c;
    return ISO_OK;
}

iso_code iso_unit_open(iso_plan *plan, const iso_unit_options *options, iso_unit **unit, iso_error *error)
{
    const iso_unit_options none = {0};
    struct iso_errinfo info;
    struct unit_config config;
    enum iso_err err = unit_config_of(plan, options ? options : &none, &config, &info);
    if (err)
        return give(err, &info, error);
    iso_unit *u = calloc(1, sizeof *u);
    iso_event *events = calloc(plan->plan.header->limits.slots, sizeof *events);
    if (u && events)
        err = unit_open(&plan->plan, &config, &u->unit, &info);
    else
        err = iso_fail(&info, ISO_E_NOMEM, 0, NULL, "the system refused memory for the unit");
    if (err) {
        free(events);
        free(u);
        return give(err, &info, error);
    }
    u->plan = plan;
    u->events = events;
    *unit = u;
    return ISO_CODE_OK;
}

void iso_unit_close(iso_unit *unit)
{
    if (!unit)
        return;
    unit_close(unit->unit);
    free(unit->events);
    free(unit);
}

const char *iso_unit_isa(const iso_unit *unit)
{
    return unit_kernels(unit->unit)->name;
}

int iso_unit_is_locked(const iso_unit *unit)
{
    return unit_is_locked(unit->unit);
}

iso_code iso_submit(iso_unit *unit, const iso_request *r, uint32_t *slot, iso_error *error)
{
    struct iso_errinfo info;
    const struct unit_request request = {
        .prompt = r->prompt,
        .n_prompt = r->n_prompt,
        .max_output = r->max_output,
        .sampling = {.temperature = r->temperature,
                     .top_p = r->top_p == 0 ? 1 : r->top_p,
                     .min_p = r->min_p,
                     .repeat_penalty = r->repeat_penalty == 0 ? 1 : r->repeat_penalty,
                     .top_k = r->top_k,
                     .seed = r->seed},
        .ignore_eog = r->ignore_end != 0,
        .score = r->score != 0,
    };
    return give(unit_submit(unit->unit, &request, slot, NULL, &info), &info, error);
}

void iso_cancel(iso_unit *unit, uint32_t slot)
{
    if (slot < unit->plan->plan.header->limits.slots)
        unit_cancel(unit->unit, slot);
}

void iso_step(iso_unit *unit, iso_result *result)
{
    struct unit_result r = unit_step(unit->unit);
    unit->rows = r.n > 0 ? r.events[r.n - 1].row + 1 : 0; // rows ascend
    for (uint32_t i = 0; i < r.n; i++)
        unit->events[i] = (iso_event){.slot = r.events[i].slot,
                                      .token = r.events[i].token,
                                      .position = r.events[i].position,
                                      .row = r.events[i].row,
                                      .finish = (iso_finish)r.events[i].finish};
    *result = (iso_result){.events = unit->events, .n = r.n, .rows = r.rows};
}

const float *iso_logits(const iso_unit *unit, uint32_t row)
{
    return row < unit->rows ? unit_logits(unit->unit, row) : NULL;
}
