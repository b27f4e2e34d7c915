// The server's settings: numbers and their ranges, flags, what goes together, and printed ones read back.
#include "config_cases.h"

// ---- Numbers ----

// By file and by flag alike. `at` is where the number is.
static bool take(struct serve_config *c, const char *section, const char *key, uint32_t id, const char *value)
{
    static struct serve_config flag;
    static char text[TEXT_MAX];
    struct iso_errinfo e = {0}, f = {0};
    bool unit = strcmp(section, "units") == 0;
    snprintf(text, sizeof text, unit ? "%s: [{%s: %s}]" : "%s: {%s: %s}", section, key, value);
    config_defaults(c);
    config_defaults(&flag);
    bool taken = parse_named(c, text, NAME, &e) == ISO_OK;
    if (taken != (config_set(&flag, id, value, &f) == ISO_OK))
        fail_msg("%s: the file says \"%s\", the flag \"%s\"", text, e.text, f.text);
    assert_int_equal(c->lines[id], taken ? 1 : 0);
    assert_int_equal(flag.lines[id], taken ? CONFIG_LINE_FLAG : 0);
    forget_lines(c);
    forget_lines(&flag);
    assert_memory_equal(c, &flag, sizeof flag);
    return taken;
}

static void test_ranges(void **state)
{
    (void)state;
    static struct serve_config c;
    static const struct {
        const char *section, *key;
        uint32_t id;
        const uint32_t *at;
        uint32_t min, max;
        const char *unit;
    } ROWS[] = {
        {"units", "threads", SETTING_THREADS, &c.units[0].threads, 1, 64, ""},
        {"limits", "max_seq_len", SETTING_MAX_SEQ_LEN, &c.max_seq_len, 2, 4194304, ""},
        {"limits", "slots", SETTING_SLOTS, &c.slots, 1, 1024, ""},
        {"limits", "batch_tokens", SETTING_BATCH_TOKENS, &c.batch_tokens, 1, 8192, ""},
        {"limits", "queue", SETTING_QUEUE, &c.queue, 0, 65536, ""},
        {"limits", "connections", SETTING_CONNECTIONS, &c.connections, 1, 65536, ""},
        {"limits", "max_tokens", SETTING_MAX_TOKENS, &c.max_tokens, 1, 4194304, ""},
        {"timeouts", "head", SETTING_HEAD_TIMEOUT, &c.head_ms, 100, 3600000, "ms"},
        {"timeouts", "body", SETTING_BODY_TIMEOUT, &c.body_ms, 100, 3600000, "ms"},
        {"timeouts", "idle", SETTING_IDLE_TIMEOUT, &c.idle_ms, 100, 3600000, "ms"},
        {"timeouts", "stall", SETTING_STALL_TIMEOUT, &c.stall_ms, 100, 3600000, "ms"},
    };
    char value[64];
    for (size_t i = 0; i < ARRAY_LEN(ROWS); i++) {
        const uint64_t good[] = {ROWS[i].min, ROWS[i].max, ROWS[i].min + 1},
                       bad[] = {ROWS[i].min - UINT64_C(1), ROWS[i].max + UINT64_C(1), UINT64_C(1) << 32,
                                (UINT64_C(1) << 32) + ROWS[i].min, UINT64_MAX};
        for (size_t k = 0; k < ARRAY_LEN(good); k++) {
            snprintf(value, sizeof value, "%llu%s", (unsigned long long)good[k], ROWS[i].unit);
            assert_true(take(&c, ROWS[i].section, ROWS[i].key, ROWS[i].id, value));
            assert_int_equal(*ROWS[i].at, good[k]);
        }
        for (size_t k = 0; k < ARRAY_LEN(bad); k++) {
            snprintf(value, sizeof value, "%llu%s", (unsigned long long)bad[k], ROWS[i].unit);
            if (take(&c, ROWS[i].section, ROWS[i].key, ROWS[i].id, value))
                fail_msg("%s.%s took %s", ROWS[i].section, ROWS[i].key, value);
        }
    }
}

static void test_number_forms(void **state)
{
    (void)state;
    static struct serve_config c;
    static const char *const BAD[] = {
        "+8",  "-8",  "010", "00", "0x8", "0o10", "8.0", "8e0",
        "1_0", "8 8", "٣",   "8K", "inf", ".8",   "8.",  "18446744073709551616"};
    for (size_t i = 0; i < ARRAY_LEN(BAD); i++)
        if (take(&c, "limits", "queue", SETTING_QUEUE, BAD[i]))
            fail_msg("limits.queue took %s", BAD[i]);
    static const struct {
        const char *text;
        uint64_t bytes; // 0: refused
    } SIZES[] = {{"1024", 1024},        {"1KiB", 1024},
                 {"1K", 1024},          {"3000B", 3000},
                 {"2kB", 2000},         {"5MB", 5000000},
                 {"5M", 5 * MIB},       {"1GiB", GIB},
                 {"1G", GIB},           {"1GB", 1000000000},
                 {"1023", 0},           {"1073741825", 0},
                 {"2GiB", 0},           {"0", 0},
                 {"01MiB", 0},          {"1 MiB", 0},
                 {"1mib", 0},           {"MiB", 0},
                 {"-1MiB", 0},          {"1.5MiB", 0},
                 {"1TiB", 0},           {"0x1000", 0},
                 {"17179869184GiB", 0}, {"1MiB1", 0}};
    for (size_t i = 0; i < ARRAY_LEN(SIZES); i++) {
        if (take(&c, "limits", "body", SETTING_BODY, SIZES[i].text) != (SIZES[i].bytes > 0))
            fail_msg("limits.body: %s", SIZES[i].text);
        assert_int_equal(c.body_bytes, SIZES[i].bytes ? SIZES[i].bytes : 4 * MIB);
    }
    assert_true(take(&c, "units", "pool", SETTING_POOL, "1MiB") && c.units[0].pool_bytes == MIB);
    assert_true(take(&c, "units", "pool", SETTING_POOL, "16384GiB") && c.units[0].pool_bytes == 16384 * GIB);
    assert_false(take(&c, "units", "pool", SETTING_POOL, "1048575"));
    assert_false(take(&c, "units", "pool", SETTING_POOL, "16385GiB"));
    static const struct {
        const char *text;
        uint32_t ms;
    } TIMES[] = {{"100ms", 100},     {"1s", 1000}, {"90s", 90000}, {"1min", 60000},
                 {"60min", 3600000}, {"10", 0},    {"99ms", 0},    {"61min", 0},
                 {"1h", 0},          {"0s", 0},    {"1 s", 0},     {"1.5s", 0},
                 {"010s", 0},        {"s", 0},     {"1sec", 0},    {"307445734561825861min", 0}};
    for (size_t i = 0; i < ARRAY_LEN(TIMES); i++) {
        if (take(&c, "timeouts", "stall", SETTING_STALL_TIMEOUT, TIMES[i].text) != (TIMES[i].ms > 0))
            fail_msg("timeouts.stall: %s", TIMES[i].text);
        assert_int_equal(c.stall_ms, TIMES[i].ms ? TIMES[i].ms : 60000);
    }
    parse_good(&c, "timeouts: {head: '5s'}\nlimits: {body: \"2MiB\"}"); // they are texts
    assert_true(c.head_ms == 5000 && c.body_bytes == 2 * MIB);
}

// Reals against strtod.
static void test_reals(void **state)
{
    (void)state;
    static struct serve_config c;
    static const char *const BAD[] = {"0",    "0.009999", "1.000001", "2",    "-0.5",      ".5",
                                      "0.",   "0,5",      "5e-1",     "00.5", "0.1234567", "0.0123456",
                                      "0.5x", "nan",      "0.-5",     "0.+5", "1_0.5"};
    for (size_t i = 0; i < ARRAY_LEN(BAD); i++)
        if (take(&c, "scheduler", "load_threshold", SETTING_LOAD_THRESHOLD, BAD[i]))
            fail_msg("load_threshold took %s", BAD[i]);
    for (uint32_t i = 10000; i <= 1000000; i += 997) {
        char text[32];
        snprintf(text, sizeof text, "%u.%06u", i / 1000000, i % 1000000);
        assert_true(take(&c, "scheduler", "load_threshold", SETTING_LOAD_THRESHOLD, text));
        assert_true(c.load_threshold == strtod(text, NULL));
    }
    assert_true(take(&c, "scheduler", "load_threshold", SETTING_LOAD_THRESHOLD, "1"));
    assert_true(c.load_threshold == 1);
    assert_true(take(&c, "scheduler", "load_threshold", SETTING_LOAD_THRESHOLD, "0.01"));
    assert_true(c.load_threshold == 0.01);
}

static void test_cpus(void **state)
{
    (void)state;
    static struct serve_config c;
    static const char *const BAD[] = {"\"\"",
                                      "','",
                                      "'1,'",
                                      "',1'",
                                      "'3-1'",
                                      "'1-'",
                                      "'-1'",
                                      "'1--2'",
                                      "'1 ,2'",
                                      "'1-2-3'",
                                      "65536-65536",
                                      "0-64",
                                      "'0-62,63,64'",
                                      "'0-62,64-65'",
                                      "'01'",
                                      "'1-02'",
                                      "a",
                                      "18446744073709551615-18446744073709551615",
                                      "0-18446744073709551615"};
    char text[TEXT_MAX];
    struct iso_errinfo e;
    for (size_t i = 0; i < ARRAY_LEN(BAD); i++) {
        snprintf(text, sizeof text, "units: [{cpus: %s}]", BAD[i]);
        config_defaults(&c);
        if (parse_named(&c, text, NAME, &e) != ISO_E_USAGE || !strstr(e.text, "a list of 1 to 64 CPUs"))
            fail_msg("%s: %s", text, e.text);
    }
    parse_good(&c, "units: [{cpus: \"65535,0-61,70-70\"}]");
    assert_int_equal(c.units[0].n_cpus, 64);
    assert_true(c.units[0].cpus[0] == 65535 && c.units[0].cpus[1] == 0 && c.units[0].cpus[62] == 61 &&
                c.units[0].cpus[63] == 70);
    size_t n = (size_t)snprintf(text, sizeof text, "units:\n- cpus:\n");
    for (int i = 0; i < 64; i++)
        n += (size_t)snprintf(text + n, sizeof text - n, "  - %d\n", 3 * i);
    parse_good(&c, text);
    for (uint32_t i = 0; i < 64; i++)
        assert_int_equal(c.units[0].cpus[i], 3 * i);
    snprintf(text + n, sizeof text - n, "  - 200\n");
    assert_int_equal(parse_named(&c, text, NAME, &e), ISO_E_USAGE);
    assert_non_null(
        strstr(e.text, NAME ":67: units.cpus has \"200\" as number 65; allowed is a list of 1 to 64"));
    // By flag, in place of those before.
    assert_int_equal(config_set(&c, SETTING_CPUS, "2,7-8", &e), ISO_OK);
    assert_true(c.units[0].n_cpus == 3 && c.units[0].cpus[0] == 2 && c.units[0].cpus[2] == 8 &&
                c.units[0].cpus[3] == 0);
    assert_int_equal(config_set(&c, SETTING_CPUS, "2,", &e), ISO_E_USAGE);
    assert_string_equal(
        e.text, "--cpus is \"2,\"; allowed is a list of 1 to 64 CPUs, each up to 65535, as in [0, 1] or "
                "\"0-3,6\"");
    assert_int_equal(c.units[0].n_cpus, 3);
}

// ---- Flags ----

static void test_table(void **state)
{
    (void)state;
    static const char *const FLAGS[] = {
        "alias",         "any-model",   "listen",          "insecure",     "cpus",         "pool",
        "threads",       "sched",       "max-seq-len",     "slots",        "batch-tokens", "queue",
        "body",          "connections", "max-tokens",      "head-timeout", "body-timeout", "idle-timeout",
        "stall-timeout", "quant",       "quant-embedding", "kv",           "policy",       "load-threshold",
        "keys",          "audit",       "audit-detail",    "log-level",    "log-format",   "tls-certificate",
        "tls-key",       "isa"};
    uint32_t n, flags = 0;
    const struct config_setting *s = config_settings(&n);
    assert_int_equal(n, SETTING_COUNT);
    for (uint32_t i = 0; i < n; i++) {
        assert_true(s[i].help[0] && s[i].help[strlen(s[i].help) - 1] != '.');
        for (uint32_t k = 0; k < i; k++)
            assert_true(strcmp(s[i].path, s[k].path) != 0);
        assert_true((s[i].value == NULL) == (i == SETTING_ANY_MODEL || i == SETTING_INSECURE));
        if (!s[i].flag)
            continue;
        assert_true(flags < ARRAY_LEN(FLAGS));
        assert_string_equal(s[i].flag, FLAGS[flags++]);
    }
    assert_int_equal(flags, ARRAY_LEN(FLAGS));
    assert_null(s[SETTING_MODEL].flag);
    assert_null(s[SETTING_UNIT_NAME].flag);
}

static void test_flags(void **state)
{
    (void)state;
    static struct serve_config c, file;
    static const struct {
        uint32_t id;
        const char *value, *text;
    } ROWS[] = {{SETTING_ALIAS, "8", "alias: '8'"}, // a flag has no types
                {SETTING_ANY_MODEL, NULL, "any_model: true"},
                {SETTING_LISTEN, "[::1]:1", "listen: '[::1]:1'"},
                {SETTING_INSECURE, NULL, "insecure: true"},
                {SETTING_UNIT_NAME, "x", "units: [{name: x}]"},
                {SETTING_SCHED, "fifo", "units: [{sched: fifo}]"},
                {SETTING_SCHED, "other", "units: [{sched: other}]"},
                {SETTING_QUANT, "keep", "compile: {quant: keep}"},
                {SETTING_QUANT_EMBEDDING, "f16", "compile: {quant_embedding: f16}"},
                {SETTING_KV, "f16", "compile: {kv: f16}"},
                {SETTING_POLICY, "round_robin", "scheduler: {policy: round_robin}"},
                {SETTING_KEYS, "k", "auth: {keys: k}"},
                {SETTING_AUDIT, "a/b", "audit: {file: a/b}"},
                {SETTING_AUDIT_DETAIL, "digests", "audit: {detail: digests}"},
                {SETTING_LOG_LEVEL, "error", "log: {level: error}"},
                {SETTING_LOG_FORMAT, "json", "log: {format: json}"},
                {SETTING_CERTIFICATE, "c", "tls: {certificate: c}"},
                {SETTING_KEY, "k", "tls: {key: k}"},
                {SETTING_ISA, "neon", "isa: neon"}};
    struct iso_errinfo e;
    for (size_t i = 0; i < ARRAY_LEN(ROWS); i++) {
        config_defaults(&c);
        config_defaults(&file);
        assert_int_equal(config_set(&c, ROWS[i].id, ROWS[i].value, &e), ISO_OK);
        assert_int_equal(parse_named(&file, ROWS[i].text, "here.yaml", &e), ISO_OK);
        assert_int_equal(c.lines[ROWS[i].id], CONFIG_LINE_FLAG);
        forget_lines(&c);
        forget_lines(&file);
        assert_memory_equal(&c, &file, sizeof c);
    }
}

static void assert_flag_refused(uint32_t id, const char *value, const char *message)
{
    static struct serve_config c, before;
    struct iso_errinfo e = {0};
    parse_good(&c, "model: m\nunits: [{name: a}, {name: b}]");
    memcpy(&before, &c, sizeof c);
    assert_int_equal(config_set(&c, id, value, &e), ISO_E_USAGE);
    assert_string_equal(e.text, message);
    assert_memory_equal(&c, &before, sizeof c);
    assert_int_equal(config_set(&c, id, value, NULL), ISO_E_USAGE);
}

static void test_flags_refused(void **state)
{
    (void)state;
    assert_flag_refused(SETTING_SLOTS, "0", "--slots is \"0\"; allowed is a whole number from 1 to 1024");
    assert_flag_refused(SETTING_SLOTS, "", "--slots is \"\"; allowed is a whole number from 1 to 1024");
    assert_flag_refused(SETTING_SLOTS, NULL, "--slots needs a value: a whole number from 1 to 1024");
    assert_flag_refused(SETTING_INSECURE, "true", "--insecure takes no value");
    assert_flag_refused(SETTING_ISA, "c avx2",
                        "--isa is \"c avx2\"; allowed is c, avx2, avx512, amx or neon");
    assert_flag_refused(SETTING_POOL, "1",
                        "--pool is \"1\"; allowed is a size from 1MiB to 16384GiB, as in 512MiB or 8GiB");
    assert_flag_refused(
        SETTING_HEAD_TIMEOUT, "1",
        "--head-timeout is \"1\"; allowed is a time from 100ms to 60min, as in 500ms, 10s or 1min");
    assert_flag_refused(
        SETTING_LOAD_THRESHOLD, "2",
        "--load-threshold is \"2\"; allowed is a number from 0.01 to 1.0 with at most 6 digits after the "
        "point");
    assert_flag_refused(SETTING_ALIAS, "a\n",
                        "--alias is \"a?\"; allowed is a name of 1 to 127 bytes without control "
                        "characters");
    assert_flag_refused(SETTING_ALIAS, "\xff",
                        "--alias is \"?\"; allowed is a name of 1 to 127 bytes without control "
                        "characters");
    assert_flag_refused(SETTING_MODEL, NULL, "model needs a value: a path, or a mapping of names to paths");
    assert_flag_refused(SETTING_MODEL, "",
                        "model: a path is \"\"; allowed is a path of 1 to 4095 bytes without control "
                        "characters");
    assert_flag_refused(SETTING_MODEL, "a=",
                        "model: a path is \"\"; allowed is a path of 1 to 4095 bytes without control "
                        "characters");
    assert_flag_refused(SETTING_MODEL, "=a",
                        "model: there is no name before \"=a\"; allowed is PATH or NAME=PATH");
    assert_flag_refused(SETTING_MODEL, "\xff=a",
                        "model: a name is \"?\"; allowed are 1 to 127 bytes without control "
                        "characters");
}

static void test_model_flags(void **state)
{
    (void)state;
    static struct serve_config c;
    struct iso_errinfo e;
    parse_good(&c, "model: {x: y, z: w}\nunits: [{name: a, threads: 1}, {name: b, threads: 2}]");
    assert_int_equal(config_set(&c, SETTING_MODEL, "a.plan", &e), ISO_OK); // in place of the file's
    assert_int_equal(config_set(&c, SETTING_MODEL, "n=dir/b=c", &e), ISO_OK);
    assert_int_equal(config_set(&c, SETTING_MODEL, "./d=e", &e), ISO_OK);
    assert_int_equal(c.n_models, 3);
    assert_string_equal(c.models[0].name, "");
    assert_string_equal(c.models[0].path, "a.plan");
    assert_string_equal(c.models[1].name, "n");
    assert_string_equal(c.models[1].path, "dir/b=c");
    assert_string_equal(c.models[2].name, "");
    assert_string_equal(c.models[2].path, "./d=e");
    assert_int_equal(c.models[0].line, CONFIG_LINE_FLAG);
    for (uint32_t i = 3; i < CONFIG_MODELS_MAX; i++)
        assert_int_equal(config_set(&c, SETTING_MODEL, "m", &e), ISO_OK);
    assert_int_equal(config_set(&c, SETTING_MODEL, "m", &e), ISO_E_USAGE);
    assert_string_equal(e.text, "model: there are more than 8 models");
    assert_int_equal(c.n_models, 8);
    assert_int_equal(config_set(&c, SETTING_THREADS, "9", &e), ISO_OK);
    assert_true(c.units[0].threads == 9 && c.units[1].threads == 2);
}

static void test_where(void **state)
{
    (void)state;
    static struct serve_config c;
    struct iso_errinfo e;
    char where[64];
    parse_good(&c, "\n\n\nlimits:\n  slots: 8\n");
    config_where(&c, SETTING_SLOTS, where, sizeof where);
    assert_string_equal(where, NAME ":5");
    config_where(&c, SETTING_QUEUE, where, sizeof where);
    assert_string_equal(where, "the default");
    assert_int_equal(config_set(&c, SETTING_SLOTS, "4", &e), ISO_OK);
    assert_int_equal(config_set(&c, SETTING_MODEL, "m", &e), ISO_OK);
    config_where(&c, SETTING_SLOTS, where, sizeof where);
    assert_string_equal(where, "--slots");
    config_where(&c, SETTING_MODEL, where, sizeof where);
    assert_string_equal(where, "the command line");
    config_where(&c, SETTING_SLOTS, where, 4);
    assert_string_equal(where, "--s");
}

// ---- What goes together ----

static void test_check(void **state)
{
    (void)state;
    static struct serve_config c;
    static const char *const GOOD[] = {
        "model: m",
        "model: {a: m}\nalias: x",
        "model: {a: m, b: m}",
        "model: m\nlisten: 127.9.9.9:1",
        "model: m\nlisten: '[::1]:1'",
        "model: m\nlisten: '[::ffff:127.0.0.1]:1'",
        "model: m\nlisten: 0.0.0.0:1\ninsecure: true",
        "model: m\nlisten: 0.0.0.0:1\nauth: {keys: k}",
        "model: m\ntls: {certificate: a, key: b}",
        "model: m\nunits: [{cpus: [0, 1], threads: 2}, {cpus: [2], threads: 1}]",
        "model: m\nunits: [{threads: 64}, {threads: 64}]"};
    for (size_t i = 0; i < ARRAY_LEN(GOOD); i++) {
        struct iso_errinfo e = {0};
        parse_good(&c, GOOD[i]);
        if (config_check(&c, &e))
            fail_msg("%s: %s", GOOD[i], e.text);
    }
    static const char *const BAD[][2] = {
        {"isa: c", "which model? Name a plan or model file on the command line, or as model in the file"},
        {"model: {a: m, b: m}\n\nalias: x",
         NAME ":3: alias is one name and there are 2 models; name each one: NAME=PATH, or name: path"},
        {"model: m\nlisten: 0.0.0.0:1",
         NAME ":2: listen is 0.0.0.0, which others on the network may reach, and no key is "
              "asked for: give a file of keys (--keys, auth.keys), or let anyone in "
              "(--insecure, insecure: true)"},
        {"model: m\nlisten: 126.0.0.1:1",
         NAME ":2: listen is 126.0.0.1, which others on the network may reach, and no key is asked for: give "
              "a file of keys "
              "(--keys, auth.keys), or let anyone in (--insecure, insecure: true)"},
        {"model: m\nlisten: '[::]:1'\ninsecure: false",
         NAME ":2: listen is ::, which others on the network may reach, and no key is asked for: give a file "
              "of keys "
              "(--keys, auth.keys), or let anyone in (--insecure, insecure: true)"},
        {"model: m\nlisten: '[::ffff:128.0.0.1]:1'",
         NAME ":2: listen is ::ffff:128.0.0.1, which others on the network may reach, and no key is asked "
              "for: give a file "
              "of keys (--keys, auth.keys), or let anyone in (--insecure, insecure: true)"},
        {"model: m\ntls:\n  certificate: a",
         NAME ":3: tls.certificate needs its private key beside it: tls.key, or --tls-key"},
        {"model: m\ntls:\n  key: a",
         NAME ":3: tls.key needs its certificate beside it: tls.certificate, or --tls-certificate"},
        {"model: m\nunits:\n- name: a\n- name: a", NAME ":4: two units are called \"a\""},
        {"model: m\nunits:\n- cpus: 1-3,2", NAME ":3: unit \"unit0\" has CPU 2 twice"},
        {"model: m\nunits:\n- cpus: 1-3\n-\n  name: x\n  cpus: [4, 3]",
         NAME ":5: units \"unit0\" and \"x\" both have CPU 3"},
        {"model: m\nunits:\n- {}\n- {cpus: [4, 3], threads: 3}",
         NAME ":4: unit \"unit1\" has 3 threads and only 2 CPUs"},
    };
    for (size_t i = 0; i < ARRAY_LEN(BAD); i++) {
        struct iso_errinfo e = {0};
        parse_good(&c, BAD[i][0]);
        assert_int_equal(config_check(&c, &e), ISO_E_USAGE);
        assert_string_equal(e.text, BAD[i][1]);
        assert_int_equal(config_check(&c, NULL), ISO_E_USAGE);
    }
}

static void test_check_flags(void **state)
{
    (void)state;
    static struct serve_config c;
    struct iso_errinfo e;
    config_defaults(&c);
    assert_int_equal(config_set(&c, SETTING_MODEL, "a", &e), ISO_OK);
    assert_int_equal(config_check(&c, &e), ISO_OK);
    assert_int_equal(config_set(&c, SETTING_MODEL, "b", &e), ISO_OK);
    assert_int_equal(config_check(&c, &e), ISO_E_USAGE);
    assert_string_equal(
        e.text, "the command line: model \"a\" needs a name, as there are several: NAME=PATH, or name: path");
    config_defaults(&c);
    assert_int_equal(config_set(&c, SETTING_MODEL, "x=a", &e), ISO_OK);
    assert_int_equal(config_set(&c, SETTING_MODEL, "x=b", &e), ISO_OK);
    assert_int_equal(config_check(&c, &e), ISO_E_USAGE);
    assert_string_equal(e.text, "the command line: two models are called \"x\"");
    parse_good(&c, "model: a\nunits: [{name: x, threads: 2},{name: y,cpus: [1]}]");
    assert_int_equal(config_set(&c, SETTING_CPUS, "0", &e), ISO_OK);
    assert_int_equal(config_check(&c, &e), ISO_E_USAGE);
    assert_string_equal(e.text, NAME ":2: unit \"x\" has 2 threads and only 1 CPUs");
    assert_int_equal(config_set(&c, SETTING_THREADS, "3", &e), ISO_OK);
    assert_int_equal(config_check(&c, &e), ISO_E_USAGE);
    assert_string_equal(e.text, "--threads: unit \"x\" has 3 threads and only 1 CPUs");
    assert_int_equal(config_set(&c, SETTING_CPUS, "0,0", &e), ISO_OK);
    assert_int_equal(config_check(&c, &e), ISO_E_USAGE);
    assert_string_equal(e.text, "--cpus: unit \"x\" has CPU 0 twice");
}

// ---- Printing ----

static const char *print(const struct serve_config *c)
{
    static char text[8 * TEXT_MAX];
    struct buf b;
    buf_init(&b, sizeof text - 1);
    assert_int_equal(config_print(c, &b), ISO_OK);
    memcpy(text, b.ptr, b.len);
    text[b.len] = '\0';
    buf_deinit(&b);
    return text;
}

static void assert_prints_back(const struct serve_config *c)
{
    static struct serve_config before, after;
    struct iso_errinfo e;
    memcpy(&before, c, sizeof before);
    config_defaults(&after);
    const char *text = print(c);
    if (parse_named(&after, text, "here.yaml", &e))
        fail_msg("%s: %s", e.text, text);
    forget_lines(&before);
    forget_lines(&after);
    assert_memory_equal(&after, &before, sizeof before);
}

static void test_print(void **state)
{
    (void)state;
    static struct serve_config c;
    struct iso_errinfo e;
    config_defaults(&c);
    assert_prints_back(&c);
    parse_good(&c, WHOLE);
    assert_prints_back(&c);
    parse_good(&c, "model: {'a: b': 'x # y', \"q\\\"\\\\\": /p, \xc3\xa4: z}\nunits: [{}, {cpus: "
                   "[7]}]\nlisten: '[::1]:0'");
    assert_prints_back(&c);
    static const char *const TEXTS[] = {"true", "False", "NULL", "~",   "no",       "8",
                                        "-",    "--",    ".",    "..",  ".5",       "1.5",
                                        "0x1",  "a b",   " a",   "a ",  "#a",       "a#",
                                        "a: b", "a:",    "[a]",  "{a}", "*a",       "&a",
                                        "!a",   "|",     ">",    "%a",  "@a",       "`a",
                                        "'",    "\"",    "\\",   "a'b", "\xc3\xa4", "\xef\xbf\xbd",
                                        "?",    "? a",   ",",    "...", "---",      "qwen2.5-7b",
                                        "y",    "on",    "=",    "<<",  "\xc2\xa0", "\xf0\x9f\x98\x80"};
    for (size_t i = 0; i < ARRAY_LEN(TEXTS); i++) {
        config_defaults(&c);
        assert_int_equal(config_set(&c, SETTING_ALIAS, TEXTS[i], &e), ISO_OK);
        assert_int_equal(config_set(&c, SETTING_UNIT_NAME, TEXTS[i], &e), ISO_OK);
        assert_int_equal(config_set(&c, SETTING_KEYS, TEXTS[i], &e), ISO_OK);
        if (i % 2)
            assert_int_equal(config_set(&c, SETTING_MODEL, "x=y", &e), ISO_OK);
        assert_prints_back(&c);
    }
    const char *const SIZES[] = {"1024", "1025", "3MiB", "1GiB", "1000000", "5kB"};
    for (size_t i = 0; i < ARRAY_LEN(SIZES); i++) {
        assert_int_equal(config_set(&c, SETTING_BODY, SIZES[i], &e), ISO_OK);
        assert_prints_back(&c);
    }
    const char *const TIMES[] = {"100ms", "60000ms", "61s", "1001ms", "1500ms", "60min"};
    for (size_t i = 0; i < ARRAY_LEN(TIMES); i++) {
        assert_int_equal(config_set(&c, SETTING_IDLE_TIMEOUT, TIMES[i], &e), ISO_OK);
        assert_prints_back(&c);
    }
    for (uint32_t i = 10000; i <= 1000000; i += 3989) {
        c.load_threshold = i / 1000000.0;
        assert_prints_back(&c);
    }
}

// All bytes of what is written for one.
static void test_print_layout(void **state)
{
    (void)state;
    static struct serve_config c;
    uint32_t n;
    const struct config_setting *s = config_settings(&n);
    parse_good(&c, WHOLE);
    const char *text = print(&c), *at = text;
    for (uint32_t i = 0; i < n; i++) { // each with its help, in order
        char line[512];
        snprintf(line, sizeof line, "# %s\n", s[i].help);
        const char *found = strstr(at, line);
        assert_non_null(found);
        if (i != SETTING_UNIT_NAME)
            at = found;
    }
    assert_non_null(strstr(text, "\nmodel: conf/qwen.plan\n"));
    assert_non_null(strstr(text, "\nlisten: \"0.0.0.0:9000\"\n"));
    assert_non_null(strstr(text, "\n  - name: a\n"));
    assert_non_null(strstr(text, "\n    cpus: [4, 5, 6, 9]\n"));
    assert_non_null(strstr(text, "\n    pool: 8GiB\n"));
    assert_non_null(strstr(text, "\n    # pool:\n")); // of b
    assert_non_null(strstr(text, "\n    sched: fifo\n"));
    assert_non_null(strstr(text, "\n  queue: 0\n"));
    assert_non_null(strstr(text, "\n  body: 2min\n"));
    assert_non_null(strstr(text, "\n  load_threshold: 0.35\n"));
    config_defaults(&c);
    text = print(&c);
    assert_non_null(strstr(text, "\n# model:\n"));
    assert_non_null(strstr(text, "\ncompile:\n  # "));
    assert_non_null(strstr(text, "\n  # quant:\n"));
}

static void test_print_no_room(void **state)
{
    (void)state;
    static struct serve_config c;
    parse_good(&c, WHOLE);
    size_t whole = strlen(print(&c));
    for (size_t max = 0; max <= whole; max += max < whole - 40 ? 37 : 1) {
        struct buf b;
        buf_init(&b, max);
        assert_int_equal(config_print(&c, &b), max < whole ? ISO_E_LIMIT : ISO_OK);
        buf_deinit(&b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ranges),        cmocka_unit_test(test_number_forms),
        cmocka_unit_test(test_reals),         cmocka_unit_test(test_cpus),
        cmocka_unit_test(test_table),         cmocka_unit_test(test_flags),
        cmocka_unit_test(test_flags_refused), cmocka_unit_test(test_model_flags),
        cmocka_unit_test(test_where),         cmocka_unit_test(test_check),
        cmocka_unit_test(test_check_flags),   cmocka_unit_test(test_print),
        cmocka_unit_test(test_print_layout),  cmocka_unit_test(test_print_no_room),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
