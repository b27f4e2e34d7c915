#include "unit/channel.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/num.h"

#define COMMANDS_EACH 4  // of the ring, for each area
#define EVENTS_EACH   64 // the same

// Offsets of the parts, one after the other.
struct layout {
    uint64_t commands, events, requests, request_bytes, end;
    uint32_t n_commands, n_events;
};

static uint32_t power_of_two(uint32_t least)
{
    uint32_t n = 1;
    while (n < least)
        n *= 2;
    return n;
}

static struct layout layout_of(const struct channel_shape *shape)
{
    const struct plan_limits *l = &shape->limits;
    struct layout r = {.n_commands = power_of_two(COMMANDS_EACH * l->slots),
                       .n_events = power_of_two(EVENTS_EACH * l->slots)};
    r.request_bytes = num_align(sizeof(struct channel_request) + (uint64_t)l->max_seq_len * sizeof(uint32_t) +
                                    shape->hidden * sizeof(float),
                                64);
    r.commands = num_align(sizeof(struct channel_shared), 64);
    r.events = r.commands + num_align(r.n_commands * sizeof(struct channel_command), 64);
    r.requests = r.events + num_align(r.n_events * sizeof(struct channel_event), 64);
    r.end = num_align(r.requests + l->slots * r.request_bytes, PLAN_ALIGN);
    return r;
}

uint64_t channel_bytes(const struct channel_shape *shape)
{
    return layout_of(shape).end;
}

static enum iso_err map_fd(const struct channel_shape *shape, int fd, struct channel *ret,
                           struct iso_errinfo *reterr)
{
    struct layout l = layout_of(shape);
    uint8_t *base = mmap(NULL, l.end, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
    if (base == MAP_FAILED)
        return iso_fail(reterr, ISO_E_NOMEM, 0, "channel",
                        "the system refused %llu bytes for the channel to the unit: %s",
                        (unsigned long long)l.end, strerror(errno));
    struct channel_shared *shared = (struct channel_shared *)base;
    *ret = (struct channel){
        .shared = shared,
        .bytes = l.end,
        .areas = shape->limits.slots,
        .max_seq_len = shape->limits.max_seq_len,
        .commands = {&shared->commands, base + l.commands, sizeof(struct channel_command), l.n_commands},
        .events = {&shared->events, base + l.events, sizeof(struct channel_event), l.n_events},
        .requests = base + l.requests,
        .request_bytes = l.request_bytes,
    };
    return ISO_OK;
}

enum iso_err channel_create(const struct channel_shape *shape, struct channel *ret, int *ret_fd,
                            struct iso_errinfo *reterr)
{
    int fd = memfd_create("isochron-channel", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0 || ftruncate(fd, (off_t)channel_bytes(shape)) ||
        fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)) {
        if (fd >= 0)
            close(fd);
        return iso_fail(reterr, ISO_E_NOMEM, 0, "channel", "the system refused a channel to the unit: %s",
                        strerror(errno));
    }
    enum iso_err err = map_fd(shape, fd, ret, reterr);
    if (err) {
        close(fd);
        return err;
    }
    ret->shared->shape = *shape;
    *ret_fd = fd;
    return ISO_OK;
}

enum iso_err channel_map(int fd, struct channel *ret, struct iso_errinfo *reterr)
{
    struct stat st;
    struct channel_shape s;
    if (fstat(fd, &st) || pread(fd, &s, sizeof s, 0) != (ssize_t)sizeof s || s.limits.slots == 0 ||
        s.limits.slots > PLAN_SLOTS_MAX || s.limits.max_seq_len > PLAN_SEQ_MAX || s.hidden > PLAN_COLS_MAX ||
        (uint64_t)st.st_size != channel_bytes(&s))
        return iso_fail(reterr, ISO_E_USAGE, 0, "channel", "this is no channel to a unit");
    return map_fd(&s, fd, ret, reterr);
}

void channel_unmap(struct channel *c)
{
    if (c->shared)
        munmap(c->shared, c->bytes);
    *c = (struct channel){0};
}

static uint8_t *area_of(const struct channel *c, uint32_t area)
{
    ASSERT(area < c->areas);
    return c->requests + area * c->request_bytes;
}

struct channel_request *channel_request(const struct channel *c, uint32_t area)
{
    return (struct channel_request *)area_of(c, area);
}

uint32_t *channel_prompt(const struct channel *c, uint32_t area)
{
    return (uint32_t *)(area_of(c, area) + sizeof(struct channel_request));
}

float *channel_hidden(const struct channel *c, uint32_t area)
{
    return (float *)(channel_prompt(c, area) + c->max_seq_len);
}

void channel_ring(const struct channel *c)
{
    atomic_fetch_add(&c->shared->doorbell, 1);
    (void)syscall(SYS_futex, &c->shared->doorbell, FUTEX_WAKE, 1, NULL, NULL, 0);
}

bool channel_send(struct channel *c, struct channel_command command)
{
    bool put = ring_put(&c->commands, &command);
    channel_ring(c);
    return put;
}

void channel_wait(const struct channel *c, uint32_t seen, uint32_t timeout_ms)
{
    struct timespec timeout = {.tv_sec = timeout_ms / 1000, .tv_nsec = (long)(timeout_ms % 1000) * 1000000};
    (void)syscall(SYS_futex, &c->shared->doorbell, FUTEX_WAIT, seen, &timeout, NULL, 0);
}
