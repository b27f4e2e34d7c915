#include "kernels/kernels.h"

#include <string.h>

#include "base/assert.h"
#include "kernels/table.h"

#ifdef __x86_64__
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#define CPUID_7_EDX_AMX     (1u << 24 | 1u << 25) // AMX-TILE and AMX-INT8; compilers name them differently
#define ARCH_REQ_XCOMP_PERM 0x1023 // arch_prctl(2): use of a register set that is off by default
#define XFEATURE_TILE_DATA  18

// Clang 14's __builtin_cpu_supports does not know F16C.
static bool cpu_has_f16c(void)
{
    unsigned eax, ebx, ecx, edx;
    return __get_cpuid(1, &eax, &ebx, &ecx, &edx) && (ecx & bit_F16C);
}

static bool cpu_has_avx2(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && cpu_has_f16c();
}

// The library's flags include those of AVX2: a hypervisor may hide any of them.
static bool cpu_has_avx512(void)
{
    return cpu_has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vnni");
}

// The kernel must hold the tiles when it switches threads: it does where it grants them, to this process and
// all its threads. A sandbox may refuse.
static bool cpu_has_amx(void)
{
    unsigned eax, ebx, ecx, edx;
    return cpu_has_avx512() && __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) &&
           (edx & CPUID_7_EDX_AMX) == CPUID_7_EDX_AMX &&
           syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_TILE_DATA) == 0;
}
#elif defined(__aarch64__)
#include <sys/auxv.h>

static bool cpu_has_dot_products(void)
{
    return getauxval(AT_HWCAP) & HWCAP_ASIMDDP;
}
#endif

static const char *const ISA_NAMES[ISA_COUNT] = {
    [ISA_C] = "c", [ISA_AVX2] = "avx2", [ISA_AVX512] = "avx512", [ISA_AMX] = "amx", [ISA_NEON] = "neon"};

const struct kernels *kernels_get(enum isa isa)
{
    switch (isa) {
    case ISA_C:
        return &kernel_table_c;
#ifdef __x86_64__
    case ISA_AVX2:
        return cpu_has_avx2() ? &kernel_table_avx2 : NULL;
    case ISA_AVX512:
        return cpu_has_avx512() ? &kernel_table_avx512 : NULL;
    case ISA_AMX:
        return cpu_has_amx() ? &kernel_table_amx : NULL;
#elif defined(__aarch64__)
    case ISA_NEON:
        return cpu_has_dot_products() ? &kernel_table_neon : NULL;
#endif
    default:
        return NULL;
    }
}

const struct kernels *kernels_best(void)
{
    static const enum isa ORDER[] = {ISA_AMX, ISA_AVX512, ISA_AVX2, ISA_NEON};
    for (size_t i = 0; i < sizeof ORDER / sizeof ORDER[0]; i++)
        if (kernels_get(ORDER[i]))
            return kernels_get(ORDER[i]);
    return &kernel_table_c;
}

bool isa_from_name(const char *name, enum isa *ret)
{
    for (int i = 0; i < ISA_COUNT; i++) {
        if (strcmp(name, ISA_NAMES[i]) == 0) {
            *ret = (enum isa)i;
            return true;
        }
    }
    return false;
}

const char *isa_name(enum isa isa)
{
    ASSERT(isa < ISA_COUNT);
    return ISA_NAMES[isa];
}
