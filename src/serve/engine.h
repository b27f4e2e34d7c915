// A plan being served: its language, its unit process, the queue before it.
//
// A job is what the unit is asked, once: a request's answer, or the rest of one. Jobs are served in the order in which they were
// submitted, as many at a time as the plan has slots. One whose client lags is paused, and asked for the rest later. A unit that dies
// fails its jobs and is started again, after a pause that doubles each time.
//
// Ownership: the caller's jobs must stay until they ended: by an event whose finish is not UNIT_RUNNING, by on_failed, or by
// engine_cancel, after which nothing of them is touched. One thread, on the event loop.
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <systemd/sd-event.h>

#include "serve/language.h"
#include "unit/account.h"
#include "unit/remote.h"

#define ENGINE_PAUSE_FIRST_MS 500 // before a unit that died is started again
#define ENGINE_PAUSE_MAX_MS   30000
#define ENGINE_STEADY_MS      60000 // a unit that lived so long begins anew with the first pause

struct engine;
struct engine_job;

struct engine_calls {
    // What to ask: `into` has room for max_seq_len tokens of prompt, and outlives the call.
    struct unit_request (*request)(struct engine_job *j, uint32_t *into);
    // CHANNEL_STARTED and CHANNEL_TOKEN. The job may be submitted again from here once it ended.
    void (*event)(struct engine_job *j, const struct channel_event *e);
    void (*failed)(struct engine_job *j, enum iso_err err, const char *why);
};

enum engine_place { ENGINE_WAITING, ENGINE_PAUSED, ENGINE_RUNNING };

struct engine_job {
    const struct engine_calls *calls;
    uint32_t n_top; // as in channel_request
    bool embed;
    // The engine's.
    struct engine *engine; // NULL: it is in none
    struct engine_job *next, *before;
    enum engine_place place;
    uint32_t area; // while it runs
};

struct engine_list {
    struct engine_job *first, *last;
    uint32_t n;
};

enum engine_state {
    ENGINE_LOADING,
    ENGINE_READY,
    ENGINE_DOWN,   // the unit died and will be started again
    ENGINE_FAILED, // it never got ready; `failure` says why
    ENGINE_GONE,   // ended as told
};

struct engine_config {
    sd_event *loop;
    const char *const *argv; // of the unit process
    struct channel_config channel;
    void (*on_state)(void *context, struct engine *e);
    void (*on_step)(void *context, struct engine *e, uint64_t ns, uint32_t tokens);
    void *context;
};

struct engine {
    struct engine *next; // of the owner's list, and whether the owner is to close it: not used here
    bool closing;
    struct engine_config config;
    struct language language;
    struct account account;
    enum engine_state state;
    struct iso_errinfo failure;
    uint32_t n_running, restarts;
    uint64_t kv_blocks_used; // reserved by what runs
    int plan_fd;
    struct remote remote;
    bool remote_open, ending;
    bool killed; // while it loaded, to end it
    int pid;     // of the unit process, also of one that ended
    uint32_t pause_ms;
    uint64_t ready_ns, serial;
    struct engine_list lists[ENGINE_RUNNING]; // by place
    struct engine_job *jobs[PLAN_SLOTS_MAX];  // by area; NULL: free, or of a job that was cancelled
    uint32_t kv_blocks[PLAN_SLOTS_MAX];       // reserved, by area
    uint32_t *prompt;                         // [max_seq_len]: workspace
    sd_event_source *events, *death, *restart;
};

// Opens the plan at `path` and starts its unit, which becomes ready later. The account is checked against pool_bytes_max of
// config.channel and against available_bytes (of either 0: not). ISO_E_NOFIT with both numbers, and those of language_open.
enum iso_err engine_open(const char *path, const struct engine_config *config, uint64_t available_bytes,
                         struct engine **ret, struct iso_errinfo *reterr) ISO_MUST_USE;
// Kills the unit where it runs. Jobs are not told. NULL is allowed.
void engine_close(struct engine *e);

// Puts the job at the queue's end.
void engine_submit(struct engine *e, struct engine_job *j);
// Puts a job that has run or paused, and goes on, before all others; what it has running is cancelled.
void engine_resubmit(struct engine *e, struct engine_job *j);
// Takes a job out of its slot, which is free after the running step, until engine_resubmit. It has no place in the queue meanwhile.
void engine_pause(struct engine *e, struct engine_job *j);
// Takes a job out, wherever it is; its slot is free after the running step. Nothing where it is in no engine.
void engine_cancel(struct engine_job *j);
uint32_t engine_n_waiting(const struct engine *e);
// Ends the unit once nothing waits, pauses or runs. The state becomes ENGINE_GONE.
void engine_end_when_idle(struct engine *e);
