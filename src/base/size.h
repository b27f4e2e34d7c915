// Whole numbers and sizes in bytes as people write them: digits only, no sign, space or base prefix; leading zeros count for
// nothing. Pure functions.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/strv.h"

// How many digits the text begins with, and their number in *ret. 0 where there is none or it passes 64 bits (*ret untouched).
size_t size_digits(struct strv text, uint64_t *ret);
// True where all of the text is such a number.
bool size_parse_whole(struct strv text, uint64_t *ret);
// A number with an optional unit, and above 0: 512MiB, 8GiB, 8G, 1000000. K, M and G are KiB, MiB and GiB.
bool size_parse(struct strv text, uint64_t *ret);
