#include "text/char_class.h"

#include <stdbool.h>
#include <stddef.h>
#include <utf8proc.h>

#include "base/num.h"

struct range {
    uint32_t first, last;
    uint8_t class;
};

// Ascending. Letters, numbers and marks of Unicode 15.1 and 16, and the numbers of 17.
static const struct range NEW_RANGES[] = {
    {0x897, 0x897, CHAR_MARK},          {0x1C89, 0x1C89, CHAR_UPPER},       {0x1C8A, 0x1C8A, CHAR_LOWER},
    {0xA7CB, 0xA7CC, CHAR_UPPER},       {0xA7CD, 0xA7CD, CHAR_LOWER},       {0xA7DA, 0xA7DA, CHAR_UPPER},
    {0xA7DB, 0xA7DB, CHAR_LOWER},       {0xA7DC, 0xA7DC, CHAR_UPPER},       {0x105C0, 0x105F3, CHAR_LETTER},
    {0x10D40, 0x10D49, CHAR_NUMBER},    {0x10D4A, 0x10D4F, CHAR_LETTER},    {0x10D50, 0x10D65, CHAR_UPPER},
    {0x10D69, 0x10D6D, CHAR_MARK},      {0x10D6F, 0x10D6F, CHAR_LETTER},    {0x10D70, 0x10D85, CHAR_LOWER},
    {0x10EC2, 0x10EC4, CHAR_LETTER},    {0x10EFC, 0x10EFC, CHAR_MARK},      {0x11380, 0x11389, CHAR_LETTER},
    {0x1138B, 0x1138B, CHAR_LETTER},    {0x1138E, 0x1138E, CHAR_LETTER},    {0x11390, 0x113B5, CHAR_LETTER},
    {0x113B7, 0x113B7, CHAR_LETTER},    {0x113B8, 0x113C0, CHAR_MARK},      {0x113C2, 0x113C2, CHAR_MARK},
    {0x113C5, 0x113C5, CHAR_MARK},      {0x113C7, 0x113CA, CHAR_MARK},      {0x113CC, 0x113D0, CHAR_MARK},
    {0x113D1, 0x113D1, CHAR_LETTER},    {0x113D2, 0x113D2, CHAR_MARK},      {0x113D3, 0x113D3, CHAR_LETTER},
    {0x113E1, 0x113E2, CHAR_MARK},      {0x116D0, 0x116E3, CHAR_NUMBER},    {0x11BC0, 0x11BE0, CHAR_LETTER},
    {0x11BF0, 0x11BF9, CHAR_NUMBER},    {0x11DE0, 0x11DE9, CHAR_NUMBER_17}, {0x11F5A, 0x11F5A, CHAR_MARK},
    {0x13460, 0x143FA, CHAR_LETTER},    {0x16100, 0x1611D, CHAR_LETTER},    {0x1611E, 0x1612F, CHAR_MARK},
    {0x16130, 0x16139, CHAR_NUMBER},    {0x16D40, 0x16D6C, CHAR_LETTER},    {0x16D70, 0x16D79, CHAR_NUMBER},
    {0x16FF4, 0x16FF6, CHAR_NUMBER_17}, {0x18CFF, 0x18CFF, CHAR_LETTER},    {0x1CCF0, 0x1CCF9, CHAR_NUMBER},
    {0x1E5D0, 0x1E5ED, CHAR_LETTER},    {0x1E5EE, 0x1E5EF, CHAR_MARK},      {0x1E5F0, 0x1E5F0, CHAR_LETTER},
    {0x1E5F1, 0x1E5FA, CHAR_NUMBER},    {0x2EBF0, 0x2EE5D, CHAR_LETTER},
};

static bool is_space(uint32_t cp)
{
    return cp == 0x85 || cp == 0xA0 || cp == 0x1680 || (cp >= 0x2000 && cp <= 0x200A) || cp == 0x2028 ||
           cp == 0x2029 || cp == 0x202F || cp == 0x205F || cp == 0x3000;
}

static uint8_t new_class(uint32_t cp)
{
    size_t low = 0, high = ARRAY_LEN(NEW_RANGES);
    while (low < high) {
        size_t mid = (low + high) / 2;
        if (cp > NEW_RANGES[mid].last)
            low = mid + 1;
        else
            high = mid;
    }
    bool found = low < ARRAY_LEN(NEW_RANGES) && cp >= NEW_RANGES[low].first;
    return found ? NEW_RANGES[low].class : CHAR_OTHER;
}

uint8_t char_class(uint32_t cp)
{
    if (cp < 0x80)
        return (uint8_t)cp;
    if (cp == 0x17F)
        return CHAR_LONG_S;
    if (is_space(cp))
        return CHAR_SPACE;
    switch (utf8proc_category((utf8proc_int32_t)cp)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LT:
        return CHAR_UPPER;
    case UTF8PROC_CATEGORY_LL:
        return CHAR_LOWER;
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
        return CHAR_MARK;
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
        return CHAR_LETTER;
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_NO:
        return CHAR_NUMBER;
    case UTF8PROC_CATEGORY_CN:
        return new_class(cp);
    default:
        return CHAR_OTHER;
    }
}
