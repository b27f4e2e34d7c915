// A plan in memory: read once into pages of its own, checked, read-only.
//
// Because the bytes are a copy of their own, overwriting or truncating the file afterwards changes nothing.
// Ownership: a struct plan owns its mapping; every pointer into it is valid until plan_close. Read-only after
// plan_load, so any number of threads may use it.
#pragma once

#include "base/arena.h"
#include "base/err.h"
#include "base/strv.h"
#include "plan/plan_format.h"

struct plan {
    const struct plan_header *header;
    const struct plan_tensor *tensors;
    const struct plan_op *ops;
    const uint8_t *weights;
    const uint8_t *tokenizer;
    uint64_t tokenizer_bytes;
    struct strv chat_template;
    uint64_t mapped_bytes; // of the whole mapping, a multiple of the page size
};

// Reads and checks only the header: for fit and inspect, whatever the file's size.
enum iso_err plan_peek(const char *path, struct plan_header *ret, struct iso_errinfo *reterr) ISO_MUST_USE;
// The same with the tables of tensors and operations, checked, in memory from `arena`.
enum iso_err plan_peek_program(const char *path, struct arena *arena, struct plan_header *ret,
                               struct plan_tensor **ret_tensors, struct plan_op **ret_ops,
                               struct iso_errinfo *reterr) ISO_MUST_USE;
// The text side alone, for a process that doesn't compute: header, tokenizer and template, checked, in memory from `arena`,
// the tokenizer aligned as tok_open wants it. Of an open regular file, which stays the caller's.
enum iso_err plan_peek_text(int fd, struct arena *arena, struct plan_header *ret, struct strv *ret_tokenizer,
                            struct strv *ret_template, struct iso_errinfo *reterr) ISO_MUST_USE;
// Opens a plan file for that and for plan_load_fd; *ret_fd is the caller's to close.
enum iso_err plan_open_file(const char *path, int *ret_fd, struct iso_errinfo *reterr) ISO_MUST_USE;
// True where the file starts with a plan's magic. False where it can't be read.
bool plan_is_plan(const char *path);

// Called with bytes read so far and in all; may be NULL.
typedef void plan_progress(void *context, uint64_t done, uint64_t total);

// Loads and checks everything, checksums of all sections included. Errors name no file: the caller adds it.
enum iso_err plan_load(const char *path, plan_progress *progress, void *context, struct plan *ret,
                       struct iso_errinfo *reterr) ISO_MUST_USE;
// The same of an open regular file, which stays the caller's: what was opened once, whatever the path means now.
enum iso_err plan_load_fd(int fd, plan_progress *progress, void *context, struct plan *ret,
                          struct iso_errinfo *reterr) ISO_MUST_USE;
void plan_close(struct plan *p);

// Checks a whole plan of `bytes` bytes in memory, aligned to PANEL_ALIGN. The memory stays the caller's and
// must outlive *ret, which is not closed.
enum iso_err plan_attach(const uint8_t *base, uint64_t bytes, struct plan *ret,
                         struct iso_errinfo *reterr) ISO_MUST_USE;
