#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/clock.h"

enum iso_err file_read_at(int fd, uint64_t at, void *dst, size_t n, struct iso_errinfo *reterr)
{
    uint8_t *p = dst;
    while (n > 0) {
        ssize_t got = pread(fd, p, n, (off_t)at);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return iso_fail(reterr, ISO_E_IO, at, NULL, "reading at byte %llu failed: %s",
                            (unsigned long long)at, strerror(errno));
        if (got == 0)
            return iso_fail(reterr, ISO_E_IO, at, NULL, "the file ended early, at byte %llu",
                            (unsigned long long)at);
        p += got;
        at += (uint64_t)got;
        n -= (size_t)got;
    }
    return ISO_OK;
}

static enum iso_err write_failed(const struct file_writer *w, const char *what, struct iso_errinfo *reterr)
{
    return iso_fail(reterr, ISO_E_IO, 0, NULL, "%.200s: %s failed: %s", w->final_path, what, strerror(errno));
}

// The folder of a file's path into folder[FILE_PATH_MAX]; the path fits.
static void folder_of(const char *path, char *folder)
{
    const char *slash = strrchr(path, '/');
    size_t n = slash ? (size_t)(slash - path) + 1 : 1;
    memcpy(folder, slash ? path : ".", n);
    folder[n] = '\0';
}

// A file without a name in the folder of `path`: it vanishes with the process, however that ends. -1 where
// the file system has none, or where it could not be given a name later.
static int open_unnamed(const char *path)
{
    char folder[FILE_PATH_MAX + 1];
    if (access("/proc/self/fd", X_OK))
        return -1;
    folder_of(path, folder);
    return open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0644);
}

static int name_it(const struct file_writer *w)
{
    char fd_path[32];
    snprintf(fd_path, sizeof fd_path, "/proc/self/fd/%d", w->fd);
    return linkat(AT_FDCWD, fd_path, AT_FDCWD, w->temp_path, AT_SYMLINK_FOLLOW);
}

enum iso_err file_write_begin(const char *path, struct file_writer *ret, struct iso_errinfo *reterr)
{
    struct file_writer w = {.fd = -1};
    if (strlen(path) >= sizeof w.final_path)
        return iso_fail(reterr, ISO_E_LIMIT, 0, NULL, "the path is longer than %d bytes", FILE_PATH_MAX - 1);
    strncpy(w.final_path, path, sizeof w.final_path - 1);
    struct stat st;
    bool exists = stat(path, &st) == 0;
    if (!exists && errno != ENOENT)
        return write_failed(&w, "creating", reterr);
    if (exists && !S_ISREG(st.st_mode)) // the rename would put a file in a device's place
        return iso_fail(reterr, ISO_E_IO, 0, NULL, "%.200s: exists and is no regular file", path);
    // The clock tells processes with the same number in different containers apart.
    snprintf(w.temp_path, sizeof w.temp_path, "%s.%ld.%llx.tmp", path, (long)getpid(),
             (unsigned long long)clock_now_ns());
    w.fd = open_unnamed(path);
    w.unnamed = w.fd >= 0;
    if (w.fd < 0)
        w.fd = open(w.temp_path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (w.fd < 0)
        return write_failed(&w, "creating", reterr);
    *ret = w;
    return ISO_OK;
}

enum iso_err file_write_at(struct file_writer *w, uint64_t at, const void *bytes, size_t n,
                           struct iso_errinfo *reterr)
{
    const uint8_t *p = bytes;
    while (n > 0) {
        ssize_t put = pwrite(w->fd, p, n, (off_t)at);
        if (put < 0 && errno == EINTR)
            continue;
        if (put == 0) // no error is told, and trying again could go on for ever
            errno = EIO;
        if (put <= 0)
            return write_failed(w, "writing", reterr);
        p += put;
        at += (uint64_t)put;
        n -= (size_t)put;
    }
    return ISO_OK;
}

enum iso_err file_write(struct file_writer *w, const void *bytes, size_t n, struct iso_errinfo *reterr)
{
    enum iso_err err = file_write_at(w, w->bytes, bytes, n, reterr);
    if (!err)
        w->bytes += n;
    return err;
}

// The rename is durable once the folder is synced; a file system that can't sync folders is left at that.
static void sync_folder_of(const char *path)
{
    char folder[FILE_PATH_MAX + 1];
    folder_of(path, folder);
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0) {
        (void)fsync(fd);
        close(fd);
    }
}

enum iso_err file_write_finish(struct file_writer *w, struct iso_errinfo *reterr)
{
    ASSERT(w->fd >= 0);
    enum iso_err err = ISO_OK;
    if (fsync(w->fd))
        err = write_failed(w, "syncing", reterr);
    if (!err && w->unnamed && name_it(w))
        err = write_failed(w, "naming", reterr);
    if (close(w->fd) && !err)
        err = write_failed(w, "closing", reterr);
    w->fd = -1;
    if (!err && rename(w->temp_path, w->final_path))
        err = write_failed(w, "renaming", reterr);
    if (err)
        unlink(w->temp_path);
    else
        sync_folder_of(w->final_path);
    return err;
}

void file_write_abandon(struct file_writer *w)
{
    if (w->fd < 0)
        return;
    close(w->fd);
    unlink(w->temp_path);
    w->fd = -1;
}

// 0, or -1 with errno. A folder that exists is fine, another thing of that name is not.
static int make_folder(const char *path)
{
    struct stat st;
    if (mkdir(path, 0700) == 0)
        return 0;
    if (errno != EEXIST || stat(path, &st))
        return -1;
    errno = ENOTDIR;
    return S_ISDIR(st.st_mode) ? 0 : -1;
}

enum iso_err file_make_folders(const char *path, struct iso_errinfo *reterr)
{
    char part[FILE_PATH_MAX];
    size_t n = strlen(path);
    if (n >= sizeof part)
        return iso_fail(reterr, ISO_E_LIMIT, 0, NULL, "the path is longer than %d bytes", FILE_PATH_MAX - 1);
    memcpy(part, path, n + 1);
    for (size_t i = 1; i <= n; i++) {
        if (part[i] != '/' && part[i] != '\0')
            continue;
        char kept = part[i];
        part[i] = '\0';
        if (make_folder(part))
            return iso_fail(reterr, ISO_E_IO, 0, NULL, "%.200s: creating the folder failed: %s", part,
                            strerror(errno));
        part[i] = kept;
    }
    return ISO_OK;
}

enum iso_err file_check_readable(const char *path, bool folder, struct iso_errinfo *reterr)
{
    struct stat st;
    if (stat(path, &st) || access(path, R_OK))
        return iso_fail(reterr, ISO_E_IO, 0, NULL, "opening failed: %s", strerror(errno));
    if (S_ISDIR(st.st_mode) && !folder)
        return iso_fail(reterr, ISO_E_IO, 0, NULL, "this is a folder");
    return ISO_OK;
}
