#include "cli/session.h"

#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/num.h"
#include "base/pages.h"
#include "cli/cache.h"
#include "cli/cli.h"

size_t session_text_bytes(const struct plan_limits *limits)
{
    return tok_text_bytes_for(limits->max_seq_len);
}

size_t session_prompt_tokens(const struct plan_limits *limits)
{
    return session_text_bytes(limits) + 2; // a token is a byte or more; BOS and EOS are none
}

uint32_t session_threads(const struct run_flags *run)
{
    cpu_set_t set;
    if (run->threads)
        return run->threads;
    if (run->n_cpus)
        return run->n_cpus;
    if (sched_getaffinity(0, sizeof set, &set))
        return 1;
    return (uint32_t)num_min((uint64_t)CPU_COUNT(&set), TEAM_THREADS_MAX);
}

// The CPU of each thread: those of --cpus; without it, where there is a thread for every usable CPU, one each, as
// two threads on one CPU wait for each other; else NULL, not pinned.
static const uint32_t *pin_to(const struct run_flags *run, uint32_t threads, uint32_t cpus[TEAM_THREADS_MAX])
{
    cpu_set_t set;
    uint32_t n = 0;
    if (run->n_cpus)
        return run->cpus;
    if (sched_getaffinity(0, sizeof set, &set) || (uint32_t)CPU_COUNT(&set) != threads)
        return NULL;
    for (uint32_t cpu = 0; n < threads; cpu++)
        if (CPU_ISSET(cpu, &set))
            cpus[n++] = cpu;
    return cpus;
}

void session_settle_threads(struct run_flags *run)
{
    uint32_t cpus[TEAM_THREADS_MAX];
    uint32_t threads = session_threads(run);
    if (run->n_cpus == 0 && pin_to(run, threads, cpus)) {
        memcpy(run->cpus, cpus, threads * sizeof *cpus);
        run->n_cpus = threads;
    }
    run->threads = threads;
}

// The account against --pool, or without it against what the machine has available: before anything is compiled
// or loaded.
static enum iso_err check_account(const struct plan_header *h, uint64_t weights, uint64_t other,
                                  const struct run_flags *run, struct account *ret,
                                  struct iso_errinfo *reterr)
{
    *ret = account_of(h, weights, other, session_threads(run),
                      tok_runtime_bytes(session_text_bytes(&h->limits)));
    uint64_t total = account_total(ret);
    uint64_t pool = run->pool_bytes ? run->pool_bytes : pages_available();
    if (pool == 0 || total <= pool)
        return ISO_OK;
    return iso_fail(reterr, ISO_E_NOFIT, 0, "pool",
                    "%" PRIu64 " bytes are needed and %s %" PRIu64 ", %" PRIu64
                    " too few; `isochron fit` shows what would fit",
                    total, run->pool_bytes ? "--pool gives" : "this machine has available", pool,
                    total - pool);
}

static enum iso_err compile_into_cache(const char *path, const struct compile_flags *flags,
                                       const struct run_flags *run, bool quiet, const char *plan,
                                       struct iso_errinfo *reterr)
{
    struct program program;
    struct cli_progress progress;
    enum iso_err err = program_open(path, &flags->options, &program, reterr);
    if (err)
        return err;
    struct account account;
    err = check_account(&program.header, program.weights_bytes, program_other_bytes(&program), run, &account,
                        reterr);
    if (err)
        iso_fail_prefix(reterr, path);
    if (!err) {
        cli_progress_begin(&progress, "compiling into the cache", NULL, quiet);
        err = program_write(&program, plan, cli_progress_update, &progress, reterr);
        cli_progress_end(&progress);
    }
    program_close(&program);
    return err;
}

// The plan to load for `path`: itself, or the cached one of a model file, compiled if it isn't there yet.
// *ret_found: it is a cached one that was there.
static enum iso_err plan_path(const char *path, const struct compile_flags *flags,
                              const struct run_flags *run, bool quiet, char *out, size_t size,
                              bool *ret_found, struct iso_errinfo *reterr)
{
    *ret_found = false;
    if (plan_is_plan(path)) {
        snprintf(out, size, "%s", path);
        return ISO_OK;
    }
    enum iso_err err = cache_find(path, &flags->options, out, size, ret_found, reterr);
    if (err || *ret_found)
        return err;
    return compile_into_cache(path, flags, run, quiet, out, reterr);
}

enum iso_err session_plan_path(const char *path, const struct compile_flags *flags,
                               const struct run_flags *run, bool quiet, char *out, size_t size,
                               struct iso_errinfo *reterr)
{
    bool found;
    return plan_path(path, flags, run, quiet, out, size, &found, reterr);
}

// The account before anything is loaded, from the header alone.
static enum iso_err check_header(const char *path, const struct compile_flags *compile,
                                 const struct run_flags *run, struct session *s, struct iso_errinfo *reterr)
{
    struct plan_header h;
    enum iso_err err = plan_peek(path, &h, reterr);
    if (!err)
        err = compile_flags_agree(compile, &h.limits, reterr);
    if (err)
        return err;
    uint64_t weights = h.sections[PLAN_WEIGHTS].bytes;
    return check_account(&h, weights, num_align(h.file_bytes, PLAN_ALIGN) - weights, run, &s->account,
                         reterr);
}

static enum iso_err open_text(struct session *s, struct iso_errinfo *reterr)
{
    const struct plan *p = &s->plan;
    enum iso_err err = tok_open(p->tokenizer, p->tokenizer_bytes, session_text_bytes(&p->header->limits),
                                &s->tokenizer, reterr);
    if (!err && tok_count(s->tokenizer) > p->header->model.vocab)
        err = iso_fail(reterr, ISO_E_FORMAT, 0, "tokenizer",
                       "the plan's tokenizer has more tokens than its program");
    if (!err && p->chat_template.len > 0)
        err = tmpl_open(p->chat_template, &s->template, reterr);
    return err;
}

// In place: the unit points to its plan. On failure the caller closes the session.
static enum iso_err open_plan(const char *path, const struct compile_flags *compile,
                              const struct run_flags *run, struct session *s, struct iso_errinfo *reterr)
{
    *s = (struct session){.threads = session_threads(run)};
    enum iso_err err = check_header(path, compile, run, s, reterr);
    if (!err)
        err = plan_load(path, NULL, NULL, &s->plan, reterr);
    if (!err)
        err = open_text(s, reterr);
    if (err)
        return err;
    uint32_t cpus[TEAM_THREADS_MAX];
    const struct unit_config config = {.kernels = run->isa_given ? kernels_get(run->isa) : NULL,
                                       .threads = s->threads,
                                       .cpus = pin_to(run, s->threads, cpus),
                                       .fifo = run->fifo,
                                       .pool_bytes_max = run->pool_bytes,
                                       .extra_bytes = s->account.runtime_text};
    return unit_open(&s->plan, &config, &s->unit, reterr);
}

enum iso_err session_open(const char *path, const struct compile_flags *compile, const struct run_flags *run,
                          bool quiet, struct session *s, struct iso_errinfo *reterr)
{
    char plan[FILE_PATH_MAX];
    bool found;
    enum iso_err err = plan_path(path, compile, run, quiet, plan, sizeof plan, &found, reterr);
    if (err)
        return err; // names the file already
    err = open_plan(plan, compile, run, s, reterr);
    if (err == ISO_E_CORRUPT && found) { // the cache is damaged, not the model
        session_close(s);
        err = compile_into_cache(path, compile, run, quiet, plan, reterr);
        if (err)
            return err;
        err = open_plan(plan, compile, run, s, reterr);
    }
    if (err) {
        session_close(s);
        return iso_fail_prefix(reterr, path);
    }
    if (!unit_is_locked(s->unit) && !quiet)
        fprintf(stderr, "isochron: pool and weights could not be locked in memory (see `ulimit -l`); they "
                        "may be swapped\n");
    return ISO_OK;
}

void session_close(struct session *s)
{
    unit_close(s->unit);
    tmpl_close(s->template);
    tok_close(s->tokenizer);
    plan_close(&s->plan);
    *s = (struct session){0};
}
