// What a model or a plan would take under given limits, without loading or compiling it.
#pragma once

#include "base/arena.h"
#include "cli/model_options.h"
#include "compile/compile.h"
#include "unit/account.h"

struct sizing {
    struct plan_header header;   // limits as compiled
    struct plan_tensor *tensors; // the program's; changed by sizing_account
    const struct plan_op *ops;
    uint64_t other_bytes;   // of the plan file beside its weights
    struct arena arena;     // of the tables; scratch behind them
    struct program program; // where it came from a model file
    size_t tables_used;
};

// Opens a plan or a model file (compiled but for the weights).
enum iso_err sizing_open(const char *path, const struct compile_flags *flags, struct sizing *ret,
                         struct iso_errinfo *reterr) ISO_MUST_USE;
void sizing_close(struct sizing *s);
// The account for other limits. batch_tokens grows to the slots where it is less.
struct account sizing_account(struct sizing *s, const struct plan_limits *limits, uint32_t threads);
// The largest max_seq_len (at most the model's context), or number of slots, with the other limits as given,
// whose account is at most pool_bytes; 0 where none is.
uint32_t sizing_largest_seq(struct sizing *s, const struct plan_limits *limits, uint32_t threads,
                            uint64_t pool_bytes);
uint32_t sizing_largest_slots(struct sizing *s, const struct plan_limits *limits, uint32_t threads,
                              uint64_t pool_bytes);
