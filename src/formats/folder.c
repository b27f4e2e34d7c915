#include "formats/folder.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/openat2.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/file.h"

enum iso_err folder_open(const char *path, int *ret, struct iso_errinfo *reterr)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return iso_fail(reterr, ISO_E_IO, 0, "folder", "cannot be opened: %m");
    *ret = fd;
    return ISO_OK;
}

bool folder_has(int folder, const char *name)
{
    struct stat st;
    return fstatat(folder, name, &st, AT_SYMLINK_NOFOLLOW) == 0;
}

// Opens beneath the folder; where the system is too old to see to that, no symbolic link at all.
static int open_beneath(int folder, const char *name)
{
    // Without O_NONBLOCK a FIFO would wait here for a writer; on regular files it changes nothing.
    struct open_how how = {.flags = O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY,
                           .resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS};
    int fd = (int)syscall(SYS_openat2, folder, name, &how, sizeof how);
    if (fd < 0 && errno == ENOSYS)
        fd = openat(folder, name, (int)how.flags | O_NOFOLLOW);
    return fd;
}

enum iso_err folder_open_file(int folder, const char *name, int *ret, uint64_t *ret_bytes,
                              struct iso_errinfo *reterr)
{
    if (name[0] == '\0' || strchr(name, '/') || strcmp(name, ".") == 0 || strcmp(name, "..") == 0)
        return iso_fail(reterr, ISO_E_FORMAT, 0, "file", "\"%s\" is no name of a file in the model's folder",
                        name);
    int fd = open_beneath(folder, name);
    if (fd < 0 && (errno == EXDEV || errno == ELOOP))
        return iso_fail(
            reterr, ISO_E_FORMAT, 0, "file",
            "%s is a symbolic link that leads out of the model's folder; copy the folder with its files "
            "(cp -rL)",
            name);
    if (fd < 0)
        return iso_fail(reterr, ISO_E_IO, 0, "file", "%s cannot be opened: %m", name);
    struct stat st;
    enum iso_err err = ISO_OK;
    if (fstat(fd, &st) != 0)
        err = iso_fail(reterr, ISO_E_IO, 0, "file", "%s cannot be examined: %m", name);
    else if (!S_ISREG(st.st_mode))
        err = iso_fail(reterr, ISO_E_IO, 0, "file", "%s is no regular file", name);
    else if (st.st_nlink > 1)
        err = iso_fail(
            reterr, ISO_E_FORMAT, 0, "file",
            "%s has another name (a hard link), which may lie out of the model's folder; copy the folder",
            name);
    if (err) {
        close(fd);
        return err;
    }
    *ret = fd;
    *ret_bytes = (uint64_t)st.st_size;
    return ISO_OK;
}

enum iso_err folder_read(int folder, const char *name, uint64_t max, struct buf *out,
                         struct iso_errinfo *reterr)
{
    int fd;
    uint64_t bytes;
    uint8_t *to;
    enum iso_err err = folder_open_file(folder, name, &fd, &bytes, reterr);
    if (err)
        return err;
    if (bytes > max)
        err = iso_fail(reterr, ISO_E_LIMIT, 0, "file", "%s has %" PRIu64 " bytes; the limit is %" PRIu64,
                       name, bytes, max);
    else if (buf_append_zeros(out, bytes, &to))
        err = iso_fail(reterr, ISO_E_NOMEM, 0, "file", "%s: the system refused memory to read it", name);
    else if (file_read_at(fd, 0, to, bytes, reterr))
        err = iso_fail_prefix(reterr, name);
    close(fd);
    return err;
}
