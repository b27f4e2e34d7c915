// The const table of the ISA being compiled.
#include "kernels/vec.h"
#include "kernels/kernels_isa.h"
#include "kernels/table.h"

#define STRING2(x) #x
#define STRING(x)  STRING2(x)

const struct kernels KERNEL(kernel_table) = {
    .name = STRING(KERNEL_ISA),
    .matmul =
        {
            [DT_F32] = KERNEL(matmul_f32),
            [DT_F16] = KERNEL(matmul_f16),
            [DT_BF16] = KERNEL(matmul_bf16),
            [DT_Q4_0] = KERNEL(matmul_q4_0),
            [DT_Q4_1] = KERNEL(matmul_q4_1),
            [DT_Q5_0] = KERNEL(matmul_q5_0),
            [DT_Q5_1] = KERNEL(matmul_q5_1),
            [DT_Q8_0] = KERNEL(matmul_q8_0),
            [DT_Q2_K] = KERNEL(matmul_q2_k),
            [DT_Q3_K] = KERNEL(matmul_q3_k),
            [DT_Q4_K] = KERNEL(matmul_q4_k),
            [DT_Q5_K] = KERNEL(matmul_q5_k),
            [DT_Q6_K] = KERNEL(matmul_q6_k),
            [DT_IQ4_NL] = KERNEL(matmul_iq4_nl),
            [DT_IQ4_XS] = KERNEL(matmul_iq4_xs),
            [DT_W6] = KERNEL(matmul_w6),
        },
    .rmsnorm = KERNEL(rmsnorm),
    .quantize = KERNEL(quantize),
    .add = KERNEL(add),
    .silu_mul = KERNEL(silu_mul),
    .gelu_mul = KERNEL(gelu_mul),
    .rope = KERNEL(rope),
    .kv_store = KERNEL(kv_store),
    .attention = KERNEL(attention),
    .embed = KERNEL(embed),
    .fit = KERNEL(fit),
    .products = KERNEL(products),
    .vocab_max = KERNEL(vocab_max),
    .vocab_sum_exp = KERNEL(vocab_sum_exp),
    .exp_shifted = KERNEL(exp_shifted),
};
