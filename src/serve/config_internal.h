// What the parts of config share: how each setting is stored, and values as texts, both ways.
#pragma once

#include "serve/config.h"

enum config_kind {
    KIND_MODEL,
    KIND_NAME,
    KIND_PATH,
    KIND_ADDRESS, // and the port
    KIND_BOOL,
    KIND_WHOLE, // uint32_t
    KIND_SIZE,  // uint64_t, bytes
    KIND_TIME,  // uint32_t, milliseconds
    KIND_REAL,
    KIND_WORD,  // one of `words`, as it is
    KIND_INDEX, // its number among them, in a bool or an enum
    KIND_CPUS,
};

struct config_spec {
    enum config_kind kind;
    bool of_unit;    // a field of struct config_unit, else of struct serve_config
    size_t at, size; // the field
    uint64_t min, max;
    const char *words; // with spaces between
};

extern const struct config_spec CONFIG_SPECS[SETTING_COUNT];

// Where a value goes.
struct config_target {
    struct serve_config *c;
    struct config_unit *unit; // that settings of units belong to
    struct strv folder;       // of relative paths, with the slash; empty: the working directory
    uint32_t line;            // CONFIG_LINE_FLAG: a flag
};

#define CONFIG_ALLOWED_BYTES 128

void config_unit_init(struct config_unit *u, uint32_t index);
// True for valid UTF-8 of 1 to max bytes, of characters that YAML has and that don't end a line or control anything.
bool config_text_ok(struct strv text, size_t max);
// A character of such a text.
bool config_char_ok(uint32_t cp);
// What a setting may be, for messages: "a whole number from 1 to 1024".
void config_allowed(enum config_id id, char out[CONFIG_ALLOWED_BYTES]);
// Sets from a text, and remembers the line. `called` is the setting in messages: "limits.slots" or "--slots". ISO_E_USAGE.
enum iso_err config_put(const struct config_target *t, enum config_id id, const char *called,
                        struct strv text, struct iso_errinfo *reterr) ISO_MUST_USE;
// A model more. An empty name is none. ISO_E_USAGE.
enum iso_err config_put_model(const struct config_target *t, struct strv name, struct strv path,
                              struct iso_errinfo *reterr) ISO_MUST_USE;
// A CPU more for the unit. False where there are TEAM_THREADS_MAX already or the text isn't one's number.
bool config_put_cpu(struct config_unit *u, struct strv text);
// A size, time or real as config_put reads it.
#define CONFIG_SHOWN_BYTES 32
void config_show_size(uint64_t bytes, char out[CONFIG_SHOWN_BYTES]);
void config_show_time(uint32_t ms, char out[CONFIG_SHOWN_BYTES]);
void config_show_real(double value, char out[CONFIG_SHOWN_BYTES]);
// Word i of a list with spaces between; empty after the last.
struct strv config_word(const char *words, uint32_t i);
