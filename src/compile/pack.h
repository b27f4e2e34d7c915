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

// How the errors of a matrix's inputs count where it is given new codes, as struct fit_args has it.
struct pack_fit {
    const float *importance; // [cols]
    const float *feedback;   // [cols][FIT_BLOCK] or NULL
};

// Reads n bytes, whole blocks, of a tensor from byte `at` on and checks that their values are finite. Errors start with the
// model file's path; ISO_E_NONFINITE names the tensor and the block.
enum iso_err pack_read_blocks(const struct program *p, const struct model_tensor *t, uint64_t at,
                              uint8_t *dst, uint64_t n, struct iso_errinfo *reterr) ISO_MUST_USE;

// Whether the plan has the matrix in a type other than the files'.
bool pack_is_fitted(const struct program *p, uint32_t id);

// A matrix is packed in pieces of this many panels, the last one of those that are left; a piece depends on nothing
// but the program, so threads may make several at once.
uint32_t pack_piece_panels(const struct program *p, uint32_t id);
// Bytes of a whole piece, and of the buffer that making it needs, in which the piece comes first.
uint64_t pack_piece_bytes(const struct program *p, uint32_t id);
uint64_t pack_piece_buffer(const struct program *p, uint32_t id);
// ISO_E_NONFINITE names a tensor with a NaN or infinite scale or value; ISO_E_LIMIT one with a weight too large for the
// type it is given; ISO_E_IO where reading fails. `buffer` is aligned to PANEL_ALIGN.
enum iso_err pack_piece(const struct program *p, uint32_t id, uint32_t piece, const struct pack_fit *fit,
                        uint8_t *buffer, struct iso_errinfo *reterr) ISO_MUST_USE;

// Bytes of buffer that packing any tensor but a matrix needs.
uint64_t pack_buffer_bytes(const struct program *p);

// Writes vector or table `id` of the program: exactly its plan_weight_bytes. Errors as above. `buffer` has
// pack_buffer_bytes.
enum iso_err pack_tensor(const struct program *p, uint32_t id, uint8_t *buffer, const struct pack_sink *sink,
                         struct iso_errinfo *reterr) ISO_MUST_USE;
