#include "graph/build.h"

#include <stdio.h>

#include "base/num.h"
#include "graph/blocks.h"

// clang-format off
static const struct family FAMILIES[] = {
    {.arch = "llama", .hf_class = "LlamaForCausalLM", .rope_interleaved = true, .activation = "silu",
     .build = llama_build},
    {.arch = "mistral", .hf_class = "MistralForCausalLM", .rope_interleaved = true, .activation = "silu",
     .window = WINDOW_ALL, .build = llama_build},
    {.arch = "qwen2", .hf_class = "Qwen2ForCausalLM", .activation = "silu", .build = llama_build},
    {.arch = "qwen3", .hf_class = "Qwen3ForCausalLM", .qk_norm = true, .activation = "silu", .build = llama_build},
    {.arch = "gemma3", .hf_class = "Gemma3ForCausalLM", .hf_ffn_norm = "model.layers.%u.pre_feedforward_layernorm.weight",
     .norm_plus_one = true, .qk_norm = true, .activation = "gelu_pytorch_tanh", .window = WINDOW_MIXED,
     .build = gemma3_build},
};
// clang-format on

static enum iso_err refuse_architecture(const struct model *model, struct iso_errinfo *reterr)
{
    char names[160];
    size_t n = 0;
    for (size_t i = 0; i < ARRAY_LEN(FAMILIES) && n < sizeof names; i++)
        n += (size_t)snprintf(names + n, sizeof names - n, "%s%s", i ? ", " : "",
                              model->format == MODEL_GGUF ? FAMILIES[i].arch : FAMILIES[i].hf_class);
    const char *key = model->format == MODEL_GGUF ? "general.architecture" : "architectures";
    return iso_fail(reterr, ISO_E_UNSUPPORTED, 0, key,
                    "architecture \"%.*s\" is not supported; supported are %s", STRV_ARG(model->arch), names);
}

enum iso_err graph_build(const struct model *model, struct graph *g, struct iso_errinfo *reterr)
{
    struct builder b = {.model = model, .g = g, .reterr = reterr};
    for (size_t i = 0; i < ARRAY_LEN(FAMILIES); i++)
        if (strv_is(model->arch, model->format == MODEL_GGUF ? FAMILIES[i].arch : FAMILIES[i].hf_class))
            b.family = &FAMILIES[i];
    if (!b.family)
        return refuse_architecture(model, reterr);
    b.used = arena_array(g->arena, model->n_tensors, sizeof *b.used);
    if (!b.used)
        return iso_fail(reterr, ISO_E_LIMIT, 0, NULL, "the model has too many tensors to build a graph from");
    enum iso_err err = blocks_read_model(&b);
    if (!err)
        err = b.family->build(&b);
    return err ? err : blocks_all_used(&b);
}
