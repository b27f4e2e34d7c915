// file: whole or not there, whatever call fails.
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <errno.h>
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/file.h"

// ---- calls that can be made to fail (the linker's --wrap)

enum call { CALL_NONE, CALL_PWRITE, CALL_PREAD, CALL_FSYNC, CALL_CLOSE, CALL_RENAME };

// `what` fails at its `after`th call from now on with `error`, or does part of its work where error is 0.
static struct {
    enum call what;
    int after, error;
    size_t part;
} fault;

// Whether the file being written has a temporary name (where the system can't do without) or none.
static bool named;

ssize_t __real_pwrite64(int fd, const void *p, size_t n, off_t at);
ssize_t __real_pread64(int fd, void *p, size_t n, off_t at);
int __real_fsync(int fd);
int __real_close(int fd);
int __real_rename(const char *from, const char *to);
int __real_access(const char *path, int mode);
ssize_t __wrap_pwrite64(int fd, const void *p, size_t n, off_t at);
ssize_t __wrap_pread64(int fd, void *p, size_t n, off_t at);
int __wrap_fsync(int fd);
int __wrap_close(int fd);
int __wrap_rename(const char *from, const char *to);
int __wrap_access(const char *path, int mode);

static bool fails(enum call what)
{
    if (fault.what != what || --fault.after >= 0)
        return false;
    errno = fault.error;
    return true;
}

ssize_t __wrap_pwrite64(int fd, const void *p, size_t n, off_t at)
{
    if (fails(CALL_PWRITE)) {
        if (fault.error == EINTR)
            fault.what = CALL_NONE;
        if (fault.error)
            return -1;
        n = n < fault.part ? n : fault.part;
    }
    return n ? __real_pwrite64(fd, p, n, at) : 0;
}

ssize_t __wrap_pread64(int fd, void *p, size_t n, off_t at)
{
    if (fails(CALL_PREAD)) {
        if (fault.error == EINTR)
            fault.what = CALL_NONE;
        if (fault.error)
            return -1;
        n = n < fault.part ? n : fault.part;
    }
    return __real_pread64(fd, p, n, at);
}

int __wrap_fsync(int fd)
{
    return fails(CALL_FSYNC) ? -1 : __real_fsync(fd);
}

int __wrap_close(int fd)
{
    int result = __real_close(fd);
    return fails(CALL_CLOSE) ? -1 : result;
}

int __wrap_rename(const char *from, const char *to)
{
    return fails(CALL_RENAME) ? -1 : __real_rename(from, to);
}

int __wrap_access(const char *path, int mode)
{
    return named && strcmp(path, "/proc/self/fd") == 0 ? -1 : __real_access(path, mode);
}

// ---- a folder of our own

struct place {
    char folder[64], path[96];
};

static int make_place(void **state)
{
    static struct place place;
    fault.what = CALL_NONE;
    named = false;
    snprintf(place.folder, sizeof place.folder, "/tmp/iso-test-file-XXXXXX");
    if (!mkdtemp(place.folder))
        return -1;
    snprintf(place.path, sizeof place.path, "%s/plan", place.folder);
    *state = &place;
    return 0;
}

static unsigned entries(const struct place *p)
{
    DIR *d = opendir(p->folder);
    unsigned n = 0;
    assert_non_null(d);
    for (struct dirent *e = readdir(d); e; e = readdir(d))
        n += e->d_name[0] != '.';
    closedir(d);
    return n;
}

static int remove_place(void **state)
{
    struct place *p = *state;
    fault.what = CALL_NONE;
    unlink(p->path);
    return rmdir(p->folder); // fails where something else is left
}

static void assert_content(const char *path, const char *want)
{
    char text[64] = {0};
    int fd = open(path, O_RDONLY);
    assert_true(fd >= 0);
    ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    assert_int_equal(n, strlen(want));
    assert_string_equal(text, want);
}

static enum iso_err write_text(const char *path, const char *text, struct iso_errinfo *e)
{
    struct file_writer w;
    enum iso_err err = file_write_begin(path, &w, e);
    if (err)
        return err;
    err = file_write(&w, text, strlen(text), e);
    if (err)
        file_write_abandon(&w);
    else
        err = file_write_finish(&w, e);
    return err;
}

// ---- writing

static void test_finish(void **state)
{
    struct place *p = *state;
    struct file_writer w;
    struct iso_errinfo e;
    assert_int_equal(file_write_begin(p->path, &w, &e), ISO_OK);
    assert_int_equal(access(p->path, F_OK), -1);
    assert_int_equal(file_write(&w, "hello ", 6, &e), ISO_OK);
    assert_int_equal(file_write(&w, "", 0, &e), ISO_OK);
    assert_int_equal(file_write(&w, "world", 5, &e), ISO_OK);
    assert_int_equal(w.bytes, 11);
    assert_int_equal(file_write_at(&w, 0, "HELL", 4, &e), ISO_OK);
    assert_int_equal(w.bytes, 11);
    assert_int_equal(access(p->path, F_OK), -1);
    assert_int_equal(file_write_finish(&w, &e), ISO_OK);
    assert_content(p->path, "HELLo world");
    assert_int_equal(entries(p), 1);
    file_write_abandon(&w); // after the end: nothing
    assert_content(p->path, "HELLo world");
}

static void test_abandon(void **state)
{
    struct place *p = *state;
    struct file_writer w;
    struct iso_errinfo e;
    assert_int_equal(write_text(p->path, "old", &e), ISO_OK);
    for (int i = 0; i < 2; i++) {
        named = i == 1;
        assert_int_equal(file_write_begin(p->path, &w, &e), ISO_OK);
        assert_int_equal(file_write(&w, "new", 3, &e), ISO_OK);
        assert_int_equal(entries(p), w.unnamed ? 1 : 2);
        assert_false(named && w.unnamed);
        file_write_abandon(&w);
        file_write_abandon(&w);
        assert_int_equal(entries(p), 1);
        assert_content(p->path, "old");
    }
}

// Each call on the way fails: the error says which file and why, the older file stands, nothing else is left.
static void test_faults(void **state)
{
    struct place *p = *state;
    static const struct {
        enum call what;
        int error;
        const char *says;
    } FAULTS[] = {{CALL_PWRITE, ENOSPC, "writing"},
                  {CALL_PWRITE, 0, "writing"}, // nothing written and no error
                  {CALL_FSYNC, EIO, "syncing"},
                  {CALL_CLOSE, EIO, "closing"},
                  {CALL_RENAME, EACCES, "renaming"}};
    for (int round = 0; round < 3; round++) {
        int old = round > 0;
        named = round == 2;
        for (size_t i = 0; i < sizeof FAULTS / sizeof FAULTS[0]; i++) {
            struct iso_errinfo e = {0};
            fault.what = FAULTS[i].what;
            fault.error = FAULTS[i].error;
            fault.after = 0;
            fault.part = 0;
            assert_int_equal(write_text(p->path, "new", &e), ISO_E_IO);
            fault.what = CALL_NONE;
            assert_non_null(strstr(e.text, p->path));
            assert_non_null(strstr(e.text, FAULTS[i].says));
            assert_int_equal(entries(p), old);
            if (old)
                assert_content(p->path, "old");
        }
        struct iso_errinfo e;
        assert_int_equal(write_text(p->path, "old", &e), ISO_OK);
    }
}

// The folder can't be synced: the file is there all the same.
static void test_folder_sync_fails(void **state)
{
    struct place *p = *state;
    struct iso_errinfo e;
    fault.what = CALL_FSYNC;
    fault.error = EINVAL;
    fault.after = 1;
    assert_int_equal(write_text(p->path, "new", &e), ISO_OK);
    assert_true(fault.after < 0);
    assert_content(p->path, "new");
}

static void test_short_and_interrupted_writes(void **state)
{
    struct place *p = *state;
    struct iso_errinfo e;
    fault.what = CALL_PWRITE;
    fault.error = 0;
    fault.after = 0;
    fault.part = 3;
    assert_int_equal(write_text(p->path, "written in pieces", &e), ISO_OK);
    assert_content(p->path, "written in pieces");
    fault.what = CALL_PWRITE;
    fault.error = EINTR;
    assert_int_equal(write_text(p->path, "interrupted", &e), ISO_OK);
    assert_content(p->path, "interrupted");
}

static void test_begin_fails(void **state)
{
    struct place *p = *state;
    struct file_writer w = {.fd = 77};
    struct iso_errinfo e;
    char path[FILE_PATH_MAX + 8];
    snprintf(path, sizeof path, "%s/none/plan", p->folder);
    assert_int_equal(file_write_begin(path, &w, &e), ISO_E_IO);
    assert_non_null(strstr(e.text, path));
    memset(path, 'a', sizeof path);
    path[FILE_PATH_MAX] = '\0';
    assert_int_equal(file_write_begin(path, &w, &e), ISO_E_LIMIT);
    path[FILE_PATH_MAX - 1] = '\0'; // fits, but is no name that a file system takes
    assert_int_equal(file_write_begin(path, &w, &e), ISO_E_IO);
    assert_int_equal(w.fd, 77);
}

// A device or a folder is not replaced by a file.
static void test_not_a_file(void **state)
{
    struct place *p = *state;
    struct iso_errinfo e;
    struct stat st;
    assert_int_equal(write_text(p->folder, "new", &e), ISO_E_IO);
    assert_non_null(strstr(e.text, p->folder));
    assert_int_equal(mkfifo(p->path, 0600), 0);
    assert_int_equal(write_text(p->path, "new", &e), ISO_E_IO);
    assert_int_equal(stat(p->path, &st), 0);
    assert_true(S_ISFIFO(st.st_mode));
}

// ---- reading

static void test_read_at(void **state)
{
    struct place *p = *state;
    struct iso_errinfo e;
    char got[8] = {0};
    assert_int_equal(write_text(p->path, "0123456789", &e), ISO_OK);
    int fd = open(p->path, O_RDONLY);
    assert_int_equal(file_read_at(fd, 2, got, 5, &e), ISO_OK);
    assert_string_equal(got, "23456");
    assert_int_equal(file_read_at(fd, 10, got, 0, &e), ISO_OK);
    assert_int_equal(file_read_at(fd, 6, got, 5, &e), ISO_E_IO);
    assert_int_equal(e.offset, 10);
    assert_string_equal(e.text, "the file ended early, at byte 10");
    assert_int_equal(file_read_at(fd, UINT64_MAX - 2, got, 2, &e), ISO_E_IO);

    fault.what = CALL_PREAD; // one byte a call
    fault.error = 0;
    fault.after = 0;
    fault.part = 1;
    assert_int_equal(file_read_at(fd, 1, got, 6, &e), ISO_OK);
    assert_memory_equal(got, "123456", 6);
    fault.error = EINTR;
    assert_int_equal(file_read_at(fd, 3, got, 4, &e), ISO_OK);
    assert_memory_equal(got, "3456", 4);
    fault.what = CALL_PREAD;
    fault.error = EIO;
    assert_int_equal(file_read_at(fd, 3, got, 4, &e), ISO_E_IO);
    assert_non_null(strstr(e.text, "byte 3"));
    fault.what = CALL_NONE;
    close(fd);
    assert_int_equal(file_read_at(fd, 0, got, 1, &e), ISO_E_IO);
}

// ---- folders

static void test_make_folders(void **state)
{
    struct place *p = *state;
    struct iso_errinfo e;
    char path[128], file[160], long_path[FILE_PATH_MAX + 8];
    struct stat st;
    snprintf(path, sizeof path, "%s/a//b/c/", p->folder);
    assert_int_equal(file_make_folders(path, &e), ISO_OK);
    assert_int_equal(file_make_folders(path, &e), ISO_OK);
    assert_int_equal(stat(path, &st), 0);
    assert_true(S_ISDIR(st.st_mode));
    assert_int_equal(st.st_mode & 0777 & ~0700u, 0);

    snprintf(file, sizeof file, "%sfile", path);
    assert_int_equal(write_text(file, "x", &e), ISO_OK);
    assert_int_equal(file_make_folders(file, &e), ISO_E_IO); // a file is there
    assert_non_null(strstr(e.text, file));
    snprintf(file, sizeof file, "%sfile/d", path);
    assert_int_equal(file_make_folders(file, &e), ISO_E_IO);
    memset(long_path, 'a', sizeof long_path);
    long_path[FILE_PATH_MAX] = '\0';
    assert_int_equal(file_make_folders(long_path, &e), ISO_E_LIMIT);

    static const char *const LEFT[] = {"a/b/c/file", "a/b/c", "a/b", "a"};
    for (size_t i = 0; i < sizeof LEFT / sizeof LEFT[0]; i++) {
        snprintf(path, sizeof path, "%s/%s", p->folder, LEFT[i]);
        assert_int_equal(remove(path), 0);
    }
}

#define IN_PLACE(test) cmocka_unit_test_setup_teardown(test, make_place, remove_place)

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_PLACE(test_finish),
        IN_PLACE(test_abandon),
        IN_PLACE(test_faults),
        IN_PLACE(test_folder_sync_fails),
        IN_PLACE(test_short_and_interrupted_writes),
        IN_PLACE(test_begin_fails),
        IN_PLACE(test_not_a_file),
        IN_PLACE(test_read_at),
        IN_PLACE(test_make_folders),
    };
    return cmocka_run_group_tests_name("file", tests, NULL, NULL);
}
