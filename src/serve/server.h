// The server: models with their engines, the endpoints, the event loop.
//
// One thread. server_run returns when the server has drained after SIGTERM or SIGINT, or when it could not begin.
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <systemd/sd-event.h>

#include "serve/audit.h"
#include "serve/config.h"
#include "serve/engine.h"
#include "serve/http.h"
#include "serve/keys.h"
#include "serve/log.h"
#include "serve/metrics.h"

#define SERVER_REQUEST_ID_MAX 128

struct call;

// A model that clients may name.
struct served {
    struct server *server;
    const char *name; // what clients call it: name_own
    char name_own[CONFIG_NAME_BYTES];
    char plan_path[4096];
    bool is_compiled;      // from a model file, into the cache: reload can't see that one
    struct engine *engine; // that new requests go to; NULL: none yet
    struct engine *next;   // being loaded by a reload
    struct call *reload;   // the request that waits for it; NULL: its client left
    struct metrics metrics;
    struct channel_config channel;
};

struct server {
    struct serve_config config;
    struct timespec config_time; // of its file, when it was read
    sd_event *loop;
    struct http *http;
    struct log log;
    struct keys *keys; // NULL: none needed
    struct audit audit;
    struct served models[CONFIG_MODELS_MAX];
    uint32_t n_models;
    struct engine *engines; // all that are open
    const char *const *unit_argv;
    uint32_t n_calls; // unanswered
    uint32_t n_old;   // engines that end once their requests did
    bool draining, ending;
    bool closing;               // the loop has ended
    struct iso_errinfo failure; // why it ends; code 0: as told
    uint64_t started_s, serial; // unix time; of requests
    uint64_t instance;          // random: begins the ids of this server's answers
};

struct server_plan {
    char path[4096]; // of the plan for each of config's models
    bool is_compiled;
};

// `plans` has one for each of the config's models; `channel` is how their units run, pool_bytes_max being for all of them;
// unit_argv starts a unit process of this program. What it serves and that it is ready is told through the log, on standard error.
enum iso_err server_run(const struct serve_config *config, const struct server_plan *plans,
                        const struct channel_config *channel, const char *const *unit_argv,
                        struct iso_errinfo *reterr) ISO_MUST_USE;
