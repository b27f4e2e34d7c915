/*
 * isochron.h: the public C API of libisochron.
 *
 * A plan is a model compiled for given limits; a unit executes it on one fixed pool. The same request gives
 * the same tokens and the same logits, byte for byte, whatever runs beside it, however many threads compute,
 * on any instruction set.
 *
 *     iso_compile("model.gguf", "model.plan", NULL, &error);     once
 *     iso_plan_open("model.plan", &plan, &error);
 *     iso_unit_open(plan, NULL, &unit, &error);                  maps the pool; no allocation afterwards
 *     iso_encode(plan, text, length, flags, ids, capacity, &n, &error);
 *     iso_submit(unit, &request, &slot, &error);                 reserves all that the request can need
 *     iso_step(unit, &result);                                   as long as result.rows > 0
 *
 * Errors: functions that can fail return an iso_code, 0 being success, and fill *error (which may be NULL)
 * with one sentence. Outputs are untouched on failure. Nothing prints, exits, reads the environment or
 * changes the caller's floating-point environment.
 *
 * Threads: a plan may be used by several units, and its iso_encode by one thread at a time. A unit is used by
 * one thread at a time; it computes on the caller's thread and on those it started itself. Different units
 * are independent, but for the opening thread's CPUs and scheduling, which a unit with `cpus` or `fifo` changes
 * until it is closed: close such units on the thread that opened them, the last one first.
 *
 * Pointers are not NULL but where it is said that they may be.
 */
#ifndef ISOCHRON_H
#define ISOCHRON_H

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define ISO_API __attribute__((visibility("default")))
#else
#define ISO_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* What went wrong. New codes may be added at the end. */
typedef enum iso_code {
    ISO_CODE_OK = 0,
    ISO_CODE_USAGE,       /* an argument is out of its range */
    ISO_CODE_IO,          /* reading or writing failed */
    ISO_CODE_FORMAT,      /* a malformed file */
    ISO_CODE_UNSUPPORTED, /* named in the text, with what is supported */
    ISO_CODE_NOFIT,       /* does not fit the memory given; the numbers are in the text */
    ISO_CODE_LIMIT,       /* over a limit that the plan or this library has */
    ISO_CODE_NOMEM,       /* the system refused memory */
    ISO_CODE_CORRUPT,     /* a checksum does not match */
    ISO_CODE_VERSION,     /* the plan was made by another version: compile again */
    ISO_CODE_NONFINITE,   /* a value became infinite or not a number */
    ISO_CODE_BUSY         /* all slots are taken */
} iso_code;

typedef struct iso_error {
    iso_code code;
    char text[320]; /* one sentence, UTF-8, without a trailing newline */
} iso_error;

typedef struct iso_plan iso_plan;
typedef struct iso_unit iso_unit;

/* The library's version, "major.minor.patch". */
ISO_API const char *iso_version(void);

/* ---- Compiling
 * ---------------------------------------------------------------------------------------------- */

typedef struct iso_compile_options {
    uint32_t
        max_seq_len; /* tokens of one sequence, prompt and output together; 0: 4096 or the model's context */
    uint32_t slots;  /* sequences at once; 0: 1 */
    uint32_t batch_tokens; /* most tokens computed in one step; 0: 128 or `slots` */
    uint32_t kv_q8;        /* 0: the KV cache holds f16; else 8-bit codes with a scale per token and head */
    void (*progress)(void *context, uint64_t done, uint64_t total); /* bytes of weights; may be NULL */
    void *context;
    const char
        *quant; /* of the layers' weights: "w4", "w6", "w8", "f16", "keep"; NULL: as the files have them */
    const char
        *quant_embedding; /* of the embedding and the output matrix; NULL: "w6" with "w4", else as `quant` */
} iso_compile_options;

/* Compiles a GGUF file or a Hugging Face folder to a plan, which appears whole under plan_path or not at all.
 * options may be NULL. Weights are packed by one thread for each CPU that the process may use, and `progress` is called
 * on the caller's. */
ISO_API iso_code iso_compile(const char *model_path, const char *plan_path,
                             const iso_compile_options *options, iso_error *error);

/* ---- Plans
 * -------------------------------------------------------------------------------------------------- */

/* Loads a plan into read-only memory and checks all of it. Close with iso_plan_close, after its units. */
ISO_API iso_code iso_plan_open(const char *path, iso_plan **plan, iso_error *error);
ISO_API void iso_plan_close(iso_plan *plan); /* NULL is allowed */

typedef struct iso_plan_info {
    const char *architecture, *name; /* valid until iso_plan_close */
    const char
        *chat_template; /* the model's Jinja source, `chat_template_bytes` long; empty if it has none */
    size_t chat_template_bytes;
    char hash[33];    /* of the plan: 32 hexadecimal digits */
    uint32_t vocab;   /* rows of logits have this many values */
    uint32_t context; /* tokens that the model was trained for */
    uint32_t max_seq_len, slots, batch_tokens;
    uint32_t bos; /* token that begins a text; UINT32_MAX where the model has none */
} iso_plan_info;

ISO_API void iso_plan_get_info(const iso_plan *plan, iso_plan_info *info);

/* Every byte that a process with one unit on this plan takes, in rows that sum to `total`. */
typedef struct iso_account {
    uint64_t weights, activations, kv_cache, runtime, total;
} iso_account;

/* threads as in iso_unit_options. */
ISO_API iso_account iso_plan_account(const iso_plan *plan, uint32_t threads);

/* ---- Text
 * --------------------------------------------------------------------------------------------------- */

enum {
    ISO_ENCODE_SPECIAL = 1, /* control tokens in the text are taken as such: for rendered chat templates */
    ISO_ENCODE_EDGES = 2    /* adds the tokens that the model wants at the beginning and the end */
};

/* Tokens of `bytes` bytes of text into ids[0..capacity), their number to *n. Text that is no UTF-8 has each
 * bad part read as U+FFFD. ISO_CODE_LIMIT where they are more than capacity or the text is too long for a
 * sequence. */
ISO_API iso_code iso_encode(iso_plan *plan, const char *text, size_t bytes, uint32_t flags, uint32_t *ids,
                            size_t capacity, size_t *n, iso_error *error);

/* The raw bytes of a token, valid until iso_plan_close: a part of a character may be all of it. Control
 * tokens have no bytes. *bytes is set to their number. */
ISO_API const char *iso_token_bytes(const iso_plan *plan, uint32_t id, size_t *bytes);
/* 1 where the token ends a generation. */
ISO_API int iso_token_ends(const iso_plan *plan, uint32_t id);

/* ---- Units
 * -------------------------------------------------------------------------------------------------- */

typedef struct iso_unit_options {
    uint32_t threads;     /* 1 to 64, the caller's included; 0: 1 */
    const uint32_t *cpus; /* [threads]: thread i is pinned to cpus[i], the caller's to cpus[0]; NULL: no.
                             A CPU may be there twice, which is slow */
    const char *isa;      /* "c", "avx2", "avx512", "amx", "neon"; NULL: the fastest. Results are the same */
    uint64_t pool_bytes_max;  /* refuse to open where iso_plan_account's total is more; 0: no limit */
    uint32_t chunk_tokens;    /* most prompt tokens of one sequence in a step; 0: batch_tokens */
    uint32_t no_prefix_reuse; /* 1: don't reuse cached beginnings of prompts */
    uint32_t fifo; /* 1: real-time scheduling (SCHED_FIFO), the caller's thread too until the unit is
                                 closed; ISO_CODE_UNSUPPORTED where the host does not permit it whole */
} iso_unit_options;

/* Maps and touches the pool, starts the threads. options may be NULL. The plan must outlive the unit. */
ISO_API iso_code iso_unit_open(iso_plan *plan, const iso_unit_options *options, iso_unit **unit,
                               iso_error *error);
ISO_API void iso_unit_close(iso_unit *unit); /* NULL is allowed */
/* Name of the instruction set in use. */
ISO_API const char *iso_unit_isa(const iso_unit *unit);
/* 0 where the pool and the weights could not be locked in memory (memlock limit): they may be swapped. */
ISO_API int iso_unit_is_locked(const iso_unit *unit);

typedef struct iso_request {
    const uint32_t *prompt; /* [n_prompt], each < vocab; copied */
    uint32_t n_prompt;      /* at least 1 */
    uint32_t max_output; /* at least 1, of scored requests 0 too; n_prompt + max_output at most max_seq_len */
    float temperature;   /* 0: the most probable token; else 0.001 to 100 */
    float top_p;         /* above 0 to 1; 0 means 1: off */
    float min_p;         /* 0 to 1; 0: off */
    float repeat_penalty; /* 0.01 to 100; 0 means 1: off */
    uint32_t top_k;       /* 0: off */
    uint64_t seed;
    uint32_t ignore_end; /* 1: go on past tokens that end a generation */
    uint32_t score;      /* not 0: teacher forcing, an event for each prompt position and no output */
} iso_request;

/* Takes a slot and reserves all memory that the request can need. ISO_CODE_BUSY: none is free. */
ISO_API iso_code iso_submit(iso_unit *unit, const iso_request *request, uint32_t *slot, iso_error *error);
/* Frees a slot early; does nothing where it is free already. */
ISO_API void iso_cancel(iso_unit *unit, uint32_t slot);

typedef enum iso_finish {
    ISO_FINISH_NONE = 0, /* the sequence goes on */
    ISO_FINISH_END,      /* the token ends the generation and is no part of the answer */
    ISO_FINISH_LENGTH,   /* max_output is reached with this token */
    ISO_FINISH_SCORED,   /* the last position of a scored request */
    ISO_FINISH_NONFINITE /* a logit is not finite: no token, the request failed */
} iso_finish;

typedef struct iso_event {
    uint32_t slot;
    uint32_t token;    /* drawn; of scored requests the most probable */
    uint32_t position; /* of the token after which this one was drawn, from 0 */
    uint32_t row;      /* for iso_logits */
    iso_finish finish; /* where not NONE the slot is free again */
} iso_event;

typedef struct iso_result {
    const iso_event *events; /* [n], at most `slots`; valid until the next call on the unit */
    uint32_t n;
    uint32_t rows; /* tokens computed; 0: there was nothing to do */
} iso_result;

/* One step: a token for each sequence that is decoding, and a chunk of prompts. Does not fail. */
ISO_API void iso_step(iso_unit *unit, iso_result *result);
/* Logits of an event of the last step, float[vocab]; valid until the next call on the unit. NULL where the
 * step had no such row. */
ISO_API const float *iso_logits(const iso_unit *unit, uint32_t row);

#ifdef __cplusplus
}
#endif
#endif
