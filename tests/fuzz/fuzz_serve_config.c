// The server's settings: data is a file, and every flag's value. What is refused says where and leaves the settings as they
// were; what is taken and goes together is the same when printed and read back.
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "serve/config.h"

#define NAME        "fuzz.yaml" // without a folder: paths stay as they are
#define PRINTED_MAX ((size_t)1 << 20)
#define FLAG_MAX    256

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void forget_lines(struct serve_config *c)
{
    memset(c->lines, 0, sizeof c->lines);
    memset(c->file, 0, sizeof c->file);
    for (size_t i = 0; i < CONFIG_MODELS_MAX; i++)
        c->models[i].line = 0;
    for (size_t i = 0; i < CONFIG_UNITS_MAX; i++)
        c->units[i].line = 0;
    // What follows the last is of no meaning.
    memset(&c->models[c->n_models], 0, (CONFIG_MODELS_MAX - c->n_models) * sizeof c->models[0]);
    memset(&c->units[c->n_units], 0, (CONFIG_UNITS_MAX - c->n_units) * sizeof c->units[0]);
}

static void check_printed(struct serve_config *c)
{
    static struct serve_config again;
    struct iso_errinfo e = {0};
    struct buf b;
    buf_init(&b, PRINTED_MAX);
    ASSERT(config_print(c, &b) == ISO_OK);
    config_defaults(&again);
    ASSERT(config_parse(&again, buf_strv(&b), NAME, &e) == ISO_OK);
    forget_lines(&again);
    forget_lines(c);
    ASSERT(memcmp(&again, c, sizeof again) == 0);
    buf_deinit(&b);
}

// Lines count from 1; none begins after the last byte.
static void check_place(const char *text, const uint8_t *data, size_t size)
{
    unsigned long lines = 1, line;
    char *end;
    for (size_t i = 0; i + 1 < size; i++)
        lines += data[i] == '\n';
    ASSERT(strncmp(text, NAME ":", strlen(NAME ":")) == 0);
    line = strtoul(text + strlen(NAME ":"), &end, 10);
    ASSERT(line >= 1 && line <= lines && strncmp(end, ": ", 2) == 0 && end[2]);
}

static void read_file(const uint8_t *data, size_t size)
{
    static struct serve_config c, before;
    struct iso_errinfo e = {0};
    config_defaults(&c);
    memcpy(&before, &c, sizeof c);
    enum iso_err err = config_parse(&c, (struct strv){(const char *)data, size}, NAME, &e);
    if (err) {
        ASSERT(err == ISO_E_USAGE && e.code == err && memcmp(&c, &before, sizeof c) == 0);
        check_place(e.text, data, size);
        return;
    }
    ASSERT(c.n_units >= 1 && c.n_units <= CONFIG_UNITS_MAX && c.n_models <= CONFIG_MODELS_MAX);
    err = config_check(&c, &e);
    ASSERT(!err || (err == ISO_E_USAGE && e.text[0]));
    check_printed(&c);
}

static void set_flags(const uint8_t *data, size_t size)
{
    static struct serve_config c, before;
    char value[FLAG_MAX + 1];
    uint32_t n;
    (void)config_settings(&n);
    memcpy(value, data, size);
    value[size] = '\0';
    for (uint32_t i = 0; i < n; i++) {
        struct iso_errinfo e = {0};
        config_defaults(&c);
        memcpy(&before, &c, sizeof c);
        if (config_set(&c, i, value, &e) == ISO_OK)
            check_printed(&c);
        else
            ASSERT(e.code == ISO_E_USAGE && e.text[0] && memcmp(&c, &before, sizeof c) == 0);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    read_file(data, size);
    if (size <= FLAG_MAX)
        set_flags(data, size);
    return 0;
}
