// Double functions with one definition on every machine: a fixed order of IEEE additions, multiplications and
// divisions, no fma, no libm (whose results differ with the CPU). For tables made at compile time and for
// single values off the hot path. In the stated ranges the error is below 5e-16, relative for dmath_log and
// dmath_exp, absolute for sine and cosine (for the sine of |x| < 1 relative too); a test holds this.
#pragma once

// x > 0, finite and normal.
double dmath_log(double x);
// |x| <= 700.
double dmath_exp(double x);
// exp(log(x) / 2); 0 for 0. Within a few units of the last place of the root.
static inline double dmath_sqrt(double x)
{
    return x > 0 ? dmath_exp(0.5 * dmath_log(x)) : 0;
}
// |x| <= 2^22: positions up to four million at one radian each.
void dmath_sincos(double x, double *ret_sin, double *ret_cos);
