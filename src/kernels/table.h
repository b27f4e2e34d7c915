// The tables that this build holds, one per ISA; select.c picks.
#pragma once

#include "kernels/kernels.h"

extern const struct kernels kernel_table_c;
extern const struct kernels kernel_table_avx2;
extern const struct kernels kernel_table_avx512;
