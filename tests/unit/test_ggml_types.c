// Tensor types: the table of block layouts, and the check for infinite and NaN scales.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/num.h"
#include "formats/ggml_types.h"

static void test_type_table(void **state)
{
    (void)state;
    // From ggml's block structs: f16 is 2 bytes; K-quants have 256 elements a block.
    static const struct {
        uint32_t number;
        const char *name;
        uint32_t elements, bytes;
        bool supported;
    } KNOWN[] = {
        {0, "F32", 1, 4, true},
        {1, "F16", 1, 2, true},
        {2, "Q4_0", 32, 2 + 16, true},
        {3, "Q4_1", 32, 2 + 2 + 16, true},
        {6, "Q5_0", 32, 2 + 4 + 16, true},
        {7, "Q5_1", 32, 2 + 2 + 4 + 16, true},
        {8, "Q8_0", 32, 2 + 32, true},
        {30, "BF16", 1, 2, true},
        {10, "Q2_K", 256, 16 + 64 + 2 + 2, true},
        {11, "Q3_K", 256, 32 + 64 + 12 + 2, true},
        {12, "Q4_K", 256, 2 + 2 + 12 + 128, true},
        {13, "Q5_K", 256, 2 + 2 + 12 + 32 + 128, true},
        {14, "Q6_K", 256, 128 + 64 + 16 + 2, true},
        {20, "IQ4_NL", 32, 2 + 16, true},
        {23, "IQ4_XS", 256, 2 + 2 + 4 + 128, true},
        {39, "MXFP4", 32, 1 + 16, false},
    };
    for (size_t i = 0; i < ARRAY_LEN(KNOWN); i++) {
        const struct ggml_type_info *info = ggml_type_info(KNOWN[i].number);
        assert_non_null(info);
        assert_string_equal(info->name, KNOWN[i].name);
        assert_int_equal(info->block_elements, KNOWN[i].elements);
        assert_int_equal(info->block_bytes, KNOWN[i].bytes);
        assert_int_equal(info->supported, KNOWN[i].supported);
    }
    // The text of messages and the table name the same types.
    char names[128] = "";
    for (uint32_t i = 0; i < GGML_TYPE_COUNT; i++) {
        const struct ggml_type_info *info = ggml_type_info(i);
        assert_non_null(info->name); // no gap in the numbers
        if (info->supported)
            snprintf(names + strlen(names), sizeof names - strlen(names), "%s%s", names[0] ? ", " : "",
                     info->name);
    }
    assert_string_equal(names, GGML_SUPPORTED_NAMES);
    assert_null(ggml_type_info(GGML_TYPE_COUNT));
    assert_null(ggml_type_info(UINT32_MAX));
}

// Every word of every block: an infinity or NaN in a value or scale is found at its block, the same bits in
// codes are none of its business, and the largest finite number passes.
static void test_check_values(void **state)
{
    (void)state;
    static const struct {
        enum ggml_type type;
        uint32_t float_bytes; // of the value, or of the scales
        uint16_t bad, largest;
        uint32_t float_at; // in the block
    } CASES[] = {
        {GGML_F32, 4, 0x7F80, 0x7F7F, 0},    {GGML_BF16, 2, 0xFFC0, 0xFF7F, 0},
        {GGML_F16, 2, 0x7C00, 0x7BFF, 0},    {GGML_Q4_0, 2, 0xFC00, 0xFBFF, 0},
        {GGML_Q4_1, 4, 0x7E00, 0x7BFF, 0},   {GGML_Q5_0, 2, 0x7C01, 0x7BFF, 0},
        {GGML_Q5_1, 4, 0xFC00, 0xFBFF, 0},   {GGML_Q8_0, 2, 0x7FFF, 0x7BFF, 0},
        {GGML_Q2_K, 4, 0x7C00, 0x7BFF, 80},  {GGML_Q3_K, 2, 0xFC00, 0xFBFF, 108},
        {GGML_Q4_K, 4, 0x7E00, 0x7BFF, 0},   {GGML_Q5_K, 4, 0xFC01, 0x7BFF, 0},
        {GGML_Q6_K, 2, 0x7C00, 0xFBFF, 208}, {GGML_IQ4_NL, 2, 0x7C00, 0x7BFF, 0},
        {GGML_IQ4_XS, 2, 0xFE00, 0x7BFF, 0},
    };
    enum { BLOCKS = 5 };
    for (size_t i = 0; i < ARRAY_LEN(CASES); i++) {
        enum ggml_type type = CASES[i].type;
        uint32_t block_bytes = ggml_type_info(type)->block_bytes;
        uint8_t *blocks = calloc(BLOCKS, block_bytes);
        assert_non_null(blocks);
        for (uint32_t at = 0; at < BLOCKS * block_bytes; at += 2) {
            uint32_t within = at % block_bytes;
            // A small float's exponent lies in its upper half.
            bool is_float = within >= CASES[i].float_at && within < CASES[i].float_at + CASES[i].float_bytes;
            bool is_exponent = is_float && (type != GGML_F32 || within == 2);
            uint64_t bad = 99;
            memcpy(blocks + at, &CASES[i].bad, 2);
            enum iso_err err = ggml_check_values(type, blocks, BLOCKS, &bad);
            assert_int_equal(err, is_exponent ? ISO_E_NONFINITE : ISO_OK);
            assert_int_equal(bad, is_exponent ? at / block_bytes : 99);
            memcpy(blocks + at, &CASES[i].largest, 2);
            assert_int_equal(ggml_check_values(type, blocks, BLOCKS, &bad), ISO_OK);
            memset(blocks + at, 0, 2);
        }
        assert_int_equal(ggml_check_values(type, blocks, 0, &(uint64_t){0}), ISO_OK);
        free(blocks);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_type_table),
        cmocka_unit_test(test_check_values),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
