// What running a model says about its matmuls' inputs, made ready for choosing codes (kernels/fit.c). Internal to
// compile/.
#pragma once

#include "compile/compile.h"

// Finds which matrix of the lowered program each row of the calibration is about: sets p->products_of. ISO_E_USAGE where
// the calibration is that of another program.
enum iso_err calibration_find(struct program *p, const struct calibration *calibration,
                              struct iso_errinfo *reterr) ISO_MUST_USE;

// Bytes of scratch of calibration_factor.
#define CALIBRATION_SCRATCH_BYTES ((uint64_t)FIT_BLOCK * FIT_BLOCK * sizeof(double))

// Of block `block` of the inputs, with H the mean of its products, its mean diagonal scaled to 1 and a hundredth added
// to the diagonal: H = (I + U) D (I + U)^T in f64, U strictly upper. importance[i] = D_i, feedback[k][i] = U_ik, of the
// n inputs of the block (the last block of a matrix has fewer than FIT_BLOCK).
void calibration_factor(const struct calibration_row *row, uint32_t block, double *scratch, float *importance,
                        float (*feedback)[FIT_BLOCK]);
