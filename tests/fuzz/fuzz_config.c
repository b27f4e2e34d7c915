// config.json: data is the file, of a model with one layer of tensors that fit the corpus's shapes. What is accepted
// becomes a graph, with rotary frequencies.
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/fpenv.h"
#include "base/num.h"
#include "compile/angles.h"
#include "formats/json_file.h"
#include "graph/build.h"
#include "model/hf.h"

#define ARENA_BYTES ((size_t)256 << 20)
#define ANGLES_MAX  4096

#define QWEN2  1
#define QWEN3  2
#define GEMMA3 4
#define OTHER  8
#define ALL    15

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

// Hidden size 32, 2 heads of 16, 1 KV head, 48 inside the gated unit, 64 tokens.
static const struct {
    const char *name;
    uint32_t families, rows, cols; // rows 0: a vector
} TENSORS[] = {
    {"model.embed_tokens.weight", ALL, 64, 32},
    {"model.norm.weight", ALL, 0, 32},
    {"model.layers.0.input_layernorm.weight", ALL, 0, 32},
    {"model.layers.0.self_attn.q_proj.weight", ALL, 32, 32},
    {"model.layers.0.self_attn.k_proj.weight", ALL, 16, 32},
    {"model.layers.0.self_attn.v_proj.weight", ALL, 16, 32},
    {"model.layers.0.self_attn.o_proj.weight", ALL, 32, 32},
    {"model.layers.0.self_attn.q_proj.bias", QWEN2, 0, 32},
    {"model.layers.0.self_attn.k_proj.bias", QWEN2, 0, 16},
    {"model.layers.0.self_attn.v_proj.bias", QWEN2, 0, 16},
    {"model.layers.0.self_attn.q_norm.weight", QWEN3 | GEMMA3, 0, 16},
    {"model.layers.0.self_attn.k_norm.weight", QWEN3 | GEMMA3, 0, 16},
    {"model.layers.0.post_attention_layernorm.weight", ALL, 0, 32},
    {"model.layers.0.pre_feedforward_layernorm.weight", GEMMA3, 0, 32},
    {"model.layers.0.post_feedforward_layernorm.weight", GEMMA3, 0, 32},
    {"model.layers.0.mlp.gate_proj.weight", ALL, 48, 32},
    {"model.layers.0.mlp.up_proj.weight", ALL, 48, 32},
    {"model.layers.0.mlp.down_proj.weight", ALL, 32, 48},
};

static int compare(const void *a, const void *b)
{
    const struct model_tensor *const *x = a, *const *y = b;
    return strcmp((*x)->name.ptr, (*y)->name.ptr);
}

static void build(const struct model *m)
{
    struct arena arena;
    struct graph g;
    struct iso_errinfo e = {0};
    ASSERT(arena_init(&arena, ARENA_BYTES) == ISO_OK);
    ASSERT(graph_init(&g, &arena) == ISO_OK);
    enum iso_err err = graph_build(m, &g, &e);
    ASSERT(err ? err == e.code && e.text[0] != '\0' : g.n_ops > 0);
    for (uint32_t i = 0; i < g.n_tensors && !err; i++) {
        double frequency[ANGLES_MAX];
        if (g.tensors[i].kind != IR_ANGLES)
            continue;
        ASSERT(g.tensors[i].cols / 2 <= ANGLES_MAX);
        angles_frequencies(g.tensors[i].rope, g.tensors[i].cols / 2, NULL, frequency);
        for (uint32_t k = 0; k < g.tensors[i].cols / 2; k++)
            ASSERT(frequency[k] >= 0 && frequency[k] < 1e30);
    }
    arena_deinit(&arena);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    json_t *json;
    struct iso_errinfo e = {0};
    if (json_parse((struct strv){(const char *)data, size}, &json, &e))
        return 0;
    const json_t *arch = json_array_get(json_object_get(json, "architectures"), 0);
    struct hf hf = {.folder = -1, .config = json};
    struct model_tensor tensors[ARRAY_LEN(TENSORS)];
    const struct model_tensor *by_name[ARRAY_LEN(TENSORS)];
    struct model m = {.format = MODEL_HF,
                      .path = "fuzz",
                      .tensors = tensors,
                      .by_name = by_name,
                      .hf = &hf,
                      .reader = &MODEL_READER_HF};
    if (json_is_string(arch)) {
        m.arch = json_strv(arch);
        uint32_t family = strv_is(m.arch, "Qwen2ForCausalLM")    ? QWEN2
                          : strv_is(m.arch, "Qwen3ForCausalLM")  ? QWEN3
                          : strv_is(m.arch, "Gemma3ForCausalLM") ? GEMMA3
                                                                 : OTHER;
        for (size_t i = 0; i < ARRAY_LEN(TENSORS); i++) {
            if (!(TENSORS[i].families & family))
                continue;
            tensors[m.n_tensors] =
                (struct model_tensor){.name = strv_from(TENSORS[i].name),
                                      .type = GGML_BF16,
                                      .n_dims = TENSORS[i].rows ? 2 : 1,
                                      .dims = {TENSORS[i].cols, num_max(TENSORS[i].rows, 1), 1, 1}};
            by_name[m.n_tensors] = &tensors[m.n_tensors];
            m.n_tensors++;
        }
        qsort(by_name, m.n_tensors, sizeof *by_name, compare);
        struct fpenv env = fpenv_enter();
        build(&m);
        fpenv_leave(env);
    }
    json_decref(json);
    return 0;
}
