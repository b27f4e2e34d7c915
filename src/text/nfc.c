#include "text/nfc.h"

#include <string.h>
#include <utf8proc.h>

#include "base/assert.h"
#include "base/num.h"
#include "base/utf8.h"

// Below this every character is its own normal form and never joins the one before it.
#define FIRST_NOT_INERT 0x300

// No character decomposes to more than 1.5 code points for each of its bytes (U+0390: 2 bytes, 3 points).
#define POINTS_PER_BYTE 2

#define COMBINING_CLASSES 256

// Marks with a combining class since Unicode 10 to 15, and U+11930, which U+11935 composes with since Unicode
// 13. For Unicode 9 they are characters like any other, which no mark moves across. Ascending.
static const struct {
    uint32_t first, last;
} LATE_MARKS[] = {
    {0x7FD, 0x7FD},     {0x898, 0x89F},     {0x8CA, 0x8D3},     {0x9FE, 0x9FE},     {0xC3C, 0xC3C},
    {0xD3B, 0xD3C},     {0xEBA, 0xEBA},     {0x1715, 0x1715},   {0x1ABF, 0x1ACE},   {0x1DF6, 0x1DFA},
    {0xA82C, 0xA82C},   {0x10D24, 0x10D27}, {0x10EAB, 0x10EAC}, {0x10EFD, 0x10EFF}, {0x10F46, 0x10F50},
    {0x10F82, 0x10F85}, {0x11070, 0x11070}, {0x1133B, 0x1133B}, {0x1145E, 0x1145E}, {0x11839, 0x1183A},
    {0x11930, 0x11930}, {0x1193D, 0x1193E}, {0x11943, 0x11943}, {0x119E0, 0x119E0}, {0x11A34, 0x11A34},
    {0x11A47, 0x11A47}, {0x11A99, 0x11A99}, {0x11D42, 0x11D42}, {0x11D44, 0x11D45}, {0x11D97, 0x11D97},
    {0x11F41, 0x11F42}, {0x16FF0, 0x16FF1}, {0x1E08F, 0x1E08F}, {0x1E130, 0x1E136}, {0x1E2AE, 0x1E2AE},
    {0x1E2EC, 0x1E2EF}, {0x1E4EC, 0x1E4EF},
};

struct nfc {
    int32_t *points; // the segment's code points
    int32_t *sorted; // as many again, for ordering
    size_t points_max;
    uint8_t *out;
    size_t n, max;
};

size_t nfc_work_bytes(size_t n)
{
    return 2 * POINTS_PER_BYTE * n * sizeof(int32_t);
}

static bool is_late_mark(uint32_t cp)
{
    size_t low = 0, high = ARRAY_LEN(LATE_MARKS);
    while (low < high) {
        size_t mid = (low + high) / 2;
        if (cp > LATE_MARKS[mid].last)
            low = mid + 1;
        else
            high = mid;
    }
    return low < ARRAY_LEN(LATE_MARKS) && cp >= LATE_MARKS[low].first;
}

static uint8_t combining_class(int32_t cp)
{
    return (uint8_t)utf8proc_get_property(cp)->combining_class;
}

static enum iso_err put(struct nfc *f, const uint8_t *bytes, size_t n)
{
    if (n > f->max - f->n)
        return ISO_E_LIMIT;
    memcpy(f->out + f->n, bytes, n);
    f->n += n;
    return ISO_OK;
}

// Stable counting sort of a run of marks by combining class.
static void order_marks(struct nfc *f, int32_t *run, size_t n)
{
    size_t next[COMBINING_CLASSES] = {0};
    for (size_t i = 0; i < n; i++)
        next[combining_class(run[i])]++;
    for (size_t c = 0, at = 0; c < COMBINING_CLASSES; c++) {
        size_t in_class = next[c];
        next[c] = at;
        at += in_class;
    }
    for (size_t i = 0; i < n; i++)
        f->sorted[next[combining_class(run[i])]++] = run[i];
    memcpy(run, f->sorted, n * sizeof *run);
}

// Canonical order: each run of marks (class not 0) that is out of order is sorted.
static void order(struct nfc *f, size_t n)
{
    for (size_t i = 0; i < n;) {
        size_t end = i;
        bool ordered = true;
        for (uint8_t class, before = 0; end < n && (class = combining_class(f->points[end])) != 0; end++) {
            ordered &= class >= before;
            before = class;
        }
        if (!ordered)
            order_marks(f, f->points + i, end - i);
        i = end + 1;
    }
}

// Characters s[0..n), which depend on nothing around them: decompose, order, compose.
static enum iso_err normalize_segment(struct nfc *f, const uint8_t *s, size_t n)
{
    size_t n_points = 0;
    for (size_t i = 0; i < n;) {
        uint32_t cp = 0;
        int boundary_class = 0; // unused without grapheme options
        i += utf8_decode(s + i, n - i, &cp);
        utf8proc_ssize_t room = (utf8proc_ssize_t)(f->points_max - n_points);
        utf8proc_ssize_t got = utf8proc_decompose_char((int32_t)cp, f->points + n_points, room,
                                                       UTF8PROC_DECOMPOSE, &boundary_class);
        ASSERT(got > 0 && got <= room);
        n_points += (size_t)got;
    }
    order(f, n_points);
    utf8proc_ssize_t left =
        utf8proc_normalize_utf32(f->points, (utf8proc_ssize_t)n_points, UTF8PROC_COMPOSE | UTF8PROC_STABLE);
    ASSERT(left >= 0);
    for (utf8proc_ssize_t i = 0; i < left; i++) {
        uint8_t bytes[UTF8_MAX_BYTES];
        enum iso_err err = put(f, bytes, utf8_encode((uint32_t)f->points[i], bytes));
        if (err)
            return err;
    }
    return ISO_OK;
}

// Bytes of the segment at the start of s[0..n): one character and those after it that may depend on it.
static size_t segment_length(const uint8_t *s, size_t n)
{
    uint32_t cp = 0;
    size_t end = utf8_decode(s, n, &cp);
    if (is_late_mark(cp))
        return end;
    while (end < n) {
        size_t len = utf8_decode(s + end, n - end, &cp);
        if (cp < FIRST_NOT_INERT || is_late_mark(cp))
            break;
        end += len;
    }
    return end;
}

enum iso_err nfc_normalize(struct strv text, void *work, size_t text_bytes_max, uint8_t *out, size_t max,
                           size_t *ret_n)
{
    ASSERT(text.len <= text_bytes_max);
    size_t points_max = POINTS_PER_BYTE * text_bytes_max;
    struct nfc f = {work, (int32_t *)work + points_max, points_max, out, 0, max};
    const uint8_t *s = (const uint8_t *)text.ptr;
    for (size_t i = 0; i < text.len;) {
        uint32_t cp = 0;
        size_t first = utf8_decode(s + i, text.len - i, &cp);
        ASSERT(first > 0);
        size_t n = segment_length(s + i, text.len - i);
        bool inert = n == first && (cp < FIRST_NOT_INERT || is_late_mark(cp));
        enum iso_err err = inert ? put(&f, s + i, n) : normalize_segment(&f, s + i, n);
        if (err)
            return err;
        i += n;
    }
    *ret_n = f.n;
    return ISO_OK;
}
