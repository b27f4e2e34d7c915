#include "compile/compile.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/fpenv.h"
#include "base/num.h"
#include "compile/calibration.h"
#include "compile/lora.h"
#include "compile/passes.h"
#include "compile/prune.h"
#include "compile/vocabulary.h"
#include "graph/build.h"

// Room for the largest graph, program and vocabulary; pages become real as they are used.
#define PROGRAM_ARENA_BYTES (GIB)

// Copies the longest beginning of s that makes a valid name.
static void copy_name(char out[PLAN_NAME_BYTES], struct strv s)
{
    size_t n = num_min(s.len, PLAN_NAME_BYTES - 1);
    memset(out, 0, PLAN_NAME_BYTES);
    if (n > 0)
        memcpy(out, s.ptr, n);
    while (!plan_name_is_valid(out))
        out[--n] = '\0';
}

static enum iso_err set_limits(struct program *p, const struct compile_options *o, struct iso_errinfo *reterr)
{
    struct plan_limits *l = &p->header.limits;
    uint32_t context = p->header.model.context;
    uint32_t usual = o->max_seq_len_default ? o->max_seq_len_default : COMPILE_MAX_SEQ_LEN_DEFAULT;
    l->max_seq_len = o->max_seq_len ? o->max_seq_len : (uint32_t)num_min(usual, context);
    l->slots = o->slots ? o->slots : COMPILE_SLOTS_DEFAULT;
    l->batch_tokens =
        o->batch_tokens ? o->batch_tokens : (uint32_t)num_max(COMPILE_BATCH_TOKENS_DEFAULT, l->slots);
    l->kv_type = o->kv_type;
    l->quant = o->quant;
    l->quant_head = widths_head(o);
    if (l->max_seq_len > context)
        return iso_fail(reterr, ISO_E_USAGE, 0, "max-seq-len",
                        "--max-seq-len %" PRIu32 " is over the model's context of %" PRIu32 " tokens",
                        l->max_seq_len, context);
    if (l->max_seq_len < 2)
        return iso_fail(reterr, ISO_E_USAGE, 0, "max-seq-len", "--max-seq-len must be at least 2");
    if (l->slots > PLAN_SLOTS_MAX)
        return iso_fail(reterr, ISO_E_USAGE, 0, "slots", "--slots %" PRIu32 " is over the limit of %d",
                        l->slots, PLAN_SLOTS_MAX);
    if (l->batch_tokens < l->slots || l->batch_tokens > PLAN_BATCH_TOKENS_MAX)
        return iso_fail(reterr, ISO_E_USAGE, 0, "batch-tokens",
                        "--batch-tokens %" PRIu32 " must be from the number of slots (%" PRIu32 ") to %d",
                        l->batch_tokens, l->slots, PLAN_BATCH_TOKENS_MAX);
    return ISO_OK;
}

static void set_model(struct program *p, const struct ir_model *m)
{
    struct plan_model *out = &p->header.model;
    *out = (struct plan_model){.vocab = m->vocab,
                               .hidden = m->hidden,
                               .layers = m->layers,
                               .heads = m->heads,
                               .kv_heads = m->kv_heads,
                               .head_dim = m->head_dim,
                               .ffn = m->ffn,
                               .context = m->context};
    copy_name(out->arch, m->arch);
    copy_name(out->name, m->name);
}

static enum iso_err open_adapter(struct program *p, const struct compile_options *options,
                                 struct iso_errinfo *reterr)
{
    if (!options->lora)
        return ISO_OK;
    enum iso_err err = lora_open(options->lora, &p->model, &p->lora, reterr);
    if (err)
        return err;
    const struct model_tensor *t = lora_unused(p->lora, p);
    if (t)
        return iso_fail(reterr, ISO_E_UNSUPPORTED, 0, "lora",
                        "%s: tensor \"%.*s\" is changed, which the model ties to another and doesn't use",
                        options->lora, STRV_ARG(t->name));
    return ISO_OK;
}

static enum iso_err compile_program(struct program *p, const struct compile_options *options,
                                    struct iso_errinfo *reterr)
{
    struct graph g;
    if (graph_init(&g, &p->arena))
        return iso_fail(reterr, ISO_E_LIMIT, 0, NULL, "the graph is too large for the compiler's memory");
    enum iso_err err = graph_build(&p->model, &g, reterr);
    if (err)
        return err;
    err = pass_widths(&g, options, reterr);
    if (err)
        return err;
    err = pass_prune(&g, options->pruning, reterr);
    if (err)
        return err;
    set_model(p, &g.model);
    p->threads = options->threads;
    err = set_limits(p, options, reterr);
    if (err)
        return err;
    pass_fuse(&g);
    if (pass_quantize(&g))
        return iso_fail(reterr, ISO_E_LIMIT, 0, NULL, "the graph is too large for the compiler's memory");
    err = pass_lower(&g, p, reterr);
    if (!err)
        err = open_adapter(p, options, reterr);
    if (!err)
        err = calibration_find(p, options->calibration, reterr);
    return err ? err : vocabulary_build(p, reterr);
}

enum iso_err program_open(const char *model_path, const struct compile_options *options, struct program *ret,
                          struct iso_errinfo *reterr)
{
    struct program p = {
        .header = {.magic = PLAN_MAGIC, .version = PLAN_VERSION, .header_bytes = sizeof p.header}};
    enum iso_err err = model_open(model_path, &p.model, reterr);
    if (err)
        return err;
    if (arena_init(&p.arena, PROGRAM_ARENA_BYTES)) {
        err = iso_fail(reterr, ISO_E_NOMEM, 0, NULL, "the system refused memory to compile");
    } else {
        struct fpenv env = fpenv_enter();
        err = compile_program(&p, options, reterr);
        fpenv_leave(env);
    }
    if (err) {
        program_close(&p);
        return iso_fail_prefix(reterr, model_path);
    }
    *ret = p;
    return ISO_OK;
}

void program_close(struct program *p)
{
    lora_close(p->lora);
    model_close(&p->model);
    arena_deinit(&p->arena);
    *p = (struct program){0};
}
