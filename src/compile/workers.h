// Threads that make numbered pieces of work in any order, each into a buffer of its own, while the caller takes the
// pieces in the order of their numbers. Internal to compile/.
//
// Which thread makes a piece, and when, doesn't show: a piece depends on its number alone, and of several errors that
// of the lowest number is given. Memory is that of workers_open, whatever the pieces are.
#pragma once

#include <stdint.h>

#include "base/err.h"

#define WORKERS_MAX        64
#define WORKERS_PIECES_MAX (2 * WORKERS_MAX) // made and not yet taken

struct workers;

// Makes piece `number` into the buffer, on one of the threads.
typedef enum iso_err workers_make(void *context, uint32_t number, uint8_t *buffer,
                                  struct iso_errinfo *reterr);
// Takes piece `number`, on the caller's thread; the buffer is as it was made.
typedef enum iso_err workers_take(void *context, uint32_t number, const uint8_t *buffer,
                                  struct iso_errinfo *reterr);

// One for each CPU that the process may use, at most WORKERS_MAX.
uint32_t workers_usable(void);

// `threads` from 1 to WORKERS_MAX; buffers of `buffer_bytes` each, aligned to a page. ISO_E_NOMEM.
enum iso_err workers_open(uint32_t threads, uint64_t buffer_bytes, struct workers **ret,
                          struct iso_errinfo *reterr) ISO_MUST_USE;
// NULL is allowed.
void workers_close(struct workers *w);

// Pieces 0 to n - 1. On return none is being made. After an error the later ones may not have been made or taken.
enum iso_err workers_run(struct workers *w, uint32_t n, workers_make *make, workers_take *take, void *context,
                         struct iso_errinfo *reterr) ISO_MUST_USE;
