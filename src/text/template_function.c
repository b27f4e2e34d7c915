// The functions of templates.
#include "text/template_builtin.h"

#include <stdio.h>
#include <string.h>

#include "text/template_write.h"

// namespace(a=1), namespace({...}): an object with attributes that set can change.
static enum iso_err function_namespace(struct tmpl_run *r, struct tmpl_val self, const struct tmpl_args *args,
                                       struct tmpl_val *ret)
{
    (void)self;
    struct tmpl_namespace *space = tmpl_alloc(r, 1, sizeof *space);
    enum iso_err err = space ? ISO_OK : ISO_E_LIMIT;
    for (uint32_t i = 0; i < args->count && !err; i++) {
        struct tmpl_val v = args->values[i];
        if (args->names[i].ptr)
            err = tmpl_set_member(r, space, tmpl_str(args->names[i]), v);
        else if (i > 0 || v.kind != VAL_DICT)
            return tmpl_fail(r, ISO_E_FORMAT, "namespace takes one dict and keywords");
        for (uint32_t pair = 0; !args->names[i].ptr && pair < v.len && !err; pair++)
            err = tmpl_set_member(r, space, v.pairs[pair].key, v.pairs[pair].value);
    }
    if (!err)
        *ret = (struct tmpl_val){.kind = VAL_NAMESPACE, .space = space};
    return err;
}

static enum iso_err function_raise_exception(struct tmpl_run *r, struct tmpl_val self,
                                             const struct tmpl_args *args, struct tmpl_val *ret)
{
    (void)self;
    (void)ret;
    struct tmpl_val text;
    enum iso_err err = tmpl_to_str(r, args->values[0], &text);
    if (err)
        return err;
    return iso_fail(r->reterr, ISO_E_FORMAT, r->at, "raise_exception", "%.*s",
                    (int)num_min(text.len, ISO_ERR_TEXT_MAX), text.len > 0 ? text.s : "");
}

// range(stop), range(start, stop), range(start, stop, step): a list, where Python has an object of its own.
static enum iso_err function_range(struct tmpl_run *r, struct tmpl_val self, const struct tmpl_args *args,
                                   struct tmpl_val *ret)
{
    (void)self;
    int64_t part[3] = {0, 0, 1};
    uint32_t n = 0;
    while (n < 3 && args->values[n].kind != VAL_ABSENT) {
        if (!tmpl_as_int(args->values[n], &part[n]) || part[n] < -TMPL_RANGE_MAX || part[n] > TMPL_RANGE_MAX)
            return tmpl_fail(r, ISO_E_FORMAT, "range takes whole numbers from %d to %d", -TMPL_RANGE_MAX,
                             TMPL_RANGE_MAX);
        n++;
    }
    if (n == 1)
        part[1] = part[0], part[0] = 0;
    int64_t start = part[0], stop = part[1], step = part[2];
    if (step == 0)
        return tmpl_fail(r, ISO_E_FORMAT, "range's step is 0");
    int64_t span = step > 0 ? stop - start : start - stop, by = step > 0 ? step : -step;
    int64_t count = span > 0 ? (span + by - 1) / by : 0;
    struct tmpl_val *items = tmpl_alloc(r, (uint64_t)count, sizeof *items);
    if (!items)
        return ISO_E_LIMIT;
    for (int64_t i = 0; i < count; i++)
        items[i] = tmpl_int(start + i * step);
    *ret = tmpl_list_of(items, (uint32_t)count);
    return ISO_OK;
}

// ---- the time

struct moment {
    int year, month, day, hour, minute, second; // month and day from 1
};

static const char *const MONTHS[] = {"January", "February", "March",     "April",   "May",      "June",
                                     "July",    "August",   "September", "October", "November", "December"};
static const char *const DAYS[] = {"Sunday",   "Monday", "Tuesday", "Wednesday",
                                   "Thursday", "Friday", "Saturday"};

static bool is_leap(int year)
{
    return (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
}

static bool read_moment(struct tmpl_val v, struct moment *m)
{
    static const int LENGTHS[] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    char text[20] = "", again[80];
    if (v.kind != VAL_STR || v.len != 19)
        return false;
    memcpy(text, v.s, 19);
    if (sscanf(text, "%4d-%2d-%2dT%2d:%2d:%2d", &m->year, &m->month, &m->day, &m->hour, &m->minute,
               &m->second) != 6)
        return false;
    snprintf(again, sizeof again, "%04d-%02d-%02dT%02d:%02d:%02d", m->year, m->month, m->day, m->hour,
             m->minute, m->second);
    return strcmp(text, again) == 0 && m->year >= 1 && m->month >= 1 && m->month <= 12 && m->day >= 1 &&
           m->day <= LENGTHS[m->month - 1] + (m->month == 2 && is_leap(m->year)) && m->hour >= 0 &&
           m->hour < 24 && m->minute >= 0 && m->minute < 60 && m->second >= 0 && m->second < 60;
}

static int day_of_year(const struct moment *m)
{
    static const int BEFORE[] = {0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334};
    return BEFORE[m->month - 1] + m->day + (m->month > 2 && is_leap(m->year));
}

// 0: Sunday. 1 January of the year 1 was a Monday.
static int day_of_week(const struct moment *m)
{
    int years = m->year - 1;
    return (years * 365 + years / 4 - years / 100 + years / 400 + day_of_year(m)) % 7;
}

// What one directive stands for; 0 where it is not known.
static int write_directive(char directive, const struct moment *m, char *out, size_t size)
{
    int twelve = m->hour % 12 ? m->hour % 12 : 12;
    switch (directive) {
    case 'a':
        return snprintf(out, size, "%.3s", DAYS[day_of_week(m)]);
    case 'A':
        return snprintf(out, size, "%s", DAYS[day_of_week(m)]);
    case 'b':
        return snprintf(out, size, "%.3s", MONTHS[m->month - 1]);
    case 'B':
        return snprintf(out, size, "%s", MONTHS[m->month - 1]);
    case 'd':
        return snprintf(out, size, "%02d", m->day);
    case 'F':
        return snprintf(out, size, "%04d-%02d-%02d", m->year, m->month, m->day);
    case 'H':
        return snprintf(out, size, "%02d", m->hour);
    case 'I':
        return snprintf(out, size, "%02d", twelve);
    case 'j':
        return snprintf(out, size, "%03d", day_of_year(m));
    case 'm':
        return snprintf(out, size, "%02d", m->month);
    case 'M':
        return snprintf(out, size, "%02d", m->minute);
    case 'p':
        return snprintf(out, size, "%s", m->hour < 12 ? "AM" : "PM");
    case 'S':
        return snprintf(out, size, "%02d", m->second);
    case 'T':
        return snprintf(out, size, "%02d:%02d:%02d", m->hour, m->minute, m->second);
    case 'w':
        return snprintf(out, size, "%d", day_of_week(m));
    case 'y':
        return snprintf(out, size, "%02d", m->year % 100);
    case 'Y':
        return snprintf(out, size, "%04d", m->year);
    case '%':
        return snprintf(out, size, "%%");
    default:
        return 0;
    }
}

// strftime_now(format): the caller's time as C's strftime writes it in English.
static enum iso_err function_strftime_now(struct tmpl_run *r, struct tmpl_val self,
                                          const struct tmpl_args *args, struct tmpl_val *ret)
{
    (void)self;
    struct tmpl_val format = args->values[0];
    const struct tmpl_pair *pair;
    struct moment m;
    enum iso_err err =
        tmpl_find_key(r, r->context.pairs, r->context.len, tmpl_str(STRV_LIT(TMPL_CLOCK)), &pair);
    if (err)
        return err;
    if (!pair || !read_moment(pair->value, &m))
        return tmpl_fail(r, ISO_E_FORMAT, TMPL_CLOCK " in the context is no time YYYY-MM-DDTHH:MM:SS");
    if (format.kind != VAL_STR)
        return tmpl_fail(r, ISO_E_FORMAT, "the format of " TMPL_CLOCK " is no string");
    buf_reset(&r->scratch);
    for (uint32_t i = 0; i < format.len && !err; i++) {
        char piece[32];
        int n = 1;
        piece[0] = format.s[i];
        if (format.s[i] == '%')
            n = ++i < format.len ? write_directive(format.s[i], &m, piece, sizeof piece) : 0;
        if (n == 0)
            return tmpl_fail(r, ISO_E_UNSUPPORTED,
                             "the format of " TMPL_CLOCK
                             " has a directive other than %%a %%A %%b %%B %%d %%F %%H %%I %%j "
                             "%%m %%M %%p %%S %%T %%w %%y %%Y %%%%");
        err = tmpl_put(r, &r->scratch, (struct strv){piece, (size_t)n});
    }
    return err ? err : tmpl_from_scratch(r, ret);
}

const struct tmpl_builtin tmpl_functions[] = {
    {"namespace", function_namespace, 0, true, {NULL}},
    {"raise_exception", function_raise_exception, 1, false, {"message"}},
    {"range", function_range, 1, false, {"", "", ""}},
    {TMPL_CLOCK, function_strftime_now, 1, false, {"format"}},
    {.name = NULL},
};
