// GGUF files: reading, a file that changes meanwhile, each call to the system failing in turn, the demo
// model.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "formats/gguf.h"
#include "gguf_build.h"

#define FILE_BYTES_MAX (8 * MIB)

// The system, failing on demand: the linker sends the calls here (-Wl,--wrap).
static struct {
    int calloc_fails_at; // the call that fails, counted from 1; 0: none
    int mmap_fails_at;
    int pread_fails_at;
    int pread_ends_at; // this call says that the file ends
    size_t pread_max;  // most bytes a call gives; 0: no limit
    int pread_eintr;   // calls left that are interrupted
    int callocs, mmaps, preads;
    int live_maps;
    size_t largest_map; // bytes
} sys;

void *__real_calloc(size_t n, size_t size);
void *__wrap_calloc(size_t n, size_t size);
void *__real_mmap64(void *addr, size_t n, int prot, int flags, int fd, off_t offset);
void *__wrap_mmap64(void *addr, size_t n, int prot, int flags, int fd, off_t offset);
int __real_munmap(void *addr, size_t n);
int __wrap_munmap(void *addr, size_t n);
ssize_t __real_pread64(int fd, void *dst, size_t n, off_t offset);
ssize_t __wrap_pread64(int fd, void *dst, size_t n, off_t offset);

void *__wrap_calloc(size_t n, size_t size)
{
    return ++sys.callocs == sys.calloc_fails_at ? NULL : __real_calloc(n, size);
}

void *__wrap_mmap64(void *addr, size_t n, int prot, int flags, int fd, off_t offset)
{
    if (++sys.mmaps == sys.mmap_fails_at) {
        errno = ENOMEM;
        return MAP_FAILED;
    }
    void *p = __real_mmap64(addr, n, prot, flags, fd, offset);
    sys.live_maps += p != MAP_FAILED;
    sys.largest_map = num_max(sys.largest_map, n);
    return p;
}

int __wrap_munmap(void *addr, size_t n)
{
    sys.live_maps--;
    return __real_munmap(addr, n);
}

ssize_t __wrap_pread64(int fd, void *dst, size_t n, off_t offset)
{
    sys.preads++;
    if (sys.pread_eintr > 0) {
        sys.pread_eintr--;
        errno = EINTR;
        return -1;
    }
    if (sys.preads == sys.pread_fails_at) {
        errno = EIO;
        return -1;
    }
    if (sys.preads == sys.pread_ends_at)
        return 0;
    return __real_pread64(fd, dst, sys.pread_max > 0 ? num_min(n, sys.pread_max) : n, offset);
}

static int setup(void **state)
{
    (void)state;
    memset(&sys, 0, sizeof sys);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    assert_int_equal(sys.live_maps, 0);
    return 0;
}

static void test_open_read_close(void **state)
{
    (void)state;
    struct buf b;
    buf_init(&b, FILE_BYTES_MAX);
    gb_good(&b);
    char path[64];
    int fd = gb_make_file(&b, path);
    struct iso_errinfo e = {0};
    struct gguf *g = NULL;
    sys.pread_max = 7;
    sys.pread_eintr = 3;
    assert_int_equal(gguf_open(path, &g, &e), ISO_OK);
    struct stat st;
    assert_int_equal(fstat(fd, &st), 0);
    assert_int_equal(g->identity.bytes, b.len);
    assert_int_equal(g->identity.inode, st.st_ino);
    assert_int_equal(g->identity.mtime_ns, (int64_t)st.st_mtim.tv_sec * 1000000000 + st.st_mtim.tv_nsec);

    const struct gguf_tensor *norm = gguf_tensor_find(g, "a.norm");
    float values[8];
    sys.pread_eintr = 2;
    assert_int_equal(gguf_read(g, norm, 0, values, sizeof values, &e), ISO_OK);
    for (int i = 0; i < 8; i++)
        assert_true(values[i] == (float)i);
    assert_int_equal(gguf_read(g, norm, 28, values, 4, &e), ISO_OK);
    assert_true(values[0] == 7);
    assert_int_equal(gguf_read(g, norm, 32, values, 0, &e), ISO_OK);

    // Somebody cuts the file while it is open.
    assert_int_equal(ftruncate(fd, (off_t)b.len - 4), 0);
    assert_int_equal(gguf_read(g, norm, 0, values, sizeof values, &e), ISO_E_IO);
    assert_non_null(strstr(e.text, "the file ended early"));
    assert_int_equal(e.offset, b.len - 4);
    sys.pread_fails_at = sys.preads + 1;
    assert_int_equal(gguf_read(g, norm, 0, values, 4, &e), ISO_E_IO);
    assert_non_null(strstr(e.text, "reading at byte"));
    gguf_close(g);
    gguf_close(NULL);
    close(fd);
    buf_deinit(&b);
}

static void test_not_a_file(void **state)
{
    (void)state;
    struct iso_errinfo e = {0};
    struct gguf *g = NULL;
    assert_int_equal(gguf_open("/nowhere/at/all.gguf", &g, &e), ISO_E_IO);
    assert_string_equal(e.text, "cannot be opened: No such file or directory");
    assert_int_equal(gguf_open("/proc", &g, &e), ISO_E_IO);
    assert_string_equal(e.text, "is a folder, not a regular file");
    int pipe_fds[2];
    assert_int_equal(pipe(pipe_fds), 0);
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", pipe_fds[0]);
    assert_int_equal(gguf_open(path, &g, &e), ISO_E_IO);
    assert_string_equal(e.text, "is a device, pipe or socket, not a regular file");
    close(pipe_fds[0]);
    close(pipe_fds[1]);
    assert_null(g);
}

// A header of 5 MiB comes in pieces; then each call to the system fails in turn, and nothing is left behind
// (memory: LeakSanitizer and the count of maps; descriptors: the next free one stays the same).
static void test_each_call_fails(void **state)
{
    (void)state;
    struct buf b;
    buf_init(&b, FILE_BYTES_MAX);
    gb_begin(&b, 1, 1);
    gb_array(&b, "big", GGUF_U8, 5 * MIB);
    assert_int_equal(buf_append_zeros(&b, 5 * MIB, NULL), ISO_OK);
    gb_tensor(&b, "x", GGML_F16, 1, (uint64_t[]){16}, 0);
    gb_data(&b, 32, 32);
    char path[64];
    int fd = gb_make_file(&b, path);
    struct iso_errinfo e;
    struct gguf *g = NULL;
    assert_int_equal(gguf_open(path, &g, &e), ISO_OK);
    assert_int_equal(g->kv[0].value.n, 5 * MIB);
    gguf_close(g);
    assert_int_equal(sys.live_maps, 0);
    int callocs = sys.callocs, mmaps = sys.mmaps, preads = sys.preads;
    assert_int_equal(preads, 4); // 1, 2, 4, 5 MiB
    assert_int_equal(mmaps, 5);  // the header, and the tables of four attempts
    assert_int_equal(callocs, 1);

    struct {
        int *fails_at;
        int calls;
        enum iso_err code;
        const char *text;
    } const FAULTS[] = {
        {&sys.calloc_fails_at, callocs, ISO_E_NOMEM, "the system refused"},
        {&sys.mmap_fails_at, mmaps, ISO_E_NOMEM, "the system refused"},
        {&sys.pread_fails_at, preads, ISO_E_IO, "Input/output error"},
        {&sys.pread_ends_at, preads, ISO_E_IO, "the file ended early"},
    };
    int free_fd = dup(fd);
    close(free_fd);
    for (size_t i = 0; i < ARRAY_LEN(FAULTS); i++) {
        for (int call = 1; call <= FAULTS[i].calls; call++) {
            memset(&sys, 0, sizeof sys);
            *FAULTS[i].fails_at = call;
            g = NULL;
            assert_int_equal(gguf_open(path, &g, &e), FAULTS[i].code);
            assert_non_null(strstr(e.text, FAULTS[i].text));
            assert_null(g);
            assert_int_equal(sys.live_maps, 0);
            int next = dup(fd);
            close(next);
            assert_int_equal(next, free_fd);
        }
    }
    close(fd);
    buf_deinit(&b);
}

// Files of 160 bytes that ask for gigabytes get nothing.
static void test_small_file_large_claims(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++) {
        struct buf b;
        buf_init(&b, FILE_BYTES_MAX);
        gb_begin(&b, i == 0 ? (uint64_t)1 << 40 : 0, i == 1 ? GGUF_KV_MAX : 1);
        if (i == 2) {
            gb_key(&b, "the.key", GGUF_STR);
            gb_u64(&b, (uint64_t)1 << 60);
        } else {
            gb_array(&b, "the.key", GGUF_STR, (uint64_t)1 << 33);
        }
        gb_data(&b, 1, 160 - b.len);
        char path[64];
        int fd = gb_make_file(&b, path);
        struct iso_errinfo e;
        struct gguf *g = NULL;
        assert_int_equal(gguf_open(path, &g, &e), i == 0 ? ISO_E_LIMIT : ISO_E_FORMAT);
        assert_true(sys.largest_map <= 4096);
        close(fd);
        buf_deinit(&b);
    }
}

// A sparse file that states a header over the limit is refused without reading it.
static void test_header_limit(void **state)
{
    (void)state;
    struct buf b;
    buf_init(&b, FILE_BYTES_MAX);
    gb_begin(&b, 0, 1);
    gb_key(&b, "the.key", GGUF_STR);
    gb_u64(&b, GGUF_HEADER_BYTES_MAX - 50);
    char path[64];
    int fd = gb_make_file(&b, path);
    assert_int_equal(ftruncate(fd, (off_t)(4 * GIB)), 0);
    struct iso_errinfo e;
    struct gguf *g = NULL;
    assert_int_equal(gguf_open(path, &g, &e), ISO_E_LIMIT);
    assert_string_equal(e.text, "metadata key \"the.key\" needs 536870862 bytes for its value at byte 51; "
                                "the limit of the whole header "
                                "is 536870912");
    assert_int_equal(sys.preads, 1);
    close(fd);
    buf_deinit(&b);
}

static void test_demo_model(void **state)
{
    (void)state;
    char path[512];
    const char *given = getenv("ISO_MODEL"), *home = getenv("HOME");
    snprintf(path, sizeof path, "%s%s",
             given  ? given
             : home ? home
                    : "",
             given ? "" : "/.cache/isochron/models/SmolLM2-135M-Instruct.Q4_1.gguf");
    if (access(path, R_OK) != 0)
        skip();
    struct iso_errinfo e;
    struct gguf *g = NULL;
    if (gguf_open(path, &g, &e))
        fail_msg("%s", e.text);
    struct strv s = {0};
    assert_int_equal(gguf_get_str(g, "general.architecture", &s, &e), ISO_OK);
    if (!given) {
        assert_true(strv_is(s, "llama"));
        assert_int_equal(g->n_tensors, 272);
        assert_int_equal(g->n_kv, 33);
        const struct gguf_tensor *embd = gguf_tensor_find(g, "token_embd.weight");
        assert_non_null(embd);
        assert_int_equal(embd->type, GGML_Q8_0);
        assert_int_equal(embd->dims[0], 576);
        assert_int_equal(embd->dims[1], 49152);
        assert_int_equal(embd->bytes, 49152 * 576 / 32 * 34);
    }
    struct gguf_array tokens;
    assert_int_equal(gguf_get_array(g, "tokenizer.ggml.tokens", GGUF_STR, &tokens, &e), ISO_OK);
    struct gguf_str_iter iter = gguf_str_iter(&tokens);
    uint64_t n = 0;
    while (gguf_next_str(&iter, &s))
        n++;
    assert_int_equal(n, tokens.n);
    assert_ptr_equal(iter.at, tokens.bytes + tokens.n_bytes);

    for (uint32_t i = 0; i < g->n_tensors; i++) {
        const struct gguf_tensor *t = &g->tensors[i];
        uint8_t *bytes = malloc(t->bytes);
        assert_non_null(bytes);
        assert_int_equal(gguf_read(g, t, 0, bytes, t->bytes, &e), ISO_OK);
        uint64_t bad;
        assert_int_equal(
            ggml_check_values(t->type, bytes, t->bytes / ggml_type_info(t->type)->block_bytes, &bad), ISO_OK);
        free(bytes);
    }
    gguf_close(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_open_read_close, setup, teardown),
        cmocka_unit_test_setup_teardown(test_not_a_file, setup, teardown),
        cmocka_unit_test_setup_teardown(test_each_call_fails, setup, teardown),
        cmocka_unit_test_setup_teardown(test_small_file_large_claims, setup, teardown),
        cmocka_unit_test_setup_teardown(test_header_limit, setup, teardown),
        cmocka_unit_test_setup_teardown(test_demo_model, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
