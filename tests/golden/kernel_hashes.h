// What the kernels compute on the seeded inputs of tests/unit/test_kernels.c: XXH3 of the output's
// bytes. `test_kernels --print-hashes` writes this file. A hash changes only with a definition in
// docs/internals/numerics.md.
#pragma once

#include <stdint.h>

// clang-format off
static const struct {
    const char *name;
    uint64_t hash;
} KERNEL_HASHES[] = {
    {"matmul_f32", 0x76748bd141d18e2e},
    {"matmul_f16", 0x9db5bf2c9b4bf493},
    {"matmul_bf16", 0xe57a8e9c24802037},
    {"matmul_q4_0", 0x06bb6a7c4bfc8666},
    {"matmul_q4_1", 0x4e1e0064e61892a7},
    {"matmul_q5_0", 0x8f5e20d109fe0899},
    {"matmul_q5_1", 0xd9151e947eeb718b},
    {"matmul_q8_0", 0xc0f20b1e2104a817},
    {"matmul_q2_k", 0x6ace8a820f595de7},
    {"matmul_q3_k", 0xbd717037f8d2f8c2},
    {"matmul_q4_k", 0xb55de5e208335e57},
    {"matmul_q5_k", 0xe71c74c1f1678330},
    {"matmul_q6_k", 0x6f8ead0130c17cb4},
    {"matmul_iq4_nl", 0xebabad60aa724758},
    {"matmul_iq4_xs", 0x8c7ae8206025c2dc},
    {"matmul_w6", 0xffd01eff6994590c},
    {"embed_f32", 0x5f8999cae5280ab7},
    {"embed_f16", 0xe06509e7b4a10dab},
    {"embed_bf16", 0xa4f6f224e17b5a4c},
    {"embed_q4_0", 0x123c02e7e1de0411},
    {"embed_q4_1", 0xeb3218bc34a86d62},
    {"embed_q5_0", 0xf1f1ead86881dd78},
    {"embed_q5_1", 0x1b73f20a3c008efb},
    {"embed_q8_0", 0x498d206bd829ef34},
    {"embed_q2_k", 0xcf853faa8a625fe8},
    {"embed_q3_k", 0x225ab044c0cb2b7f},
    {"embed_q4_k", 0x600b6c73b5621183},
    {"embed_q5_k", 0x175b8a8c3d7a264d},
    {"embed_q6_k", 0xa2abbe0c2c44554f},
    {"embed_iq4_nl", 0x25cccfedd8352edf},
    {"embed_iq4_xs", 0x377163dbfbe9521d},
    {"embed_w6", 0x9527fb0a3eab8f88},
    {"rmsnorm", 0x42b30cf6282095e6},
    {"rmsnorm_tail", 0xf17bb59656ff78d4},
    {"quantize", 0x2a1ba07198af8b9c},
    {"quantize_tiny", 0x9072a0cb548bb8c9},
    {"add", 0x3463ad8f68aebe09},
    {"silu_mul", 0xbc637737ba879bee},
    {"gelu_mul", 0x3a426a71a927da6d},
    {"rope_16", 0xb2efd8364de33742},
    {"rope_64", 0xaae25ca701a96b6c},
    {"kv_store_f16", 0x8916fe9e01b24d6c},
    {"kv_store_q8", 0x703e9c19e9450c50},
    {"attention_f16", 0xc05db6fc5d9366b0},
    {"attention_q8", 0x3f905e33eac90aa1},
    {"attention_f16_window", 0x325007f29a7422ec},
    {"attention_q8_window", 0xe9343b584645a960},
    {"vocab", 0xc10810fa3bf833fe},
    {"exp", 0xd9d1048cb6f19ff1},
};
