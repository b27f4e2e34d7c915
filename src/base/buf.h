// Growing byte buffer with a maximum, for output whose length is not known beforehand (rendered templates,
// decoded text, emitted sections). Not for hot paths: it uses realloc.
//
// Ownership: the buffer owns its bytes; buf_deinit frees them. Not thread-safe. An append that would pass
// `max` or that gets no memory fails and leaves the buffer as it was.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/strv.h"

struct buf {
    uint8_t *ptr;
    size_t len;
    size_t capacity;
    size_t max;
};

void buf_init(struct buf *b, size_t max);
void buf_deinit(struct buf *b);
// Keeps the memory, forgets the content.
void buf_reset(struct buf *b);

// ISO_E_LIMIT over max, ISO_E_NOMEM where realloc fails.
enum iso_err buf_append(struct buf *b, const void *bytes, size_t n) ISO_MUST_USE;
enum iso_err buf_append_strv(struct buf *b, struct strv s) ISO_MUST_USE;
enum iso_err buf_append_byte(struct buf *b, uint8_t byte) ISO_MUST_USE;
// Appends n zero bytes and sets *ret_at (may be NULL) to them; valid until the next append.
enum iso_err buf_append_zeros(struct buf *b, size_t n, uint8_t **ret_at) ISO_MUST_USE;
// Pads with zeros to a multiple of `align`, a power of two.
enum iso_err buf_align(struct buf *b, size_t align) ISO_MUST_USE;

static inline struct strv buf_strv(const struct buf *b)
{
    return (struct strv){(const char *)b->ptr, b->len};
}
