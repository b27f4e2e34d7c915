#include "serve/config.h"

#include <arpa/inet.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/num.h"
#include "serve/config_internal.h"

#define WHERE_BYTES (FILE_PATH_MAX + 16)
#define FLAG_BYTES  64

static const struct config_setting SETTINGS[SETTING_COUNT] = {
#define X(id, path, flag, value, owner, field, kind, min, max, words, help) {path, flag, value, help},
    CONFIG_SETTINGS(X)
#undef X
};

const struct config_setting *config_settings(uint32_t *ret_n)
{
    *ret_n = SETTING_COUNT;
    return SETTINGS;
}

void config_defaults(struct serve_config *c)
{
    static const char ADDRESS[] = "127.0.0.1", LEVEL[] = "info", FORMAT[] = "text";
    memset(c, 0, sizeof *c);
    memcpy(c->address, ADDRESS, sizeof ADDRESS);
    c->port = 8000;
    c->n_units = 1;
    config_unit_init(&c->units[0], 0);
    c->queue = 64;
    c->body_bytes = 4 * MIB;
    c->connections = 512;
    c->max_tokens = 512;
    c->head_ms = 10 * CONFIG_SECOND_MS;
    c->body_ms = 60 * CONFIG_SECOND_MS;
    c->idle_ms = 75 * CONFIG_SECOND_MS;
    c->stall_ms = 60 * CONFIG_SECOND_MS;
    c->load_threshold = 0.8;
    memcpy(c->log_level, LEVEL, sizeof LEVEL);
    memcpy(c->log_format, FORMAT, sizeof FORMAT);
}

// ---- Flags ----

static enum iso_err set_model(struct serve_config *c, const char *value, struct iso_errinfo *reterr)
{
    struct config_target t = {.c = c, .line = CONFIG_LINE_FLAG};
    struct strv name = {value, strcspn(value, "=/")}, path = strv_from(value);
    bool from_file = c->lines[SETTING_MODEL] != CONFIG_LINE_FLAG;
    uint32_t before = c->n_models;
    if (value[name.len] != '=')
        name.len = 0;
    else if (name.len == 0)
        return iso_fail(reterr, ISO_E_USAGE, 0, "model",
                        "model: there is no name before \"%.*s\"; allowed is PATH or NAME=PATH",
                        STRV_ARG(path));
    else
        path = strv_from(value + name.len + 1);
    if (from_file)
        c->n_models = 0;
    enum iso_err err = config_put_model(&t, name, path, reterr);
    if (err)
        c->n_models = before;
    return err;
}

enum iso_err config_set(struct serve_config *c, uint32_t setting, const char *value,
                        struct iso_errinfo *reterr)
{
    ASSERT(setting < SETTING_COUNT && c->n_units > 0);
    const struct config_setting *s = &SETTINGS[setting];
    struct config_target t = {.c = c, .unit = &c->units[0], .line = CONFIG_LINE_FLAG};
    char called[FLAG_BYTES], allowed[CONFIG_ALLOWED_BYTES];
    snprintf(called, sizeof called, "%s%s", s->flag ? "--" : "", s->flag ? s->flag : s->path);
    if (!s->value && value)
        return iso_fail(reterr, ISO_E_USAGE, 0, called, "%s takes no value", called);
    if (s->value && !value) {
        config_allowed((enum config_id)setting, allowed);
        return iso_fail(reterr, ISO_E_USAGE, 0, called, "%s needs a value: %s", called, allowed);
    }
    if (setting == SETTING_MODEL)
        return set_model(c, value, reterr);
    return config_put(&t, (enum config_id)setting, called, strv_from(value ? value : "true"), reterr);
}

// ---- What goes together ----

static void where_line(const struct serve_config *c, uint32_t line, const char *flag, char *out, size_t size)
{
    if (line == 0)
        snprintf(out, size, "the default");
    else if (line != CONFIG_LINE_FLAG)
        snprintf(out, size, "%s:%" PRIu32, c->file, line);
    else if (flag)
        snprintf(out, size, "--%s", flag);
    else
        snprintf(out, size, "the command line");
}

void config_where(const struct serve_config *c, enum config_id id, char *out, size_t size)
{
    where_line(c, c->lines[id], SETTINGS[id].flag, out, size);
}

// A unit's setting: by a flag it can only be the first one's; else the file says all of the unit.
static uint32_t unit_line(const struct serve_config *c, uint32_t unit, enum config_id id)
{
    bool flag = unit == 0 && c->lines[id] == CONFIG_LINE_FLAG;
    return flag ? CONFIG_LINE_FLAG : c->units[unit].line;
}

static enum iso_err prefix(const struct serve_config *c, uint32_t line, enum config_id id,
                           struct iso_errinfo *reterr)
{
    char where[WHERE_BYTES];
    where_line(c, line, SETTINGS[id].flag, where, sizeof where);
    if (reterr && line != 0)
        return iso_fail_prefix(reterr, where);
    return ISO_E_USAGE;
}

// A sentence about a setting, with where it was set.
#define unfit(c, line, id, reterr, ...) \
    (iso_fail_fill(reterr, ISO_E_USAGE, 0, SETTINGS[id].path, __VA_ARGS__), prefix(c, line, id, reterr))

static enum iso_err check_models(const struct serve_config *c, struct iso_errinfo *reterr)
{
    if (c->n_models == 0)
        return iso_fail(
            reterr, ISO_E_USAGE, 0, "model",
            "which model? Name a plan or model file on the command line, or as model in the file");
    if (c->n_models > 1 && c->alias[0])
        return unfit(c, c->lines[SETTING_ALIAS], SETTING_ALIAS, reterr,
                     "alias is one name and there are %" PRIu32
                     " models; name each one: NAME=PATH, or name: path",
                     c->n_models);
    for (uint32_t i = 0; i < c->n_models && c->n_models > 1; i++) {
        const struct config_model *m = &c->models[i];
        if (!m->name[0])
            return unfit(c, m->line, SETTING_MODEL, reterr,
                         "model \"%.*s\" needs a name, as there are several: NAME=PATH, or name: path",
                         STRV_ARG(strv_from(m->path)));
        for (uint32_t j = 0; j < i; j++)
            if (strcmp(m->name, c->models[j].name) == 0)
                return unfit(c, m->line, SETTING_MODEL, reterr, "two models are called \"%s\"", m->name);
    }
    return ISO_OK;
}

// What reaches only this machine.
static bool is_loopback(const char *address)
{
    static const uint8_t MAPPED[12] = {
        [10] = 0xff, [11] = 0xff}; // the beginning of an IPv4 address in an IPv6 one
    struct in_addr four;
    struct in6_addr six;
    if (inet_pton(AF_INET, address, &four) == 1)
        return ntohl(four.s_addr) >> 24 == 127;
    if (inet_pton(AF_INET6, address, &six) != 1)
        return false;
    return IN6_IS_ADDR_LOOPBACK(&six) ||
           (memcmp(six.s6_addr, MAPPED, sizeof MAPPED) == 0 && six.s6_addr[sizeof MAPPED] == 127);
}

static enum iso_err check_access(const struct serve_config *c, struct iso_errinfo *reterr)
{
    if (!is_loopback(c->address) && !c->keys_file[0] && !c->insecure)
        return unfit(
            c, c->lines[SETTING_LISTEN], SETTING_LISTEN, reterr,
            "listen is %s, which others on the network may reach, and no key is asked for: give a file of "
            "keys (--keys, auth.keys), or let anyone in (--insecure, insecure: true)",
            c->address);
    if (c->certificate_file[0] && !c->key_file[0])
        return unfit(c, c->lines[SETTING_CERTIFICATE], SETTING_CERTIFICATE, reterr,
                     "tls.certificate needs its private key beside it: tls.key, or --tls-key");
    if (c->key_file[0] && !c->certificate_file[0])
        return unfit(c, c->lines[SETTING_KEY], SETTING_KEY, reterr,
                     "tls.key needs its certificate beside it: tls.certificate, or --tls-certificate");
    return ISO_OK;
}

// CPU k of unit i against all before it.
static enum iso_err check_cpu(const struct serve_config *c, uint32_t i, uint32_t k,
                              struct iso_errinfo *reterr)
{
    const struct config_unit *u = &c->units[i];
    for (uint32_t other = 0; other <= i; other++) {
        const struct config_unit *v = &c->units[other];
        for (uint32_t at = 0; at < (other < i ? v->n_cpus : k); at++) {
            if (v->cpus[at] != u->cpus[k])
                continue;
            if (other == i)
                return unfit(c, unit_line(c, i, SETTING_CPUS), SETTING_CPUS, reterr,
                             "unit \"%s\" has CPU %" PRIu32 " twice", u->name, u->cpus[k]);
            return unfit(c, unit_line(c, i, SETTING_CPUS), SETTING_CPUS, reterr,
                         "units \"%s\" and \"%s\" both have CPU %" PRIu32, v->name, u->name, u->cpus[k]);
        }
    }
    return ISO_OK;
}

static enum iso_err check_units(const struct serve_config *c, struct iso_errinfo *reterr)
{
    for (uint32_t i = 0; i < c->n_units; i++) {
        const struct config_unit *u = &c->units[i];
        for (uint32_t j = 0; j < i; j++)
            if (strcmp(u->name, c->units[j].name) == 0)
                return unfit(c, unit_line(c, i, SETTING_UNIT_NAME), SETTING_UNIT_NAME, reterr,
                             "two units are called \"%s\"", u->name);
        for (uint32_t k = 0; k < u->n_cpus; k++) {
            enum iso_err err = check_cpu(c, i, k, reterr);
            if (err)
                return err;
        }
        if (u->n_cpus > 0 && u->threads > u->n_cpus)
            return unfit(c, unit_line(c, i, SETTING_THREADS), SETTING_THREADS, reterr,
                         "unit \"%s\" has %" PRIu32 " threads and only %" PRIu32 " CPUs", u->name, u->threads,
                         u->n_cpus);
    }
    return ISO_OK;
}

enum iso_err config_check(const struct serve_config *c, struct iso_errinfo *reterr)
{
    enum iso_err err = check_models(c, reterr);
    if (!err)
        err = check_access(c, reterr);
    return err ? err : check_units(c, reterr);
}
