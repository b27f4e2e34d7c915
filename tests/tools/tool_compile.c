// Compiles a model to a plan, for tests of the compiler.
//
//   tool_compile MODEL.gguf PLAN [--max-seq-len N] [--slots N] [--batch-tokens N] [--kv f16|q8]
//                [--quant WIDTH] [--quant-embedding WIDTH] [--threads N] [--lora DIR]
//
// On failure the message goes to standard error; the exit code is the error's (base/err.h).
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "compile/compile.h"

int main(int argc, char **argv)
{
    struct compile_options options = {0};
    struct program program;
    struct iso_errinfo e = {0};
    if (argc < 3 || argc % 2 == 0)
        return 2;
    for (int i = 3; i + 1 < argc; i += 2) {
        uint32_t number = (uint32_t)strtoul(argv[i + 1], NULL, 10);
        if (!strcmp(argv[i], "--max-seq-len"))
            options.max_seq_len = number;
        else if (!strcmp(argv[i], "--slots"))
            options.slots = number;
        else if (!strcmp(argv[i], "--batch-tokens"))
            options.batch_tokens = number;
        else if (!strcmp(argv[i], "--kv"))
            options.kv_type = !strcmp(argv[i + 1], "q8") ? KV_Q8 : KV_F16;
        else if (!strcmp(argv[i], "--lora"))
            options.lora = argv[i + 1];
        else if (!strcmp(argv[i], "--threads"))
            options.threads = number;
        else if (!strcmp(argv[i], "--quant") && quant_from_name(argv[i + 1], &options.quant))
            continue;
        else if (!strcmp(argv[i], "--quant-embedding") && quant_from_name(argv[i + 1], &options.quant_head))
            options.quant_head_given = true;
        else
            return 2;
    }
    enum iso_err err = program_open(argv[1], &options, &program, &e);
    if (!err) {
        err = program_write(&program, argv[2], NULL, NULL, &e);
        program_close(&program);
    }
    if (err)
        fprintf(stderr, "tool_compile: %s\n", e.text);
    return iso_err_exit_code(err);
}
