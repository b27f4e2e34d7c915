// The server's settings: files good and bad, and the system failing.
#include "config_cases.h"

#include <errno.h>
#include <unistd.h>
#include <yaml.h>

// The system, failing on demand: the linker sends the calls here (-Wl,--wrap).
static struct {
    bool calloc_fails, malloc_fails, initialize_fails;
    int parses_until_no_memory; // 0: there is memory
    int read_errno;             // of each call but the first
    int interrupts;             // calls left that are interrupted
    size_t read_max;            // most bytes of a call; 0: no limit
    int reads;
} sys;

void *__real_calloc(size_t n, size_t size);
void *__wrap_calloc(size_t n, size_t size);
void *__real_malloc(size_t n);
void *__wrap_malloc(size_t n);
ssize_t __real_read(int fd, void *dst, size_t n);
ssize_t __wrap_read(int fd, void *dst, size_t n);
int __real_yaml_parser_initialize(yaml_parser_t *parser);
int __wrap_yaml_parser_initialize(yaml_parser_t *parser);
int __real_yaml_parser_parse(yaml_parser_t *parser, yaml_event_t *event);
int __wrap_yaml_parser_parse(yaml_parser_t *parser, yaml_event_t *event);

void *__wrap_calloc(size_t n, size_t size)
{
    return sys.calloc_fails ? NULL : __real_calloc(n, size);
}

void *__wrap_malloc(size_t n)
{
    return sys.malloc_fails ? NULL : __real_malloc(n);
}

ssize_t __wrap_read(int fd, void *dst, size_t n)
{
    if (sys.interrupts > 0) {
        sys.interrupts--;
        errno = EINTR;
        return -1;
    }
    if (sys.reads++ > 0 && sys.read_errno) {
        errno = sys.read_errno;
        return -1;
    }
    return __real_read(fd, dst, sys.read_max && sys.read_max < n ? sys.read_max : n);
}

int __wrap_yaml_parser_initialize(yaml_parser_t *parser)
{
    return sys.initialize_fails ? 0 : __real_yaml_parser_initialize(parser);
}

int __wrap_yaml_parser_parse(yaml_parser_t *parser, yaml_event_t *event)
{
    if (sys.parses_until_no_memory && --sys.parses_until_no_memory == 0) {
        memset(event, 0, sizeof *event);
        parser->error = YAML_MEMORY_ERROR;
        return 0;
    }
    return __real_yaml_parser_parse(parser, event);
}

static void assert_refused(struct strv text, const char *message)
{
    static struct serve_config c, before;
    struct iso_errinfo e = {0};
    config_defaults(&c);
    c.queue = 7;
    memcpy(&before, &c, sizeof c);
    if (config_parse(&c, text, "s.yaml", &e) != ISO_E_USAGE || strcmp(e.text, message) != 0)
        fail_msg("%.*s\nsays  %s\nnot   %s", STRV_ARG(text), e.text, message);
    assert_int_equal(e.code, ISO_E_USAGE);
    assert_memory_equal(&c, &before, sizeof c);
    assert_int_equal(config_parse(&c, text, "s.yaml", NULL), ISO_E_USAGE);
}

// ---- Good files ----

static void test_whole_file(void **state)
{
    (void)state;
    static struct serve_config c;
    parse_good(&c, WHOLE);
    assert_int_equal(c.n_models, 1);
    assert_string_equal(c.models[0].path, "conf/qwen.plan");
    assert_string_equal(c.models[0].name, "");
    assert_string_equal(c.alias, "qwen2.5-7b");
    assert_true(c.any_model && c.insecure);
    assert_string_equal(c.address, "0.0.0.0");
    assert_int_equal(c.port, 9000);
    assert_int_equal(c.n_units, 2);
    const struct config_unit *a = &c.units[0], *b = &c.units[1];
    assert_string_equal(a->name, "a");
    assert_true(a->n_cpus == 2 && a->cpus[0] == 0 && a->cpus[1] == 1);
    assert_true(a->pool_bytes == 8 * GIB && a->threads == 2 && a->fifo && a->line == 7);
    assert_string_equal(b->name, "b");
    assert_true(b->n_cpus == 4 && b->cpus[0] == 4 && b->cpus[2] == 6 && b->cpus[3] == 9);
    assert_true(b->pool_bytes == 0 && b->threads == 0 && !b->fifo && b->line == 8);
    assert_true(c.max_seq_len == 4096 && c.slots == 8 && c.batch_tokens == 128 && c.queue == 0);
    assert_true(c.body_bytes == 2 * MIB && c.connections == 100 && c.max_tokens == 77);
    assert_true(c.head_ms == 100 && c.body_ms == 120000 && c.idle_ms == 80000 && c.stall_ms == 3600000);
    assert_string_equal(c.quant, "w4");
    assert_string_equal(c.quant_embedding, "w6");
    assert_string_equal(c.kv, "q8");
    assert_int_equal(c.policy, POLICY_ROUND_ROBIN);
    assert_true(c.load_threshold == 0.35);
    assert_string_equal(c.keys_file, "conf/keys.txt");
    assert_string_equal(c.audit_file, "/var/audit.jsonl");
    assert_int_equal(c.audit_detail, AUDIT_DIGESTS);
    assert_string_equal(c.log_level, "debug");
    assert_string_equal(c.log_format, "json");
    assert_string_equal(c.certificate_file, "conf/tls/cert.pem");
    assert_string_equal(c.key_file, "conf/../key.pem");
    assert_string_equal(c.isa, "avx2");
    assert_string_equal(c.file, NAME);
    assert_true(c.lines[SETTING_MODEL] == 1 && c.lines[SETTING_CPUS] == 9 &&
                c.lines[SETTING_MAX_TOKENS] == 11);
    assert_int_equal(c.lines[SETTING_ISA], 19);
    assert_int_equal(config_check(&c, NULL), ISO_OK);
    uint32_t n;
    (void)config_settings(&n);
    for (uint32_t i = 0; i < n; i++) // the file above has every setting
        assert_true(c.lines[i] > 0);
}

static void test_defaults(void **state)
{
    (void)state;
    static const char *const NOTHING[] = {"",
                                          "\n",
                                          "# only\n# comments\n",
                                          "---\n",
                                          "---\n# none\n...\n",
                                          "{}",
                                          "\xef\xbb\xbf# after a byte order mark\n",
                                          "limits:\ntls:\n  # key: x\n"};
    static struct serve_config c, defaults;
    config_defaults(&defaults);
    for (size_t i = 0; i < ARRAY_LEN(NOTHING); i++) {
        parse_good(&c, NOTHING[i]);
        forget_lines(&c);
        assert_memory_equal(&c, &defaults, sizeof c);
    }
    assert_int_equal(config_parse(&c, (struct strv){NULL, 0}, NAME, NULL), ISO_OK);
    assert_string_equal(c.address, "127.0.0.1");
    assert_true(c.port == 8000 && c.n_models == 0 && c.n_units == 1 && c.queue == 64);
    assert_true(c.body_bytes == 4 * MIB && c.connections == 512 && c.max_tokens == 512);
    assert_true(c.head_ms == 10000 && c.body_ms == 60000 && c.idle_ms == 75000 && c.stall_ms == 60000);
    assert_true(c.slots == 0 && c.max_seq_len == 0 && c.batch_tokens == 0 && c.load_threshold == 0.8);
    assert_string_equal(c.log_level, "info");
    assert_string_equal(c.log_format, "text");
    assert_string_equal(c.units[0].name, "unit0");
    assert_true(!c.any_model && !c.insecure && c.policy == POLICY_LOAD_BALANCE &&
                c.audit_detail == AUDIT_TOKENS);
}

static void test_several_models_and_units(void **state)
{
    (void)state;
    static struct serve_config c;
    parse_good(&c, "model:\n  qwen: q.plan\n  \"8\": /m/l.plan\n  gr\xc3\xbc\xc3\x9f e: x y.plan\nunits: "
                   "[{}, {threads: 3}]");
    assert_int_equal(c.n_models, 3);
    assert_string_equal(c.models[0].name, "qwen");
    assert_string_equal(c.models[0].path, "conf/q.plan");
    assert_string_equal(c.models[1].name, "8");
    assert_string_equal(c.models[1].path, "/m/l.plan");
    assert_string_equal(c.models[2].name, "gr\xc3\xbc\xc3\x9f e");
    assert_string_equal(c.models[2].path, "conf/x y.plan");
    assert_true(c.models[0].line == 2 && c.models[2].line == 4 && c.lines[SETTING_MODEL] == 4);
    assert_int_equal(c.n_units, 2);
    assert_string_equal(c.units[1].name, "unit1");
    assert_int_equal(c.units[1].threads, 3);
    // A file's models and units take the place of all before.
    struct iso_errinfo e;
    assert_int_equal(parse_named(&c, "model: one\nunits: [{name: z}]", "other.yaml", &e), ISO_OK);
    assert_true(c.n_models == 1 && c.n_units == 1);
    assert_string_equal(c.models[0].path, "one");
    assert_string_equal(c.models[0].name, "");
    assert_string_equal(c.units[0].name, "z");
    assert_int_equal(c.units[0].threads, 0);
}

static void test_addresses(void **state)
{
    (void)state;
    static const char *const GOOD[][3] = {
        {"\"[::1]:8000\"", "::1", "8000"},   {"0.0.0.0:0", "0.0.0.0", "0"},
        {"\"[::]:65535\"", "::", "65535"},   {"'[FE80:0::1]:1'", "fe80::1", "1"},
        {"255.1.2.3:80", "255.1.2.3", "80"}, {"localhost:80", "127.0.0.1", "80"}};
    static const char *const BAD[] = {"somewhere:80",
                                      ":80",
                                      "127.0.0.1",
                                      "127.0.0.1:",
                                      "127.0.0.1:65536",
                                      "127.0.0.1:080",
                                      "1.2.3:80",
                                      "1.2.3.4.5:1",
                                      "'::1:80'",
                                      "'[::1]'",
                                      "'[::1]80'",
                                      "'[:80'",
                                      "'[]:80'",
                                      "'[1.2.3.4]:80'",
                                      "'[::1:80'",
                                      "127.0.0.1:+1",
                                      "127.0.0.1:1x",
                                      "8000",
                                      "'[::1%lo]:80'",
                                      "\"127.0.0.1\\0:80\"",
                                      "'[11111111111111111111111111111111111111111111111]:1'"};
    static struct serve_config c;
    char text[TEXT_MAX];
    for (size_t i = 0; i < ARRAY_LEN(GOOD); i++) {
        snprintf(text, sizeof text, "listen: %s", GOOD[i][0]);
        parse_good(&c, text);
        assert_string_equal(c.address, GOOD[i][1]);
        assert_int_equal(c.port, strtoul(GOOD[i][2], NULL, 10));
    }
    for (size_t i = 0; i < ARRAY_LEN(BAD); i++) {
        struct iso_errinfo e;
        snprintf(text, sizeof text, "listen: %s", BAD[i]);
        config_defaults(&c);
        if (parse_named(&c, text, NAME, &e) != ISO_E_USAGE)
            fail_msg("%s was taken", text);
        assert_non_null(strstr(e.text, "allowed is a numeric address and a port up to 65535"));
    }
}

// ---- Bad files ----

static void test_refused_keys_and_types(void **state)
{
    (void)state;
    static const char *const ROWS[][2] = {
        // keys
        {"\nfoo: 1",
         "s.yaml:2: unknown key: it is \"foo\"; there are model, alias, any_model, listen, insecure, units, "
         "limits, timeouts, compile, scheduler, auth, audit, log, tls, isa"},
        {"limits: {slot: 1}",
         "s.yaml:1: unknown key in limits: it is \"slot\"; there are max_seq_len, slots, "
         "batch_tokens, queue, body, connections, max_tokens"},
        {"units:\n- {cpu: 1}",
         "s.yaml:2: unknown key in units: it is \"cpu\"; there are name, cpus, pool, threads, sched"},
        {"tls: {<<: x}", "s.yaml:1: unknown key in tls: it is \"<<\"; there are certificate, key"},
        {"tls: {[a]: x}", "s.yaml:1: unknown key in tls: it is a list; there are certificate, key"},
        {"tls: {? {a: b} : x}", "s.yaml:1: unknown key in tls: it is a mapping; there are certificate, key"},
        {"tls: {? : x}", "s.yaml:1: unknown key in tls: it is empty; there are certificate, key"},
        {"tls: {\"key\\0\": x}",
         "s.yaml:1: unknown key in tls: it is the text \"key\" (in quotes); there are certificate, key"},
        {"alias: a\nisa: c\nalias: b", "s.yaml:3: alias is given twice"},
        {"tls: {key: a}\ntls: {certificate: b}", "s.yaml:2: tls is given twice"},
        {"tls: {key: a, 'key': b}", "s.yaml:1: key is given twice"},
        {"units: [{name: a,\n name: b}]", "s.yaml:2: name is given twice"},
        // types
        {"limits: {slots: \"8\"}",
         "s.yaml:1: limits.slots is the text \"8\" (in quotes); allowed is a whole number from 1 to 1024"},
        {"limits: {slots: eight}",
         "s.yaml:1: limits.slots is \"eight\"; allowed is a whole number from 1 to 1024"},
        {"limits: {slots: [8]}",
         "s.yaml:1: limits.slots is a list; allowed is a whole number from 1 to 1024"},
        {"limits: {slots: {a: 8}}",
         "s.yaml:1: limits.slots is a mapping; allowed is a whole number from 1 to 1024"},
        {"limits:\n  slots:", "s.yaml:2: limits.slots is \"\"; allowed is a whole number from 1 to 1024"},
        {"limits: {slots: 1.5}",
         "s.yaml:1: limits.slots is \"1.5\"; allowed is a whole number from 1 to 1024"},
        {"limits: [slots]", "s.yaml:1: limits is a list; allowed is a mapping"},
        {"limits: 8", "s.yaml:1: limits is the number 8; allowed is a mapping"},
        {"limits: null", "s.yaml:1: limits is null (without quotes); allowed is a mapping"},
        {"limits: ''", "s.yaml:1: limits is the text \"\" (in quotes); allowed is a mapping"},
        {"insecure: yes", "s.yaml:1: insecure is \"yes\"; allowed is true or false"},
        {"insecure: True", "s.yaml:1: insecure is \"True\"; allowed is true or false"},
        {"insecure: 'true'", "s.yaml:1: insecure is the text \"true\" (in quotes); allowed is true or false"},
        {"insecure: 1", "s.yaml:1: insecure is \"1\"; allowed is true or false"},
        {"alias: 8",
         "s.yaml:1: alias is the number 8; allowed is a name of 1 to 127 bytes without control characters"},
        {"alias: true",
         "s.yaml:1: alias is true (without quotes); allowed is a name of 1 to 127 bytes without control "
         "characters"},
        // libyaml sees what is missing on a line after the last.
        {"? alias\n",
         "s.yaml:1: alias is empty; allowed is a name of 1 to 127 bytes without control characters"},
        {"alias: ~",
         "s.yaml:1: alias is ~ (without quotes); allowed is a name of 1 to 127 bytes without control "
         "characters"},
        {"alias: ''",
         "s.yaml:1: alias is \"\"; allowed is a name of 1 to 127 bytes without control characters"},
        {"alias:",
         "s.yaml:1: alias is empty; allowed is a name of 1 to 127 bytes without control characters"},
    };
    for (size_t i = 0; i < ARRAY_LEN(ROWS); i++)
        assert_refused(strv_from(ROWS[i][0]), ROWS[i][1]);
}

static void test_refused_models_and_units(void **state)
{
    (void)state;
    static const char *const ROWS[][2] = {
        {"model:", "s.yaml:1: model is empty; allowed is a path, or a mapping of names to paths"},
        {"model: [a, b]", "s.yaml:1: model is a list; allowed is a path, or a mapping of names to paths"},
        {"model: {a: {b: c}}", "s.yaml:1: model is a mapping; allowed is a path for each name"},
        {"model: {a: b,\n c: 1}", "s.yaml:2: model is the number 1; allowed is a path for each name"},
        {"model: {}",
         "s.yaml:1: model is an empty mapping; allowed is a path, or a mapping of names to paths"},
        {"model: {a: b, a: c}", "s.yaml:1: two models are called \"a\""},
        {"model: {7: b}", "s.yaml:1: a model's name is the number 7; allowed is a text"},
        {"model: {[7]: b}", "s.yaml:1: a model's name is a list; allowed is a text"},
        {"model: {\"a\\nb\": b}",
         "s.yaml:1: a model's name is \"a?b\"; allowed are 1 to 127 bytes without control "
         "characters"},
        {"model: \"\"",
         "s.yaml:1: model: a path is \"\"; allowed is a path of 1 to 4095 bytes without control characters"},
        {"model: {a: 1,b: 2}", "s.yaml:1: model is the number 1; allowed is a path for each name"},
        {"model: {a: a, b: b, c: c, d: d, e: e, f: f, g: g, h: h,\n i: i}",
         "s.yaml:2: model: there are more than 8 models"},
        {"units: a",
         "s.yaml:1: units is \"a\"; allowed is a list of mappings, as in [{name: a, cpus: [0, 1]}]"},
        {"units: {name: a}",
         "s.yaml:1: units is a mapping; allowed is a list of mappings, as in [{name: a, cpus: [0, 1]}]"},
        {"units:",
         "s.yaml:1: units is empty; allowed is a list of mappings, as in [{name: a, cpus: [0, 1]}]"},
        {"units: []",
         "s.yaml:1: units is an empty list; allowed is a list of mappings, as in [{name: a, cpus: [0, 1]}]"},
        {"units: [{}, a]", "s.yaml:1: units[] is \"a\"; allowed is a mapping, as in {name: a, cpus: [0, 1]}"},
        {"units: [{},{},{},{},{},{},{},{},\n{}]", "s.yaml:2: there are more than 8 units"},
        {"units: [{cpus: []}]",
         "s.yaml:1: units.cpus is an empty list; allowed is a list of 1 to 64 CPUs, each up to 65535, "
         "as in [0, 1] or \"0-3,6\""},
        {"units: [{cpus: 2}]",
         "s.yaml:1: units.cpus is the number 2; allowed is a list of 1 to 64 CPUs, each up to 65535, "
         "as in [0, 1] or \"0-3,6\""},
        {"units: [{cpus: {a: b}}]",
         "s.yaml:1: units.cpus is a mapping; allowed is a list of 1 to 64 CPUs, each up to "
         "65535, as in [0, 1] or \"0-3,6\""},
        {"units: [{cpus: [[1]]}]", "s.yaml:1: units.cpus[] is a list; allowed is a whole number"},
        {"units: [{cpus: ['1']}]",
         "s.yaml:1: units.cpus[] is the text \"1\" (in quotes); allowed is a whole number"},
        {"units: [{cpus: [1,\n 65536]}]",
         "s.yaml:2: units.cpus has \"65536\" as number 2; allowed is a list of 1 to 64 CPUs, "
         "each up to 65535, as in [0, 1] or \"0-3,6\""},
        {"listen: [::1]:8000",
         "s.yaml:1: listen is a list; allowed is a numeric address and a port up to 65535, as in "
         "127.0.0.1:8000 or \"[::1]:8000\""},
        {"a", "s.yaml:1: the file is \"a\"; allowed is a mapping, as in \"model: FILE\""},
        {"[]", "s.yaml:1: the file is a list; allowed is a mapping, as in \"model: FILE\""},
    };
    for (size_t i = 0; i < ARRAY_LEN(ROWS); i++)
        assert_refused(strv_from(ROWS[i][0]), ROWS[i][1]);
}

static void test_refused_yaml(void **state)
{
    (void)state;
    static const char *const ROWS[][2] = {
        // words
        {"compile: {quant: w5}", "s.yaml:1: compile.quant is \"w5\"; allowed is keep, f16, w8, w6 or w4"},
        {"compile: {quant_embedding: W4}",
         "s.yaml:1: compile.quant_embedding is \"W4\"; allowed is keep, f16, w8, w6 or w4"},
        {"compile: {kv: w8}", "s.yaml:1: compile.kv is \"w8\"; allowed is f16 or q8"},
        {"units: [{sched: rt}]", "s.yaml:1: units.sched is \"rt\"; allowed is other or fifo"},
        {"scheduler: {policy: 'f16 q8'}",
         "s.yaml:1: scheduler.policy is \"f16 q8\"; allowed is load_balance or round_robin"},
        {"audit: {detail: ''}", "s.yaml:1: audit.detail is \"\"; allowed is tokens or digests"},
        {"log: {level: trace}", "s.yaml:1: log.level is \"trace\"; allowed is error, warn, info or debug"},
        {"log: {format: xml}", "s.yaml:1: log.format is \"xml\"; allowed is text or json"},
        {"isa: avx", "s.yaml:1: isa is \"avx\"; allowed is c, avx2, avx512, amx or neon"},
        // what YAML has and we don't
        {"alias: &x a", "s.yaml:1: an anchor (&x) has no use here"},
        {"limits: &x {}", "s.yaml:1: an anchor (&x) has no use here"},
        {"units: &x []", "s.yaml:1: an anchor (&x) has no use here"},
        {"&x alias: a", "s.yaml:1: an anchor (&x) has no use here"},
        {"alias: *x", "s.yaml:1: an alias (*x) has no use here; write the value out"},
        {"alias: !!str 8", "s.yaml:1: a tag (!) has no use here"},
        {"alias: ! 8", "s.yaml:1: a tag (!) has no use here"},
        {"alias: ! a", "s.yaml:1: a tag (!) has no use here"},
        {"alias: ! 'a'", "s.yaml:1: a tag (!) has no use here"},
        {"alias: !", "s.yaml:1: a tag (!) has no use here"},
        {"alias: ! \xc3\xa4", "s.yaml:1: a tag (!) has no use here"},
        {"alias: !\n  b", "s.yaml:1: a tag (!) has no use here"},
        {"limits: !x {}", "s.yaml:1: a tag (!) has no use here"},
        {"units: ! []", "s.yaml:1: a tag (!) has no use here"},
        {"%YAML 1.1\n---\nalias: a", "s.yaml:1: a directive (%) has no use here"},
        {"%TAG ! tag:x\n---\nalias: a", "s.yaml:1: a directive (%) has no use here"},
        {"alias: a\n---\nalias: b", "s.yaml:2: a second document begins; a file has one"},
        {"---\n---\n", "s.yaml:2: a second document begins; a file has one"},
        {"alias: a\n  b\nisa: c", "s.yaml:1: a text without quotes ends with its line; \"a b\" goes on"},
        {"alias: |\n  a\n",
         "s.yaml:1: alias is \"a?\"; allowed is a name of 1 to 127 bytes without control characters"},
        {"alias: \"a\\tb\"",
         "s.yaml:1: alias is \"a?b\"; allowed is a name of 1 to 127 bytes without control characters"},
        {"alias: \"a\\0b\"",
         "s.yaml:1: alias is \"a\"; allowed is a name of 1 to 127 bytes without control characters"},
        {"alias: \"a\\Lb\"", "s.yaml:1: alias is \"a\xe2\x80\xa8"
                             "b\"; allowed is a name of 1 to 127 bytes without control "
                             "characters"},
        {"auth: {keys: \"a\\x7f\"}",
         "s.yaml:1: auth.keys is \"a?\"; allowed is a path of 1 to 4095 bytes without control characters"},
        // no YAML
        {"alias: a\nunits: [{}",
         "s.yaml:2: this is not YAML: did not find expected ',' or ']', while parsing a flow sequence"},
        {"alias: a\n b: c", "s.yaml:1: a text without quotes ends with its line; \"a b\" goes on"},
        {"\nalias: a: b", "s.yaml:2: this is not YAML: mapping values are not allowed in this context"},
        {"tls: {key: a\n\n\n",
         "s.yaml:3: this is not YAML: did not find expected ',' or '}', while parsing a flow mapping "
         "of line 1"},
        {"alias: \"\n",
         "s.yaml:1: this is not YAML: found unexpected end of stream, while scanning a quoted scalar"},
        {"alias: @a",
         "s.yaml:1: this is not YAML: found character that cannot start any token, while scanning for the "
         "next token"},
        {"tls:\n\tkey: a",
         "s.yaml:2: this is not YAML: found character that cannot start any token, while scanning for the "
         "next token"},
    };
    for (size_t i = 0; i < ARRAY_LEN(ROWS); i++)
        assert_refused(strv_from(ROWS[i][0]), ROWS[i][1]);
}

static void test_refused_characters(void **state)
{
    (void)state;
    assert_refused(STRV_LIT("isa: c\n#\0\n"), "s.yaml:2: there is a character U+0000, which has no use here");
    assert_refused(STRV_LIT("isa: c\n\n# \xff\n"), "s.yaml:3: a byte 0xff is no UTF-8");
    assert_refused(STRV_LIT("#\xe2\x82"), "s.yaml:1: a byte 0xe2 is no UTF-8");
    assert_refused(STRV_LIT("#\xed\xa0\x80"), "s.yaml:1: a byte 0xed is no UTF-8");
    assert_refused(STRV_LIT("\r\n#\r#"), "s.yaml:2: there is a character U+000D, which has no use here");
    assert_refused(STRV_LIT("#\r"), "s.yaml:1: there is a character U+000D, which has no use here");
    assert_refused(STRV_LIT("#\x1b"), "s.yaml:1: there is a character U+001B, which has no use here");
    assert_refused(STRV_LIT("#\x7f"), "s.yaml:1: there is a character U+007F, which has no use here");
    assert_refused(STRV_LIT("#\xc2\x85"), "s.yaml:1: there is a character U+0085, which has no use here");
    assert_refused(STRV_LIT("#\xe2\x80\xa8"), "s.yaml:1: there is a character U+2028, which has no use here");
    assert_refused(STRV_LIT("#\xe2\x80\xa9"), "s.yaml:1: there is a character U+2029, which has no use here");
    assert_refused(STRV_LIT("#\xef\xbb\xbf"), "s.yaml:1: there is a character U+FEFF, which has no use here");
    assert_refused(STRV_LIT("#\xef\xbf\xbe"), "s.yaml:1: there is a character U+FFFE, which has no use here");
    assert_refused(STRV_LIT("#\xef\xbf\xbf"), "s.yaml:1: there is a character U+FFFF, which has no use here");
    assert_refused(STRV_LIT("\xff\xfei\0s\0"), "s.yaml:1: a byte 0xff is no UTF-8"); // UTF-16
    static struct serve_config c;
    // Lines as editors count them, and all planes.
    parse_good(&c, "isa: c\r\n\r\nalias: \xf0\x9f\x98\x80\xf4\x8f\xbf\xbf\r\n");
    assert_string_equal(c.alias, "\xf0\x9f\x98\x80\xf4\x8f\xbf\xbf");
    assert_int_equal(c.lines[SETTING_ALIAS], 3);
}

// What libyaml would nest or repeat without end is refused at once.
static void test_deep_and_long(void **state)
{
    (void)state;
    static char text[CONFIG_FILE_BYTES_MAX + 1];
    static struct serve_config c;
    struct iso_errinfo e = {0};
    memset(text, '[', sizeof text);
    config_defaults(&c);
    assert_int_equal(config_parse(&c, (struct strv){text, sizeof text - 1}, "s.yaml", &e), ISO_E_USAGE);
    assert_string_equal(e.text, "s.yaml:1: the file is a list; allowed is a mapping, as in \"model: FILE\"");
    assert_int_equal(config_parse(&c, (struct strv){text, sizeof text}, "s.yaml", &e), ISO_E_LIMIT);
    assert_string_equal(e.text, "s.yaml: the file is larger than the 1048576 bytes allowed");
    memset(text, '#', sizeof text);
    assert_int_equal(config_parse(&c, (struct strv){text, sizeof text - 1}, "s.yaml", &e), ISO_OK);
    for (size_t i = 0; i < sizeof text; i++)
        text[i] = i % 2 ? ':' : '?';
    assert_int_equal(config_parse(&c, (struct strv){text, sizeof text - 1}, "s.yaml", &e), ISO_E_USAGE);
}

static void test_long_texts(void **state)
{
    (void)state;
    static char text[TEXT_MAX], word[TEXT_MAX - 64];
    static struct serve_config c;
    static const struct {
        const char *format;
        size_t max; // bytes of the word
    } ROWS[] = {{"alias: %s", 127},           {"model: {%s: x}", 127}, {"units: [{name: %s}]", 127},
                {"model: %s", 4095 - 5},      {"model: /%s", 4094},    {"model: {x: %s}", 4095 - 5},
                {"tls: {key: %s}", 4095 - 5}, {"isa: c #%s", 60000}};
    for (size_t i = 0; i < ARRAY_LEN(ROWS); i++)
        for (size_t more = 0; more < 2; more++) {
            struct iso_errinfo e;
            memset(word, 'a', sizeof word);
            word[ROWS[i].max + more] = '\0';
            snprintf(text, sizeof text, ROWS[i].format, word);
            config_defaults(&c);
            bool taken = parse_named(&c, text, NAME, &e) == ISO_OK;
            if (taken != (more == 0 || i == ARRAY_LEN(ROWS) - 1))
                fail_msg("%s of %zu bytes: %s", ROWS[i].format, ROWS[i].max + more, e.text);
        }
    // 127 bytes, not characters.
    memset(word, 0, sizeof word);
    for (size_t i = 0; i < 126; i += 2)
        memcpy(word + i, "\xc3\xa4", 2);
    snprintf(text, sizeof text, "alias: %sa", word);
    parse_good(&c, text);
    struct iso_errinfo e;
    snprintf(text, sizeof text, "alias: %s\xc3\xa4", word);
    assert_int_equal(parse_named(&c, text, NAME, &e), ISO_E_USAGE);
}

// ---- Files ----

static void write_file(const char *path, const char *text, size_t n)
{
    FILE *f = fopen(path, "we");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

static void test_read(void **state)
{
    (void)state;
    static struct serve_config c, before;
    static char large[CONFIG_FILE_BYTES_MAX + 1], path[FILE_PATH_MAX],
        expected[ISO_ERR_TEXT_MAX + FILE_PATH_MAX];
    char folder[] = "/tmp/isochron-test-XXXXXX";
    struct iso_errinfo e = {0};
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/s.yaml", folder);
    write_file(path, WHOLE, strlen(WHOLE));
    config_defaults(&c);
    sys.interrupts = 2;
    sys.read_max = 7; // in many pieces
    assert_int_equal(config_read(&c, path, &e), ISO_OK);
    sys.read_max = 0;
    snprintf(expected, sizeof expected, "%s/qwen.plan", folder);
    assert_string_equal(c.models[0].path, expected);
    assert_string_equal(c.audit_file, "/var/audit.jsonl");
    assert_string_equal(c.file, path);

    memcpy(&before, &c, sizeof c);
    write_file(path, "\nfoo", 4);
    assert_int_equal(config_read(&c, path, &e), ISO_E_USAGE);
    snprintf(expected, sizeof expected,
             "%s:2: the file is \"foo\"; allowed is a mapping, as in \"model: FILE\"", path);
    assert_string_equal(e.text, expected);
    memset(large, '#', sizeof large);
    write_file(path, large, sizeof large);
    assert_int_equal(config_read(&c, path, &e), ISO_E_LIMIT);
    write_file(path, large, sizeof large - 1);
    sys.read_errno = EIO;
    sys.reads = 0;
    assert_int_equal(config_read(&c, path, &e), ISO_E_IO);
    snprintf(expected, sizeof expected, "%s: reading failed: %s", path, strerror(EIO));
    assert_string_equal(e.text, expected);
    sys.read_errno = 0;
    sys.malloc_fails = true;
    enum iso_err err = config_read(&c, path, &e);
    sys.malloc_fails = false;
    assert_int_equal(err, ISO_E_NOMEM);
    assert_int_equal(config_read(&c, folder, &e), ISO_E_IO);
    snprintf(expected, sizeof expected, "%s: reading failed: %s", folder, strerror(EISDIR));
    assert_string_equal(e.text, expected);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(config_read(&c, path, &e), ISO_E_IO);
    snprintf(expected, sizeof expected, "%s: opening failed: %s", path, strerror(ENOENT));
    assert_string_equal(e.text, expected);
    assert_memory_equal(&c, &before, sizeof c);
    assert_int_equal(rmdir(folder), 0);
}

static void test_names_and_memory(void **state)
{
    (void)state;
    static struct serve_config c, before;
    static char path[FILE_PATH_MAX + 1];
    struct iso_errinfo e;
    config_defaults(&c);
    memcpy(&before, &c, sizeof c);
    memset(path, 'p', sizeof path - 1);
    assert_int_equal(parse_named(&c, "isa: c", path, &e), ISO_E_USAGE);
    assert_non_null(strstr(e.text, "ppp"));
    assert_int_equal(parse_named(&c, "isa: c", "a\n.yaml", &e), ISO_E_USAGE);
    assert_string_equal(
        e.text, "the settings' file is \"a?.yaml\"; allowed is a path of 1 to 4095 bytes without control "
                "characters");
    assert_int_equal(parse_named(&c, "isa: c", "", &e), ISO_E_USAGE);
    sys.calloc_fails = true;
    enum iso_err err = parse_named(&c, "isa: c", NAME, &e);
    sys.calloc_fails = false;
    assert_int_equal(err, ISO_E_NOMEM);
    sys.initialize_fails = true;
    assert_int_equal(parse_named(&c, "isa: c", NAME, &e), ISO_E_NOMEM);
    sys.initialize_fails = false;
    assert_string_equal(e.text, NAME ": the system refused memory for the settings");
    for (sys.parses_until_no_memory = 1;;) {
        int until = sys.parses_until_no_memory;
        err = parse_named(&c, WHOLE, NAME, &e);
        if (!err)
            break;
        assert_int_equal(err, ISO_E_NOMEM);
        assert_memory_equal(&c, &before, sizeof c);
        sys.parses_until_no_memory = until + 1;
        assert_true(until < 1000);
    }
    assert_true(sys.parses_until_no_memory > 0); // all events were counted
    sys.parses_until_no_memory = 0;
    // A long name leaves room for the folder and the line.
    path[sizeof path - 2] = '\0';
    config_defaults(&c);
    assert_int_equal(parse_named(&c, "model: m", path, &e), ISO_OK);
    assert_string_equal(c.models[0].path, "m");
    path[sizeof path - 5] = '/';
    assert_int_equal(parse_named(&c, "model: mm", path, &e), ISO_OK);
    assert_int_equal(strlen(c.models[0].path), FILE_PATH_MAX - 1);
    assert_int_equal(parse_named(&c, "model: mmm", path, &e), ISO_E_USAGE);
    assert_non_null(strstr(e.text, "p/pp:1: model: a path is \"mmm\""));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_whole_file),
        cmocka_unit_test(test_defaults),
        cmocka_unit_test(test_several_models_and_units),
        cmocka_unit_test(test_addresses),
        cmocka_unit_test(test_refused_keys_and_types),
        cmocka_unit_test(test_refused_models_and_units),
        cmocka_unit_test(test_refused_yaml),
        cmocka_unit_test(test_refused_characters),
        cmocka_unit_test(test_deep_and_long),
        cmocka_unit_test(test_long_texts),
        cmocka_unit_test(test_read),
        cmocka_unit_test(test_names_and_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
