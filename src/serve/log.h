// The server's log: one line an event, as text or JSON, to a descriptor.
//
// Text:  2026-12-03T07:35:19.123Z INFO request id=r1 tokens=12 ttft_ms=3.200 error="no such model"
// JSON:  {"time":"2026-12-03T07:35:19.123Z","level":"info","event":"request","id":"r1","tokens":12,"ttft_ms":3.200}
// In text, values that are empty or have spaces, quotes, =, backslashes, control characters, line separators or bytes that are no
// UTF-8 are quoted and escaped (JSON's way in both; invalid bytes become U+FFFD): a line is a line whatever a client sent. A line
// is written by one write; one over LOG_LINE_MAX has its longest values cut, which then end in three dots.
//
// No mutable globals: the caller owns the struct, and uses it from one thread. Wall-clock time is only written, never decided by.
// The process must ignore SIGPIPE; where a descriptor blocks, so does log_write.
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/strv.h"

#define LOG_LINE_MAX 8192

enum log_level { LOG_ERROR, LOG_WARN, LOG_INFO, LOG_DEBUG };

struct log {
    int fd;
    enum log_level level; // lines up to this one are written
    bool json;
    bool torn;     // the last line was written in part, without its end
    uint64_t lost; // lines that could not be written, or not whole
};

enum log_kind { LOG_END, LOG_TEXT, LOG_WHOLE, LOG_REAL };
struct log_field {
    const char *name; // the program's own: written as it is
    enum log_kind kind;
    struct strv text;
    uint64_t whole;
    double real; // written with 3 digits after the point; not finite: null
};
#define LOG_S(name, c_string) ((struct log_field){(name), LOG_TEXT, .text = strv_from(c_string)})
#define LOG_V(name, view)     ((struct log_field){(name), LOG_TEXT, .text = (view)})
#define LOG_U(name, number)   ((struct log_field){(name), LOG_WHOLE, .whole = (number)})
#define LOG_F(name, number)   ((struct log_field){(name), LOG_REAL, .real = (number)})

bool log_level_from_name(const char *name, enum log_level *ret); // error, warn, info, debug
// log_write(log, LOG_INFO, "request", LOG_S("id", id), LOG_U("tokens", n)); also without fields. Its arguments are evaluated
// whatever the level, but formatted only where the line is written.
#define log_write(log, level, ...) LOG_WRITE_(log, level, __VA_ARGS__, LOG_END_)
void log_write_fields(struct log *log, enum log_level level, const char *event,
                      const struct log_field *fields); // up to a LOG_END

#define LOG_END_ ((struct log_field){.kind = LOG_END})
#define LOG_WRITE_(log, level, event, ...) \
    log_write_fields((log), (level), (event), (const struct log_field[]){__VA_ARGS__})
