#include "base/assert.h"

#include <stdio.h>
#include <stdlib.h>

void iso_assert_failed(const char *expression, const char *file, int line)
{
    fprintf(stderr, "%s:%d: assertion failed: %s\n", file, line, expression);
    abort();
}
