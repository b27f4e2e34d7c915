// Options of every command that takes a model file or a plan: how a model file is compiled, and how a plan is
// run.
#pragma once

#include <argp.h>
#include <stdbool.h>
#include <stdint.h>

#include "compile/compile.h"
#include "kernels/kernels.h"
#include "plan/plan_format.h"
#include "unit/team.h"

struct compile_flags {
    struct compile_options options; // 0 where not given
    bool kv_given, quant_given;
};

struct run_flags {
    uint32_t threads; // 0: not given
    uint32_t cpus[TEAM_THREADS_MAX];
    uint32_t n_cpus;
    bool fifo;
    bool isa_given;
    enum isa isa;
    uint64_t pool_bytes; // 0: not given
};

// Children for argp: child_inputs[i] is a struct compile_flags or struct run_flags.
extern const struct argp COMPILE_ARGP, RUN_ARGP;

// Where an option was given that the plan also states, they must agree: ISO_E_USAGE naming both.
enum iso_err compile_flags_agree(const struct compile_flags *flags, const struct plan_limits *limits,
                                 struct iso_errinfo *reterr) ISO_MUST_USE;
// The same of --quant and --quant-embedding alone, which no plan can be sized with otherwise.
enum iso_err compile_flags_widths_agree(const struct compile_flags *flags, const struct plan_limits *limits,
                                        struct iso_errinfo *reterr) ISO_MUST_USE;
