#include "serve/http.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <microhttpd.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/buf.h"
#include "base/clock.h"
#include "base/num.h"
#include "serve/error_body.h"

#define SWEEP_US         100000
#define BLOCK_BYTES      ((size_t)16 << 10) // that the library takes of an answer at once
#define HTTP_ERROR_BYTES ((size_t)4096)     // answers up to this size are always given
#define HEADERS_MAX      16                 // of an answer, from the caller
#define BACKLOG          1024
#define NS_PER_MS        UINT64_C(1000000)

enum request_state {
    RECEIVING,
    WITH_CALLER, // on_request was called, nothing is answered yet
    ANSWERING,   // what is left is to be taken by the client
    STREAMING,   // the caller writes more
};

// The library's server; more than one while the connections of an earlier certificate go on.
struct daemon {
    struct http *h;
    struct daemon *next; // the one before
    struct MHD_Daemon *mhd;
    sd_event_source *readable;
    uint32_t n_connections;
};

struct connection {
    struct http *h;
    struct daemon *daemon;
    struct MHD_Connection *mhd;
    struct connection *next, **at; // where the pointer to it stands
    struct http_request *request;  // NULL between two
    sd_event_source *change;       // of the socket, seen beside the library
    int fd;
    bool refused; // over connections_max
    bool idle;    // between two requests
    bool left;    // the client closed its side
    bool dropped; // it is being closed, whatever comes
    uint64_t deadline_ns;
};

struct http_request {
    struct connection *c;
    const char *method;
    char *path;
    enum request_state state;
    bool suspended, too_long, too_many; // too much of a body, too much of all bodies
    bool given_up;                      // by the caller, who knows that it is dropped
    bool lags;                          // as http_lags says
    struct buf body;
    uint64_t body_reserved; // of bodies_bytes_max
    uint64_t out_reserved;  // of answers_bytes_max
    unsigned status;
    struct MHD_Response *response;
    struct buf out;
    size_t taken; // of out
    uint64_t progress_ns;
    uint32_t n_headers;
    char *headers[HEADERS_MAX][2];
    void *data;
};

struct http {
    struct http_config config;
    struct daemon *daemons; // the first one accepts
    sd_event *loop;
    sd_event_source *pump, *sweep;
    struct connection *connections;
    uint32_t n_connections, n_refused;
    uint64_t bodies_bytes, answers_bytes;
    uint16_t port;
    int listener; // -1: closed
};

// ---- What the library is told ----

static void pump_later(struct http *h)
{
    (void)sd_event_source_set_enabled(h->pump, SD_EVENT_ONESHOT);
}

static void run_library(struct daemon *d)
{
    MHD_UNSIGNED_LONG_LONG wait;
    MHD_run(d->mhd);
    if (MHD_get_timeout(d->mhd, &wait) == MHD_YES && wait == 0)
        pump_later(d->h); // it has more to do
}

static int on_readable(sd_event_source *source, int fd, uint32_t what, void *context)
{
    (void)source, (void)fd, (void)what;
    run_library(context);
    return 0;
}

static void stop_daemon(struct daemon *d)
{
    sd_event_source_disable_unref(d->readable);
    if (d->mhd)
        MHD_stop_daemon(d->mhd);
    free(d);
}

static int on_pump(sd_event_source *source, void *context)
{
    struct http *h = context;
    (void)source;
    for (struct daemon **at = &h->daemons; *at;) {
        struct daemon *d = *at;
        run_library(d);
        if (d == h->daemons || d->n_connections > 0) {
            at = &d->next;
        } else { // the last connection of an earlier certificate is gone
            *at = d->next;
            stop_daemon(d);
        }
    }
    return 0;
}

static void resume(struct http_request *r)
{
    if (!r->suspended)
        return;
    r->suspended = false;
    MHD_resume_connection(r->c->mhd);
    pump_later(r->c->h);
}

static void suspend(struct http_request *r)
{
    ASSERT(!r->suspended);
    r->suspended = true;
    MHD_suspend_connection(r->c->mhd);
}

// The library notices and completes the request.
static void drop_connection(struct connection *c)
{
    if (c->dropped) // shutting down once more would look like a change again
        return;
    c->dropped = true;
    shutdown(c->fd, SHUT_RDWR);
    if (c->request)
        resume(c->request);
    pump_later(c->h);
}

static uint64_t lag_bytes(const struct http *h)
{
    return h->config.unread_bytes_max / 8;
}

// The next bytes of an answer for the client.
static ssize_t read_answer(void *context, uint64_t at, char *to, size_t max)
{
    struct http_request *r = context;
    (void)at;
    if (r->c->dropped)
        return MHD_CONTENT_READER_END_WITH_ERROR;
    size_t n = num_min(max, r->out.len - r->taken);
    r->progress_ns = clock_now_ns();
    if (n == 0 && r->state == ANSWERING)
        return MHD_CONTENT_READER_END_OF_STREAM;
    if (n == 0) {
        suspend(r);
        return 0;
    }
    memcpy(to, r->out.ptr + r->taken, n);
    r->taken += n;
    if (r->taken == r->out.len && r->state == STREAMING) {
        buf_reset(&r->out);
        r->taken = 0;
    }
    if (r->lags && r->out.len - r->taken <= lag_bytes(r->c->h) / 2) {
        r->lags = false;
        if (r->state == STREAMING && r->c->h->config.on_caught_up)
            r->c->h->config.on_caught_up(r->c->h->config.context, r);
    }
    return (ssize_t)n;
}

static void make_response(struct http_request *r, unsigned status, const char *content_type, uint64_t length)
{
    ASSERT(!r->response);
    r->status = status;
    r->progress_ns = clock_now_ns();
    r->response = MHD_create_response_from_callback(length, BLOCK_BYTES, read_answer, r, NULL);
    if (!r->response) {
        drop_connection(r->c);
        return;
    }
    if (content_type)
        MHD_add_response_header(r->response, MHD_HTTP_HEADER_CONTENT_TYPE, content_type);
    for (uint32_t i = 0; i < r->n_headers; i++)
        MHD_add_response_header(r->response, r->headers[i][0], r->headers[i][1]);
    resume(r);
}

static enum MHD_Result queue(struct http_request *r)
{
    enum MHD_Result queued = MHD_queue_response(r->c->mhd, r->status, r->response);
    MHD_destroy_response(r->response);
    r->response = NULL;
    return queued;
}

// An answer of this file's own.
static void refuse(struct http_request *r, unsigned status, const char *why)
{
    struct buf body;
    buf_init(&body, HTTP_ERROR_BYTES);
    bool made = error_body(&body, status, why, NULL, NULL) == ISO_OK;
    const struct http_config *config = &r->c->h->config;
    if (config->on_refused)
        config->on_refused(config->context, r, status, why);
    http_add_header(r, MHD_HTTP_HEADER_CONNECTION, "close");
    if (status == MHD_HTTP_SERVICE_UNAVAILABLE)
        http_add_header(r, MHD_HTTP_HEADER_RETRY_AFTER, "1");
    http_respond(r, status, "application/json", made ? buf_strv(&body) : STRV_LIT(""));
    buf_deinit(&body);
}

// What was just answered, to the library.
static enum MHD_Result queue_now(struct http_request *r)
{
    return r->response ? queue(r) : MHD_NO;
}

static enum MHD_Result refuse_now(struct http_request *r, unsigned status, const char *why)
{
    refuse(r, status, why);
    return queue_now(r);
}

// ---- Receiving ----

static struct http_request *request_open(struct connection *c, const char *path, const char *method)
{
    struct http_request *r = calloc(1, sizeof *r);
    if (!r)
        return NULL;
    r->c = c;
    r->method = method;
    r->path = strdup(path);
    buf_init(&r->body, c->h->config.body_bytes_max + 1);
    buf_init(&r->out, SIZE_MAX); // bounded by http_write: twice unread_bytes_max
    c->request = r;
    c->idle = false;
    c->deadline_ns = clock_now_ns() + c->h->config.body_ms * NS_PER_MS;
    return r;
}

static void request_close(struct http_request *r)
{
    http_release_body(r);
    r->c->h->answers_bytes -= r->out_reserved;
    for (uint32_t i = 0; i < r->n_headers; i++)
        free(r->headers[i][0]), free(r->headers[i][1]);
    if (r->response)
        MHD_destroy_response(r->response);
    buf_deinit(&r->out);
    free(r->path);
    free(r);
}

// Counts n bytes of a body before they are kept.
static bool reserve(struct http_request *r, uint64_t n)
{
    struct http *h = r->c->h;
    if (n > h->config.bodies_bytes_max - h->bodies_bytes)
        return false;
    h->bodies_bytes += n;
    r->body_reserved += n;
    return true;
}

// The head is there.
static enum MHD_Result begin(struct connection *c, const char *path, const char *method, void **state)
{
    struct http_request *r = c ? request_open(c, path, method) : NULL;
    *state = r;
    if (!r || !r->path)
        return MHD_NO;
    if (c->refused)
        return refuse_now(r, MHD_HTTP_SERVICE_UNAVAILABLE,
                          "the server has as many connections as it takes; try again");
    const char *length = http_header(r, MHD_HTTP_HEADER_CONTENT_LENGTH);
    if (length && strtoull(length, NULL, 10) > c->h->config.body_bytes_max)
        return refuse_now(r, MHD_HTTP_CONTENT_TOO_LARGE,
                          "the request's body is longer than this server takes");
    if (c->h->config.on_head && !c->h->config.on_head(c->h->config.context, r))
        return queue_now(r);
    return MHD_YES;
}

static enum MHD_Result receive(struct http_request *r, const char *bytes, size_t n)
{
    if (r->too_long || r->too_many || r->state != RECEIVING)
        return MHD_YES; // passed over, within body_ms
    if (n > r->c->h->config.body_bytes_max - r->body.len)
        r->too_long = true;
    else if (!reserve(r, n) || buf_append(&r->body, bytes, n))
        r->too_many = true;
    return MHD_YES;
}

static enum MHD_Result complete(struct http_request *r)
{
    struct connection *c = r->c;
    if (r->too_long)
        return refuse_now(r, MHD_HTTP_CONTENT_TOO_LARGE,
                          "the request's body is longer than this server takes");
    if (r->too_many || buf_append_byte(&r->body, 0))
        return refuse_now(r, MHD_HTTP_SERVICE_UNAVAILABLE,
                          "the server holds as much of requests as it can; try again");
    if (c->left)
        return MHD_NO;
    r->body.len--;
    r->state = WITH_CALLER;
    c->h->config.on_request(c->h->config.context, r);
    if (r->response)
        return queue(r);
    if (c->dropped)
        return MHD_NO;
    suspend(r);
    return MHD_YES;
}

static enum MHD_Result on_access(void *context, struct MHD_Connection *mhd, const char *path,
                                 const char *method, const char *version, const char *bytes, size_t *n,
                                 void **state)
{
    (void)context, (void)version;
    struct http_request *r = *state;
    if (!r)
        return begin(MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_SOCKET_CONTEXT)->socket_context, path,
                     method, state);
    if (*n > 0) {
        enum MHD_Result result = receive(r, bytes, *n);
        *n = 0;
        return result;
    }
    if (r->state == RECEIVING)
        return complete(r);
    return r->response ? queue(r) : MHD_NO; // resumed: answered, or dropped
}

static void on_completed(void *context, struct MHD_Connection *mhd, void **state,
                         enum MHD_RequestTerminationCode why)
{
    (void)mhd, (void)why;
    struct http *h = ((struct daemon *)context)->h;
    struct http_request *r = *state;
    if (!r)
        return;
    r->c->request = NULL;
    r->c->deadline_ns = clock_now_ns() + h->config.idle_ms * NS_PER_MS;
    r->c->idle = true;
    if ((r->state == WITH_CALLER || r->state == STREAMING) && !r->given_up)
        h->config.on_gone(h->config.context, r);
    request_close(r);
    *state = NULL;
}

// ---- Connections ----

// The socket's state changed. A reset comes as something to read, too.
static int on_change(sd_event_source *source, int fd, uint32_t what, void *context)
{
    (void)source, (void)what;
    struct connection *c = context;
    struct pollfd now = {.fd = fd, .events = POLLIN | POLLRDHUP};
    (void)poll(&now, 1, 0);
    if (c->idle && now.revents & POLLIN) { // a head begins; the library has not read it yet
        c->deadline_ns = clock_now_ns() + c->h->config.head_ms * NS_PER_MS;
        c->idle = false;
    }
    if (!(now.revents & (POLLRDHUP | POLLHUP | POLLERR)))
        return 0;
    c->left = true;
    if (c->request && (c->request->state == WITH_CALLER || c->request->state == STREAMING))
        drop_connection(c);
    return 0;
}

static void connection_open(struct daemon *d, struct MHD_Connection *mhd, void **context)
{
    struct http *h = d->h;
    struct connection *c = calloc(1, sizeof *c);
    *context = c;
    if (!c)
        return;
    c->h = h;
    c->daemon = d;
    d->n_connections++;
    c->mhd = mhd;
    c->fd = MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd;
    c->deadline_ns = clock_now_ns() + h->config.head_ms * NS_PER_MS;
    c->refused = h->n_connections - h->n_refused >= h->config.connections_max;
    // Without it a client's leaving is noticed when it is written to.
    (void)sd_event_add_io(h->loop, &c->change, c->fd, EPOLLIN | EPOLLRDHUP | EPOLLET, on_change, c);
    (void)sd_event_source_set_priority(c->change, SD_EVENT_PRIORITY_IMPORTANT); // before the library reads
    h->n_connections++;
    h->n_refused += c->refused;
    c->next = h->connections;
    c->at = &h->connections;
    if (c->next)
        c->next->at = &c->next;
    h->connections = c;
}

static void connection_close(struct connection *c)
{
    if (!c)
        return;
    struct http *h = c->h;
    c->daemon->n_connections--;
    sd_event_source_disable_unref(c->change);
    *c->at = c->next;
    if (c->next)
        c->next->at = c->at;
    h->n_connections--;
    h->n_refused -= c->refused;
    free(c);
    pump_later(h); // the library may accept again, but looks only when it runs
}

static void on_connection(void *context, struct MHD_Connection *mhd, void **socket_context,
                          enum MHD_ConnectionNotificationCode code)
{
    if (code == MHD_CONNECTION_NOTIFY_STARTED)
        connection_open(context, mhd, socket_context);
    else
        connection_close(*socket_context);
}

// Whether it takes longer than it may.
static bool is_late(const struct connection *c, uint64_t now)
{
    const struct http_request *r = c->request;
    if (!r || r->state == RECEIVING)
        return now > c->deadline_ns;
    bool unread = r->state == ANSWERING || (r->state == STREAMING && r->out.len > r->taken);
    return unread && now > r->progress_ns + c->h->config.stall_ms * NS_PER_MS;
}

static int on_sweep(sd_event_source *source, uint64_t due_us, void *context)
{
    (void)due_us;
    struct http *h = context;
    uint64_t now = clock_now_ns();
    for (struct connection *c = h->connections; c; c = c->next)
        if (is_late(c, now))
            drop_connection(c);
    return sd_event_source_set_time_relative(source, SWEEP_US);
}

// ---- The caller's side ----

void http_client(const struct http_request *r, char *out)
{
    struct sockaddr_storage a = {0};
    socklen_t length = sizeof a;
    (void)getpeername(r->c->fd, (struct sockaddr *)&a, &length);
    const void *address = a.ss_family == AF_INET6 ? (const void *)&((struct sockaddr_in6 *)&a)->sin6_addr
                                                  : (const void *)&((struct sockaddr_in *)&a)->sin_addr;
    if ((a.ss_family != AF_INET && a.ss_family != AF_INET6) ||
        !inet_ntop(a.ss_family, address, out, HTTP_CLIENT_MAX))
        out[0] = '\0';
}

const char *http_method(const struct http_request *r)
{
    return r->method;
}

const char *http_path(const struct http_request *r)
{
    return r->path;
}

const char *http_header(const struct http_request *r, const char *name)
{
    return MHD_lookup_connection_value(r->c->mhd, MHD_HEADER_KIND, name);
}

const char *http_query(const struct http_request *r, const char *name)
{
    return MHD_lookup_connection_value(r->c->mhd, MHD_GET_ARGUMENT_KIND, name);
}

struct strv http_body(const struct http_request *r)
{
    return buf_strv(&r->body);
}

void http_release_body(struct http_request *r)
{
    r->c->h->bodies_bytes -= r->body_reserved;
    r->body_reserved = 0;
    buf_deinit(&r->body);
}

void http_set_data(struct http_request *r, void *data)
{
    r->data = data;
}

void *http_data(const struct http_request *r)
{
    return r->data;
}

static bool is_clean(const char *value)
{
    for (; *value; value++)
        if ((unsigned char)*value < 0x20 || *value == 0x7F)
            return false;
    return true;
}

void http_add_header(struct http_request *r, const char *name, const char *value)
{
    if (!is_clean(value))
        return;
    ASSERT(r->n_headers < HEADERS_MAX);
    char **header = r->headers[r->n_headers++];
    header[0] = strdup(name);
    header[1] = strdup(value);
    if (!header[0] || !header[1]) {
        free(header[0]), free(header[1]);
        r->n_headers--;
    }
}

void http_respond(struct http_request *r, unsigned status, const char *content_type, struct strv body)
{
    struct http *h = r->c->h;
    ASSERT(r->state == WITH_CALLER || r->state == RECEIVING);
    if (body.len > HTTP_ERROR_BYTES && body.len > h->config.answers_bytes_max - h->answers_bytes) {
        (void)refuse(r, MHD_HTTP_SERVICE_UNAVAILABLE,
                     "the clients leave too much of their answers unread; try again");
        return;
    }
    r->state = ANSWERING;
    if (body.len > HTTP_ERROR_BYTES) {
        r->out_reserved = body.len;
        h->answers_bytes += body.len;
    }
    if (buf_append_strv(&r->out, body)) {
        drop_connection(r->c);
        return;
    }
    make_response(r, status, content_type, body.len);
}

void http_stream(struct http_request *r, unsigned status, const char *content_type)
{
    ASSERT(r->state == WITH_CALLER);
    r->state = STREAMING;
    make_response(r, status, content_type, MHD_SIZE_UNKNOWN);
}

// Makes room by what was taken, so that a client that always lags a little makes nothing grow.
static void compact(struct http_request *r)
{
    if (r->taken < r->out.len - r->taken)
        return;
    memmove(r->out.ptr, r->out.ptr + r->taken, r->out.len - r->taken);
    r->out.len -= r->taken;
    r->taken = 0;
}

bool http_write(struct http_request *r, struct strv bytes)
{
    ASSERT(r->state == STREAMING);
    if (r->out.len == r->taken)
        r->progress_ns = clock_now_ns(); // from now on there is something to take
    if (r->taken > 0)
        compact(r);
    // What was there before counts: one write may be as long as it is.
    if (!r->c->dropped && r->out.len - r->taken <= r->c->h->config.unread_bytes_max &&
        buf_append_strv(&r->out, bytes) == ISO_OK) {
        r->lags = r->lags || r->out.len - r->taken > lag_bytes(r->c->h);
        resume(r);
        return true;
    }
    r->given_up = true;
    drop_connection(r->c);
    return false;
}

bool http_lags(const struct http_request *r)
{
    return r->lags;
}

void http_end(struct http_request *r)
{
    ASSERT(r->state == STREAMING);
    r->state = ANSWERING;
    r->progress_ns = clock_now_ns();
    resume(r);
}

// ---- The server ----

static enum iso_err listen_on(const struct http_config *config, int *ret_fd, uint16_t *ret_port,
                              struct iso_errinfo *reterr)
{
    struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_port = htons(config->port)};
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_port = htons(config->port)};
    bool is_v6 = inet_pton(AF_INET6, config->address, &v6.sin6_addr) == 1;
    if (!is_v6 && inet_pton(AF_INET, config->address, &v4.sin_addr) != 1)
        return iso_fail(reterr, ISO_E_USAGE, 0, "listen", "\"%s\" is no numeric IPv4 or IPv6 address",
                        config->address);
    const struct sockaddr *address = is_v6 ? (struct sockaddr *)&v6 : (struct sockaddr *)&v4;
    socklen_t length = is_v6 ? sizeof v6 : sizeof v4;
    const int yes = 1;
    int fd = socket(is_v6 ? AF_INET6 : AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) || bind(fd, address, length) ||
        listen(fd, BACKLOG) ||
        getsockname(fd, is_v6 ? (struct sockaddr *)&v6 : (struct sockaddr *)&v4, &length)) {
        enum iso_err err = iso_fail(reterr, ISO_E_IO, 0, "listen", "listening on %s port %u failed: %s",
                                    config->address, config->port, strerror(errno));
        if (fd >= 0)
            close(fd);
        return err;
    }
    *ret_fd = fd;
    *ret_port = ntohs(is_v6 ? v6.sin6_port : v4.sin_port);
    return ISO_OK;
}

static struct MHD_Daemon *start_library(struct daemon *d, int listener, const char *certificate,
                                        const char *key)
{
    struct MHD_OptionItem tls[] = {
        {MHD_OPTION_HTTPS_MEM_CERT, 0, (void *)certificate},
        {MHD_OPTION_HTTPS_MEM_KEY, 0, (void *)key},
        {MHD_OPTION_END, 0, NULL},
    };
    if (!certificate)
        tls[0] = tls[2];
    unsigned flags = MHD_USE_EPOLL | MHD_ALLOW_SUSPEND_RESUME | (certificate ? MHD_USE_TLS : 0);
    return MHD_start_daemon(
        flags, 0, NULL, NULL, on_access, d, MHD_OPTION_LISTEN_SOCKET, listener, MHD_OPTION_NOTIFY_COMPLETED,
        on_completed, d, MHD_OPTION_NOTIFY_CONNECTION, on_connection, d, MHD_OPTION_CONNECTION_LIMIT,
        (unsigned)(d->h->config.connections_max + HTTP_REFUSALS), MHD_OPTION_CONNECTION_MEMORY_LIMIT,
        HTTP_HEAD_BYTES, MHD_OPTION_STRICT_FOR_CLIENT, 1, MHD_OPTION_ARRAY, tls, MHD_OPTION_END);
}

// The listener is closed where it fails.
static enum iso_err start_daemon(struct http *h, int listener, const char *certificate, const char *key,
                                 struct iso_errinfo *reterr)
{
    struct daemon *d = calloc(1, sizeof *d);
    if (!d) {
        close(listener);
        return iso_fail(reterr, ISO_E_NOMEM, 0, NULL, "the system refused memory to serve");
    }
    d->h = h;
    d->mhd = start_library(d, listener, certificate, key);
    if (!d->mhd) {
        stop_daemon(d);
        return iso_fail(reterr, ISO_E_USAGE, 0, "tls", "the HTTP library refuses to start%s",
                        certificate ? ": is this certificate one, and the key its own?" : "");
    }
    int fd = MHD_get_daemon_info(d->mhd, MHD_DAEMON_INFO_EPOLL_FD)->epoll_fd;
    if (sd_event_add_io(h->loop, &d->readable, fd, EPOLLIN, on_readable, d) < 0) {
        stop_daemon(d);
        return iso_fail(reterr, ISO_E_NOMEM, 0, NULL, "the system refused memory to serve");
    }
    d->next = h->daemons;
    h->daemons = d;
    return ISO_OK;
}

static bool open_events(struct http *h)
{
    return sd_event_add_defer(h->loop, &h->pump, on_pump, h) >= 0 &&
           sd_event_add_time_relative(h->loop, &h->sweep, CLOCK_MONOTONIC, SWEEP_US, SWEEP_US / 10, on_sweep,
                                      h) >= 0 &&
           sd_event_source_set_enabled(h->sweep, SD_EVENT_ON) >= 0;
}

enum iso_err http_open(sd_event *loop, const struct http_config *config, struct http **ret,
                       struct iso_errinfo *reterr)
{
    struct http *h = calloc(1, sizeof *h);
    if (!h)
        return iso_fail(reterr, ISO_E_NOMEM, 0, NULL, "the system refused memory to serve");
    h->config = *config;
    h->loop = sd_event_ref(loop);
    h->listener = -1;
    int listener = -1;
    enum iso_err err = listen_on(config, &listener, &h->port, reterr);
    if (!err)
        err = start_daemon(h, listener, config->certificate, config->key, reterr);
    if (!err)
        h->listener = listener;
    if (!err && !open_events(h))
        err = iso_fail(reterr, ISO_E_NOMEM, 0, NULL, "the system refused memory to serve");
    h->config.certificate = h->config.key = NULL; // the caller's
    if (err)
        http_close(h);
    else
        *ret = h;
    return err;
}

enum iso_err http_set_certificate(struct http *h, const char *certificate, const char *key,
                                  struct iso_errinfo *reterr)
{
    struct daemon *old = h->daemons;
    int listener = h->listener < 0 ? -1 : fcntl(h->listener, F_DUPFD_CLOEXEC, 0);
    if (listener < 0)
        return iso_fail(reterr, ISO_E_IO, 0, "tls",
                        "the server listens no more, or the system refused a descriptor");
    enum iso_err err = start_daemon(h, listener, certificate, key, reterr);
    if (err)
        return err;
    close((int)MHD_quiesce_daemon(old->mhd));
    h->listener = listener;
    pump_later(h);
    return ISO_OK;
}

void http_stop_accepting(struct http *h)
{
    if (h->listener < 0)
        return;
    close((int)MHD_quiesce_daemon(h->daemons->mhd));
    h->listener = -1;
}

void http_close(struct http *h)
{
    if (!h)
        return;
    for (struct connection *c = h->connections; c; c = c->next)
        if (c->request)
            resume(c->request); // the library stops none that is suspended
    http_stop_accepting(h);
    while (h->daemons) {
        struct daemon *d = h->daemons;
        h->daemons = d->next;
        stop_daemon(d);
    }
    sd_event_source_disable_unref(h->pump);
    sd_event_source_disable_unref(h->sweep);
    sd_event_unref(h->loop);
    free(h);
}

uint16_t http_port(const struct http *h)
{
    return h->port;
}

uint32_t http_connections(const struct http *h)
{
    return h->n_connections;
}

uint32_t http_unsent(const struct http *h)
{
    uint32_t n = 0;
    for (const struct connection *c = h->connections; c; c = c->next)
        n += c->request && c->request->state == ANSWERING;
    return n;
}
