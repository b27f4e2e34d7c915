// What the pre-tokenizers' expressions can tell about a character, as one byte: an ASCII character is itself,
// any other is one of the classes below. The expressions then run over these bytes, which makes them fast and
// keeps the version of Unicode in one place.
//
// The version is 16, as in the regular expression library of Hugging Face `tokenizers` 0.23; utf8proc's
// categories (15 in Debian 12) are completed by a table. With a utf8proc newer than 16, characters assigned
// after that would get their new class.
#pragma once

#include <stdint.h>

enum char_class {
    CHAR_LETTER = 0x80, // neither upper nor lower case: Lm, Lo
    CHAR_UPPER = 0x81,  // Lu, Lt
    CHAR_LOWER = 0x82,
    CHAR_LONG_S = 0x83, // U+017F, lower case, and equals s where case doesn't count
    CHAR_NUMBER = 0x84,
    CHAR_NUMBER_17 = 0x85, // a number only since Unicode 17
    CHAR_SPACE = 0x86,     // the property White_Space
    CHAR_MARK = 0x87,
    CHAR_OTHER = 0x88,
};

// The byte of a code point.
uint8_t char_class(uint32_t cp);
