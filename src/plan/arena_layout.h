// Where the values of a program lie in the arena: each from the operation that first writes it to the last
// that uses it, in the lowest place free of values alive meanwhile. The compiler places with it, `fit` asks
// it for other limits, and a plan that is loaded must agree with it, so no two live values of any plan
// overlap.
#pragma once

#include "base/arena.h"
#include "plan/plan_format.h"

// Sets offset and bytes of every value of `tensors` for these limits and returns the arena's size in
// *ret_bytes. `tensors` and `ops` have passed the checks of plan_check.h but for offsets. Workspace comes
// from `scratch`. ISO_E_LIMIT where the scratch is too small.
enum iso_err arena_layout(struct plan_tensor *tensors, uint32_t n_tensors, const struct plan_op *ops,
                          uint32_t n_ops, const struct plan_limits *limits, struct arena *scratch,
                          uint64_t *ret_bytes) ISO_MUST_USE;
