#include "base/size.h"

#include "base/num.h"

size_t size_digits(struct strv text, uint64_t *ret)
{
    uint64_t value = 0;
    size_t n = 0;
    for (; n < text.len && text.ptr[n] >= '0' && text.ptr[n] <= '9'; n++)
        if (!num_mul(value, 10, &value) || !num_add(value, (uint64_t)(text.ptr[n] - '0'), &value))
            return 0;
    if (n > 0)
        *ret = value;
    return n;
}

bool size_parse_whole(struct strv text, uint64_t *ret)
{
    uint64_t value = 0;
    size_t n = size_digits(text, &value);
    if (n == 0 || n < text.len)
        return false;
    *ret = value;
    return true;
}

bool size_parse(struct strv text, uint64_t *ret)
{
    static const struct {
        const char *unit;
        uint64_t bytes;
    } UNITS[] = {{"", 1},    {"B", 1},     {"K", KIB},   {"KiB", KIB},    {"M", MIB},        {"MiB", MIB},
                 {"G", GIB}, {"GiB", GIB}, {"kB", 1000}, {"MB", 1000000}, {"GB", 1000000000}};
    uint64_t value = 0, bytes = 0;
    size_t n = size_digits(text, &value);
    struct strv unit = {text.ptr + n, text.len - n};
    for (size_t i = 0; n > 0 && i < ARRAY_LEN(UNITS); i++)
        if (strv_is(unit, UNITS[i].unit) && num_mul(value, UNITS[i].bytes, &bytes) && bytes > 0) {
            *ret = bytes;
            return true;
        }
    return false;
}
