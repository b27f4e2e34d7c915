// The server's settings: defaults, over them a YAML file, over it flags. One table (config_settings.h) has every setting once:
// its path in the file ("limits.slots"), its flag ("slots"), type, range and what it means.
//
// Errors of a file are "FILE:LINE: sentence"; of a flag they name it. Nothing of a file is taken that isn't known: an unknown
// key, a wrong type or a value out of range is refused with what would be right.
//
// Ownership: a struct serve_config is plain bytes without pointers (some 80 KB: better not on a small stack). What fails leaves it
// as it was. Not thread-safe.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/file.h"
#include "base/strv.h"
#include "serve/config_settings.h"
#include "unit/team.h"

#define CONFIG_FILE_BYTES_MAX ((size_t)1 << 20)
#define CONFIG_MODELS_MAX     8
#define CONFIG_UNITS_MAX      8
#define CONFIG_NAME_BYTES     128 // with the zero
#define CONFIG_ADDRESS_BYTES  64
#define CONFIG_WORD_BYTES     16
#define CONFIG_CPU_MAX        65535
#define CONFIG_LINE_FLAG      UINT32_MAX

enum config_policy { POLICY_LOAD_BALANCE, POLICY_ROUND_ROBIN };
enum config_audit { AUDIT_TOKENS, AUDIT_DIGESTS };

struct config_model {
    char name[CONFIG_NAME_BYTES]; // what clients call it; "" where only a path was given
    char path[FILE_PATH_MAX];
    uint32_t line; // as lines below
};

struct config_unit {
    char name[CONFIG_NAME_BYTES];
    uint32_t cpus[TEAM_THREADS_MAX];
    uint32_t n_cpus;     // 0: any
    uint32_t threads;    // 0: one for each CPU
    uint64_t pool_bytes; // 0: what the machine has available
    bool fifo;
    uint32_t line; // of the file on which it begins; 0: not from a file
};

// SETTING_MODEL, SETTING_ALIAS and so on.
enum config_id {
#define X(id, ...) SETTING_##id,
    CONFIG_SETTINGS(X)
#undef X
        SETTING_COUNT
};

struct serve_config {
    struct config_model models[CONFIG_MODELS_MAX];
    uint32_t n_models;
    char alias[CONFIG_NAME_BYTES];      // "": the model's own name; not with several models
    bool any_model;                     // requests may name any model (the first one answers)
    char address[CONFIG_ADDRESS_BYTES]; // numeric; IPv6 without brackets
    uint16_t port;
    bool insecure; // lets address be one of the network's without keys
    struct config_unit units[CONFIG_UNITS_MAX];
    uint32_t n_units; // at least 1
    // limits
    uint32_t max_seq_len, slots, batch_tokens; // 0: as the plan has them, or compile's default
    uint32_t queue;                            // answers that wait
    uint64_t body_bytes;
    uint32_t connections;
    uint32_t max_tokens; // of an answer where the request doesn't say
    // timeouts, milliseconds
    uint32_t head_ms, body_ms, idle_ms, stall_ms;
    // compile: how a model file is compiled; "" where not given
    char quant[CONFIG_WORD_BYTES], quant_embedding[CONFIG_WORD_BYTES], kv[CONFIG_WORD_BYTES];
    enum config_policy policy;
    double load_threshold;
    char keys_file[FILE_PATH_MAX]; // "": none
    char audit_file[FILE_PATH_MAX];
    enum config_audit audit_detail;
    char log_level[CONFIG_WORD_BYTES];                             // error, warn, info, debug
    char log_format[CONFIG_WORD_BYTES];                            // text, json
    char certificate_file[FILE_PATH_MAX], key_file[FILE_PATH_MAX]; // "": plain HTTP
    char isa[CONFIG_WORD_BYTES];                                   // "": the best
    char file[FILE_PATH_MAX];                                      // that was read; "": none
    // Where each setting comes from: 0 the default, CONFIG_LINE_FLAG a flag, else the line of the file (of units and models the
    // last that has it).
    uint32_t lines[SETTING_COUNT];
};

struct config_setting {
    const char *path; // in the file; units' are "units.cpus" and the like, of any element
    const char *flag; // without dashes; NULL: none
    const char
        *value; // what a flag's value is called in the help ("N", "SIZE", "FILE"); NULL: a flag without one
    const char *help; // one sentence without the period, with the default
};

void config_defaults(struct serve_config *c);
// Reads a file over what is there; its models or units take the place of all earlier ones. Relative paths in it are relative to
// its folder. ISO_E_USAGE, ISO_E_IO, ISO_E_LIMIT, ISO_E_NOMEM.
enum iso_err config_read(struct serve_config *c, const char *path, struct iso_errinfo *reterr) ISO_MUST_USE;
// The same of a file's text; `path` is what the file is called.
enum iso_err config_parse(struct serve_config *c, struct strv text, const char *path,
                          struct iso_errinfo *reterr) ISO_MUST_USE;
// All settings by their enum config_id, in the order of the file that config_print writes.
const struct config_setting *config_settings(uint32_t *ret_n);
// Sets one from its flag's value (NULL where it takes none). Flags of units set those of the first unit. SETTING_MODEL adds a
// model, "path" or "name=path" (a name has no slash: "./a=b" is a path); the first takes the place of those of a file. ISO_E_USAGE.
enum iso_err config_set(struct serve_config *c, uint32_t setting, const char *value,
                        struct iso_errinfo *reterr) ISO_MUST_USE;
// What can be said without opening anything: a model is there, settings fit each other. ISO_E_USAGE with where it is wrong.
enum iso_err config_check(const struct serve_config *c, struct iso_errinfo *reterr) ISO_MUST_USE;
// Where a setting comes from, for messages: "isochron.yaml:5", "--slots", "the command line" (of a model) or "the default".
void config_where(const struct serve_config *c, enum config_id id, char *out, size_t size);
// As a YAML file that config_read would read to the same settings, each with its meaning as a comment; those that are not set stand
// in comments. Paths stay relative to the working directory, so the file belongs there. Of settings that config_check took.
enum iso_err config_print(const struct serve_config *c, struct buf *out) ISO_MUST_USE;
