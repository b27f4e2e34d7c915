#include "graph/build.h"

#include <stdlib.h>

#include "base/num.h"
#include "graph/blocks.h"

static const struct family *const FAMILIES[] = {&FAMILY_LLAMA, &FAMILY_QWEN2};

#define FAMILY_NAMES "llama, qwen2"

enum iso_err graph_build(const struct gguf *file, struct graph *g, struct iso_errinfo *reterr)
{
    struct strv arch;
    enum iso_err err = gguf_get_str(file, "general.architecture", &arch, reterr);
    if (err)
        return err;
    const struct family *family = NULL;
    for (size_t i = 0; i < ARRAY_LEN(FAMILIES); i++)
        if (strv_is(arch, FAMILIES[i]->arch))
            family = FAMILIES[i];
    if (!family)
        return iso_fail(reterr, ISO_E_UNSUPPORTED, 0, "general.architecture",
                        "architecture \"%.*s\" is not supported; supported are " FAMILY_NAMES,
                        STRV_ARG(arch));
    struct builder b = {.file = file, .g = g, .reterr = reterr};
    b.used = arena_array(g->arena, file->n_tensors, sizeof *b.used);
    if (!b.used)
        return iso_fail(reterr, ISO_E_LIMIT, 0, NULL, "the file has too many tensors to build a graph from");
    err = blocks_read_model(&b, family);
    if (!err)
        err = family->build(&b, family);
    return err ? err : blocks_all_used(&b);
}
