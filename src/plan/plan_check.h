// Checks a plan that comes from outside, so that executing it touches nothing but its own memory: sections
// inside the file, limits, every tensor's place, every operation's operands, types and shapes, every column
// of a value written before it is read, K and V of a layer stored once and before attention reads them, no
// two live values overlapping. So nothing that an earlier step or program left in memory can reach a result.
// Pure functions over the caller's bytes.
#pragma once

#include "base/arena.h"
#include "base/err.h"
#include "plan/plan_format.h"

// Bytes of scratch arena that any plan's check fits in.
#define PLAN_CHECK_SCRATCH_BYTES ((size_t)(PLAN_TENSORS_MAX + 1) * 128)

// The header alone: magic, version, its own hash, limits, sections in their places up to file_bytes (the real
// size). ISO_E_FORMAT (no plan at all, or nonsense in it), ISO_E_VERSION, ISO_E_CORRUPT (hash),
// ISO_E_LIMIT.
enum iso_err plan_check_header(const struct plan_header *h, uint64_t file_bytes,
                               struct iso_errinfo *reterr) ISO_MUST_USE;

// Tensors and operations of a plan whose header has passed; the tables are in memory and aligned.
enum iso_err plan_check_program(const struct plan_header *h, const struct plan_tensor *tensors,
                                const struct plan_op *ops, struct arena *scratch,
                                struct iso_errinfo *reterr) ISO_MUST_USE;
