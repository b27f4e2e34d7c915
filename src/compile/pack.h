// Weights as the plan holds them: tensors of the model file packed into panels (kernels/dtype.h), and
// computed tables. Internal to compile/.
#pragma once

#include "base/err.h"
#include "compile/compile.h"
#include "graph/ir.h"

// Where packed bytes go, in order.
struct pack_sink {
    enum iso_err (*write)(void *context, const void *bytes, size_t n, struct iso_errinfo *reterr);
    void *context;
};

// Bytes of buffer that packing any tensor of the program needs.
uint64_t pack_buffer_bytes(const struct program *p);

// Writes weight tensor `id` of the program: exactly its plan_weight_bytes. ISO_E_NONFINITE names a tensor
// with a NaN or infinite scale or value; ISO_E_IO where reading fails. `buffer` has pack_buffer_bytes.
enum iso_err pack_tensor(const struct program *p, uint32_t id, uint8_t *buffer, const struct pack_sink *sink,
                         struct iso_errinfo *reterr) ISO_MUST_USE;
