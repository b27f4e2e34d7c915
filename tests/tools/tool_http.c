// A server over serve/http for its tests: prints its port, then what happens to requests, a line each.
//   tool_http [connections_max=N] [unread=BYTES] [body=BYTES] [bodies=BYTES]
//             [answers=BYTES] [ms=N: all times] [idle=MS] [port=N] [ADDRESS]
// Paths: /echo answers the body; /later the same after 50 ms; /hold never; /stream?n=N&bytes=B writes N lines of B bytes, one
// each millisecond; /quiet one line, then nothing; /count the connections; /written what streams have
// written in all.
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "serve/http.h"

struct task {
    struct http_request *request;
    sd_event_source *timer;
    unsigned long n, bytes;
    bool lags;
};

static sd_event *loop;
static struct http *server;
static unsigned long written;

static void task_free(struct task *t)
{
    sd_event_source_disable_unref(t->timer);
    free(t);
}

static void say(const char *what, const struct http_request *r)
{
    printf("%s %s\n", what, http_path(r));
    fflush(stdout);
}

static void write_line(struct task *t)
{
    static char line[1 << 20];
    memset(line, 'a', t->bytes);
    line[t->bytes - 1] = '\n';
    if (t->n == 0) {
        http_end(t->request);
        task_free(t);
    } else if (!http_write(t->request, (struct strv){line, t->bytes})) {
        puts("slow");
        fflush(stdout);
        task_free(t);
    } else {
        t->n--;
        written += t->bytes;
        if (!t->lags && http_lags(t->request))
            say("lags", t->request);
        t->lags = http_lags(t->request);
    }
}

static int on_timer(sd_event_source *source, uint64_t due_us, void *context)
{
    (void)due_us;
    struct task *t = context;
    if (strcmp(http_path(t->request), "/later") == 0) {
        http_respond(t->request, 200, "text/plain", http_body(t->request));
        task_free(t);
        return 0;
    }
    sd_event_source_set_time_relative(source, 1000);
    write_line(t);
    return 0;
}

static void start_timer(struct task *t, uint64_t us)
{
    ASSERT(sd_event_add_time_relative(loop, &t->timer, CLOCK_MONOTONIC, us, 1, on_timer, t) >= 0);
    sd_event_source_set_enabled(t->timer, SD_EVENT_ON);
}

static unsigned long number(const struct http_request *r, const char *name, unsigned long otherwise)
{
    const char *value = http_query(r, name);
    return value ? strtoul(value, NULL, 10) : otherwise;
}

static void on_request(void *context, struct http_request *r)
{
    (void)context;
    char text[32];
    const char *path = http_path(r);
    say(http_method(r), r);
    struct task *t = calloc(1, sizeof *t);
    ASSERT(t);
    *t = (struct task){.request = r, .n = number(r, "n", 10), .bytes = number(r, "bytes", 100)};
    http_set_data(r, t);
    if (strcmp(path, "/later") == 0) {
        start_timer(t, 50000);
    } else if (strcmp(path, "/hold") == 0) {
        return;
    } else if (strcmp(path, "/quiet") == 0) {
        http_stream(r, 200, "text/plain");
        if (!http_write(r, STRV_LIT("one\n")))
            task_free(t);
    } else if (strcmp(path, "/stream") == 0) {
        http_add_header(r, "X-Kind", "stream");
        http_stream(r, 200, "text/plain");
        start_timer(t, 1000);
    } else {
        task_free(t);
        bool count = strcmp(path, "/count") == 0, bytes = strcmp(path, "/written") == 0;
        snprintf(text, sizeof text, "%lu", count ? http_connections(server) : written);
        http_respond(r, 200, "text/plain", count || bytes ? strv_from(text) : http_body(r));
    }
}

static void on_gone(void *context, struct http_request *r)
{
    (void)context;
    say("gone", r);
    task_free(http_data(r));
}

static void on_caught_up(void *context, struct http_request *r)
{
    (void)context;
    say("caught-up", r);
}

int main(int argc, char **argv)
{
    struct http_config config = {.address = "127.0.0.1",
                                 .connections_max = 8,
                                 .body_bytes_max = 100000,
                                 .bodies_bytes_max = 1000000,
                                 .unread_bytes_max = 1000000,
                                 .answers_bytes_max = 2000000,
                                 .head_ms = 1000,
                                 .body_ms = 1000,
                                 .idle_ms = 1000,
                                 .stall_ms = 1000,
                                 .on_request = on_request,
                                 .on_gone = on_gone,
                                 .on_caught_up = on_caught_up};
    struct iso_errinfo e;
    for (int i = 1; i < argc; i++) {
        unsigned n;
        if (sscanf(argv[i], "connections_max=%u", &n) == 1)
            config.connections_max = n;
        else if (sscanf(argv[i], "ms=%u", &n) == 1)
            config.head_ms = config.body_ms = config.idle_ms = config.stall_ms = n;
        else if (sscanf(argv[i], "idle=%u", &n) == 1)
            config.idle_ms = n;
        else if (sscanf(argv[i], "unread=%u", &n) == 1)
            config.unread_bytes_max = n;
        else if (sscanf(argv[i], "body=%u", &n) == 1)
            config.body_bytes_max = n;
        else if (sscanf(argv[i], "answers=%u", &n) == 1)
            config.answers_bytes_max = n;
        else if (sscanf(argv[i], "bodies=%u", &n) == 1)
            config.bodies_bytes_max = n;
        else if (sscanf(argv[i], "port=%u", &n) == 1)
            config.port = (uint16_t)n;
        else
            config.address = argv[i];
    }
    sigset_t term;
    sigemptyset(&term);
    sigaddset(&term, SIGTERM);
    sigprocmask(SIG_BLOCK, &term, NULL);
    ASSERT(sd_event_new(&loop) >= 0);
    if (http_open(loop, &config, &server, &e)) {
        fprintf(stderr, "%s\n", e.text);
        return 1;
    }
    ASSERT(sd_event_add_signal(loop, NULL, SIGTERM, NULL, NULL) >= 0); // which ends the loop
    printf("%u\n", http_port(server));
    fflush(stdout);
    ASSERT(sd_event_loop(loop) >= 0);
    http_close(server);
    sd_event_unref(loop);
    return 0;
}
