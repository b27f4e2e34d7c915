#include "kernels/dtype.h"

#include "base/assert.h"
#include "base/num.h"

static const struct dtype_info DTYPES[DT_COUNT] = {
    [DT_F32] = {"f32", 0, 4, false, true},   [DT_F16] = {"f16", 0, 2, false, true},
    [DT_BF16] = {"bf16", 0, 2, false, true}, [DT_Q4_0] = {"q4_0", 4, 0, false, true},
    [DT_Q4_1] = {"q4_1", 4, 0, true, true},  [DT_Q5_0] = {"q5_0", 5, 0, false, true},
    [DT_Q5_1] = {"q5_1", 5, 0, true, true},  [DT_Q8_0] = {"q8_0", 8, 0, false, true},
    [DT_A8] = {"a8", 8, 0, false, false},
};

const struct dtype_info *dtype_info(uint32_t dtype)
{
    return dtype < DT_COUNT ? &DTYPES[dtype] : NULL;
}

bool dtype_is_grouped(enum dtype dtype)
{
    return DTYPES[dtype].is_weight && DTYPES[dtype].code_bits > 0;
}

struct panel_layout panel_layout(enum dtype dtype, uint64_t k)
{
    ASSERT(dtype < DT_COUNT && DTYPES[dtype].is_weight && k <= (uint64_t)1 << 32);
    const struct dtype_info *info = &DTYPES[dtype];
    struct panel_layout at = {0};
    if (info->float_bytes) {
        at.bytes = num_align(k * PANEL_LANES * info->float_bytes, PANEL_ALIGN);
        return at;
    }
    ASSERT(k % GROUP == 0);
    uint64_t groups = k / GROUP;
    at.high = groups * GROUP * PANEL_LANES * (info->code_bits == 8 ? 8 : 4) / 8;
    at.scales = at.high + (info->code_bits == 5 ? groups * GROUP * PANEL_LANES / 8 : 0);
    at.mins = at.scales + groups * PANEL_LANES * 2;
    at.bytes = num_align(at.mins + (info->has_min ? groups * PANEL_LANES * 2 : 0), PANEL_ALIGN);
    return at;
}
