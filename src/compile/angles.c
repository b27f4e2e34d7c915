#include "compile/angles.h"

#include "base/dmath.h"

#define TWO_PI 6.283185307179586

// The pair that turns `rotations` times over the original context.
static double pair_of(const struct ir_rope *rope, uint32_t half, double rotations)
{
    return (double)half * dmath_log((double)rope->original / (rotations * TWO_PI)) / dmath_log(rope->base);
}

// Where no pair does (a base of 1), or one far outside, one just outside.
static double near_head(double pair, double last)
{
    return pair > last + 1.0 ? last + 1.0 : pair > -1.0 ? pair : -1.0;
}

// Limits of yarn's ramp: whole pairs, the lower rounded down, the higher up, both inside of the head.
static void ramp_limits(const struct ir_rope *rope, uint32_t half, double *ret_low, double *ret_high)
{
    double last = 2.0 * (double)half - 1.0;
    double low = near_head(pair_of(rope, half, rope->fast), last);
    double high = near_head(pair_of(rope, half, rope->slow), last);
    double whole = (double)(int64_t)low, up = (double)(int64_t)high;
    low = whole > low ? whole - 1.0 : whole;
    high = up < high ? up + 1.0 : up;
    *ret_low = low < 0 ? 0 : low;
    *ret_high = high > last ? last : high;
    if (*ret_high <= *ret_low)
        *ret_high = *ret_low + 0.001;
}

static double llama3_divisor(const struct ir_rope *rope, double frequency)
{
    double turns = (double)rope->original * frequency / TWO_PI; // over the original context
    if (turns > rope->high)
        return 1.0;
    if (turns < rope->low)
        return rope->factor;
    double s = (turns - rope->low) / (rope->high - rope->low);
    return (double)(float)(1.0 / ((1.0 - s) / rope->factor + s));
}

void angles_frequencies(const struct ir_rope *rope, uint32_t half, const float *divisors, double *ret)
{
    double log_base = dmath_log(rope->base), low = 0, high = 1;
    if (rope->scaling == IR_ROPE_YARN)
        ramp_limits(rope, half, &low, &high);
    for (uint32_t i = 0; i < half; i++) {
        double f = dmath_exp(-2.0 * (double)i / (double)(2 * half) * log_base);
        if (rope->scaling == IR_ROPE_LINEAR)
            f = f / rope->factor;
        if (rope->scaling == IR_ROPE_LLAMA3)
            f = f / llama3_divisor(rope, f);
        if (rope->scaling == IR_ROPE_YARN) {
            double r = ((double)i - low) / (high - low);
            r = r < 0 ? 0 : r > 1 ? 1 : r;
            f = f * (1.0 - r) + f / rope->factor * r;
        }
        ret[i] = divisors ? f / (double)divisors[i] : f;
    }
}
