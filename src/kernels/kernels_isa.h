// Prototypes of the kernels of the ISA being compiled (KERNEL_ISA); kernels.h says what each does.
#pragma once

#include "kernels/kernels.h"
#include "kernels/vec.h"

void KERNEL(matmul_f32)(const struct matmul_args *a, uint32_t panel_begin, uint32_t panel_end);
void KERNEL(matmul_f16)(const struct matmul_args *a, uint32_t panel_begin, uint32_t panel_end);
void KERNEL(matmul_bf16)(const struct matmul_args *a, uint32_t panel_begin, uint32_t panel_end);
void KERNEL(matmul_q4_0)(const struct matmul_args *a, uint32_t panel_begin, uint32_t panel_end);
void KERNEL(matmul_q4_1)(const struct matmul_args *a, uint32_t panel_begin, uint32_t panel_end);
void KERNEL(matmul_q5_0)(const struct matmul_args *a, uint32_t panel_begin, uint32_t panel_end);
void KERNEL(matmul_q5_1)(const struct matmul_args *a, uint32_t panel_begin, uint32_t panel_end);
void KERNEL(matmul_q8_0)(const struct matmul_args *a, uint32_t panel_begin, uint32_t panel_end);
void KERNEL(matmul_q2_k)(const struct matmul_args *a, uint32_t panel_begin, uint32_t panel_end);
void KERNEL(matmul_q3_k)(const struct matmul_args *a, uint32_t panel_begin, uint32_t panel_end);
void KERNEL(matmul_q4_k)(const struct matmul_args *a, uint32_t panel_begin, uint32_t panel_end);
void KERNEL(matmul_q5_k)(const struct matmul_args *a, uint32_t panel_begin, uint32_t panel_end);
void KERNEL(matmul_q6_k)(const struct matmul_args *a, uint32_t panel_begin, uint32_t panel_end);
void KERNEL(matmul_iq4_nl)(const struct matmul_args *a, uint32_t panel_begin, uint32_t panel_end);
void KERNEL(matmul_iq4_xs)(const struct matmul_args *a, uint32_t panel_begin, uint32_t panel_end);
void KERNEL(matmul_w6)(const struct matmul_args *a, uint32_t panel_begin, uint32_t panel_end);
void KERNEL(rmsnorm)(const struct norm_args *a, uint32_t row_begin, uint32_t row_end);
void KERNEL(quantize)(const struct quantize_args *a, uint32_t row_begin, uint32_t row_end);
void KERNEL(add)(const struct rows_args *a, uint32_t row_begin, uint32_t row_end);
void KERNEL(silu_mul)(const struct rows_args *a, uint32_t row_begin, uint32_t row_end);
void KERNEL(gelu_mul)(const struct rows_args *a, uint32_t row_begin, uint32_t row_end);
void KERNEL(rope)(const struct rope_args *a, uint32_t row_begin, uint32_t row_end);
void KERNEL(kv_store)(const struct kv_store_args *a, uint32_t row_begin, uint32_t row_end);
void KERNEL(attention)(const struct attention_args *a, uint32_t item_begin, uint32_t item_end);
void KERNEL(embed)(const struct embed_args *a, uint32_t row_begin, uint32_t row_end);
void KERNEL(fit)(const struct fit_args *a, uint32_t block_begin, uint32_t block_end);
void KERNEL(products)(const struct products_args *a, uint32_t k_begin, uint32_t k_end);
bool KERNEL(vocab_max)(const float *x, uint32_t n, float *ret_max);
float KERNEL(vocab_sum_exp)(const float *x, uint32_t n, float max);
void KERNEL(exp_shifted)(const float *x, uint32_t n, float max, float *y);
