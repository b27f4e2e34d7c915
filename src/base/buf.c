#include "base/buf.h"

#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/mem.h"
#include "base/num.h"

#define BUF_FIRST_CAPACITY 256

void buf_init(struct buf *b, size_t max)
{
    *b = (struct buf){.max = max};
}

void buf_deinit(struct buf *b)
{
    free(b->ptr);
    *b = (struct buf){.max = b->max};
}

void buf_reset(struct buf *b)
{
    b->len = 0;
}

static enum iso_err buf_reserve(struct buf *b, size_t n)
{
    ASSERT(!mem_is_sealed() && b->len <= b->capacity);
    if (n > b->max || b->len > b->max - n)
        return ISO_E_LIMIT;
    if (n <= b->capacity - b->len)
        return ISO_OK;
    size_t want = num_max(b->len + n, b->capacity > b->max / 2 ? b->max : b->capacity * 2);
    want = num_min(num_max(want, BUF_FIRST_CAPACITY), b->max);
    uint8_t *ptr = realloc(b->ptr, want);
    if (!ptr)
        return ISO_E_NOMEM;
    b->ptr = ptr;
    b->capacity = want;
    return ISO_OK;
}

enum iso_err buf_append(struct buf *b, const void *bytes, size_t n)
{
    if (n == 0)
        return ISO_OK;
    enum iso_err err = buf_reserve(b, n);
    if (err)
        return err;
    memcpy(b->ptr + b->len, bytes, n);
    b->len += n;
    return ISO_OK;
}

enum iso_err buf_append_strv(struct buf *b, struct strv s)
{
    return buf_append(b, s.ptr, s.len);
}

enum iso_err buf_append_byte(struct buf *b, uint8_t byte)
{
    return buf_append(b, &byte, 1);
}

enum iso_err buf_append_zeros(struct buf *b, size_t n, uint8_t **ret_at)
{
    enum iso_err err = buf_reserve(b, n);
    if (err)
        return err;
    if (n > 0)
        memset(b->ptr + b->len, 0, n);
    if (ret_at)
        *ret_at = b->ptr + b->len;
    b->len += n;
    return ISO_OK;
}

enum iso_err buf_align(struct buf *b, size_t align)
{
    return buf_append_zeros(b, (size_t)(num_align(b->len, align) - b->len), NULL);
}
