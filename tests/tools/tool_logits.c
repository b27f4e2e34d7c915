// Teacher forcing: the logits of every position of a token sequence, for comparison with a reference.
//
//   tool_logits MODEL.gguf --tokens IDS --out FILE [--chunk N] [--max-seq-len N] [--threads N] [--isa NAME]
//               [--kv f16|q8] [--slots N]
//
// IDS: little-endian uint32. FILE: float32 [tokens][vocab]. A sequence longer than max-seq-len is refused.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "compile/compile.h"
#include "unit/unit.h"

struct arguments {
    const char *model, *tokens, *out;
    struct compile_options compile;
    struct unit_config unit;
};

static void fail(const struct iso_errinfo *e)
{
    fprintf(stderr, "tool_logits: %s\n", e->text);
    exit(iso_err_exit_code(e->code));
}

static struct arguments parse(int argc, char **argv)
{
    struct arguments a = {.compile = {.slots = 16}, .unit = {.threads = 1}};
    enum isa isa;
    a.model = argc > 1 ? argv[1] : "";
    for (int i = 2; i + 1 < argc; i += 2) {
        const char *value = argv[i + 1];
        uint32_t number = (uint32_t)strtoul(value, NULL, 10);
        if (!strcmp(argv[i], "--tokens"))
            a.tokens = value;
        else if (!strcmp(argv[i], "--out"))
            a.out = value;
        else if (!strcmp(argv[i], "--chunk"))
            a.unit.chunk_tokens = number;
        else if (!strcmp(argv[i], "--max-seq-len"))
            a.compile.max_seq_len = number;
        else if (!strcmp(argv[i], "--slots"))
            a.compile.slots = number;
        else if (!strcmp(argv[i], "--threads"))
            a.unit.threads = number;
        else if (!strcmp(argv[i], "--kv"))
            a.compile.kv_type = !strcmp(value, "q8") ? KV_Q8 : KV_F16;
        else if (!strcmp(argv[i], "--isa") && isa_from_name(value, &isa) && kernels_get(isa))
            a.unit.kernels = kernels_get(isa);
        else
            a.model = NULL;
    }
    if (!a.model || !a.tokens || !a.out) {
        fprintf(stderr, "usage: tool_logits MODEL --tokens IDS --out FILE [options]\n");
        exit(2);
    }
    return a;
}

static uint32_t *read_ids(const char *path, uint32_t *ret_n)
{
    FILE *f = fopen(path, "rb");
    if (!f || fseek(f, 0, SEEK_END)) {
        perror(path);
        exit(3);
    }
    long bytes = ftell(f);
    rewind(f);
    uint32_t *ids = malloc((size_t)bytes + 1);
    if (!ids || fread(ids, 1, (size_t)bytes, f) != (size_t)bytes)
        exit(3);
    fclose(f);
    *ret_n = (uint32_t)(bytes / 4);
    return ids;
}

int main(int argc, char **argv)
{
    struct arguments a = parse(argc, argv);
    struct iso_errinfo e;
    struct program program;
    struct plan plan;
    struct unit *unit = NULL;
    char path[4096];
    uint32_t slot, n;
    uint32_t *ids = read_ids(a.tokens, &n);
    snprintf(path, sizeof path, "%s.plan", a.out);
    if (program_open(a.model, &a.compile, &program, &e) || program_write(&program, path, NULL, NULL, &e))
        fail(&e);
    program_close(&program);
    if (plan_load(path, NULL, NULL, &plan, &e) || unit_open(&plan, &a.unit, &unit, &e))
        fail(&e);
    remove(path);
    struct unit_request request = {.prompt = ids, .n_prompt = n, .sampling = SAMPLING_GREEDY, .score = true};
    if (unit_submit(unit, &request, &slot, NULL, &e))
        fail(&e);
    FILE *out = fopen(a.out, "wb");
    if (!out) {
        perror(a.out);
        return 3;
    }
    uint32_t vocab = plan.header->model.vocab;
    for (struct unit_result r = unit_step(unit); r.rows > 0; r = unit_step(unit))
        for (uint32_t i = 0; i < r.n; i++)
            if (fwrite(unit_logits(unit, r.events[i].row), sizeof(float), vocab, out) != vocab)
                return 3;
    fclose(out);
    unit_close(unit);
    plan_close(&plan);
    free(ids);
    return 0;
}
