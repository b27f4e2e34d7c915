// Plans as files: damage anywhere is seen, what is no plan is refused, a loaded plan needs its file no more.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "plan/plan_check.h"
#include "plan_base.h"

#define SEED       20240611u
#define HANG_LIMIT 20 // seconds until a test that waits for something is ended
#define FLIPS      500

static char folder[] = "/tmp/isochron-test-plan-XXXXXX"; // of this run

static int make_folder(void **state)
{
    return make_base(state) == 0 && mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state)
{
    return free_base(state) == 0 ? rmdir(folder) : -1;
}

static const char *in_folder(const char *name)
{
    static char path[128];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static void write_file(const char *path, const void *bytes, size_t n)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    fclose(f);
}

static void damage_is_found_by_section(void **state)
{
    (void)state;
    static const char *const NAMES[PLAN_SECTION_COUNT] = {"tensor table", "program", "tokenizer",
                                                          "chat template", "weights"};
    struct tiny_plan p = tiny_plan_copy(&base);
    p.h->model.vocab++;
    assert_refused("header", &p, ISO_E_CORRUPT, "header", "checksum");
    p.h->model.vocab--;
    for (int i = 0; i < PLAN_SECTION_COUNT; i++) {
        const struct plan_section *s = &p.h->sections[i];
        assert_true(s->bytes > 0);
        p.bytes[s->offset + s->bytes - 1] ^= 1;
        assert_refused(NAMES[i], &p, ISO_E_CORRUPT, NAMES[i], "damaged");
        p.bytes[s->offset + s->bytes - 1] ^= 1;
        p.bytes[s->offset - 1] ^= 1;
        assert_refused("padding", &p, ISO_E_CORRUPT, "padding", "damaged");
        p.bytes[s->offset - 1] ^= 1;
    }
    tiny_plan_free(&p);
}

static void damage_anywhere_is_found(void **state)
{
    (void)state;
    uint64_t random = SEED;
    struct tiny_plan p = tiny_plan_copy(&base);
    for (int i = 0; i < FLIPS; i++) {
        uint64_t at = tiny_random(&random) % p.n;
        uint8_t bit = (uint8_t)(1u << tiny_random(&random) % 8);
        struct plan plan;
        struct iso_errinfo e = {0};
        p.bytes[at] ^= bit;
        if (plan_attach(p.bytes, p.n, &plan, &e) == ISO_OK || e.text[0] == '\0')
            fail_msg("seed %u: byte %llu xor %u is not seen", SEED, (unsigned long long)at, bit);
        p.bytes[at] ^= bit;
    }
    tiny_plan_free(&p);
}

static enum iso_err load(const char *path, struct iso_errinfo *e)
{
    struct plan plan;
    enum iso_err err = plan_load(path, NULL, NULL, &plan, e);
    if (!err)
        plan_close(&plan);
    return err;
}

static void truncated_files_are_refused(void **state)
{
    (void)state;
    uint64_t places[6 * PLAN_SECTION_COUNT + 16];
    size_t n = 0;
    for (int i = 0; i < PLAN_SECTION_COUNT; i++) {
        const struct plan_section *s = &base.h->sections[i];
        for (int d = -1; d <= 1; d++) {
            places[n++] = s->offset + (uint64_t)d;
            if (s->offset + s->bytes + (uint64_t)d < base.n)
                places[n++] = s->offset + s->bytes + (uint64_t)d;
        }
    }
    for (uint64_t at = 0; at < 2 * sizeof(struct plan_header); at += 64)
        places[n++] = at;
    places[n++] = sizeof(struct plan_header) - 1;
    assert_true(n <= ARRAY_LEN(places));
    const char *path = in_folder("truncated");
    for (size_t i = 0; i < n; i++) {
        struct iso_errinfo e = {0};
        write_file(path, base.bytes, places[i]);
        if (load(path, &e) != ISO_E_FORMAT)
            fail_msg("%llu bytes: %s", (unsigned long long)places[i], e.text);
        assert_string_equal(e.field, places[i] < sizeof(struct plan_header) ? "magic" : "file_bytes");
    }
    unlink(path);
}

static void count_progress(void *context, uint64_t done, uint64_t total)
{
    uint64_t *last = context;
    assert_true(done > *last && done <= total);
    *last = done;
}

static void loaded_plan_needs_no_file(void **state)
{
    (void)state;
    const char *path = in_folder("plan");
    struct plan plan;
    struct plan_header h;
    struct iso_errinfo e = {0};
    uint64_t done = 0;
    write_file(path, base.bytes, base.n);
    assert_true(plan_is_plan(path));
    assert_int_equal(plan_peek(path, &h, &e), ISO_OK);
    assert_memory_equal(&h, base.h, sizeof h);
    if (plan_load(path, count_progress, &done, &plan, &e))
        fail_msg("%s", e.text);
    assert_int_equal(done, base.n);
    assert_int_equal(plan.mapped_bytes, num_align(base.n, PLAN_ALIGN));
    int fd = open(path, O_WRONLY);
    for (uint64_t at = 0; at < base.n; at += 4)
        assert_int_equal(pwrite(fd, "hurt", 4, (off_t)at), 4);
    assert_memory_equal(plan.header, base.bytes, base.n);
    assert_int_equal(ftruncate(fd, 0), 0);
    assert_memory_equal(plan.header, base.bytes, base.n);
    close(fd);
    unlink(path);
    assert_memory_equal(plan.header, base.bytes, base.n);
    plan_close(&plan);
    plan_close(&plan);
}

static void peeking_checks_the_program(void **state)
{
    (void)state;
    const char *path = in_folder("plan");
    struct plan_header h;
    struct plan_tensor *tensors;
    struct plan_op *ops;
    struct arena arena;
    struct iso_errinfo e = {0};
    struct tiny_plan p = tiny_plan_copy(&base);
    assert_int_equal(arena_init(&arena, 2 * PLAN_CHECK_SCRATCH_BYTES), ISO_OK);
    write_file(path, p.bytes, p.n);
    assert_int_equal(plan_peek_program(path, &arena, &h, &tensors, &ops, &e), ISO_OK);
    assert_memory_equal(tensors, base.tensors, h.n_tensors * sizeof *tensors);
    assert_memory_equal(ops, base.ops, h.n_ops * sizeof *ops);
    p.ops[1].scale *= 2; // a program that would pass, but not the one that was written
    write_file(path, p.bytes, p.n);
    assert_int_equal(plan_peek_program(path, &arena, &h, &tensors, &ops, &e), ISO_E_CORRUPT);
    p.ops[1].scale = 2;
    tiny_plan_rehash(&p);
    write_file(path, p.bytes, p.n);
    assert_int_equal(plan_peek_program(path, &arena, &h, &tensors, &ops, &e), ISO_E_FORMAT);
    arena_deinit(&arena);
    tiny_plan_free(&p);
    unlink(path);
}

// None may wait for somebody or read without end.
static void what_is_no_plan_is_refused(void **state)
{
    (void)state;
    const char *path = in_folder("odd");
    struct iso_errinfo e = {0};
    struct plan_header h;
    alarm(HANG_LIMIT);
    assert_int_equal(load(path, &e), ISO_E_IO);
    assert_non_null(strstr(e.text, "opening failed"));
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(load(path, &e), ISO_E_IO);
    assert_non_null(strstr(e.text, "no regular file"));
    assert_int_equal(plan_peek(path, &h, &e), ISO_E_IO);
    assert_false(plan_is_plan(path));
    unlink(path);
    static const char *const ODD[] = {"/tmp", "/dev/zero", "/dev/null", "/dev/tty"};
    for (size_t i = 0; i < ARRAY_LEN(ODD); i++) {
        assert_int_equal(load(ODD[i], &e), ISO_E_IO);
        assert_false(plan_is_plan(ODD[i]));
    }
    write_file(path, "", 0);
    assert_int_equal(load(path, &e), ISO_E_FORMAT);
    assert_string_equal(e.field, "magic");
    static const char TEXT[1000] = "GGUF";
    write_file(path, TEXT, sizeof TEXT);
    assert_int_equal(load(path, &e), ISO_E_FORMAT);
    assert_string_equal(e.field, "magic");
    alarm(0);
    unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(damage_is_found_by_section),  cmocka_unit_test(damage_anywhere_is_found),
        cmocka_unit_test(truncated_files_are_refused), cmocka_unit_test(loaded_plan_needs_no_file),
        cmocka_unit_test(peeking_checks_the_program),  cmocka_unit_test(what_is_no_plan_is_refused),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
