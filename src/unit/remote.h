// The front's hold on a unit process: starts it, hands it requests, takes what it answers, sees it end.
//
// Nothing here waits but remote_close: the front's event loop watches event_fd (events, and changes of state) and pid_fd (the
// process ended) and then calls remote_take or remote_reap. At most as many requests are out as the plan has slots; each has
// an area of the channel until the event that ends it was taken.
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "unit/channel.h"

struct remote {
    struct channel channel;
    pid_t pid;            // 0: not running
    int event_fd, pid_fd; // readable when there is something to take; when the process ended
    uint32_t n_free;
    uint32_t free_areas[PLAN_SLOTS_MAX];
    uint64_t serials[PLAN_SLOTS_MAX]; // of the request in each area; 0: free
    bool cancelled[PLAN_SLOTS_MAX];   // it was asked to end
    uint32_t vocab;                   // tokens of events are below it
    bool broken;                      // the unit has written what can't be: kill it
};

// Starts this very program again as a unit (`argv`, ended by NULL, is its command line) for the plan in the open file plan_fd,
// whose header this is. The plan's hash in the config is what the unit compares with. ISO_E_NOMEM.
enum iso_err remote_start(const char *const *argv, int plan_fd, const struct plan_header *header,
                          const struct channel_config *config, struct remote *ret,
                          struct iso_errinfo *reterr) ISO_MUST_USE;
enum channel_state remote_state(const struct remote *r);

// Hands a request to the unit, copied, under a serial that is not 0 and never used twice. n_top and embed as in channel_request.
// False where as many are out as there are slots; the request must fit the plan's limits, which the unit checks again.
bool remote_submit(struct remote *r, const struct unit_request *request, uint32_t n_top, bool embed,
                   uint64_t serial, uint32_t *ret_area);
// Asks that a request be ended, once; its CHANNEL_CANCELLED, or the event that ended it before, comes by remote_take.
void remote_cancel(struct remote *r, uint32_t area);
// The next event; areas of requests that ended are free again. RING_BROKEN: the unit has written what can't be, and must be
// killed; so does r->broken.
enum ring_taken remote_take(struct remote *r, struct channel_event *ret);

// Asks the unit to end after the running step. It goes on existing until pid_fd says that it is gone.
void remote_end(struct remote *r);
// Once pid_fd is readable: collects the process. Gives its status as waitpid does.
int remote_reap(struct remote *r);
// Kills the process where it still runs, waits for it, and releases everything.
void remote_close(struct remote *r);
