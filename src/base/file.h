// Files: reading at an offset without mapping, and writing that is either whole under its final name or not
// there.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

#define FILE_PATH_MAX 4096

// Reads exactly n bytes at `at`. ISO_E_IO with the reason where the file ends early or the system fails.
enum iso_err file_read_at(int fd, uint64_t at, void *dst, size_t n, struct iso_errinfo *reterr) ISO_MUST_USE;

// A file being written beside its final place. Close with file_write_finish (sync, rename) or
// file_write_abandon.
struct file_writer {
    int fd;
    bool unnamed; // it gets temp_path only when whole; until then a process that dies leaves nothing
    uint64_t bytes;
    char final_path[FILE_PATH_MAX];
    char temp_path[FILE_PATH_MAX + 64];
};

// Creates the temporary file in the folder of `path`, which must not be a device, pipe or folder. Errors name
// the path.
enum iso_err file_write_begin(const char *path, struct file_writer *ret,
                              struct iso_errinfo *reterr) ISO_MUST_USE;
enum iso_err file_write(struct file_writer *w, const void *bytes, size_t n,
                        struct iso_errinfo *reterr) ISO_MUST_USE;
// Overwrites n bytes at `at`, which lie inside what is written.
enum iso_err file_write_at(struct file_writer *w, uint64_t at, const void *bytes, size_t n,
                           struct iso_errinfo *reterr) ISO_MUST_USE;
// Syncs, renames over the final name, syncs the folder. On failure the temporary file is removed and the
// final name is what it was before: nothing, or an older file.
enum iso_err file_write_finish(struct file_writer *w, struct iso_errinfo *reterr) ISO_MUST_USE;
void file_write_abandon(struct file_writer *w);

// ISO_E_IO where opening the path for reading would fail, or where it is a folder and `folder` is false. Opens nothing, so a pipe
// keeps what is in it: for saying before long work what would be said after it. Errors don't name the path.
enum iso_err file_check_readable(const char *path, bool folder, struct iso_errinfo *reterr) ISO_MUST_USE;

// Creates a folder and its parents (mode 0700 for those created).
enum iso_err file_make_folders(const char *path, struct iso_errinfo *reterr) ISO_MUST_USE;
