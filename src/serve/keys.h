// API keys: who may ask, how often, how much at once.
//
// The file has a key a line, then options: rate=N/s or N/min (requests), concurrency=N (requests at once), name=TEXT (for the log;
// default: key and the number of its line, as key7), admin=no (may not call /admin). Spaces and tabs part them. Empty lines and
// lines that begin with # are passed over. A key and a name are visible ASCII characters. Keys are kept as hashes and compared in
// constant time, all of them each time. No error shows anything of a line but its number: it may be part of a key.
//
// Ownership: one thread. Every key has a number that stays its own over reloads, as long as the file has it or requests of it run.
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/strv.h"

#define KEYS_MAX             1024
#define KEYS_NONE            UINT32_MAX
#define KEYS_FILE_BYTES_MAX  ((size_t)1 << 20)
#define KEYS_KEY_BYTES_MIN   8
#define KEYS_KEY_BYTES_MAX   256
#define KEYS_NAME_BYTES_MAX  64
#define KEYS_RATE_MAX        1000000u // requests in a second or minute
#define KEYS_CONCURRENCY_MAX 1000000u
// Numbers there are: the keys of the file, and removed ones of which requests still run.
#define KEYS_SLOTS_MAX (2 * KEYS_MAX)

struct keys;

// ISO_E_IO, also for what is no regular file; ISO_E_FORMAT (names file and line), ISO_E_LIMIT, ISO_E_NOMEM. A file that others may
// read (mode) is told by keys_is_readable_by_others.
enum iso_err keys_open(const char *path, struct keys **ret, struct iso_errinfo *reterr) ISO_MUST_USE;
// Reads the file anew; on an error all stays as it was. Limits and counts of keys that stay go on.
enum iso_err keys_reload(struct keys *k, const char *path, struct iso_errinfo *reterr) ISO_MUST_USE;
void keys_close(struct keys *k); // NULL is allowed
bool keys_is_readable_by_others(const struct keys *k);
uint32_t keys_count(const struct keys *k); // in the file

// The number of a key, or KEYS_NONE. It holds until the next keys_reload, and longer while requests of it run.
uint32_t keys_find(const struct keys *k, struct strv key);
const char *keys_name(const struct keys *k, uint32_t key); // valid until the next keys_reload
bool keys_may_admin(const struct keys *k, uint32_t key);

enum keys_verdict { KEYS_ADMITTED, KEYS_TOO_OFTEN, KEYS_TOO_MANY };
// Counts a request that begins now. KEYS_TOO_OFTEN sets *ret_retry_ms: after that one will be admitted. A rate of N allows a burst
// of N in its unit of time (token bucket, in whole nanoseconds: no drift). What is refused costs nothing.
enum keys_verdict keys_begin(struct keys *k, uint32_t key, uint64_t now_ns, uint64_t *ret_retry_ms);
// Of one that was admitted.
void keys_end(struct keys *k, uint32_t key);
