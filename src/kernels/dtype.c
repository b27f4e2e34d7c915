#include "kernels/dtype.h"

#include "base/assert.h"
#include "base/num.h"

// clang-format off
static const struct dtype_info DTYPES[DT_COUNT] = {
    //            name     code bits, float bytes, min, subs, weight
    [DT_F32] =    {"f32",    0, 4, false, 0, true},
    [DT_F16] =    {"f16",    0, 2, false, 0, true},
    [DT_BF16] =   {"bf16",   0, 2, false, 0, true},
    [DT_Q4_0] =   {"q4_0",   4, 0, false, 0, true},
    [DT_Q4_1] =   {"q4_1",   4, 0, true,  0, true},
    [DT_Q5_0] =   {"q5_0",   5, 0, false, 0, true},
    [DT_Q5_1] =   {"q5_1",   5, 0, true,  0, true},
    [DT_Q8_0] =   {"q8_0",   8, 0, false, 0, true},
    [DT_Q2_K] =   {"q2_k",   2, 0, true,  2, true},
    [DT_Q3_K] =   {"q3_k",   3, 0, false, 2, true},
    [DT_Q4_K] =   {"q4_k",   4, 0, true,  1, true},
    [DT_Q5_K] =   {"q5_k",   5, 0, true,  1, true},
    [DT_Q6_K] =   {"q6_k",   6, 0, false, 2, true},
    [DT_IQ4_NL] = {"iq4_nl", 4, 0, false, 0, true},
    [DT_IQ4_XS] = {"iq4_xs", 4, 0, false, 1, true},
    [DT_W6] =     {"w6",     6, 0, false, 0, true},
    [DT_A8] =     {"a8",     8, 0, false, 0, false},
};
// clang-format on

const struct dtype_info *dtype_info(uint32_t dtype)
{
    return dtype < DT_COUNT ? &DTYPES[dtype] : NULL;
}

bool dtype_is_grouped(enum dtype dtype)
{
    return DTYPES[dtype].is_weight && DTYPES[dtype].code_bits > 0;
}

uint32_t dtype_inputs(enum dtype dtype)
{
    const struct dtype_info *info = &DTYPES[dtype];
    return info->float_bytes ? 1 : info->subs ? GROUP * SUPER_GROUPS : GROUP;
}

// Bits of a code that lie in the packed vectors; the others are in the high plane.
static uint64_t packed_bits(const struct dtype_info *info)
{
    return info->code_bits == 8 ? 8 : info->code_bits >= 4 ? 4 : 2;
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
    ASSERT(k % dtype_inputs(dtype) == 0);
    uint64_t groups = k / GROUP, bit_bytes = groups * GROUP * PANEL_LANES / 8, packed = packed_bits(info);
    uint64_t sub_bytes = groups * info->subs * PANEL_LANES;
    uint64_t scale_bytes = (info->subs ? groups / SUPER_GROUPS : groups) * PANEL_LANES * 2;
    at.high = bit_bytes * packed;
    at.subs = bit_bytes * info->code_bits;
    at.min_subs = at.subs + sub_bytes;
    at.scales = at.min_subs + (info->has_min ? sub_bytes : 0);
    at.mins = at.scales + scale_bytes;
    at.bytes = num_align(at.mins + (info->has_min ? scale_bytes : 0), PANEL_ALIGN);
    return at;
}
