// safetensors files: the header, read and checked. Format: 8 bytes of little-endian header length, a JSON object
// {"name": {"dtype": ..., "shape": [...], "data_offsets": [begin, end]}, ...}, then the data, which offsets count from.
//
// What is returned can be relied on: names are unique, every tensor's bytes are what its type and shape give, and the
// tensors tile the data exactly, without a gap, an overlap or a rest. Nothing is kept but what goes into the arena.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/err.h"
#include "base/strv.h"
#include "formats/ggml_types.h"

#define SAFETENSORS_HEADER_MAX   ((uint64_t)100000000) // the format's own limit
#define SAFETENSORS_TENSORS_MAX  65536
#define SAFETENSORS_DIMS_MAX     4
#define SAFETENSORS_NAME_MAX     1024
#define SAFETENSORS_LENGTH_BYTES 8

struct safetensor {
    struct strv name;                    // not empty, no zero bytes
    enum ggml_type type;                 // GGML_F32, GGML_F16, GGML_BF16
    uint32_t n_dims;                     // 1 to SAFETENSORS_DIMS_MAX
    uint64_t dims[SAFETENSORS_DIMS_MAX]; // the shape turned round: contiguous first, 1 from n_dims on
    uint64_t offset;                     // from the file's beginning
    uint64_t bytes;
};

struct safetensors {
    struct safetensor *tensors; // by offset
    uint32_t n_tensors;
};

// The header's length from the file's first bytes. ISO_E_FORMAT where it doesn't fit in the file, ISO_E_LIMIT.
enum iso_err safetensors_header_bytes(const uint8_t first[SAFETENSORS_LENGTH_BYTES], uint64_t file_bytes,
                                      uint64_t *ret, struct iso_errinfo *reterr) ISO_MUST_USE;
// Parses the header's JSON. Names and tables go into `arena`. ISO_E_UNSUPPORTED names a type that is not supported.
enum iso_err safetensors_parse(struct strv header, uint64_t file_bytes, struct arena *arena,
                               struct safetensors *ret, struct iso_errinfo *reterr) ISO_MUST_USE;
// The same from an open file of `file_bytes` bytes. Also ISO_E_IO, ISO_E_NOMEM.
enum iso_err safetensors_read(int fd, uint64_t file_bytes, struct arena *arena, struct safetensors *ret,
                              struct iso_errinfo *reterr) ISO_MUST_USE;
