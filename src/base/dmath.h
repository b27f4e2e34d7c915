// Double functions with one definition on every machine: a fixed order of IEEE additions, multiplications and
// divisions, no fma, no libm (whose results differ with the CPU). For tables made at compile time and for
// single values off the hot path. Accurate to about 2e-15 relative (dmath_log, dmath_exp) or absolute (sine,
// cosine) in the stated ranges; tests compare with a reference.
#pragma once

// x > 0, finite and normal.
double dmath_log(double x);
// |x| <= 700.
double dmath_exp(double x);
// |x| <= 2^22: positions up to four million at one radian each.
void dmath_sincos(double x, double *ret_sin, double *ret_cos);
