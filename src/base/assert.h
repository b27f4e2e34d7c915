// Assertions. ASSERT stays on in release builds; ASSERT_HOT only in debug and fuzz builds (kernel entry).
// Neither is ever used on input from outside: that returns an error.
#pragma once

#include <assert.h>

// Prints where and what to standard error and aborts.
_Noreturn void iso_assert_failed(const char *expression, const char *file, int line);

#define ASSERT(x) ((x) ? (void)0 : iso_assert_failed(#x, __FILE__, __LINE__))

#ifdef ISO_DEBUG
#define ASSERT_HOT(x) ASSERT(x)
#else
#define ASSERT_HOT(x) ((void)sizeof(!(x)))
#endif
