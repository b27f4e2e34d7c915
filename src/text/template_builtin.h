// The tables of filters, tests, functions and methods. To add one, write its function and a row.
#pragma once

#include "text/template_value.h"

#define TMPL_ARGS_MAX   32 // arguments of one call
#define TMPL_PARAMS_MAX 4  // parameters of a row
#define TMPL_RANGE_MAX  1000000
#define TMPL_CLOCK      "strftime_now"

struct tmpl_args {
    struct tmpl_val values[TMPL_ARGS_MAX];
    struct strv names[TMPL_ARGS_MAX]; // ptr NULL where positional
    uint32_t count;
};

// `self` is what a filter or test is applied to or a method belongs to. Unless the row is variadic, args
// holds one value for each parameter, VAL_ABSENT where it was not given.
typedef enum iso_err tmpl_builtin_fn(struct tmpl_run *r, struct tmpl_val self, const struct tmpl_args *args,
                                     struct tmpl_val *ret);

struct tmpl_builtin {
    const char *name; // NULL after the last row
    tmpl_builtin_fn *call;
    uint8_t required; // how many parameters have no default
    bool variadic;    // args are those of the call
    const char *params[TMPL_PARAMS_MAX];
};

extern const struct tmpl_builtin tmpl_filters[], tmpl_tests[], tmpl_functions[];

// The methods of values of that kind, or NULL.
const struct tmpl_builtin *tmpl_methods_of(uint8_t kind);
// The row with that name, or -1.
int tmpl_builtin_find(const struct tmpl_builtin *table, struct strv name);
// Binds the arguments to the row's parameters and calls it.
enum iso_err tmpl_builtin_call(struct tmpl_run *r, const struct tmpl_builtin *row, struct tmpl_val self,
                               const struct tmpl_args *args, struct tmpl_val *ret) ISO_MUST_USE;
