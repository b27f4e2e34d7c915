#include "unit/remote.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/pidfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/assert.h"
#include "unit/worker.h"

#define FD_FREE 16 // descriptors from here on are no WORKER_FD

extern char **environ;

// The process, with the three descriptors under their numbers and no others: all of the front's close on exec.
static int spawn(const char *const *argv, const int fds[3], pid_t *ret)
{
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    sigset_t none;
    int moved[3] = {-1, -1, -1}, failed = 0;
    sigemptyset(&none);
    posix_spawn_file_actions_init(&actions);
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
    for (int i = 0; i < 3 && !failed; i++) { // out of the way of the numbers that they get
        moved[i] = fcntl(fds[i], F_DUPFD_CLOEXEC, FD_FREE);
        failed =
            moved[i] < 0 ? errno : posix_spawn_file_actions_adddup2(&actions, moved[i], WORKER_FD_PLAN + i);
    }
    if (!failed)
        failed = posix_spawn(ret, "/proc/self/exe", &actions, &attributes, (char *const *)argv, environ);
    for (int i = 0; i < 3; i++)
        if (moved[i] >= 0)
            close(moved[i]);
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
    return failed;
}

static enum iso_err start(const char *const *argv, int plan_fd, int channel_fd, struct remote *r,
                          struct iso_errinfo *reterr)
{
    r->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    int failed = r->event_fd < 0 ? errno : spawn(argv, (int[]){plan_fd, channel_fd, r->event_fd}, &r->pid);
    if (failed)
        return iso_fail(reterr, ISO_E_NOMEM, 0, "unit", "starting a unit process failed: %s",
                        strerror(failed));
    r->pid_fd = pidfd_open(r->pid, 0);
    if (r->pid_fd < 0)
        return iso_fail(reterr, ISO_E_NOMEM, 0, "unit", "watching the unit process failed: %s",
                        strerror(errno));
    return ISO_OK;
}

enum iso_err remote_start(const char *const *argv, int plan_fd, const struct plan_header *header,
                          const struct channel_config *config, struct remote *ret, struct iso_errinfo *reterr)
{
    int channel_fd;
    const struct plan_limits *limits = &header->limits;
    const struct channel_shape shape = {*limits, header->model.hidden};
    *ret =
        (struct remote){.event_fd = -1, .pid_fd = -1, .n_free = limits->slots, .vocab = header->model.vocab};
    enum iso_err err = channel_create(&shape, &ret->channel, &channel_fd, reterr);
    if (err)
        return err;
    ret->channel.shared->config = *config;
    ret->channel.shared->config.front_pid = getpid();
    for (uint32_t i = 0; i < limits->slots; i++)
        ret->free_areas[i] = limits->slots - 1 - i;
    err = start(argv, plan_fd, channel_fd, ret, reterr);
    close(channel_fd);
    if (err)
        remote_close(ret);
    return err;
}

enum channel_state remote_state(const struct remote *r)
{
    return (enum channel_state)atomic_load(&r->channel.shared->state);
}

bool remote_submit(struct remote *r, const struct unit_request *request, uint32_t n_top, bool embed,
                   uint64_t serial, uint32_t *ret_area)
{
    ASSERT(serial != 0 && request->sampling.n_bias <= SAMPLING_BIAS_MAX);
    ASSERT(request->n_prompt <= r->channel.max_seq_len);
    if (r->n_free == 0)
        return false;
    uint32_t area = r->free_areas[--r->n_free];
    struct channel_request *to = channel_request(&r->channel, area);
    to->sampling = request->sampling;
    to->sampling.bias = NULL;
    if (request->sampling.n_bias > 0)
        memcpy(to->bias, request->sampling.bias, request->sampling.n_bias * sizeof *to->bias);
    to->n_prompt = request->n_prompt;
    to->max_output = request->max_output;
    to->n_top = n_top;
    to->n_prior = request->n_prior;
    to->embed = embed;
    to->ignore_eog = request->ignore_eog;
    to->score = request->score;
    memcpy(channel_prompt(&r->channel, area), request->prompt, request->n_prompt * sizeof *request->prompt);
    r->serials[area] = serial;
    r->cancelled[area] = false;
    r->broken |= !channel_send(&r->channel, (struct channel_command){CHANNEL_SUBMIT, area, serial});
    *ret_area = area;
    return true;
}

void remote_cancel(struct remote *r, uint32_t area)
{
    ASSERT(area < r->channel.areas && r->serials[area] != 0);
    if (!r->cancelled[area])
        r->broken |=
            !channel_send(&r->channel, (struct channel_command){CHANNEL_CANCEL, area, r->serials[area]});
    r->cancelled[area] = true;
}

static bool can_be(const struct remote *r, const struct channel_event *e)
{
    if (e->kind == CHANNEL_STEP)
        return true;
    if (e->serial == 0 || e->area >= r->channel.areas || r->serials[e->area] != e->serial)
        return false;
    if (e->kind == CHANNEL_CANCELLED && !r->cancelled[e->area])
        return false;
    if (e->kind > CHANNEL_CANCELLED || e->finish > UNIT_NONFINITE || e->err >= ISO_ERR_COUNT ||
        e->token >= r->vocab)
        return false;
    for (uint32_t i = 0; i < LOGPROBS_TOP_MAX; i++)
        if (e->top[i].id >= r->vocab && e->top[i].id != LOGPROBS_NONE)
            return false;
    return true;
}

enum ring_taken remote_take(struct remote *r, struct channel_event *ret)
{
    enum ring_taken taken = ring_take(&r->channel.events, ret);
    r->broken |= taken == RING_BROKEN;
    if (taken != RING_TAKEN)
        return taken;
    if (!can_be(r, ret)) {
        r->broken = true;
        return RING_BROKEN;
    }
    if (channel_event_ends(ret)) {
        r->serials[ret->area] = 0;
        r->free_areas[r->n_free++] = ret->area;
    }
    return RING_TAKEN;
}

void remote_end(struct remote *r)
{
    atomic_store(&r->channel.shared->ending, true);
    channel_ring(&r->channel);
}

int remote_reap(struct remote *r)
{
    int status = 0;
    while (r->pid > 0 && waitpid(r->pid, &status, 0) < 0 && errno == EINTR)
        continue;
    r->pid = 0;
    return status;
}

void remote_close(struct remote *r)
{
    if (r->pid > 0) {
        kill(r->pid, SIGKILL);
        (void)remote_reap(r);
    }
    if (r->event_fd >= 0)
        close(r->event_fd);
    if (r->pid_fd >= 0)
        close(r->pid_fd);
    channel_unmap(&r->channel);
}
