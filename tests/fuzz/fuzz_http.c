// What arrives on a connection: the bytes, in pieces cut where the input says, then the client's end. The server answers
// some paths at once, streams on others, and never lets a request be lost: each is answered or told to be gone.
#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <netinet/in.h>
#include <unistd.h>

#include "base/assert.h"
#include "serve/http.h"

#define ROUNDS_MAX 200 // of the loop, each at most 1 ms long

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct world {
    sd_event *loop;
    struct http *http;
    int unanswered;
};

static void on_request(void *context, struct http_request *r)
{
    struct world *w = context;
    const char *path = http_path(r), *id = http_header(r, "X-Request-Id");
    ASSERT(http_method(r) && path && http_body(r).ptr[http_body(r).len] == '\0');
    if (id)
        http_add_header(r, "X-Request-Id", id);
    if (strcmp(path, "/hold") == 0) {
        w->unanswered++;
    } else if (strcmp(path, "/stream") == 0) {
        http_stream(r, 200, "text/plain");
        if (http_write(r, http_body(r)) && http_write(r, STRV_LIT("end\n")))
            http_end(r);
    } else {
        http_respond(r, 200, "text/plain", http_body(r));
    }
}

static void on_gone(void *context, struct http_request *r)
{
    struct world *w = context;
    if (strcmp(http_path(r), "/hold") == 0)
        w->unanswered--;
}

static struct world *world(void)
{
    static struct world w;
    struct iso_errinfo e;
    if (w.loop)
        return &w;
    const struct http_config config = {.address = "127.0.0.1",
                                       .connections_max = 4,
                                       .body_bytes_max = 4096,
                                       .bodies_bytes_max = 8192,
                                       .unread_bytes_max = 4096,
                                       .answers_bytes_max = 8192,
                                       .head_ms = 50,
                                       .body_ms = 50,
                                       .idle_ms = 50,
                                       .stall_ms = 50,
                                       .on_request = on_request,
                                       .on_gone = on_gone,
                                       .context = &w};
    ASSERT(sd_event_new(&w.loop) >= 0 && http_open(w.loop, &config, &w.http, &e) == ISO_OK);
    return &w;
}

static int connect_to(const struct world *w, bool reset)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(http_port(w->http))};
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const struct linger linger = {.l_onoff = reset};
    ASSERT(fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof linger) == 0);
    ASSERT(connect(fd, (struct sockaddr *)&a, sizeof a) == 0);
    ASSERT(fcntl(fd, F_SETFL, O_NONBLOCK) == 0);
    return fd;
}

static void turn(const struct world *w, int rounds)
{
    for (int i = 0; i < rounds && sd_event_run(w->loop, 0) > 0; i++)
        continue;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct world *w = world();
    if (size < 2 || size > 16384)
        return 0;
    size_t cut = (size_t)data[0] * (size - 1) / 256;
    char taken[4096];
    // Most are closed by a reset: after a clean end a port isn't free for a minute, and there are 28,000.
    int fd = connect_to(w, size % 64 != 0);
    turn(w, 4);
    (void)!send(fd, data + 1, cut, MSG_NOSIGNAL);
    turn(w, 8);
    (void)!send(fd, data + 1 + cut, size - 1 - cut, MSG_NOSIGNAL);
    turn(w, 8);
    while (recv(fd, taken, sizeof taken, 0) > 0)
        turn(w, 2);
    close(fd);
    for (int i = 0; i < ROUNDS_MAX && http_connections(w->http) > 0; i++)
        (void)sd_event_run(w->loop, 1000);
    ASSERT(http_connections(w->http) == 0 && w->unanswered == 0);
    return 0;
}
