// What the tests of the server's settings share.
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/num.h"
#include "serve/config.h"

#define TEXT_MAX 65536
#define NAME     "conf/isochron.yaml"

// A file with every setting.
static const char WHOLE[] = "model: qwen.plan\n"
                            "alias: qwen2.5-7b\n"
                            "any_model: true\n"
                            "listen: 0.0.0.0:9000\n"
                            "insecure: true\n"
                            "units:\n"
                            "  - {name: a, cpus: [0, 1], pool: 8GiB, threads: 2, sched: fifo}\n"
                            "  - name: b\n"
                            "    cpus: 4-6,9\n"
                            "limits: {max_seq_len: 4096, slots: 8, batch_tokens: 128, queue: 0, body: 2MiB,\n"
                            "  connections: 100, max_tokens: 77}\n"
                            "timeouts: {head: 100ms, body: 2min, idle: 80s, stall: 60min}\n"
                            "compile: {quant: w4, quant_embedding: \"w6\", kv: 'q8'}\n"
                            "scheduler: {policy: round_robin, load_threshold: 0.35}\n"
                            "auth: {keys: keys.txt}\n"
                            "audit: {file: /var/audit.jsonl, detail: digests}\n"
                            "log: {level: debug, format: json}\n"
                            "tls: {certificate: tls/cert.pem, key: ../key.pem}\n"
                            "isa: avx2\n";

static inline enum iso_err parse_named(struct serve_config *c, const char *text, const char *name,
                                       struct iso_errinfo *e)
{
    memset(e, 0, sizeof *e);
    return config_parse(c, strv_from(text), name, e);
}

// Over the defaults, and it must succeed.
static inline void parse_good(struct serve_config *c, const char *text)
{
    struct iso_errinfo e;
    config_defaults(c);
    if (parse_named(c, text, NAME, &e))
        fail_msg("%s: %s", text, e.text);
}

// Without where the settings come from.
static inline void forget_lines(struct serve_config *c)
{
    memset(c->lines, 0, sizeof c->lines);
    memset(c->file, 0, sizeof c->file);
    for (size_t i = 0; i < CONFIG_MODELS_MAX; i++)
        c->models[i].line = 0;
    for (size_t i = 0; i < CONFIG_UNITS_MAX; i++)
        c->units[i].line = 0;
}
