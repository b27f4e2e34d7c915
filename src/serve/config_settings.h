// The table of all settings, in the order of the file. Nothing but config.h and config_internal.h needs it.
//
// id, path in the file, flag, its value in the help, struct and field, kind, least, most, words to choose from, meaning.
// Sizes are in bytes, times in milliseconds, reals in hundredths.
#pragma once

#define CONFIG_SECOND_MS 1000u
#define CONFIG_HOUR_MS   3600000u
#define CONFIG_POOL_MIN  ((uint64_t)1 << 20)

// clang-format off
#define CONFIG_SETTINGS(X)                                                                                               \
    X(MODEL, "model", NULL, "MODEL", serve_config, models, MODEL, 0, 0, NULL,                                            \
      "The plan or model file that is served; several as name: path")                                                    \
    X(ALIAS, "alias", "alias", "NAME", serve_config, alias, NAME, 0, 0, NULL,                                            \
      "What clients call the model (default: its own name)")                                                             \
    X(ANY_MODEL, "any_model", "any-model", NULL, serve_config, any_model, BOOL, 0, 0, NULL,                              \
      "Answer requests that name another model, too (default: false)")                                                   \
    X(LISTEN, "listen", "listen", "ADDRESS:PORT", serve_config, address, ADDRESS, 0, 65535, NULL,                        \
      "The numeric address and port to listen on, as in 0.0.0.0:8000 or \"[::1]:8000\"; port 0 is any that is free "     \
      "(default: 127.0.0.1:8000)")                                                                                       \
    X(INSECURE, "insecure", "insecure", NULL, serve_config, insecure, BOOL, 0, 0, NULL,                                  \
      "Let anyone who reaches an address of the network ask, without a key (default: false)")                            \
    X(UNIT_NAME, "units.name", NULL, "NAME", config_unit, name, NAME, 0, 0, NULL,                                        \
      "What logs and metrics call the unit (default: unit0, unit1, ...)")                                                \
    X(CPUS, "units.cpus", "cpus", "LIST", config_unit, cpus, CPUS, 0, CONFIG_CPU_MAX, NULL,                              \
      "CPUs to pin the unit's threads to, as in [0, 1] or 0-3,6 (default: any)")                                         \
    X(POOL, "units.pool", "pool", "SIZE", config_unit, pool_bytes, SIZE, CONFIG_POOL_MIN, PLAN_ARENA_MAX, NULL,          \
      "Refuse to start where the unit needs more memory than this (default: what the machine has available)")            \
    X(THREADS, "units.threads", "threads", "N", config_unit, threads, WHOLE, 1, TEAM_THREADS_MAX, NULL,                  \
      "Threads that compute (default: one for each CPU)")                                                                \
    X(SCHED, "units.sched", "sched", "other|fifo", config_unit, fifo, INDEX, 0, 0, "other fifo",                         \
      "Scheduling of the threads: fifo is real-time, before all others on their CPUs (default: other)")                  \
    X(MAX_SEQ_LEN, "limits.max_seq_len", "max-seq-len", "N", serve_config, max_seq_len, WHOLE, 2, PLAN_SEQ_MAX, NULL,    \
      "Tokens of one sequence, prompt and output together (default: as the plan has it, or the compiler's)")             \
    X(SLOTS, "limits.slots", "slots", "N", serve_config, slots, WHOLE, 1, PLAN_SLOTS_MAX, NULL,                          \
      "Sequences at once (default: as the plan has them; 4 for a model file)")                                            \
    X(BATCH_TOKENS, "limits.batch_tokens", "batch-tokens", "N", serve_config, batch_tokens, WHOLE, 1,                    \
      PLAN_BATCH_TOKENS_MAX, NULL,                                                                                       \
      "Most tokens computed in one step (default: as the plan has them, or the compiler's)")                             \
    X(QUEUE, "limits.queue", "queue", "N", serve_config, queue, WHOLE, 0, 65536, NULL,                                   \
      "Requests that may wait for a slot (default: 64)")                                                                 \
    X(BODY, "limits.body", "body", "SIZE", serve_config, body_bytes, SIZE, KIB, GIB, NULL,                               \
      "Most bytes of a request's body (default: 4MiB)")                                                                  \
    X(CONNECTIONS, "limits.connections", "connections", "N", serve_config, connections, WHOLE, 1, 65536, NULL,           \
      "Connections at once (default: 512)")                                                                              \
    X(MAX_TOKENS, "limits.max_tokens", "max-tokens", "N", serve_config, max_tokens, WHOLE, 1, PLAN_SEQ_MAX, NULL,        \
      "Tokens of an answer where the request doesn't say (default: 512)")                                                \
    X(HEAD_TIMEOUT, "timeouts.head", "head-timeout", "TIME", serve_config, head_ms, TIME, 100, CONFIG_HOUR_MS, NULL,     \
      "A request's head has to arrive within this (default: 10s)")                                                       \
    X(BODY_TIMEOUT, "timeouts.body", "body-timeout", "TIME", serve_config, body_ms, TIME, 100, CONFIG_HOUR_MS, NULL,     \
      "A request's body has to arrive within this (default: 60s)")                                                       \
    X(IDLE_TIMEOUT, "timeouts.idle", "idle-timeout", "TIME", serve_config, idle_ms, TIME, 100, CONFIG_HOUR_MS, NULL,     \
      "A connection may wait this long between two requests (default: 75s)")                                             \
    X(STALL_TIMEOUT, "timeouts.stall", "stall-timeout", "TIME", serve_config, stall_ms, TIME, 100, CONFIG_HOUR_MS, NULL, \
      "A client may leave an answer unread this long (default: 60s)")                                                    \
    X(QUANT, "compile.quant", "quant", "WIDTH", serve_config, quant, WORD, 0, 0, "keep f16 w8 w6 w4",                    \
      "Width of the layers' weights of a model that is compiled: keep, f16, w8, w6 or w4 (default: keep)")               \
    X(QUANT_EMBEDDING, "compile.quant_embedding", "quant-embedding", "WIDTH", serve_config, quant_embedding, WORD, 0, 0, \
      "keep f16 w8 w6 w4",                                                                                               \
      "Width of the embedding and the output matrix (default: w6 with quant w4, else that of quant)")                    \
    X(KV, "compile.kv", "kv", "f16|q8", serve_config, kv, WORD, 0, 0, "f16 q8",                                          \
      "Elements of the KV cache (default: f16)")                                                                         \
    X(POLICY, "scheduler.policy", "policy", "NAME", serve_config, policy, INDEX, 0, 0, "load_balance round_robin",       \
      "Which unit gets a request: load_balance or round_robin (default: load_balance)")                                  \
    X(LOAD_THRESHOLD, "scheduler.load_threshold", "load-threshold", "FRACTION", serve_config, load_threshold, REAL,      \
      1, 100, NULL,                                                                                                      \
      "The part of a unit's slots from which it counts as loaded (default: 0.8)")                                        \
    X(KEYS, "auth.keys", "keys", "FILE", serve_config, keys_file, PATH, 0, 0, NULL,                                      \
      "The file of the API keys, one of which a request needs (default: none, and anyone may ask)")                      \
    X(AUDIT, "audit.file", "audit", "FILE", serve_config, audit_file, PATH, 0, 0, NULL,                                  \
      "The file that a line is added to for each answer (default: none)")                                                \
    X(AUDIT_DETAIL, "audit.detail", "audit-detail", "tokens|digests", serve_config, audit_detail, INDEX, 0, 0,           \
      "tokens digests",                                                                                                  \
      "What it has of prompt and answer: their tokens or digests of them (default: tokens)")                             \
    X(LOG_LEVEL, "log.level", "log-level", "LEVEL", serve_config, log_level, WORD, 0, 0, "error warn info debug",        \
      "What is logged: error, warn, info or debug, each with those before (default: info)")                              \
    X(LOG_FORMAT, "log.format", "log-format", "text|json", serve_config, log_format, WORD, 0, 0, "text json",            \
      "How the log is written (default: text)")                                                                          \
    X(CERTIFICATE, "tls.certificate", "tls-certificate", "FILE", serve_config, certificate_file, PATH, 0, 0, NULL,       \
      "The certificate chain in PEM; with it connections are HTTPS (default: none, plain HTTP)")                         \
    X(KEY, "tls.key", "tls-key", "FILE", serve_config, key_file, PATH, 0, 0, NULL,                                       \
      "The certificate's private key in PEM")                                                                            \
    X(ISA, "isa", "isa", "NAME", serve_config, isa, WORD, 0, 0, "c avx2 avx512 amx neon",                                \
      "Instruction set: c, avx2, avx512, amx or neon (default: the fastest this machine has); the results are the same")
// clang-format on
