// The arena's layout over random programs: nothing alive overlaps.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include "plan/arena_layout.h"
#include "plan/plan_check.h"
#include "tiny_model.h"

#define SEED        20240611u
#define PROGRAMS    300
#define PROGRAM_OPS 60

// Any program: each operation writes a new value or one before, and reads some before; kinds and types vary.
struct random_program {
    struct plan_tensor tensors[PROGRAM_OPS];
    struct plan_op ops[PROGRAM_OPS];
    uint32_t n_tensors, n_ops;
    struct plan_limits limits;
};

static void make_program(struct random_program *p, uint64_t *random)
{
    memset(p, 0, sizeof *p);
    p->n_ops = 1 + (uint32_t)(tiny_random(random) % PROGRAM_OPS);
    p->limits.slots = 1 + (uint32_t)(tiny_random(random) % 8);
    p->limits.batch_tokens = p->limits.slots + (uint32_t)(tiny_random(random) % 100);
    for (uint32_t i = 0; i < p->n_ops; i++) {
        struct plan_op *o = &p->ops[i];
        for (int j = 0; j < PLAN_IN_MAX; j++) {
            bool none = p->n_tensors == 0 || tiny_random(random) % 3 == 0;
            uint64_t back = tiny_random(random) % (tiny_random(random) % 4 ? 4 : PROGRAM_OPS);
            o->in[j].tensor = none ? PLAN_NONE : back >= p->n_tensors ? 0 : p->n_tensors - 1 - (uint32_t)back;
        }
        uint64_t what = tiny_random(random) % 8;
        if (p->n_tensors > 0 && what == 0) {
            o->out.tensor = PLAN_NONE;
        } else if (p->n_tensors > 0 && what == 1) {
            o->out.tensor = (uint32_t)(tiny_random(random) % p->n_tensors);
        } else {
            bool codes = tiny_random(random) % 4 == 0;
            p->tensors[p->n_tensors] = (struct plan_tensor){
                .kind = tiny_random(random) % 4 ? PLAN_BATCH : PLAN_LOGITS,
                .dtype = codes ? DT_A8 : DT_F32,
                .cols = (1 + (uint32_t)(tiny_random(random) % 200)) * (codes ? GROUP : 1)};
            o->out.tensor = p->n_tensors++;
        }
    }
}

static void layout_overlaps_nothing_alive(void **state)
{
    (void)state;
    static struct random_program p;
    struct arena scratch;
    assert_int_equal(arena_init(&scratch, PLAN_CHECK_SCRATCH_BYTES), ISO_OK);
    uint64_t random = SEED, saved = 0, naive = 0;
    for (int run = 0; run < PROGRAMS; run++) {
        uint64_t end = 0, sum = 0;
        uint32_t first[PROGRAM_OPS], last[PROGRAM_OPS] = {0};
        make_program(&p, &random);
        arena_reset(&scratch);
        assert_int_equal(arena_layout(p.tensors, p.n_tensors, p.ops, p.n_ops, &p.limits, &scratch, &end),
                         ISO_OK);
        memset(first, 0xFF, sizeof first);
        for (uint32_t i = 0; i < p.n_ops; i++) {
            for (int j = 0; j <= PLAN_IN_MAX; j++) {
                uint32_t t = j < PLAN_IN_MAX ? p.ops[i].in[j].tensor : p.ops[i].out.tensor;
                if (t == PLAN_NONE)
                    continue;
                first[t] = first[t] > i ? i : first[t];
                last[t] = i;
            }
        }
        for (uint32_t i = 0; i < p.n_tensors; i++) {
            const struct plan_tensor *a = &p.tensors[i];
            uint64_t need = plan_row_bytes(a->dtype, a->cols) * plan_rows_max(a->kind, &p.limits);
            assert_true(a->bytes >= need && a->bytes < need + PANEL_ALIGN);
            assert_true(a->offset % PANEL_ALIGN == 0 && a->offset + a->bytes <= end);
            sum += a->bytes;
            for (uint32_t j = 0; j < i; j++) {
                const struct plan_tensor *b = &p.tensors[j];
                bool together = first[i] <= last[j] && first[j] <= last[i];
                if (together && a->offset < b->offset + b->bytes && b->offset < a->offset + a->bytes)
                    fail_msg("seed %u, program %d: values %u and %u overlap", SEED, run, j, i);
            }
        }
        assert_true(end <= sum);
        saved += sum - end;
        naive += sum;
    }
    print_message("# of the sum of all values the layout saves %.0f%%\n",
                  100.0 * (double)saved / (double)naive);
    arena_deinit(&scratch);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layout_overlaps_nothing_alive),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
