#include "base/mem.h"

static _Thread_local bool sealed;

void mem_seal(void)
{
    sealed = true;
}

void mem_unseal(void)
{
    sealed = false;
}

bool mem_is_sealed(void)
{
    return sealed;
}
