// The checks of a plan: every condition refuses the fault it is there for and names it, and refuses nothing
// else.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "plan/arena_layout.h"
#include "plan/plan_check.h"
#include "plan_base.h"
#include "plan_faults.h"

static void base_is_right(void **state)
{
    (void)state;
    struct tiny_plan p = tiny_plan_copy(&base);
    struct plan plan;
    struct iso_errinfo e = {0};
    tiny_plan_rehash(&p);
    assert_memory_equal(p.bytes, base.bytes, base.n);
    if (plan_attach(p.bytes, p.n, &plan, &e))
        fail_msg("%s", e.text);
    assert_true(strv_is(plan.chat_template, "{{ messages[0]['content'] }}"));
    assert_ptr_equal(plan.weights, p.bytes + p.h->sections[PLAN_WEIGHTS].offset);
    tiny_plan_free(&p);
}

static void each_fault_is_named(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(FAULTS); i++) {
        struct tiny_plan p = tiny_plan_copy(&base);
        FAULTS[i].plant(&p);
        tiny_plan_rehash(&p);
        assert_refused(FAULTS[i].name, &p, ISO_E_FORMAT, FAULTS[i].field, FAULTS[i].says);
        tiny_plan_free(&p);
    }
}

// Columns beside each other in one value, and any columns of different values, are no overlap.
static void operands_side_by_side_are_fine(void **state)
{
    (void)state;
    for (int other = 0; other < 2; other++) {
        struct tiny_plan copy = tiny_plan_copy(&base), *p = &copy;
        struct plan plan;
        struct arena scratch;
        struct iso_errinfo e = {0};
        add_columns(p, 0, 32, 16);
        if (other)
            ADD->in[0] = (struct plan_ref){OUT_PROJ->out.tensor, 8, 16};
        assert_int_equal(arena_init(&scratch, PLAN_CHECK_SCRATCH_BYTES), ISO_OK);
        assert_int_equal(arena_layout(p->tensors, p->h->n_tensors, p->ops, p->h->n_ops, &p->h->limits,
                                      &scratch, &p->h->arena_bytes),
                         ISO_OK);
        arena_deinit(&scratch);
        tiny_plan_rehash(p);
        if (plan_attach(p->bytes, p->n, &plan, &e))
            fail_msg("%s", e.text);
        tiny_plan_free(p);
    }
}

static void huge_files_are_refused(void **state)
{
    (void)state;
    struct tiny_plan p = tiny_plan_copy(&base);
    struct iso_errinfo e = {0};
    p.h->file_bytes = PLAN_FILE_MAX + 1;
    tiny_plan_rehash(&p);
    assert_int_equal(plan_check_header(p.h, PLAN_FILE_MAX + 1, &e), ISO_E_FORMAT);
    assert_string_equal(e.field, "file_bytes");
    tiny_plan_free(&p);
}

static void little_scratch_is_told(void **state)
{
    (void)state;
    enum iso_err err = ISO_E_LIMIT;
    for (size_t cap = 16; err; cap += 16) {
        struct arena scratch;
        struct iso_errinfo e = {0};
        assert_int_equal(arena_init(&scratch, cap), ISO_OK);
        err = plan_check_program(base.h, base.tensors, base.ops, &scratch, &e);
        assert_true(err == ISO_OK || (err == ISO_E_LIMIT && strstr(e.text, "scratch")));
        assert_true(cap <= PLAN_CHECK_SCRATCH_BYTES);
        arena_deinit(&scratch);
    }
}

// With f32 weights input and output of a matmul could be the same value.
static void matmul_in_place_is_refused(void **state)
{
    (void)state;
    struct tiny_shape shape = TINY_LLAMA;
    static struct tiny_model m;
    shape.type = GGML_F32;
    tiny_init(&m, &shape);
    struct tiny_plan made = tiny_plan_make(&m, &(struct compile_options){0}), *p = &made;
    struct plan_op *out_proj = nth(p, PLAN_OP_MATMUL, 1);
    assert_int_equal(out_proj->in[0].cols, out_proj->out.cols);
    out_proj->out = out_proj->in[0];
    tiny_plan_rehash(p);
    assert_refused("matmul in place", p, ISO_E_FORMAT, "operations", "(matmul)");
    tiny_plan_free(p);
}

static void versions_are_told_apart(void **state)
{
    (void)state;
    struct tiny_plan p = tiny_plan_copy(&base);
    p.h->version++;
    tiny_plan_rehash(&p);
    assert_refused("version", &p, ISO_E_VERSION, "version", "compile the model again");
    p.h->version--;
    p.h->header_bytes += 8;
    tiny_plan_rehash(&p);
    assert_refused("header_bytes", &p, ISO_E_VERSION, "version", "compile the model again");
    tiny_plan_free(&p);
}

// What the plan's numbers can be at their most does not overflow where it is added up.
static void largest_sizes_do_not_overflow(void **state)
{
    (void)state;
    struct plan_header h = {
        .model = {.layers = PLAN_LAYERS_MAX,
                  .heads = PLAN_HEADS_MAX,
                  .kv_heads = PLAN_HEADS_MAX,
                  .head_dim = KV_HEAD_DIM_MAX},
        .limits = {.max_seq_len = PLAN_SEQ_MAX, .slots = PLAN_SLOTS_MAX, .kv_type = KV_F16}};
    struct kv_layout kv = plan_kv_layout(&h);
    assert_int_equal(kv_block_bytes(&kv), (uint64_t)2 * 1024 * 1024 * 16 * 256 * 2);
    assert_int_equal(plan_kv_blocks(&h.limits), (uint64_t)262144 * 1024);
    uint64_t total;
    assert_true(num_mul(plan_kv_blocks(&h.limits), kv_block_bytes(&kv), &total));
    assert_true(total <= INT64_MAX);
    const struct plan_tensor matrix = {
        .kind = PLAN_MATRIX, .dtype = DT_F32, .rows = PLAN_COLS_MAX, .cols = PLAN_COLS_MAX};
    assert_int_equal(plan_weight_bytes(&matrix, &h.limits), (uint64_t)PLAN_COLS_MAX * PLAN_COLS_MAX * 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(base_is_right),
        cmocka_unit_test(each_fault_is_named),
        cmocka_unit_test(operands_side_by_side_are_fine),
        cmocka_unit_test(huge_files_are_refused),
        cmocka_unit_test(little_scratch_is_told),
        cmocka_unit_test(matmul_in_place_is_refused),
        cmocka_unit_test(versions_are_told_apart),
        cmocka_unit_test(largest_sizes_do_not_overflow),
    };
    return cmocka_run_group_tests(tests, make_base, free_base);
}
