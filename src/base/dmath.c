#include "base/dmath.h"

#include <stdint.h>
#include <string.h>

#include "base/assert.h"

// ln 2 and pi / 2 split into parts whose multiples by a small integer are exact.
#define LN2_HIGH  0x1.62e42fee00000p-1 // 32 leading bits
#define LN2_LOW   0x1.a39ef35793c76p-33
#define PI_2_HIGH 0x1.921fb54400000p+0 // 33 leading bits
#define PI_2_MID  0x1.0b4611a600000p-34
#define PI_2_LOW  0x1.3198a2e037073p-69
#define ROUND_ADD 0x1.8p52 // adding and subtracting rounds to an integer, nearest even

static uint64_t bits_of(double x)
{
    uint64_t u;
    memcpy(&u, &x, 8);
    return u;
}

static double from_bits(uint64_t u)
{
    double x;
    memcpy(&x, &u, 8);
    return x;
}

// x = m * 2^e with m in [sqrt(1/2), sqrt(2)); log m = 2 atanh(s), s = (m - 1) / (m + 1), by its series.
double dmath_log(double x)
{
    ASSERT(x > 0);
    uint64_t u = bits_of(x);
    int64_t e = (int64_t)(u >> 52) - 1023;
    double m = from_bits((u & 0xFFFFFFFFFFFFFull) | 0x3FF0000000000000ull);
    if (m > 0x1.6a09e667f3bcdp+0) {
        m = m * 0.5;
        e += 1;
    }
    double s = (m - 1.0) / (m + 1.0), s2 = s * s, sum = 0;
    for (int k = 23; k >= 3; k -= 2) // |s| <= 0.1716: the next term is below 2^-63 of the sum
        sum = (sum + 1.0 / (double)k) * s2;
    double n = (double)e;
    return n * LN2_HIGH + (2.0 * s + (2.0 * s * sum + n * LN2_LOW));
}

double dmath_exp(double x)
{
    ASSERT(x >= -700 && x <= 700);
    double n = (x * 0x1.71547652b82fep+0 + ROUND_ADD) - ROUND_ADD;
    double r = (x - n * LN2_HIGH) - n * LN2_LOW;
    double sum = 1.0; // Horner over r^k / k!, |r| <= 0.35: term 14 is below 2^-57
    for (int k = 14; k >= 1; k--)
        sum = 1.0 + sum * r / (double)k;
    return sum * from_bits((uint64_t)((int64_t)n + 1023) << 52);
}

void dmath_sincos(double x, double *ret_sin, double *ret_cos)
{
    ASSERT(x >= -4194304.0 && x <= 4194304.0);
    double n = (x * 0x1.45f306dc9c883p-1 + ROUND_ADD) - ROUND_ADD;
    double r = ((x - n * PI_2_HIGH) - n * PI_2_MID) - n * PI_2_LOW;
    double r2 = r * r, sine = 1.0, cosine = 1.0;
    for (int k = 10; k >= 1; k--) { // |r| <= 0.79: the next terms are below 2^-60
        sine = 1.0 - sine * r2 / (double)(2 * k * (2 * k + 1));
        cosine = 1.0 - cosine * r2 / (double)((2 * k - 1) * 2 * k);
    }
    sine = sine * r;
    switch ((uint64_t)(int64_t)n & 3) {
    case 0:
        *ret_sin = sine, *ret_cos = cosine;
        break;
    case 1:
        *ret_sin = cosine, *ret_cos = -sine;
        break;
    case 2:
        *ret_sin = -sine, *ret_cos = -cosine;
        break;
    default:
        *ret_sin = -cosine, *ret_cos = sine;
    }
}
