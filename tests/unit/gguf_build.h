// Writes GGUF files into a buffer, right or wrong ones: nothing is checked here. For tests.
#pragma once

#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/buf.h"
#include "formats/gguf.h"

static inline void gb_bytes(struct buf *b, const void *bytes, size_t n)
{
    ASSERT(buf_append(b, bytes, n) == ISO_OK);
}

static inline void gb_u8(struct buf *b, uint8_t v)
{
    gb_bytes(b, &v, sizeof v);
}

static inline void gb_u32(struct buf *b, uint32_t v)
{
    gb_bytes(b, &v, sizeof v);
}

static inline void gb_u64(struct buf *b, uint64_t v)
{
    gb_bytes(b, &v, sizeof v);
}

static inline void gb_f32(struct buf *b, float v)
{
    gb_bytes(b, &v, sizeof v);
}

static inline void gb_str(struct buf *b, const char *s)
{
    gb_u64(b, strlen(s));
    gb_bytes(b, s, strlen(s));
}

static inline void gb_begin(struct buf *b, uint64_t n_tensors, uint64_t n_kv)
{
    gb_bytes(b, "GGUF", 4);
    gb_u32(b, 3);
    gb_u64(b, n_tensors);
    gb_u64(b, n_kv);
}

// A key and its value's type; the value has to follow.
static inline void gb_key(struct buf *b, const char *key, uint32_t type)
{
    gb_str(b, key);
    gb_u32(b, type);
}

// A key and an array's head; n elements have to follow.
static inline void gb_array(struct buf *b, const char *key, uint32_t elem_type, uint64_t n)
{
    gb_key(b, key, GGUF_ARRAY);
    gb_u32(b, elem_type);
    gb_u64(b, n);
}

static inline void gb_kv_u32(struct buf *b, const char *key, uint32_t v)
{
    gb_key(b, key, GGUF_U32);
    gb_u32(b, v);
}

static inline void gb_kv_str(struct buf *b, const char *key, const char *s)
{
    gb_key(b, key, GGUF_STR);
    gb_str(b, s);
}

static inline void gb_tensor(struct buf *b, const char *name, uint32_t type, uint32_t n_dims,
                             const uint64_t *dims, uint64_t offset)
{
    gb_str(b, name);
    gb_u32(b, n_dims);
    gb_bytes(b, dims, n_dims * sizeof *dims);
    gb_u32(b, type);
    gb_u64(b, offset);
}

// Padding and `n` bytes of zeros as the tensors' data.
static inline void gb_data(struct buf *b, uint32_t alignment, size_t n)
{
    ASSERT(buf_align(b, alignment) == ISO_OK);
    ASSERT(buf_append_zeros(b, n, NULL) == ISO_OK);
}

// Two tensors: Q4_0 of 64 x 2 (72 bytes) at 0 and F32 of 8 (32 bytes) at 96.
static inline void gb_good(struct buf *b)
{
    gb_begin(b, 2, 9);
    gb_kv_str(b, "general.architecture", "llama");
    gb_kv_u32(b, "llama.block_count", 30);
    gb_key(b, "eps", GGUF_F32);
    gb_f32(b, 1e-5f);
    gb_key(b, "flag", GGUF_BOOL);
    gb_u8(b, 1);
    gb_array(b, "tokens", GGUF_STR, 3);
    gb_str(b, "a");
    gb_str(b, "");
    gb_str(b, "\xff\xfe");
    gb_array(b, "types", GGUF_I32, 2);
    gb_u32(b, 7);
    gb_u32(b, (uint32_t)-7);
    gb_array(b, "scores", GGUF_F32, 2);
    gb_f32(b, 0.5f);
    gb_f32(b, -2);
    gb_array(b, "none", GGUF_STR, 0);
    gb_key(b, "eps64", GGUF_F64);
    double d = 1e300;
    gb_bytes(b, &d, sizeof d);
    gb_tensor(b, "w", GGML_Q4_0, 2, (uint64_t[]){64, 2}, 0);
    gb_tensor(b, "a.norm", GGML_F32, 1, (uint64_t[]){8}, 96);
    gb_data(b, 32, 96);
    for (int i = 0; i < 8; i++)
        gb_f32(b, (float)i);
}

// A descriptor of an anonymous file with the bytes of b; *ret_path (64 bytes) names it.
static inline int gb_make_file(const struct buf *b, char *ret_path)
{
    int fd = memfd_create("gguf_build", 0);
    ASSERT(fd >= 0);
    ASSERT(write(fd, b->ptr, b->len) == (ssize_t)b->len);
    snprintf(ret_path, 64, "/proc/self/fd/%d", fd);
    return fd;
}
