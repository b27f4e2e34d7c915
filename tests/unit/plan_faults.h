// Faults for test_plan_check.c to plant in a plan, one for each condition of the checks. Include after
// plan_base.h.
#pragma once

#include <math.h>

// The n-th operation with this code, from 0.
static struct plan_op *nth(struct tiny_plan *p, uint32_t code, uint32_t n)
{
    for (uint32_t i = 0; i < p->h->n_ops; i++)
        if (p->ops[i].code == code && n-- == 0)
            return &p->ops[i];
    fail_msg("the plan has no such operation");
    return NULL;
}

static struct plan_op *op(struct tiny_plan *p, uint32_t code)
{
    return nth(p, code, 0);
}

// The first tensor of a kind.
static struct plan_tensor *tensor(struct tiny_plan *p, uint32_t kind)
{
    for (uint32_t i = 0; i < p->h->n_tensors; i++)
        if (p->tensors[i].kind == kind)
            return &p->tensors[i];
    fail_msg("the plan has no such tensor");
    return NULL;
}

static uint32_t id_of(struct tiny_plan *p, uint32_t kind)
{
    return (uint32_t)(tensor(p, kind) - p->tensors);
}

// The tensor of an operand.
static struct plan_tensor *of(struct tiny_plan *p, struct plan_ref ref)
{
    return &p->tensors[ref.tensor];
}

static struct plan_ref whole(struct tiny_plan *p, uint32_t id)
{
    return (struct plan_ref){.tensor = id, .cols = p->tensors[id].cols};
}

#define EMBED         op(p, PLAN_OP_EMBED)
#define NORM          op(p, PLAN_OP_RMSNORM)
#define CODES         op(p, PLAN_OP_QUANTIZE)
#define MATMUL        op(p, PLAN_OP_MATMUL)
#define ROPE          op(p, PLAN_OP_ROPE)
#define STORE         op(p, PLAN_OP_KV_STORE)
#define ATTEND        op(p, PLAN_OP_ATTENTION)
#define ADD           op(p, PLAN_OP_ADD)
#define SILU          op(p, PLAN_OP_SILU_MUL)
#define GATHER        op(p, PLAN_OP_GATHER)
#define OUT_PROJ      nth(p, PLAN_OP_MATMUL, 1)
#define LAYER2_MATMUL nth(p, PLAN_OP_MATMUL, 4)
#define WIDE_CODES    nth(p, PLAN_OP_QUANTIZE, 3)->out.tensor // ffn columns, of the first layer
#define LAST          (&p->ops[p->h->n_ops - 1])
#define MATRIX        tensor(p, PLAN_MATRIX)
#define VECTOR        tensor(p, PLAN_VECTOR)
#define ANGLES        tensor(p, PLAN_ANGLES)
#define VALUE         tensor(p, PLAN_BATCH)
#define SECTION(id)   p->h->sections[id]
#define WEIGHTS       SECTION(PLAN_WEIGHTS)

// clang-format off
//    name                     fault (checksums are made right afterwards)          field, part of the message
#define FAULT_LIST(X) \
    X(wrong_magic,             p->h->magic[7] = '\r',                               "magic", "no Isochron plan") \
    X(long_file,               p->h->file_bytes++,                                  "file_bytes", "says it has") \
    X(short_file,              p->h->file_bytes--,                                  "file_bytes", "says it has") \
    X(endless_arch,            memset(p->h->model.arch, 'a', PLAN_NAME_BYTES),      "architecture", "name") \
    X(control_in_arch,         p->h->model.arch[0] = '\x1b',                        "architecture", "name") \
    X(delete_in_arch,          p->h->model.arch[0] = '\x7f',                        "architecture", "name") \
    X(c1_control_in_name,      memcpy(p->h->model.name, "\xc2\x9b", 2),             "model", "name") \
    X(invalid_utf8_in_name,    p->h->model.name[0] = '\xff',                        "model", "name") \
    X(bytes_after_name,        p->h->model.name[PLAN_NAME_BYTES - 1] = 'x',         "model", "name") \
    X(no_vocab,                p->h->model.vocab = 0,                               "vocab", "is 0") \
    X(huge_vocab,              p->h->model.vocab = PLAN_VOCAB_MAX + 1,              "vocab", "is 1048577") \
    X(no_hidden,               p->h->model.hidden = 0,                              "hidden", "is 0") \
    X(huge_hidden,             p->h->model.hidden = PLAN_COLS_MAX + 1,              "hidden", "is 2097153") \
    X(no_layers,               p->h->model.layers = 0,                              "layers", "is 0") \
    X(huge_layers,             p->h->model.layers = PLAN_LAYERS_MAX + 1,            "layers", "is 1025") \
    X(no_heads,                p->h->model.heads = 0,                               "heads", "is 0") \
    X(huge_heads,              p->h->model.heads = PLAN_HEADS_MAX + 1,              "heads", "is 1025") \
    X(no_kv_heads,             p->h->model.kv_heads = 0,                            "kv_heads", "is 0") \
    X(more_kv_heads,           p->h->model.kv_heads = 8,                            "kv_heads", "is 8") \
    X(odd_kv_heads,            p->h->model.kv_heads = 3,                            "heads modulo kv_heads", "") \
    X(no_head_dim,             p->h->model.head_dim = 0,                            "head_dim", "is 0") \
    X(huge_head_dim,           p->h->model.head_dim = KV_HEAD_DIM_MAX + 16,         "head_dim", "is 272") \
    X(odd_head_dim,            p->h->model.head_dim = 24,                           "head_dim modulo 16", "") \
    X(no_ffn,                  p->h->model.ffn = 0,                                 "ffn", "is 0") \
    X(huge_ffn,                p->h->model.ffn = PLAN_COLS_MAX + 1,                 "ffn", "is 2097153") \
    X(no_context,              p->h->model.context = 1,                             "context", "is 1") \
    X(huge_context,            p->h->model.context = PLAN_SEQ_MAX + 1,              "context", "is 4194305") \
    X(short_seq,               p->h->limits.max_seq_len = 1,                        "max_seq_len", "is 1") \
    X(seq_over_context,        p->h->limits.max_seq_len = 65,                       "max_seq_len", "is 65") \
    X(no_slots,                p->h->limits.slots = 0,                              "slots", "is 0") \
    X(huge_slots,              p->h->limits.slots = PLAN_SLOTS_MAX + 1,             "slots", "is 1025") \
    X(no_batch,                p->h->limits.batch_tokens = 0,                       "batch_tokens", "is 0") \
    X(huge_batch,              p->h->limits.batch_tokens = PLAN_BATCH_TOKENS_MAX + 1, "batch_tokens", "is 8193") \
    X(more_slots_than_batch,   p->h->limits.slots = 9,                              "batch_tokens less slots", "") \
    X(unknown_quant,           p->h->limits.quant = QUANT_COUNT,                    "quant", "is 5") \
    X(unknown_quant_head,      p->h->limits.quant_head = QUANT_COUNT,               "quant_head", "is 5") \
    X(unknown_kv_type,         p->h->limits.kv_type = KV_TYPE_COUNT,                "kv_type", "is 2") \
    X(no_arena,                p->h->arena_bytes = 0,                               "arena_bytes", "is 0") \
    X(huge_arena,              p->h->arena_bytes = UINT64_MAX,                      "arena_bytes", "allowed is") \
    X(no_tensors,              p->h->n_tensors = 0,                                 "n_tensors", "is 0") \
    X(huge_tensors,            p->h->n_tensors = PLAN_TENSORS_MAX + 1,              "n_tensors", "is 65537") \
    X(no_ops,                  p->h->n_ops = 0,                                     "n_ops", "is 0") \
    X(huge_ops,                p->h->n_ops = PLAN_OPS_MAX + 1,                      "n_ops", "is 32769") \
    X(logits_past_tensors,     p->h->logits = p->h->n_tensors,                      "logits", "") \
    X(many_eog,                p->h->n_eog = PLAN_EOG_MAX + 1,                      "n_eog", "is 9") \
    X(eog_past_vocab,          p->h->eog[0] = p->h->model.vocab,                    "eog token", "is 64") \
    X(unaligned_section,       SECTION(PLAN_OPS).offset += 64,                      "sections", "section 1") \
    X(section_in_header,       SECTION(PLAN_TENSORS).offset = 0,                    "sections", "section 0") \
    X(section_in_another,      SECTION(PLAN_OPS).offset = SECTION(PLAN_TENSORS).offset, "sections", "section 1") \
    X(section_a_page_later,    SECTION(PLAN_TOKENIZER).offset += PLAN_ALIGN,        "sections", "section 2") \
    X(section_far_away,        WEIGHTS.offset = (uint64_t)1 << 63,                  "sections", "section 4") \
    X(section_past_end,        WEIGHTS.bytes++,                                     "sections", "section 4") \
    X(section_wraps,           WEIGHTS.bytes = UINT64_MAX - WEIGHTS.offset + 1,     "sections", "section 4") \
    X(section_wraps_to_end,    wrap_weights(p),                                       "sections", "section 4") \
    X(bytes_after_sections,    WEIGHTS.bytes--,                                     "sections", "sections end at") \
    X(fewer_tensors,           p->h->n_tensors--,                                   "sections", "size of their") \
    X(more_tensors,            p->h->n_tensors++,                                   "sections", "size of their") \
    X(fewer_ops,               p->h->n_ops--,                                       "sections", "size of their") \
    X(tensor_name,             MATRIX->name[0] = '\n',                              "tensor", "name") \
    X(tensor_kind,             MATRIX->kind = PLAN_KIND_COUNT,                      "tensors", "unknown kind") \
    X(tensor_type,             MATRIX->dtype = DT_COUNT,                            "tensors", "unknown kind") \
    X(no_cols,                 MATRIX->cols = 0,                                    "tensors", "impossible shape") \
    X(huge_cols,               VALUE->cols = PLAN_COLS_MAX + 1,                     "tensors", "impossible shape") \
    X(huge_rows,               MATRIX->rows = UINT32_MAX,                           "tensors", "impossible shape") \
    X(odd_grouped_cols,        MATRIX->cols = 48,                                   "tensors", "impossible shape") \
    X(no_whole_super_groups,   MATRIX->dtype = DT_Q4_K,                             "tensors", "impossible shape") \
    X(odd_a8_cols,             of(p, CODES->out)->cols = 48,                        "tensors", "impossible shape") \
    X(value_with_rows,         VALUE->rows = 1,                                     "tensors", "values do not have") \
    X(value_of_f16,            VALUE->dtype = DT_F16,                               "tensors", "values do not have") \
    X(value_of_q8_0,           VALUE->dtype = DT_Q8_0,                              "tensors", "values do not have") \
    X(matrix_without_rows,     MATRIX->rows = 0,                                    "tensors", "weights of its kind") \
    X(matrix_of_codes,         MATRIX->dtype = DT_A8,                               "tensors", "weights of its kind") \
    X(vector_with_rows,        VECTOR->rows = 1,                                    "tensors", "weights of its kind") \
    X(vector_of_f16,           VECTOR->dtype = DT_F16,                              "tensors", "weights of its kind") \
    X(angles_of_bf16,          ANGLES->dtype = DT_BF16,                             "tensors", "weights of its kind") \
    X(unaligned_weights,       VECTOR->offset += 4,                                 "tensors", "a place outside") \
    X(weights_past_end,        VECTOR->offset = WEIGHTS.bytes,                      "tensors", "a place outside") \
    X(weights_far_away,        VECTOR->offset = (uint64_t)0 - 64,                   "tensors", "a place outside") \
    X(more_weight_bytes,       MATRIX->bytes += 64,                                 "tensors", "a place outside") \
    X(larger_matrix,           MATRIX->rows += 16,                                  "tensors", "a place outside") \
    X(other_matrix_type,       MATRIX->dtype = DT_F32,                              "tensors", "a place outside") \
    X(longer_angles,           p->h->limits.max_seq_len = 64,                       "tensors", "a place outside") \
    X(unknown_code,            EMBED->code = PLAN_CODE_COUNT,                       "operations", "operation 0 of the plan (?)") \
    X(layer_past_layers,       EMBED->layer = 2,                                    "operations", "(embed)") \
    X(window_of_embed,         EMBED->window = 1,                                   "operations", "(embed)") \
    X(embed_scale_0,           EMBED->scale = 0,                                    "operations", "(embed)") \
    X(embed_scale_large,       EMBED->scale = 65537,                                "operations", "(embed)") \
    X(embed_scale_nan,         EMBED->scale = NAN,                                  "operations", "(embed)") \
    X(embed_of_vector,         EMBED->in[0] = whole(p, id_of(p, PLAN_VECTOR)),      "operations", "(embed)") \
    X(embed_of_no_tensor,      EMBED->in[0].tensor = p->h->n_tensors,               "operations", "(embed)") \
    X(embed_of_none,           EMBED->in[0].tensor = PLAN_NONE,                     "operations", "(embed)") \
    X(embed_other_matrix,      EMBED->in[0] = MATMUL->in[1],                        "operations", "(embed)") \
    X(embed_part_of_matrix,    EMBED->in[0].col = 32,                               "operations", "(embed)") \
    X(embed_small_vocab,       (p->h->model.vocab = 49, p->h->n_eog = 0),           "operations", "(embed)") \
    X(embed_narrow,            EMBED->out.cols = 32,                                "operations", "(embed)") \
    X(embed_wide,              EMBED->out = whole(p, SILU->in[0].tensor),             "operations", "(embed)") \
    X(embed_past_columns,      EMBED->out.col = 16,                                   "operations", "(embed)") \
    X(embed_to_logits,         EMBED->out = GATHER->out,                            "operations", "(embed)") \
    X(embed_to_weights,        EMBED->out = EMBED->in[0],                           "operations", "(embed)") \
    X(embed_to_none,           EMBED->out.tensor = PLAN_NONE,                       "operations", "(embed)") \
    X(embed_with_second,       EMBED->in[1] = EMBED->in[0],                         "operations", "(embed)") \
    X(embed_with_third,        EMBED->in[2] = EMBED->in[0],                         "operations", "(embed)") \
    X(norm_of_unwritten,       NORM->in[0] = ATTEND->out,                           "operations", "(rmsnorm)") \
    X(norm_past_columns,       NORM->in[0].col = 1,                                 "operations", "(rmsnorm)") \
    X(norm_far_past_columns,   NORM->in[0].col = UINT32_MAX - 31,                   "operations", "(rmsnorm)") \
    X(norm_of_no_columns,      (NORM->in[0].cols = 0, NORM->out.cols = 0),          "operations", "(rmsnorm)") \
    X(norm_narrow,             NORM->in[0].cols = 32,                               "operations", "(rmsnorm)") \
    X(norm_longer_gain,        NORM->in[1] = MATMUL->in[2],                         "operations", "(rmsnorm)") \
    X(norm_part_of_gain,       (NORM->in[1] = MATMUL->in[2], NORM->in[1].cols = 64),  "operations", "(rmsnorm)") \
    X(norm_gain_of_matrix,     NORM->in[1] = EMBED->in[0],                          "operations", "(rmsnorm)") \
    X(norm_in_place,           NORM->out = NORM->in[0],                             "operations", "operation 2 of the plan (quantize)") \
    X(norm_to_weights,         NORM->out = NORM->in[1],                             "operations", "(rmsnorm)") \
    X(norm_to_logits,          NORM->out = GATHER->out,                             "operations", "(rmsnorm)") \
    X(norm_to_past_columns,    NORM->out.col = 16,                                    "operations", "(rmsnorm)") \
    X(norm_with_third,         NORM->in[2] = NORM->in[1],                           "operations", "(rmsnorm)") \
    X(norm_epsilon_0,          NORM->scale = 0,                                     "operations", "(rmsnorm)") \
    X(norm_epsilon_1,          NORM->scale = 1,                                     "operations", "(rmsnorm)") \
    X(norm_epsilon_nan,        NORM->scale = NAN,                                   "operations", "(rmsnorm)") \
    X(norm_part_of_value,      of(p, NORM->out)->cols = 96,                         "operations", "(rmsnorm)") \
    X(codes_to_f32,            CODES->out = CODES->in[0],                           "operations", "(quantize)") \
    X(codes_of_codes,          CODES->in[0] = CODES->out,                           "operations", "(quantize)") \
    X(codes_narrow,            (CODES->in[0].cols = 32, CODES->out.cols = 32),      "operations", "(quantize)") \
    X(codes_of_fewer_columns,  CODES->in[0].cols = 32,                                "operations", "(quantize)") \
    X(codes_with_second,       CODES->in[1] = CODES->in[0],                         "operations", "(quantize)") \
    X(codes_with_third,        CODES->in[2] = CODES->in[0],                         "operations", "(quantize)") \
    X(matmul_of_f32,           MATMUL->in[0] = NORM->out,                           "operations", "(matmul)") \
    X(matmul_of_unwritten,     MATMUL->in[0] = nth(p, PLAN_OP_QUANTIZE, 1)->out,    "operations", "(matmul)") \
    X(matmul_of_none,          MATMUL->in[0].tensor = PLAN_NONE,                    "operations", "(matmul)") \
    X(matmul_with_vector,      MATMUL->in[1] = NORM->in[1],                         "operations", "(matmul)") \
    X(matmul_with_value,       MATMUL->in[1] = NORM->out,                           "operations", "(matmul)") \
    X(matmul_with_none,        MATMUL->in[1].tensor = PLAN_NONE,                      "operations", "(matmul)") \
    X(matmul_later_inputs,     MATMUL->in[1].col = 32,                                "operations", "(matmul)") \
    X(matmul_fewer_inputs,     MATMUL->in[1].cols = 32,                               "operations", "(matmul)") \
    X(matmul_of_part_of_codes, LAYER2_MATMUL->in[0] = ((struct plan_ref){WIDE_CODES, 0, 64}), "operations", "(matmul)") \
    X(matmul_of_codes_inside,  LAYER2_MATMUL->in[0] = ((struct plan_ref){WIDE_CODES, 32, 64}), "operations", "(matmul)") \
    X(matmul_other_k,          OUT_PROJ->in[1] = nth(p, PLAN_OP_MATMUL, 3)->in[1],    "operations", "(matmul)") \
    X(matmul_other_n,          MATMUL->in[1] = EMBED->in[0],                        "operations", "(matmul)") \
    X(matmul_more_outputs,     OUT_PROJ->in[1] = MATMUL->in[1],                       "operations", "(matmul)") \
    X(matmul_narrow,           MATMUL->out.cols -= 16,                              "operations", "(matmul)") \
    X(matmul_past_columns,     MATMUL->out.col = 16,                                  "operations", "(matmul)") \
    X(matmul_to_codes,         MATMUL->out = MATMUL->in[0],                         "operations", "(matmul)") \
    X(matmul_to_none,          MATMUL->out.tensor = PLAN_NONE,                      "operations", "(matmul)") \
    X(matmul_short_bias,       MATMUL->in[2] = NORM->in[1],                         "operations", "(matmul)") \
    X(matmul_bias_of_matrix,   OUT_PROJ->in[2] = EMBED->in[0],                        "operations", "(matmul)") \
    X(matmul_bias_of_value,    OUT_PROJ->in[2] = NORM->out,                           "operations", "(matmul)") \
    X(matmul_to_batch,         LAST->out = NORM->out,                               "operations", "(matmul)") \
    X(rope_elsewhere,          ROPE->out.col = 16,                                  "operations", "(rope)") \
    X(rope_to_another,         ROPE->out.tensor = NORM->out.tensor,                 "operations", "(rope)") \
    X(rope_of_unwritten,       ROPE->in[0] = ROPE->out = ATTEND->out,                 "operations", "(rope)") \
    X(rope_by_vector,          ROPE->in[1] = NORM->in[1],                           "operations", "(rope)") \
    X(rope_by_none,            ROPE->in[1].tensor = PLAN_NONE,                      "operations", "(rope)") \
    X(rope_with_third,         ROPE->in[2] = ROPE->in[1],                           "operations", "(rope)") \
    X(rope_half_a_head,        (ROPE->in[0].cols = 8, ROPE->out.cols = 8),          "operations", "(rope)") \
    X(rope_other_head_dim,     p->h->model.head_dim = 32,                           "operations", "(rope)") \
    X(store_other_kv_heads,    p->h->model.kv_heads = 1,                            "operations", "(kv_store)") \
    X(store_short_k,           STORE->in[0].cols = 16,                              "operations", "(kv_store)") \
    X(store_short_v,           STORE->in[1].cols = 16,                              "operations", "(kv_store)") \
    X(store_k_past_columns,    STORE->in[0].col += 128,                             "operations", "(kv_store)") \
    X(store_unwritten,         STORE->in[1].tensor = ATTEND->out.tensor,            "operations", "(kv_store)") \
    X(store_weights,           STORE->in[0].tensor = id_of(p, PLAN_VECTOR),         "operations", "(kv_store)") \
    X(store_to_value,          STORE->out = NORM->out,                              "operations", "(kv_store)") \
    X(store_with_third,        STORE->in[2] = STORE->in[1],                         "operations", "(kv_store)") \
    X(store_twice,             nth(p, PLAN_OP_KV_STORE, 1)->layer = 0,              "operations", "(kv_store)") \
    X(attention_of_unstored,   STORE->layer = 1,                                    "operations", "(attention)") \
    X(attention_other_layer,   ATTEND->layer = 1,                                   "operations", "(attention)") \
    X(attention_short_q,       ATTEND->in[0].cols = 32,                             "operations", "(attention)") \
    X(attention_short_out,     ATTEND->out.cols = 32,                               "operations", "(attention)") \
    X(attention_wide_out,      ATTEND->out = whole(p, SILU->in[0].tensor),            "operations", "(attention)") \
    X(attention_of_unwritten,  ATTEND->in[0] = OUT_PROJ->out,                         "operations", "(attention)") \
    X(attention_in_place,      ATTEND->out = ATTEND->in[0],                         "operations", "(attention)") \
    X(attention_to_logits,     ATTEND->out = GATHER->out,                           "operations", "(attention)") \
    X(attention_more_heads,    p->h->model.heads = 8,                               "operations", "(attention)") \
    X(attention_with_second,   ATTEND->in[1] = ATTEND->in[0],                       "operations", "(attention)") \
    X(attention_with_third,    ATTEND->in[2] = ATTEND->in[0],                         "operations", "(attention)") \
    X(attention_scale_0,       ATTEND->scale = 0,                                   "operations", "(attention)") \
    X(attention_scale_2,       ATTEND->scale = 2,                                   "operations", "(attention)") \
    X(attention_scale_nan,     ATTEND->scale = NAN,                                 "operations", "(attention)") \
    X(add_narrow,              ADD->in[1].cols = 32,                                "operations", "(add)") \
    X(add_of_unwritten,        ADD->in[1] = SILU->out,                              "operations", "(add)") \
    X(add_of_vector,           ADD->in[1] = NORM->in[1],                            "operations", "(add)") \
    X(add_with_third,          ADD->in[2] = ADD->in[1],                             "operations", "(add)") \
    X(add_to_logits,           ADD->out = GATHER->out,                              "operations", "(add)") \
    X(add_no_columns,          ADD->in[0].cols = ADD->in[1].cols = ADD->out.cols = 0, "operations", "(add)") \
    X(add_overlaps_first,      add_columns(p, 8, 64, 16),                             "operations", "(add)") \
    X(add_overlaps_second,     add_columns(p, 64, 24, 16),                            "operations", "(add)") \
    X(silu_overlaps_gate,      SILU->out = ((struct plan_ref){SILU->in[0].tensor, 48, 96}), "operations", "(silu_mul)") \
    X(silu_of_none,            SILU->in[1].tensor = PLAN_NONE,                      "operations", "(silu_mul)") \
    X(silu_narrow,             SILU->in[0].cols = 32,                                 "operations", "(silu_mul)") \
    X(silu_past_columns,       SILU->out.col = 16,                                    "operations", "(silu_mul)") \
    X(gather_of_logits,        GATHER->in[0] = GATHER->out,                         "operations", "(gather)") \
    X(gather_narrow,           GATHER->in[0].cols = 32,                             "operations", "(gather)") \
    X(gather_to_batch,         GATHER->out = NORM->out,                             "operations", "(gather)") \
    X(gather_with_second,      GATHER->in[1] = GATHER->in[0],                       "operations", "(gather)") \
    X(gather_with_third,       GATHER->in[2] = GATHER->in[0],                         "operations", "(gather)") \
    X(batch_value_of_nobody,   forget_bias(p, PLAN_BATCH),                            "tensors", "no operation that computes it") \
    X(logits_value_of_nobody,  forget_bias(p, PLAN_LOGITS),                           "tensors", "no operation that computes it") \
    X(logits_of_batch,         p->h->logits = EMBED->out.tensor,                    "tensors", "not the shape of logits") \
    X(logits_not_last,         p->h->logits = GATHER->out.tensor,                   "tensors", "not the shape of logits") \
    X(logits_of_all_rows,      make_logits_of_batch(p),                               "tensors", "not the shape of logits") \
    X(logits_as_codes,         make_logits_codes(p),                                  "tensors", "not the shape of logits") \
    X(logits_of_other_width,   make_logits_wide(p),                                   "tensors", "not the shape of logits") \
    X(larger_arena,            p->h->arena_bytes += 64,                             "arena_bytes", "values need") \
    X(smaller_arena,           p->h->arena_bytes -= 64,                             "arena_bytes", "values need") \
    X(value_moved,             of(p, NORM->out)->offset += 64,                      "tensors", "another place in the arena") \
    X(value_over_another,      of(p, NORM->out)->offset = 0,                        "tensors", "another place in the arena") \
    X(value_far_away,          of(p, NORM->out)->offset = (uint64_t)1 << 60,        "tensors", "another place in the arena") \
    X(value_larger,            of(p, NORM->out)->bytes += 64,                       "tensors", "another place in the arena")
// clang-format on

// The weights "begin" after the end of the file and have so many bytes that they end with it.
static void wrap_weights(struct tiny_plan *p)
{
    const struct plan_section *before = &SECTION(PLAN_TEMPLATE);
    p->h->file_bytes = p->n = before->offset + before->bytes;
    WEIGHTS.offset = num_align(p->n, PLAN_ALIGN);
    WEIGHTS.bytes = p->n - WEIGHTS.offset;
}

// An add of 16 columns each of the value that holds Q, K and V.
static void add_columns(struct tiny_plan *p, uint32_t first, uint32_t second, uint32_t out)
{
    struct plan_op *add = ADD;
    uint32_t qkv = MATMUL->out.tensor;
    add->in[0] = (struct plan_ref){qkv, first, 16};
    add->in[1] = (struct plan_ref){qkv, second, 16};
    add->out = (struct plan_ref){qkv, out, 16};
}

// A bias that its matmul no longer reads becomes a value that nothing writes.
static void forget_bias(struct tiny_plan *p, uint32_t kind)
{
    struct plan_tensor *t = of(p, MATMUL->in[2]);
    MATMUL->in[2].tensor = PLAN_NONE;
    t->kind = kind;
}

// Instead of gathering, all rows are added to themselves.
static void make_logits_of_batch(struct tiny_plan *p)
{
    struct plan_op *gather = GATHER;
    for (uint32_t i = 0; i < p->h->n_tensors; i++)
        if (p->tensors[i].kind == PLAN_LOGITS)
            p->tensors[i].kind = PLAN_BATCH;
    gather->code = PLAN_OP_ADD;
    gather->in[1] = gather->in[0];
}

static void make_logits_codes(struct tiny_plan *p)
{
    LAST->code = PLAN_OP_QUANTIZE;
    LAST->in[0] = GATHER->out;
    LAST->in[1].tensor = PLAN_NONE;
    of(p, LAST->out)->dtype = DT_A8;
}

static void make_logits_wide(struct tiny_plan *p)
{
    LAST->in[1] = MATMUL->in[1];
    LAST->out.cols = of(p, LAST->out)->cols = of(p, MATMUL->in[1])->rows;
}

#define X(name, fault, field, says)               \
    static void plant_##name(struct tiny_plan *p) \
    {                                             \
        (void)(fault);                            \
    }
FAULT_LIST(X)
#undef X

static const struct {
    const char *name;
    void (*plant)(struct tiny_plan *p);
    const char *field, *says;
} FAULTS[] = {
#define X(name, fault, field, says) {#name, plant_##name, field, says},
    FAULT_LIST(X)
#undef X
};
