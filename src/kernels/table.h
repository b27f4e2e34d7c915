// The tables that this build holds, one per ISA; kernels.c picks.
#pragma once

#include "kernels/kernels.h"

extern const struct kernels kernel_table_c;
extern const struct kernels kernel_table_avx2;
extern const struct kernels kernel_table_avx512;
extern const struct kernels kernel_table_amx;
extern const struct kernels kernel_table_neon;
