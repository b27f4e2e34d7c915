// The compiler when the system fails it: each read, write, mapping and sync in turn. tests/property/
// test_compile.py looks at what it writes.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <dirent.h>
#include <errno.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "tiny_plan.h"

// The system, failing on demand: the linker sends the calls here (-Wl,--wrap).
enum call { CALL_PREAD, CALL_PWRITE, CALL_MMAP, CALL_FSYNC, CALL_RENAME, CALL_COUNT };

static struct {
    int fails_at[CALL_COUNT]; // the call that fails, counted from 1; 0: none
    int seen[CALL_COUNT];
    size_t pwrite_max; // most bytes a write takes; 0: all
    uint64_t space;    // that the file system says it has; 0: what it has
} sys;

static bool fails(enum call call, int why)
{
    // Reads are those of several threads.
    if (__atomic_add_fetch(&sys.seen[call], 1, __ATOMIC_RELAXED) != sys.fails_at[call])
        return false;
    errno = why;
    return true;
}

ssize_t __real_pread64(int fd, void *dst, size_t n, off_t at);
ssize_t __wrap_pread64(int fd, void *dst, size_t n, off_t at);
ssize_t __real_pwrite64(int fd, const void *bytes, size_t n, off_t at);
ssize_t __wrap_pwrite64(int fd, const void *bytes, size_t n, off_t at);
void *__real_mmap64(void *at, size_t n, int prot, int flags, int fd, off_t offset);
void *__wrap_mmap64(void *at, size_t n, int prot, int flags, int fd, off_t offset);
int __real_fsync(int fd);
int __wrap_fsync(int fd);
int __real_rename(const char *from, const char *to);
int __wrap_rename(const char *from, const char *to);

int __real_fstatvfs64(int fd, struct statvfs *fs);
int __wrap_fstatvfs64(int fd, struct statvfs *fs);

int __wrap_fstatvfs64(int fd, struct statvfs *fs)
{
    int failed = __real_fstatvfs64(fd, fs);
    if (!failed && sys.space)
        fs->f_bavail = sys.space / fs->f_frsize;
    return failed;
}

ssize_t __wrap_pread64(int fd, void *dst, size_t n, off_t at)
{
    return fails(CALL_PREAD, EIO) ? -1 : __real_pread64(fd, dst, n, at);
}

ssize_t __wrap_pwrite64(int fd, const void *bytes, size_t n, off_t at)
{
    size_t taken = sys.pwrite_max && n > sys.pwrite_max ? sys.pwrite_max : n;
    return fails(CALL_PWRITE, ENOSPC) ? -1 : __real_pwrite64(fd, bytes, taken, at);
}

void *__wrap_mmap64(void *at, size_t n, int prot, int flags, int fd, off_t offset)
{
    return fails(CALL_MMAP, ENOMEM) ? MAP_FAILED : __real_mmap64(at, n, prot, flags, fd, offset);
}

int __wrap_fsync(int fd)
{
    return fails(CALL_FSYNC, EIO) ? -1 : __real_fsync(fd);
}

int __wrap_rename(const char *from, const char *to)
{
    return fails(CALL_RENAME, EACCES) ? -1 : __real_rename(from, to);
}

static char folder[] = "/tmp/isochron-test-compile-XXXXXX";
static char model_path[64];    // of the tiny model
static struct tiny_plan whole; // what it becomes

static const char *plan_path(void)
{
    static char path[sizeof folder + 8];
    snprintf(path, sizeof path, "%s/plan", folder);
    return path;
}

static int make_model(void **state)
{
    (void)state;
    static struct tiny_model m;
    struct buf gguf;
    tiny_init(&m, &TINY_LLAMA);
    buf_init(&gguf, TINY_BYTES_MAX);
    tiny_write(&m, &gguf);
    gb_make_file(&gguf, model_path);
    buf_deinit(&gguf);
    whole = tiny_plan_make(&m, &(struct compile_options){0});
    return mkdtemp(folder) ? 0 : -1;
}

static int free_model(void **state)
{
    (void)state;
    tiny_plan_free(&whole);
    return rmdir(folder); // fails where something was left in it
}

static uint32_t files_in_folder(void)
{
    uint32_t n = 0;
    DIR *d = opendir(folder);
    assert_non_null(d);
    for (struct dirent *e = readdir(d); e; e = readdir(d))
        n += e->d_name[0] != '.';
    closedir(d);
    return n;
}

static enum iso_err compile(compile_progress *progress, void *context, struct iso_errinfo *e)
{
    struct program program;
    enum iso_err err = program_open(model_path, &(struct compile_options){0}, &program, e);
    if (err)
        return err;
    err = program_write(&program, plan_path(), progress, context, e);
    program_close(&program);
    return err;
}

static void assert_whole_and_remove(void)
{
    struct tiny_plan got = tiny_plan_read(plan_path());
    assert_int_equal(got.n, whole.n);
    assert_memory_equal(got.bytes, whole.bytes, whole.n);
    tiny_plan_free(&got);
    assert_int_equal(files_in_folder(), 1);
    unlink(plan_path());
}

// Every call of a kind fails once, until compiling gets by without reaching the one that would.
static void assert_each_failure_is_told(enum call call, enum iso_err code)
{
    for (int at = 1;; at++) {
        struct iso_errinfo e = {0};
        memset(&sys, 0, sizeof sys);
        sys.fails_at[call] = at;
        enum iso_err err = compile(NULL, NULL, &e);
        if (sys.seen[call] < at) {
            assert_int_equal(err, ISO_OK);
            assert_true(at > 1);
            break;
        }
        if (err == ISO_OK && call == CALL_FSYNC)
            unlink(plan_path()); // the folder's: the file is there, only a crash of the system could undo it
        else if (err != code || e.text[0] == '\0' || files_in_folder() != 0)
            fail_msg("call %d: %s, %u files: %s", at, iso_err_name(err), files_in_folder(), e.text);
    }
    memset(&sys, 0, sizeof sys);
    assert_whole_and_remove();
}

static void failing_reads(void **state)
{
    (void)state;
    assert_each_failure_is_told(CALL_PREAD, ISO_E_IO);
}

static void failing_writes(void **state)
{
    (void)state;
    assert_each_failure_is_told(CALL_PWRITE, ISO_E_IO);
}

static void failing_mappings(void **state)
{
    (void)state;
    assert_each_failure_is_told(CALL_MMAP, ISO_E_NOMEM);
}

static void failing_sync(void **state)
{
    (void)state;
    assert_each_failure_is_told(CALL_FSYNC, ISO_E_IO);
}

static void failing_rename(void **state)
{
    (void)state;
    assert_each_failure_is_told(CALL_RENAME, ISO_E_IO);
}

// Told with both numbers before anything is written.
static void too_little_space_is_refused(void **state)
{
    (void)state;
    struct iso_errinfo e = {0};
    memset(&sys, 0, sizeof sys);
    sys.space = 4096;
    assert_int_equal(compile(NULL, NULL, &e), ISO_E_IO);
    char numbers[64];
    snprintf(numbers, sizeof numbers, "takes %zu bytes and the file system has 4096 left, ", whole.n);
    assert_non_null(strstr(e.text, numbers));
    assert_int_equal(sys.seen[CALL_PWRITE], 0);
    assert_int_equal(files_in_folder(), 0);
    sys.space = whole.n + 4096;
    assert_int_equal(compile(NULL, NULL, &e), ISO_OK);
    sys.space = 0;
    assert_whole_and_remove();
}

static void short_writes_change_nothing(void **state)
{
    (void)state;
    struct iso_errinfo e = {0};
    sys.pwrite_max = 1000;
    assert_int_equal(compile(NULL, NULL, &e), ISO_OK);
    sys.pwrite_max = 0;
    assert_whole_and_remove();
}

struct progress {
    uint64_t calls, done, total;
};

static void count_progress(void *context, uint64_t done, uint64_t total)
{
    struct progress *p = context;
    assert_true(done >= p->done && done <= total && (p->calls == 0 || total == p->total));
    *p = (struct progress){p->calls + 1, done, total};
}

static void progress_ends_at_its_total(void **state)
{
    (void)state;
    struct progress p = {0};
    struct iso_errinfo e = {0};
    assert_int_equal(compile(count_progress, &p, &e), ISO_OK);
    assert_true(p.calls > 1);
    assert_int_equal(p.done, whole.h->sections[PLAN_WEIGHTS].bytes);
    assert_int_equal(p.total, p.done);
    assert_whole_and_remove();
}

static void a_program_can_be_written_twice(void **state)
{
    (void)state;
    struct program program;
    struct iso_errinfo e = {0};
    assert_int_equal(program_open(model_path, &(struct compile_options){0}, &program, &e), ISO_OK);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(program_write(&program, plan_path(), NULL, NULL, &e), ISO_OK);
        assert_whole_and_remove();
    }
    program_close(&program);
    program_close(&program);
}

// What names in the model file can be, names in the plan are: printable text, cut at a character.
static void names_are_made_printable(void **state)
{
    (void)state;
    static const struct {
        const char *in, *out;
    } NAMES[] = {
        {"Tiny 1.0", "Tiny 1.0"},
        {"", ""},
        {"two\nlines", "two"},
        {"\x1b[2J", ""},
        {"caf\xc3\xa9 \xe2\x98\x95", "caf\xc3\xa9 \xe2\x98\x95"},
        {"broken\xff", "broken"},
        {"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\xc3\xa9z",
         "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"},
    };
    static struct tiny_model m;
    for (size_t i = 0; i < ARRAY_LEN(NAMES); i++) {
        struct plan plan;
        struct iso_errinfo e = {0};
        tiny_init(&m, &TINY_LLAMA);
        tiny_str(&m, "general.name", NAMES[i].in);
        if (NAMES[i].in[0] == '\0')
            tiny_drop_key(&m, "general.name");
        struct tiny_plan p = tiny_plan_make(&m, &(struct compile_options){0});
        assert_string_equal(p.h->model.name, NAMES[i].out);
        assert_int_equal(plan_attach(p.bytes, p.n, &plan, &e), ISO_OK);
        tiny_plan_free(&p);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(failing_reads),
        cmocka_unit_test(failing_writes),
        cmocka_unit_test(failing_mappings),
        cmocka_unit_test(failing_sync),
        cmocka_unit_test(failing_rename),
        cmocka_unit_test(too_little_space_is_refused),
        cmocka_unit_test(short_writes_change_nothing),
        cmocka_unit_test(progress_ends_at_its_total),
        cmocka_unit_test(a_program_can_be_written_twice),
        cmocka_unit_test(names_are_made_printable),
    };
    return cmocka_run_group_tests(tests, make_model, free_model);
}
