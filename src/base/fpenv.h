// Floating-point environment that every result is computed in: round to nearest even, denormals kept, all
// exceptions masked (numerics.md, "Environment"). A host program or a library built with fast-math may have
// set flush-to-zero; every thread of ours and every public entry point therefore enters and leaves.
#pragma once

#include <stdint.h>

struct fpenv {
    uint64_t saved;
};

#if defined(__x86_64__)
#include <xmmintrin.h>

static inline struct fpenv fpenv_enter(void)
{
    struct fpenv env = {_mm_getcsr()};
    _mm_setcsr(0x1F80);
    return env;
}

static inline void fpenv_leave(struct fpenv env)
{
    _mm_setcsr((uint32_t)env.saved);
}
#elif defined(__aarch64__)
static inline struct fpenv fpenv_enter(void)
{
    struct fpenv env;
    uint64_t zero = 0;
    __asm__ volatile("mrs %0, fpcr" : "=r"(env.saved) : : "memory");
    __asm__ volatile("msr fpcr, %0" : : "r"(zero) : "memory");
    return env;
}

static inline void fpenv_leave(struct fpenv env)
{
    __asm__ volatile("msr fpcr, %0" : : "r"(env.saved) : "memory");
}
#else
#error "the floating-point environment of this architecture is not known"
#endif
