// String view: bytes owned by somebody else, not terminated, any content. The owner must outlive the view.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

struct strv {
    const char *ptr;
    size_t len;
};

#define STRV_LIT(literal) ((struct strv){(literal), sizeof(literal) - 1})

// For printf("%.*s"): at most `max` bytes of a view.
#define STRV_ARG(s) (int)((s).len > 96 ? 96 : (s).len), (s).ptr

static inline struct strv strv_from(const char *c_string)
{
    return (struct strv){c_string, strlen(c_string)};
}

static inline bool strv_equal(struct strv a, struct strv b)
{
    return a.len == b.len && (a.len == 0 || memcmp(a.ptr, b.ptr, a.len) == 0);
}

static inline bool strv_is(struct strv a, const char *c_string)
{
    return strv_equal(a, strv_from(c_string));
}

static inline bool strv_starts(struct strv s, const char *prefix)
{
    size_t n = strlen(prefix);
    return s.len >= n && memcmp(s.ptr, prefix, n) == 0;
}
