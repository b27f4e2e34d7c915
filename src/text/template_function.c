// The functions of templates.
#include "text/template_builtin.h"

#include <locale.h>
#include <string.h>
#include <time.h>

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

#define MOMENT_FORMAT "%Y-%m-%dT%H:%M:%S"
#define MOMENT_BYTES  19

// False for what is no time that a calendar has. timegm moves what is out of range, which shows when it is written again.
static bool read_moment(struct tmpl_val v, struct tm *ret)
{
    char text[MOMENT_BYTES + 1], again[64];
    if (v.kind != VAL_STR || v.len != MOMENT_BYTES)
        return false;
    memcpy(text, v.s, MOMENT_BYTES);
    text[MOMENT_BYTES] = '\0';
    *ret = (struct tm){0};
    const char *end = strptime(text, MOMENT_FORMAT, ret);
    (void)timegm(ret);
    return end && *end == '\0' && strftime(again, sizeof again, MOMENT_FORMAT, ret) &&
           strcmp(text, again) == 0;
}

// strftime_now(format): the caller's time, as C's strftime writes it in the C locale.
static enum iso_err function_strftime_now(struct tmpl_run *r, struct tmpl_val self,
                                          const struct tmpl_args *args, struct tmpl_val *ret)
{
    static const char DIRECTIVES[] = "aAbBdFHIjmMpSTwyY%";
    (void)self;
    struct tmpl_val format = args->values[0];
    const struct tmpl_pair *pair;
    struct tm now;
    enum iso_err err =
        tmpl_find_key(r, r->context.pairs, r->context.len, tmpl_str(STRV_LIT(TMPL_CLOCK)), &pair);
    if (err)
        return err;
    if (!pair || !read_moment(pair->value, &now))
        return tmpl_fail(r, ISO_E_FORMAT, TMPL_CLOCK " in the context is no time YYYY-MM-DDTHH:MM:SS");
    if (format.kind != VAL_STR)
        return tmpl_fail(r, ISO_E_FORMAT, "the format of " TMPL_CLOCK " is no string");
    locale_t c = newlocale(LC_ALL_MASK, "C", (locale_t)0); // the process may have another
    buf_reset(&r->scratch);
    for (uint32_t i = 0; i < format.len && !err; i++) {
        char piece[32] = {format.s[i]}, directive[3] = "%";
        size_t n = 1;
        if (format.s[i] == '%') {
            directive[1] = ++i < format.len ? format.s[i] : '\0';
            n = directive[1] && strchr(DIRECTIVES, directive[1]) && c
                    ? strftime_l(piece, sizeof piece, directive, &now, c)
                    : 0;
        }
        err = n ? tmpl_put(r, &r->scratch, (struct strv){piece, n})
                : tmpl_fail(r, ISO_E_UNSUPPORTED,
                            "the format of " TMPL_CLOCK " has a directive that is none of %s", DIRECTIVES);
    }
    if (c)
        freelocale(c);
    return err ? err : tmpl_from_scratch(r, ret);
}

const struct tmpl_builtin tmpl_functions[] = {
    {"namespace", function_namespace, 0, true, {NULL}},
    {"raise_exception", function_raise_exception, 1, false, {"message"}},
    {"range", function_range, 1, false, {"", "", ""}},
    {TMPL_CLOCK, function_strftime_now, 1, false, {"format"}},
    {.name = NULL},
};
