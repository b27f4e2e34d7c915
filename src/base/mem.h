// The seal: while a thread is sealed, any allocation of ours on it (arena, growing buffer) is a failed assertion.
//
// A unit's threads are sealed while they compute, so that a step that allocates is seen at once. The flag is the
// thread's own. Allocations of the C library are not seen here; the tests trap those.
#pragma once

#include <stdbool.h>

void mem_seal(void);
void mem_unseal(void);
bool mem_is_sealed(void);
