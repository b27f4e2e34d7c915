// The settings' file: libyaml's events, each node checked against the table of settings.
//
// The depth is that of the schema: where a text is due, a list or mapping is refused at its beginning. Values are kept as texts
// and read by config_put, so file and flags agree on them; what only a file has, types, is checked here.
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <yaml.h>

#include "base/assert.h"
#include "base/num.h"
#include "base/utf8.h"
#include "serve/config_internal.h"

#define PLACE_BYTES (FILE_PATH_MAX + 16)
#define WHAT_BYTES  160
#define KEYS_BYTES  256
#define UNITS       "units."

struct reader {
    struct serve_config c; // takes the caller's place when all is read
    const char *path;
    struct strv folder;
    yaml_parser_t parser;
    yaml_event_t event; // the one being looked at
    size_t lines;       // of the text
    struct iso_errinfo e;
};

// ---- Errors ----

static enum iso_err prefix(struct reader *r, size_t line)
{
    char place[PLACE_BYTES];
    // To libyaml the text's end is on a line of its own.
    snprintf(place, sizeof place, "%s:%zu", r->path, (size_t)num_min(line, r->lines));
    return iso_fail_prefix(&r->e, place);
}

#define fail(r, line, field, ...) \
    (iso_fail_fill(&(r)->e, ISO_E_USAGE, 0, (field), __VA_ARGS__), prefix((r), (line)))

static size_t line_of(const struct reader *r)
{
    return r->event.start_mark.line + 1;
}

static enum iso_err no_memory(struct reader *r)
{
    return iso_fail(&r->e, ISO_E_NOMEM, 0, NULL, "%s: the system refused memory for the settings", r->path);
}

// Where libyaml stopped. Its reader's own errors can't come, as check_characters was there before.
static enum iso_err syntax(struct reader *r)
{
    const yaml_parser_t *p = &r->parser;
    const char *problem = p->problem ? p->problem : "it can't be read";
    size_t line = num_min(p->problem_mark.line + 1, r->lines), begun = p->context_mark.line + 1;
    if (p->error == YAML_MEMORY_ERROR)
        return no_memory(r);
    if (p->context && begun != line)
        return fail(r, line, NULL, "this is not YAML: %s, %s of line %zu", problem, p->context, begun);
    if (p->context)
        return fail(r, line, NULL, "this is not YAML: %s, %s", problem, p->context);
    return fail(r, line, NULL, "this is not YAML: %s", problem);
}

// ---- Events ----

static struct strv scalar(const struct reader *r)
{
    return (struct strv){(const char *)r->event.data.scalar.value, r->event.data.scalar.length};
}

static bool is_plain(const struct reader *r)
{
    return r->event.type == YAML_SCALAR_EVENT && r->event.data.scalar.style == YAML_PLAIN_SCALAR_STYLE;
}

static enum iso_err check_scalar(struct reader *r)
{
    const yaml_event_t *e = &r->event;
    if (e->data.scalar.anchor)
        return fail(r, line_of(r), NULL, "an anchor (&%s) has no use here",
                    (const char *)e->data.scalar.anchor);
    if (e->data.scalar.tag)
        return fail(r, line_of(r), NULL, "a tag (!) has no use here");
    if (is_plain(r) && e->start_mark.line != e->end_mark.line)
        return fail(r, line_of(r), NULL, "a text without quotes ends with its line; \"%.*s\" goes on",
                    STRV_ARG(scalar(r)));
    return ISO_OK;
}

static enum iso_err check_node(struct reader *r)
{
    const yaml_event_t *e = &r->event;
    const yaml_char_t *anchor = NULL, *tag = NULL;
    switch (e->type) {
    case YAML_ALIAS_EVENT:
        return fail(r, line_of(r), NULL, "an alias (*%s) has no use here; write the value out",
                    (const char *)e->data.alias.anchor);
    case YAML_SCALAR_EVENT:
        return check_scalar(r);
    case YAML_SEQUENCE_START_EVENT:
        anchor = e->data.sequence_start.anchor, tag = e->data.sequence_start.tag;
        break;
    case YAML_MAPPING_START_EVENT:
        anchor = e->data.mapping_start.anchor, tag = e->data.mapping_start.tag;
        break;
    default:
        break;
    }
    if (anchor)
        return fail(r, line_of(r), NULL, "an anchor (&%s) has no use here", (const char *)anchor);
    if (tag)
        return fail(r, line_of(r), NULL, "a tag (!) has no use here");
    return ISO_OK;
}

static enum iso_err next(struct reader *r)
{
    yaml_event_delete(&r->event);
    if (!yaml_parser_parse(&r->parser, &r->event))
        return syntax(r);
    return check_node(r);
}

// ---- Types ----

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

// What YAML 1.1 or 1.2 would take for a number: digits, and what may stand between them.
static bool looks_like_number(struct strv s)
{
    size_t i = s.len > 0 && (s.ptr[0] == '-' || s.ptr[0] == '+'), digits = 0, points = 0;
    if (s.len > i + 2 && s.ptr[i] == '0' && (s.ptr[i + 1] == 'x' || s.ptr[i + 1] == 'o')) {
        const char *set = s.ptr[i + 1] == 'x' ? "0123456789abcdefABCDEF_" : "01234567_";
        for (i += 2; i < s.len && s.ptr[i] && strchr(set, s.ptr[i]); i++)
            ;
        return i == s.len;
    }
    for (; i < s.len && (is_digit(s.ptr[i]) || s.ptr[i] == '_' || s.ptr[i] == '.'); i++) {
        digits += is_digit(s.ptr[i]);
        points += s.ptr[i] == '.';
    }
    if (digits > 0 && i < s.len && (s.ptr[i] == 'e' || s.ptr[i] == 'E')) {
        i++;
        i += i < s.len && (s.ptr[i] == '-' || s.ptr[i] == '+');
        digits = 0;
        for (; i < s.len && is_digit(s.ptr[i]); i++)
            digits++;
    }
    return i == s.len && digits > 0 && points <= 1;
}

static bool is_null(struct strv s)
{
    return s.len == 0 || strv_is(s, "~") || strv_is(s, "null");
}

// A text, though not in quotes.
static bool is_text(struct strv s)
{
    return !is_null(s) && !strv_is(s, "true") && !strv_is(s, "false") && !looks_like_number(s);
}

// What stands where something else should.
static void describe(const struct reader *r, char out[WHAT_BYTES])
{
    struct strv s = r->event.type == YAML_SCALAR_EVENT ? scalar(r) : (struct strv){"", 0};
    if (r->event.type == YAML_SEQUENCE_START_EVENT)
        snprintf(out, WHAT_BYTES, "a list");
    else if (r->event.type == YAML_MAPPING_START_EVENT)
        snprintf(out, WHAT_BYTES, "a mapping");
    else if (!is_plain(r))
        snprintf(out, WHAT_BYTES, "the text \"%.*s\" (in quotes)", STRV_ARG(s));
    else if (s.len == 0)
        snprintf(out, WHAT_BYTES, "empty");
    else if (looks_like_number(s))
        snprintf(out, WHAT_BYTES, "the number %.*s", STRV_ARG(s));
    else if (!is_text(s))
        snprintf(out, WHAT_BYTES, "%.*s (without quotes)", STRV_ARG(s));
    else
        snprintf(out, WHAT_BYTES, "\"%.*s\"", STRV_ARG(s));
}

static enum iso_err wrong_type(struct reader *r, const char *path, const char *allowed)
{
    char what[WHAT_BYTES];
    describe(r, what);
    return fail(r, line_of(r), path, "%s is %s; allowed is %s", path, what, allowed);
}

static bool has_type(const struct reader *r, enum config_kind kind)
{
    if (r->event.type != YAML_SCALAR_EVENT)
        return false;
    switch (kind) {
    case KIND_BOOL:
    case KIND_WHOLE:
    case KIND_REAL:
        return is_plain(r);
    case KIND_SIZE: // with or without a unit: a text or a number
    case KIND_TIME:
        return true;
    default:
        return !is_plain(r) || is_text(scalar(r));
    }
}

// ---- The schema ----

static struct config_target target(struct reader *r, struct config_unit *unit)
{
    return (struct config_target){&r->c, unit, r->folder, (uint32_t)line_of(r)};
}

static enum iso_err put_scalar(struct reader *r, enum config_id id, struct config_unit *unit)
{
    uint32_t n;
    const char *path = config_settings(&n)[id].path;
    char allowed[CONFIG_ALLOWED_BYTES];
    struct config_target t = target(r, unit);
    if (!has_type(r, CONFIG_SPECS[id].kind)) {
        config_allowed(id, allowed);
        return wrong_type(r, path, allowed);
    }
    return config_put(&t, id, path, scalar(r), &r->e) ? prefix(r, line_of(r)) : ISO_OK;
}

static enum iso_err read_cpus(struct reader *r, struct config_unit *unit)
{
    if (r->event.type != YAML_SEQUENCE_START_EVENT)
        return put_scalar(r, SETTING_CPUS, unit);
    char allowed[CONFIG_ALLOWED_BYTES];
    size_t line = line_of(r);
    config_allowed(SETTING_CPUS, allowed);
    enum iso_err err;
    while (!(err = next(r)) && r->event.type != YAML_SEQUENCE_END_EVENT) {
        if (!is_plain(r))
            return wrong_type(r, "units.cpus[]", "a whole number");
        if (!config_put_cpu(unit, scalar(r)))
            return fail(r, line_of(r), "units.cpus",
                        "units.cpus has \"%.*s\" as number %" PRIu32 "; allowed is %s", STRV_ARG(scalar(r)),
                        unit->n_cpus + 1, allowed);
    }
    if (!err && unit->n_cpus == 0)
        return fail(r, line, "units.cpus", "units.cpus is an empty list; allowed is %s", allowed);
    r->c.lines[SETTING_CPUS] = (uint32_t)line;
    return err;
}

static enum iso_err read_model(struct reader *r, struct strv name)
{
    struct config_target t = target(r, NULL);
    if (!has_type(r, KIND_PATH))
        return wrong_type(r, "model",
                          name.len ? "a path for each name" : "a path, or a mapping of names to paths");
    return config_put_model(&t, name, scalar(r), &r->e) ? prefix(r, line_of(r)) : ISO_OK;
}

static enum iso_err read_models(struct reader *r)
{
    r->c.n_models = 0;
    if (r->event.type != YAML_MAPPING_START_EVENT)
        return read_model(r, (struct strv){"", 0});
    char name[CONFIG_NAME_BYTES];
    size_t line = line_of(r);
    enum iso_err err;
    while (!(err = next(r)) && r->event.type != YAML_MAPPING_END_EVENT) {
        struct strv key = {name, 0};
        if (!has_type(r, KIND_NAME))
            return wrong_type(r, "a model's name", "a text");
        if (!config_text_ok(scalar(r), sizeof name - 1))
            return fail(r, line_of(r), "model",
                        "a model's name is \"%.*s\"; allowed are 1 to %zu bytes without control characters",
                        STRV_ARG(scalar(r)), sizeof name - 1);
        key.len = scalar(r).len;
        memcpy(name, scalar(r).ptr, key.len);
        for (uint32_t i = 0; i < r->c.n_models; i++)
            if (strv_is(key, r->c.models[i].name))
                return fail(r, line_of(r), "model", "two models are called \"%.*s\"", STRV_ARG(key));
        if ((err = next(r)) || (err = read_model(r, key)))
            return err;
    }
    if (!err && r->c.n_models == 0)
        return fail(r, line, "model",
                    "model is an empty mapping; allowed is a path, or a mapping of names to paths");
    return err;
}

// The first setting under a key: the key's own, or of its section. SETTING_COUNT where there is none. The sections' settings stand
// together in the table.
static uint32_t find_key(const char *section, struct strv key, bool *ret_section)
{
    uint32_t n;
    const struct config_setting *s = config_settings(&n);
    size_t at = strlen(section);
    for (uint32_t i = 0; i < n; i++) {
        if (strncmp(s[i].path, section, at) != 0)
            continue;
        struct strv own = {s[i].path + at, strcspn(s[i].path + at, ".")};
        if (strv_equal(own, key)) {
            *ret_section = own.ptr[own.len] == '.';
            return i;
        }
    }
    return n;
}

static enum iso_err unknown_key(struct reader *r, const char *section)
{
    char keys[KEYS_BYTES] = "", what[WHAT_BYTES];
    uint32_t n;
    const struct config_setting *s = config_settings(&n);
    size_t used = 0, at = strlen(section);
    struct strv last = {"", 0};
    for (uint32_t i = 0; i < n; i++) {
        struct strv own = {s[i].path + at, 0};
        if (strncmp(s[i].path, section, at) != 0)
            continue;
        own.len = strcspn(own.ptr, ".");
        if (strv_equal(own, last))
            continue;
        used += (size_t)snprintf(keys + used, sizeof keys - used, "%s%.*s", used ? ", " : "", STRV_ARG(own));
        ASSERT(used < sizeof keys);
        last = own;
    }
    describe(r, what);
    if (at == 0)
        return fail(r, line_of(r), NULL, "unknown key: it is %s; there are %s", what, keys);
    return fail(r, line_of(r), NULL, "unknown key in %.*s: it is %s; there are %s", (int)at - 1, section,
                what, keys);
}

static enum iso_err read_units(struct reader *r);
static enum iso_err read_mapping(struct reader *r, const char *section, struct config_unit *unit);

static enum iso_err read_section(struct reader *r, const char *path)
{
    char section[CONFIG_NAME_BYTES];
    size_t n = strcspn(path, ".") + 1;
    ASSERT(n < sizeof section);
    memcpy(section, path, n);
    section[n] = '\0';
    if (strcmp(section, UNITS) == 0)
        return read_units(r);
    // All keys of it may stand in comments.
    if (is_plain(r) && scalar(r).len == 0)
        return ISO_OK;
    if (r->event.type == YAML_MAPPING_START_EVENT)
        return read_mapping(r, section, NULL);
    section[n - 1] = '\0';
    return wrong_type(r, section, "a mapping");
}

// From after the beginning of a mapping to its end.
static enum iso_err read_mapping(struct reader *r, const char *section, struct config_unit *unit)
{
    uint32_t n;
    const struct config_setting *s = config_settings(&n);
    bool seen[SETTING_COUNT] = {false};
    enum iso_err err;
    while (!(err = next(r)) && r->event.type != YAML_MAPPING_END_EVENT) {
        bool is_section = false;
        uint32_t id = r->event.type == YAML_SCALAR_EVENT ? find_key(section, scalar(r), &is_section) : n;
        if (id == n)
            return unknown_key(r, section);
        if (seen[id])
            return fail(r, line_of(r), s[id].path, "%.*s is given twice", STRV_ARG(scalar(r)));
        seen[id] = true;
        if ((err = next(r)))
            return err;
        if (is_section)
            err = read_section(r, s[id].path);
        else if (id == SETTING_MODEL)
            err = read_models(r);
        else if (id == SETTING_CPUS)
            err = read_cpus(r, unit);
        else
            err = put_scalar(r, (enum config_id)id, unit);
        if (err)
            return err;
    }
    return err;
}

static enum iso_err read_units(struct reader *r)
{
    static const char ALLOWED[] = "a list of mappings, as in [{name: a, cpus: [0, 1]}]";
    size_t line = line_of(r);
    if (r->event.type != YAML_SEQUENCE_START_EVENT)
        return wrong_type(r, "units", ALLOWED);
    r->c.n_units = 0;
    enum iso_err err;
    while (!(err = next(r)) && r->event.type != YAML_SEQUENCE_END_EVENT) {
        if (r->event.type != YAML_MAPPING_START_EVENT)
            return wrong_type(r, "units[]", "a mapping, as in {name: a, cpus: [0, 1]}");
        if (r->c.n_units == CONFIG_UNITS_MAX)
            return fail(r, line_of(r), "units", "there are more than %d units", CONFIG_UNITS_MAX);
        struct config_unit *u = &r->c.units[r->c.n_units];
        config_unit_init(u, r->c.n_units++);
        u->line = (uint32_t)line_of(r);
        if ((err = read_mapping(r, UNITS, u)))
            return err;
    }
    if (!err && r->c.n_units == 0)
        return fail(r, line, "units", "units is an empty list; allowed is %s", ALLOWED);
    return err;
}

static enum iso_err read_root(struct reader *r)
{
    if (is_plain(r) && scalar(r).len == 0)
        return ISO_OK; // "---" and comments
    if (r->event.type != YAML_MAPPING_START_EVENT)
        return wrong_type(r, "the file", "a mapping, as in \"model: FILE\"");
    return read_mapping(r, "", NULL);
}

static enum iso_err read_stream(struct reader *r)
{
    enum iso_err err = next(r); // the stream's beginning
    if (err || (err = next(r)))
        return err;
    if (r->event.type == YAML_STREAM_END_EVENT)
        return ISO_OK; // nothing but comments
    if (r->event.data.document_start.version_directive ||
        r->event.data.document_start.tag_directives.start != r->event.data.document_start.tag_directives.end)
        return fail(r, line_of(r), NULL, "a directive (%%) has no use here");
    if ((err = next(r)) || (err = read_root(r)) || (err = next(r)) || (err = next(r)))
        return err;
    if (r->event.type != YAML_STREAM_END_EVENT)
        return fail(r, line_of(r), NULL, "a second document begins; a file has one");
    return ISO_OK;
}

// ---- The text ----

// All that YAML can't have, before libyaml sees it: with the line, and with lines counted as editors do.
static enum iso_err check_characters(struct reader *r, struct strv text)
{
    size_t line = 1;
    r->lines = 1;
    for (size_t i = 0; i < text.len;) {
        uint32_t cp = 0;
        size_t n = utf8_decode((const uint8_t *)text.ptr + i, text.len - i, &cp);
        r->lines = line;
        if (n == 0)
            return fail(r, line, NULL, "a byte 0x%02x is no UTF-8", (uint8_t)text.ptr[i]);
        bool mark = cp == 0xfeff && i == 0; // some editors' byte order mark
        bool crlf = cp == '\r' && i + 1 < text.len && text.ptr[i + 1] == '\n';
        if (cp != '\t' && cp != '\n' && !crlf && !mark && !config_char_ok(cp))
            return fail(r, line, NULL, "there is a character U+%04" PRIX32 ", which has no use here", cp);
        line += cp == '\n';
        i += n;
    }
    return ISO_OK;
}

static enum iso_err parse(struct reader *r, struct strv text)
{
    if (text.len > CONFIG_FILE_BYTES_MAX)
        return iso_fail(&r->e, ISO_E_LIMIT, 0, NULL, "%s: the file is larger than the %zu bytes allowed",
                        r->path, CONFIG_FILE_BYTES_MAX);
    // It goes before every relative path and into what is printed.
    if (!config_text_ok(strv_from(r->path), FILE_PATH_MAX - 1))
        return iso_fail(
            &r->e, ISO_E_USAGE, 0, NULL,
            "the settings' file is \"%s\"; allowed is a path of 1 to %d bytes without control characters",
            r->path, FILE_PATH_MAX - 1);
    memset(r->c.file, 0, sizeof r->c.file);
    memcpy(r->c.file, r->path, strlen(r->path));
    const char *slash = strrchr(r->path, '/');
    r->folder = (struct strv){r->path, slash ? (size_t)(slash + 1 - r->path) : 0};
    enum iso_err err = check_characters(r, text);
    if (err)
        return err;
    if (!yaml_parser_initialize(&r->parser))
        return no_memory(r);
    yaml_parser_set_encoding(&r->parser, YAML_UTF8_ENCODING);
    // libyaml asserts that there is a pointer, which nothing needs not have.
    yaml_parser_set_input_string(&r->parser, (const unsigned char *)(text.len ? text.ptr : ""), text.len);
    err = read_stream(r);
    yaml_event_delete(&r->event);
    yaml_parser_delete(&r->parser);
    return err;
}

enum iso_err config_parse(struct serve_config *c, struct strv text, const char *path,
                          struct iso_errinfo *reterr)
{
    struct reader *r = calloc(1, sizeof *r);
    if (!r)
        return iso_fail(reterr, ISO_E_NOMEM, 0, NULL, "%s: the system refused memory for the settings", path);
    memcpy(&r->c, c, sizeof *c);
    r->path = path;
    enum iso_err err = parse(r, text);
    if (!err)
        memcpy(c, &r->c, sizeof *c);
    else if (reterr)
        *reterr = r->e;
    free(r);
    return err;
}

static enum iso_err read_text(int fd, const char *path, char *text, size_t *ret_n, struct iso_errinfo *reterr)
{
    size_t n = 0;
    for (;;) { // one byte over the limit ends it
        ssize_t got = read(fd, text + n, CONFIG_FILE_BYTES_MAX + 1 - n);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return iso_fail(reterr, ISO_E_IO, 0, NULL, "%s: reading failed: %s", path, strerror(errno));
        n += (size_t)got;
        if (got == 0 || n > CONFIG_FILE_BYTES_MAX)
            break;
    }
    *ret_n = n;
    return ISO_OK;
}

enum iso_err config_read(struct serve_config *c, const char *path, struct iso_errinfo *reterr)
{
    size_t n = 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return iso_fail(reterr, ISO_E_IO, 0, NULL, "%s: opening failed: %s", path, strerror(errno));
    char *text = malloc(CONFIG_FILE_BYTES_MAX + 1);
    enum iso_err err =
        text ? read_text(fd, path, text, &n, reterr)
             : iso_fail(reterr, ISO_E_NOMEM, 0, NULL, "%s: the system refused memory for the settings", path);
    if (!err)
        err = config_parse(c, (struct strv){text, n}, path, reterr);
    free(text);
    close(fd);
    return err;
}
