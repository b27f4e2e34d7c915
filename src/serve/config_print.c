// The settings as a file that config_read would read to the same.
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/num.h"
#include "base/utf8.h"
#include "serve/config_internal.h"

#define INDENT "  "

struct printer {
    struct buf *out;
    enum iso_err err; // the first
};

static void add_view(struct printer *p, struct strv s)
{
    if (!p->err)
        p->err = buf_append_strv(p->out, s);
}

static void add(struct printer *p, const char *text)
{
    add_view(p, strv_from(text));
}

static void add_u32(struct printer *p, uint32_t value)
{
    char text[CONFIG_SHOWN_BYTES];
    snprintf(text, sizeof text, "%" PRIu32, value);
    add(p, text);
}

// True for words that some reader of YAML takes for something else.
static bool is_reserved(const char *text)
{
    static const char *const WORDS[] = {"true", "false", "null", "yes", "no", "on", "off", "y", "n"};
    for (size_t i = 0; i < ARRAY_LEN(WORDS); i++)
        if (strcasecmp(text, WORDS[i]) == 0)
            return true;
    return false;
}

// Without quotes only what can be nothing but a text.
static bool is_simple(const char *text)
{
    static const char LETTERS[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ",
                      OTHERS[] = "0123456789_-./";
    size_t n = strspn(text, "./"); // as paths begin
    if (n == 0 && (!text[0] || !strchr(LETTERS, text[0])))
        return false;
    if (n > 0 && !memchr(text, '/', n))
        return false;
    for (; text[n]; n++)
        if (!strchr(LETTERS, text[n]) && !strchr(OTHERS, text[n]))
            return false;
    return !is_reserved(text);
}

static void add_text(struct printer *p, const char *text)
{
    if (is_simple(text)) {
        add(p, text);
        return;
    }
    add(p, "\"");
    for (size_t i = 0; text[i]; i++) {
        if (text[i] == '"' || text[i] == '\\')
            add(p, "\\");
        add_view(p, (struct strv){text + i, 1});
    }
    add(p, "\"");
}

static void add_address(struct printer *p, const struct serve_config *c)
{
    char text[CONFIG_ADDRESS_BYTES + 16];
    bool six = strchr(c->address, ':');
    snprintf(text, sizeof text, "%s%s%s:%" PRIu16, six ? "[" : "", c->address, six ? "]" : "", c->port);
    add_text(p, text);
}

static void add_cpus(struct printer *p, const struct config_unit *u)
{
    add(p, "[");
    for (uint32_t i = 0; i < u->n_cpus; i++) {
        add(p, i ? ", " : "");
        add_u32(p, u->cpus[i]);
    }
    add(p, "]");
}

static bool is_set(const struct config_spec *s, const void *at)
{
    switch (s->kind) {
    case KIND_NAME:
    case KIND_PATH:
    case KIND_WORD:
        return *(const char *)at != '\0';
    case KIND_WHOLE:
        return s->min == 0 || *(const uint32_t *)at != 0;
    case KIND_SIZE:
        return *(const uint64_t *)at != 0;
    default:
        return true;
    }
}

static void add_index(struct printer *p, const struct config_spec *s, const void *at)
{
    uint32_t index = s->size == sizeof(bool) ? *(const bool *)at : *(const uint32_t *)at;
    add_view(p, config_word(s->words, index));
}

static void add_value(struct printer *p, const struct config_spec *s, const void *at)
{
    char text[CONFIG_SHOWN_BYTES];
    switch (s->kind) {
    case KIND_BOOL:
        add(p, *(const bool *)at ? "true" : "false");
        break;
    case KIND_WHOLE:
        add_u32(p, *(const uint32_t *)at);
        break;
    case KIND_SIZE:
        config_show_size(*(const uint64_t *)at, text);
        add(p, text);
        break;
    case KIND_TIME:
        config_show_time(*(const uint32_t *)at, text);
        add(p, text);
        break;
    case KIND_REAL:
        config_show_real(*(const double *)at, text);
        add(p, text);
        break;
    case KIND_INDEX:
        add_index(p, s, at);
        break;
    default: // texts
        add_text(p, at);
        break;
    }
}

static void add_models(struct printer *p, const struct serve_config *c)
{
    if (c->n_models == 0) {
        add(p, "# model:\n");
        return;
    }
    add(p, "model:");
    if (c->n_models == 1 && !c->models[0].name[0]) {
        add(p, " ");
        add_text(p, c->models[0].path);
        add(p, "\n");
        return;
    }
    add(p, "\n");
    for (uint32_t i = 0; i < c->n_models; i++) {
        add(p, INDENT);
        add_text(p, c->models[i].name);
        add(p, ": ");
        add_text(p, c->models[i].path);
        add(p, "\n");
    }
}

// One setting with its meaning before it. `first` begins the line.
static void add_setting(struct printer *p, const struct serve_config *c, const struct config_unit *u,
                        enum config_id id, const char *indent, const char *first)
{
    uint32_t n;
    const struct config_setting *setting = &config_settings(&n)[id];
    const struct config_spec *s = &CONFIG_SPECS[id];
    const void *at = (const uint8_t *)(s->of_unit ? (const void *)u : (const void *)c) + s->at;
    const char *dot = strchr(setting->path, '.');
    bool set = s->kind == KIND_CPUS ? u->n_cpus > 0 : is_set(s, at);
    add(p, indent);
    add(p, "# ");
    add(p, setting->help);
    add(p, "\n");
    if (s->kind == KIND_MODEL) {
        add_models(p, c);
        return;
    }
    add(p, first);
    add(p, set ? "" : "# ");
    add(p, dot ? dot + 1 : setting->path);
    add(p, set ? ": " : ":");
    if (set && s->kind == KIND_CPUS)
        add_cpus(p, u);
    else if (set && s->kind == KIND_ADDRESS)
        add_address(p, c);
    else if (set)
        add_value(p, s, at);
    add(p, "\n");
}

// Settings [from, to) of each unit; the first one, the name, is always set.
static void add_units(struct printer *p, const struct serve_config *c, uint32_t from, uint32_t to)
{
    for (uint32_t i = 0; i < c->n_units; i++)
        for (uint32_t id = from; id < to; id++)
            add_setting(p, c, &c->units[i], (enum config_id)id, id == from ? INDENT : INDENT INDENT,
                        id == from ? INDENT "- " : INDENT INDENT);
}

enum iso_err config_print(const struct serve_config *c, struct buf *out)
{
    struct printer p = {.out = out, .err = ISO_OK};
    uint32_t n, end;
    const struct config_setting *s = config_settings(&n);
    add(&p, "# The settings of isochron serve. Relative paths are relative to the folder of this file.\n");
    for (uint32_t id = 0; id < n; id = end) {
        struct strv section = {s[id].path, strcspn(s[id].path, ".") + 1}; // with the point
        bool alone = s[id].path[section.len - 1] == '\0';
        for (end = id + 1; !alone && end < n && strncmp(s[end].path, section.ptr, section.len) == 0;)
            end++;
        add(&p, "\n");
        if (alone) {
            add_setting(&p, c, NULL, (enum config_id)id, "", "");
            continue;
        }
        add_view(&p, (struct strv){section.ptr, section.len - 1});
        add(&p, ":\n");
        if (CONFIG_SPECS[id].of_unit)
            add_units(&p, c, id, end);
        for (uint32_t i = id; i < end && !CONFIG_SPECS[id].of_unit; i++)
            add_setting(&p, c, NULL, (enum config_id)i, INDENT, INDENT);
    }
    return p.err;
}
