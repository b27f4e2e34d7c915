#include "formats/ggml_types.h"

#include <string.h>

#include "base/assert.h"
#include "base/num.h"

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "GGUF values are read as they stand in the file");

static const struct ggml_type_info TYPES[GGML_TYPE_COUNT] = {
#define X(name, number, elements, bytes, supported) [number] = {#name, elements, bytes, supported},
    GGML_TYPE_LIST(X)
#undef X
};

const struct ggml_type_info *ggml_type_info(uint32_t number)
{
    return number < GGML_TYPE_COUNT ? &TYPES[number] : NULL;
}

#define F16_EXPONENT  0x7C00u
#define BF16_EXPONENT 0x7F80u // also the exponent of an f32 within its upper half

// A value is infinite or NaN where its exponent bits are all ones, and for all our types these bits lie
// within one 16-bit word. This says where the words of a block are that have to be looked at.
struct exponent_words {
    uint16_t mask;
    uint8_t first_byte;
    uint8_t count;
};

static struct exponent_words exponent_words(enum ggml_type type)
{
    switch (type) {
    case GGML_F32:
        return (struct exponent_words){BF16_EXPONENT, 2, 1};
    case GGML_BF16:
        return (struct exponent_words){BF16_EXPONENT, 0, 1};
    case GGML_F16:
    case GGML_Q4_0:
    case GGML_Q5_0:
    case GGML_Q8_0:
    case GGML_IQ4_NL:
    case GGML_IQ4_XS:
        return (struct exponent_words){F16_EXPONENT, 0, 1};
    case GGML_Q4_1:
    case GGML_Q5_1:
    case GGML_Q4_K:
    case GGML_Q5_K:
        return (struct exponent_words){F16_EXPONENT, 0, 2};
    case GGML_Q2_K:
        return (struct exponent_words){F16_EXPONENT, 80, 2};
    case GGML_Q3_K:
        return (struct exponent_words){F16_EXPONENT, 108, 1};
    case GGML_Q6_K:
        return (struct exponent_words){F16_EXPONENT, 208, 1};
    default:
        ASSERT(!"a supported type");
        return (struct exponent_words){0};
    }
}

enum iso_err ggml_check_values(enum ggml_type type, const void *blocks, uint64_t n_blocks,
                               uint64_t *ret_bad_block)
{
    struct exponent_words words = exponent_words(type);
    uint32_t block_bytes = TYPES[type].block_bytes;
    const uint8_t *word = (const uint8_t *)blocks + words.first_byte;
    for (uint64_t i = 0; i < n_blocks; i++, word += block_bytes) {
        for (uint32_t k = 0; k < words.count; k++) {
            uint16_t bits;
            memcpy(&bits, word + 2 * k, sizeof bits);
            if ((bits & words.mask) == words.mask) {
                *ret_bad_block = i;
                return ISO_E_NONFINITE;
            }
        }
    }
    return ISO_OK;
}
