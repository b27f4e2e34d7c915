// GGUF model files, versions 2 and 3, little-endian: open, check, look up, read.
//
// gguf_open reads and checks the whole header; what it returns can be relied on: every key and tensor name is
// unique, every value lies inside the header, every tensor inside the file, no two tensors overlap. The
// values of the tensors are checked by ggml_check_values as they are read.
//
// The file is never mapped: a file that somebody truncates meanwhile gives ISO_E_IO, not a signal.
//
// Ownership: a struct gguf owns its file descriptor, the header's bytes and the tables. Every view and
// pointer from here (keys, names, strings, arrays, tensors) is valid until gguf_close. Threading: read-only
// after gguf_open, so any number of threads may use it; gguf_read does not move a position.
//
// Error texts are one sentence without the file's name, which the caller adds with iso_fail_prefix.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/err.h"
#include "base/num.h"
#include "base/strv.h"
#include "formats/ggml_types.h"

// Limits.
#define GGUF_HEADER_BYTES_MAX  (512 * MIB) // everything before the tensors' data
#define GGUF_KV_MAX            65536       // metadata pairs
#define GGUF_TENSORS_MAX       65536
#define GGUF_KEY_BYTES_MAX     65535 // of a metadata key
#define GGUF_NAME_BYTES_MAX    64    // of a tensor's name
#define GGUF_DIMS_MAX          4
#define GGUF_ALIGNMENT_MAX     65536
#define GGUF_ALIGNMENT_DEFAULT 32

// clang-format off
// Types of metadata values. Bytes of one element; a string's are those of its length, which goes before it.
//    name  number text     bytes kind
#define GGUF_TYPE_LIST(X)                       \
    X(U8,    0, "uint8",   1, GGUF_UNSIGNED)   \
    X(I8,    1, "int8",    1, GGUF_SIGNED)     \
    X(U16,   2, "uint16",  2, GGUF_UNSIGNED)   \
    X(I16,   3, "int16",   2, GGUF_SIGNED)     \
    X(U32,   4, "uint32",  4, GGUF_UNSIGNED)   \
    X(I32,   5, "int32",   4, GGUF_SIGNED)     \
    X(F32,   6, "float32", 4, GGUF_FLOAT)      \
    X(BOOL,  7, "bool",    1, GGUF_BOOLEAN)    \
    X(STR,   8, "string",  8, GGUF_TEXT)       \
    X(ARRAY, 9, "array",   0, GGUF_SEQUENCE)   \
    X(U64,  10, "uint64",  8, GGUF_UNSIGNED)   \
    X(I64,  11, "int64",   8, GGUF_SIGNED)     \
    X(F64,  12, "float64", 8, GGUF_FLOAT)
// clang-format on

enum gguf_type {
#define X(name, number, text, bytes, kind) GGUF_##name = number,
    GGUF_TYPE_LIST(X)
#undef X
        GGUF_TYPE_COUNT
};

enum gguf_kind {
    GGUF_UNSIGNED,
    GGUF_SIGNED,
    GGUF_FLOAT,
    GGUF_BOOLEAN,
    GGUF_TEXT,
    GGUF_SEQUENCE,
};

struct gguf_type_info {
    const char *name;
    uint32_t bytes;
    enum gguf_kind kind;
};

// Elements of one type as they stand in the file.
struct gguf_array {
    enum gguf_type type; // never GGUF_ARRAY
    uint64_t n;          // elements
    const uint8_t *bytes;
    size_t n_bytes;
};

// A metadata pair. A value that is no array is kept as one element.
struct gguf_kv {
    struct strv key; // valid UTF-8, not empty, no zero bytes
    enum gguf_type type;
    struct gguf_array value;
};

struct gguf_tensor {
    struct strv name;             // valid UTF-8, not empty, no zero bytes
    enum ggml_type type;          // supported
    uint32_t n_dims;              // 1 to GGUF_DIMS_MAX
    uint64_t dims[GGUF_DIMS_MAX]; // elements, the contiguous dimension first; 1 from n_dims on
    uint64_t offset;              // of the first byte, from the file's beginning
    uint64_t bytes;
};

// What changes when the file does.
struct gguf_identity {
    uint64_t bytes;
    int64_t mtime_ns; // since 1970
    uint64_t inode;
    uint64_t device;
};

// Callers read these fields and change none.
struct gguf {
    uint32_t version;
    uint32_t alignment; // of every tensor's offset, a power of two
    uint32_t n_kv;
    uint32_t n_tensors;
    struct gguf_kv *kv;            // n_kv, in the file's order
    struct gguf_tensor *tensors;   // n_tensors, in the file's order
    struct gguf_identity identity; // of the file when it was opened

    int fd;                             // -1 where there is no file (gguf_parse)
    const struct gguf_kv **kv_by_key;   // sorted by gguf_compare
    const struct gguf_tensor **by_name; // sorted by gguf_compare
    struct arena header;                // the file's first bytes
    struct arena tables;
};

// Opens and checks. Errors: ISO_E_IO (cannot be opened or read, is no regular file, ended early),
// ISO_E_FORMAT, ISO_E_UNSUPPORTED (big-endian, version 1, tensor types), ISO_E_LIMIT, ISO_E_NOMEM.
enum iso_err gguf_open(const char *path, struct gguf **ret, struct iso_errinfo *reterr) ISO_MUST_USE;
// Frees everything; NULL is fine.
void gguf_close(struct gguf *g);
// Frees what a struct gguf owns, not the struct itself: for one filled by gguf_parse.
void gguf_deinit(struct gguf *g);

// Reads n bytes of a tensor from byte `at` of its data on; at + n is at most tensor->bytes.
// ISO_E_IO where the system fails or the file ended early; dst is then partly written.
enum iso_err gguf_read(const struct gguf *g, const struct gguf_tensor *tensor, uint64_t at, void *dst,
                       size_t n, struct iso_errinfo *reterr) ISO_MUST_USE;

// The row of a metadata type's number, or NULL where no type has that number.
const struct gguf_type_info *gguf_type_info(uint32_t number);

// Lookup by name in O(log n). NULL where there is none.
const struct gguf_kv *gguf_find(const struct gguf *g, const char *key);
const struct gguf_tensor *gguf_tensor_find(const struct gguf *g, const char *name);
bool gguf_has(const struct gguf *g, const char *key);

// Typed values: ISO_E_FORMAT where the key is missing, its value has another type or lies outside of the
// range. u32 takes every integer type; f32 takes both float types and refuses what is not finite as an f32.
enum iso_err gguf_get_u32(const struct gguf *g, const char *key, uint32_t *ret,
                          struct iso_errinfo *reterr) ISO_MUST_USE;
enum iso_err gguf_get_f32(const struct gguf *g, const char *key, float *ret,
                          struct iso_errinfo *reterr) ISO_MUST_USE;
enum iso_err gguf_get_bool(const struct gguf *g, const char *key, bool *ret,
                           struct iso_errinfo *reterr) ISO_MUST_USE;
// The bytes of a string may be anything: only keys and tensor names are checked to be UTF-8.
enum iso_err gguf_get_str(const struct gguf *g, const char *key, struct strv *ret,
                          struct iso_errinfo *reterr) ISO_MUST_USE;
// An array whose elements have exactly the type elem_type.
enum iso_err gguf_get_array(const struct gguf *g, const char *key, enum gguf_type elem_type,
                            struct gguf_array *ret, struct iso_errinfo *reterr) ISO_MUST_USE;

// Element i of an array of GGUF_I32 or GGUF_F32. A float may be NaN or infinite.
int32_t gguf_array_i32(const struct gguf_array *a, uint64_t i);
float gguf_array_f32(const struct gguf_array *a, uint64_t i);

// Walks an array of GGUF_STR, whose elements differ in length.
struct gguf_str_iter {
    const uint8_t *at;
    uint64_t left; // elements
};

struct gguf_str_iter gguf_str_iter(const struct gguf_array *a);
// Sets *ret to the next string; false at the end.
bool gguf_next_str(struct gguf_str_iter *iter, struct strv *ret);

// The value of a pair that is no string and no array, as text with a terminating zero: decimal digits, the
// shortest of %.9g or %.17g that the type needs, "nan", "inf", "true", "false". False for strings and arrays.
#define GGUF_SCALAR_TEXT_MAX 32
bool gguf_scalar_text(const struct gguf_kv *kv, char out[GGUF_SCALAR_TEXT_MAX]);
