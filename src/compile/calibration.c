#include "compile/calibration.h"

#include <string.h>

#include "base/num.h"

#define DAMPING 0.01 // of the mean diagonal: what was seen in a text is not all that will be

enum iso_err calibration_find(struct program *p, const struct calibration *calibration,
                              struct iso_errinfo *reterr)
{
    uint32_t n = 0;
    bool same = true;
    p->products_of = arena_array(&p->arena, p->header.n_tensors, sizeof *p->products_of);
    if (!p->products_of)
        return iso_fail(reterr, ISO_E_LIMIT, 0, NULL, "the program is too large for the compiler's memory");
    for (uint32_t i = 0; i < p->header.n_ops && calibration && same; i++) {
        const struct plan_op *op = &p->ops[i];
        if (op->code != PLAN_OP_MATMUL)
            continue;
        same = n < calibration->n && calibration->rows[n].cols == p->tensors[op->in[1].tensor].cols;
        if (same)
            p->products_of[op->in[1].tensor] = &calibration->rows[n++];
    }
    if (calibration && (!same || n != calibration->n))
        return iso_fail(reterr, ISO_E_USAGE, 0, "calibrate", "the calibration is that of another program");
    return ISO_OK;
}

void calibration_factor(const struct calibration_row *row, uint32_t block, double *scratch, float *importance,
                        float (*feedback)[FIT_BLOCK])
{
    uint32_t first = block * FIT_BLOCK, n = (uint32_t)num_min(FIT_BLOCK, row->cols - first);
    const float *h = row->products + (uint64_t)first * FIT_BLOCK;
    double(*a)[FIT_BLOCK] = (double(*)[FIT_BLOCK])scratch, mean = 0;
    for (uint32_t i = 0; i < row->cols; i++)
        mean += (double)row->products[(uint64_t)i * FIT_BLOCK + i % FIT_BLOCK] / row->cols;
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t j = 0; j <= i; j++)
            a[i][j] = (mean > 0 ? (double)h[(uint64_t)i * FIT_BLOCK + j] / mean : 0) + (i == j ? DAMPING : 0);
    // From the last row up: a[j][i] for i < j becomes U_ij, and what is above and left of j loses its share.
    memset(feedback, 0, n * sizeof *feedback);
    for (uint32_t j = n; j-- > 0;) {
        double d = a[j][j] > DAMPING * 0.01 ? a[j][j] : DAMPING * 0.01;
        importance[j] = (float)d;
        for (uint32_t i = 0; i < j; i++)
            feedback[j][i] = (float)(a[j][i] / d);
        for (uint32_t i = 0; i < j; i++) {
            double share = a[j][i] / d;
            for (uint32_t l = 0; l <= i; l++)
                a[i][l] -= share * a[j][l];
        }
    }
}
