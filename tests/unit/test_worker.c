// A unit process behind its channel: what it answers is what a unit in this process answers; it refuses, cancels, fails and ends as
// told. This program is the unit process too, when started with the argument "unit".
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "tiny_plan.h"
#include "base/num.h"
#include "unit/remote.h"
#include "unit/unit.h"
#include "unit/worker.h"

#define VOCAB      40
#define SEQ_MAX    128
#define SLOTS      4
#define HIDDEN     32
#define REQUESTS   40
#define TIMEOUT_MS 60000

static const char *const ARGV[] = {"test_worker", "unit", NULL};

struct fixture {
    struct tiny_plan bytes;
    struct plan plan;
    int plan_fd;
    struct channel_config config;
    struct remote remote;
};

static void fixture_init(struct fixture *f)
{
    static struct tiny_model model; // large
    struct iso_errinfo e = {0};
    struct tiny_shape shape = TINY_LLAMA;
    shape.type = GGML_F32, shape.context = SEQ_MAX;
    assert_int_equal(shape.vocab, VOCAB);
    tiny_init(&model, &shape);
    const struct compile_options options = {.max_seq_len = SEQ_MAX, .slots = SLOTS, .batch_tokens = 24};
    *f = (struct fixture){.bytes = tiny_plan_make(&model, &options)};
    assert_int_equal(plan_attach(f->bytes.bytes, f->bytes.n, &f->plan, &e), ISO_OK);
    f->plan_fd = memfd_create("plan", MFD_CLOEXEC);
    assert_int_equal(write(f->plan_fd, f->bytes.bytes, f->bytes.n), f->bytes.n);
    f->config = (struct channel_config){.plan_hash = f->plan.header->hash, .threads = 2, .isa = ISA_COUNT};
}

static void fixture_deinit(struct fixture *f)
{
    close(f->plan_fd);
    tiny_plan_free(&f->bytes);
}

static void await(int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    assert_int_equal(poll(&p, 1, TIMEOUT_MS), 1);
}

static void await_events(struct fixture *f)
{
    uint64_t count;
    await(f->remote.event_fd);
    assert_int_equal(read(f->remote.event_fd, &count, sizeof count), sizeof count);
}

static enum channel_state start(struct fixture *f)
{
    struct iso_errinfo e = {0};
    if (remote_start(ARGV, f->plan_fd, f->plan.header, &f->config, &f->remote, &e))
        fail_msg("%s", e.text);
    while (remote_state(&f->remote) == CHANNEL_STARTING)
        await_events(f);
    return remote_state(&f->remote);
}

static void end(struct fixture *f)
{
    remote_end(&f->remote);
    await(f->remote.pid_fd);
    assert_int_equal(remote_reap(&f->remote), 0);
    assert_int_equal(remote_state(&f->remote), CHANNEL_ENDED);
    remote_close(&f->remote);
}

static struct unit_request request_of(uint32_t i)
{
    static uint32_t prompts[REQUESTS][SEQ_MAX];
    static const struct logit_bias BIAS[] = {{3, 4}, {5, -100}};
    for (uint32_t k = 0; k < SEQ_MAX; k++)
        prompts[i][k] = (k * 7 + i % 3 * (k > 20) + k * k % 5) % (VOCAB - 1);
    struct unit_request r = {.prompt = prompts[i],
                             .n_prompt = 1 + i * 13 % 70,
                             .max_output = 1 + i * 5 % 40,
                             .sampling = SAMPLING_GREEDY,
                             .ignore_eog = i % 2,
                             .score = i % 7 == 3};
    if (i % 3 == 1)
        r.sampling = (struct sampling){.temperature = 1,
                                       .top_p = 0.9f,
                                       .repeat_penalty = 1,
                                       .presence_penalty = 0.5f,
                                       .seed = i,
                                       .bias = BIAS,
                                       .n_bias = 2};
    return r;
}

struct answer {
    uint32_t n, tokens[SEQ_MAX], finish;
    float logprobs[SEQ_MAX];
    struct token_logprob top[SEQ_MAX][3];
    bool started, ended;
    float hidden[HIDDEN]; // of the last token
};

// By a unit in this process, one after the other.
static void answer_here(struct fixture *f, struct answer *answers)
{
    struct unit *u;
    struct iso_errinfo e;
    assert_int_equal(unit_open(&f->plan, &(struct unit_config){.threads = 1}, &u, &e), ISO_OK);
    for (uint32_t i = 0; i < REQUESTS; i++) {
        struct unit_request r = request_of(i);
        struct answer *a = &answers[i];
        uint32_t slot;
        assert_int_equal(unit_submit(u, &r, &slot, NULL, &e), ISO_OK);
        for (struct unit_result got = unit_step(u); got.rows > 0; got = unit_step(u)) {
            for (uint32_t k = 0; k < got.n; k++) {
                struct token_logprob list[4];
                uint32_t next = got.events[k].position + 1;
                uint32_t token = r.score && next < r.n_prompt ? r.prompt[next] : got.events[k].token;
                assert_true(logprobs_of(unit_logits(u, got.events[k].row), VOCAB,
                                        unit_log_sum_exp(u, got.events[k].row), token, 3, list));
                a->logprobs[a->n] = list[0].logprob;
                memcpy(a->top[a->n], list + 1, sizeof a->top[0]);
                memcpy(a->hidden, unit_hidden(u, got.events[k].row), sizeof a->hidden);
                a->tokens[a->n++] = token;
                a->finish = got.events[k].finish;
            }
        }
    }
    unit_close(u);
}

static void take_events(struct fixture *f, struct answer *answers)
{
    struct channel_event e;
    await_events(f);
    for (enum ring_taken t; (t = remote_take(&f->remote, &e)) != RING_EMPTY;) {
        assert_int_equal(t, RING_TAKEN);
        if (e.kind == CHANNEL_STEP) {
            assert_true(e.rows > 0 && e.rows <= 24 && e.step_ns > 0);
            continue;
        }
        struct answer *a = &answers[e.serial - 1];
        if (e.kind == CHANNEL_STARTED) {
            a->started = true;
            continue;
        }
        assert_int_equal(e.kind, CHANNEL_TOKEN);
        assert_true(a->started && !a->ended && a->n < SEQ_MAX);
        a->logprobs[a->n] = e.logprob;
        memcpy(a->top[a->n], e.top, sizeof a->top[0]);
        a->tokens[a->n++] = e.token;
        a->finish = e.finish;
        a->ended = e.finish != UNIT_RUNNING;
        memcpy(a->hidden, channel_hidden(&f->remote.channel, e.area), sizeof a->hidden);
    }
}

static void test_answers_are_those_of_a_unit(void **state)
{
    (void)state;
    static struct answer want[REQUESTS], got[REQUESTS];
    struct fixture f;
    fixture_init(&f);
    answer_here(&f, want);
    assert_int_equal(start(&f), CHANNEL_READY);
    for (uint32_t i = 0; i < REQUESTS;) {
        struct unit_request r = request_of(i);
        uint32_t area;
        if (remote_submit(&f.remote, &r, 3, i % 5 == 2, i + 1, &area))
            i++;
        else
            take_events(&f, got);
    }
    while (f.remote.n_free < SLOTS)
        take_events(&f, got);
    assert_true(atomic_load(&f.remote.channel.shared->steps) > 0);
    for (uint32_t i = 0; i < REQUESTS; i++) {
        assert_true(got[i].ended);
        assert_int_equal(got[i].n, want[i].n);
        assert_int_equal(got[i].finish, want[i].finish);
        if (i % 5 == 2)
            assert_memory_equal(got[i].hidden, want[i].hidden, sizeof want[i].hidden);
        assert_memory_equal(got[i].tokens, want[i].tokens, want[i].n * sizeof *want[i].tokens);
        assert_memory_equal(got[i].logprobs, want[i].logprobs, want[i].n * sizeof *want[i].logprobs);
        assert_memory_equal(got[i].top, want[i].top, want[i].n * sizeof *want[i].top);
    }
    end(&f);
    fixture_deinit(&f);
}

static struct channel_event take_one(struct fixture *f)
{
    struct channel_event e;
    do
        while (remote_take(&f->remote, &e) == RING_EMPTY)
            await_events(f);
    while (e.kind == CHANNEL_STEP);
    return e;
}

static void test_cancel_and_refusal(void **state)
{
    (void)state;
    struct fixture f;
    uint32_t area;
    fixture_init(&f);
    assert_int_equal(start(&f), CHANNEL_READY);
    struct unit_request r = request_of(1), bad = request_of(2);
    r.max_output = SEQ_MAX - r.n_prompt;
    assert_true(remote_submit(&f.remote, &r, LOGPROBS_NONE, false, 7, &area));
    assert_int_equal(take_one(&f).kind, CHANNEL_STARTED);
    remote_cancel(&f.remote, area);
    struct channel_event e = take_one(&f);
    while (e.kind == CHANNEL_TOKEN && e.finish == UNIT_RUNNING)
        e = take_one(&f);
    assert_int_equal(e.kind, CHANNEL_CANCELLED);
    assert_int_equal(e.serial, 7);
    bad.sampling.temperature = NAN;
    assert_true(remote_submit(&f.remote, &bad, LOGPROBS_NONE, false, 8, &area));
    e = take_one(&f);
    assert_int_equal(e.kind, CHANNEL_REFUSED);
    assert_int_equal(e.err, ISO_E_USAGE);
    assert_int_equal(f.remote.n_free, SLOTS);
    end(&f);
    fixture_deinit(&f);
}

// The unit waits for room, and ends all the same.
static void test_a_front_that_takes_nothing(void **state)
{
    (void)state;
    struct fixture f;
    struct unit_request r = request_of(1);
    uint32_t area;
    fixture_init(&f);
    assert_int_equal(start(&f), CHANNEL_READY);
    r.max_output = SEQ_MAX - r.n_prompt;
    struct ring *events = &f.remote.channel.events;
    uint32_t needed = f.remote.channel.commands.capacity + SLOTS + 1;
    events->shared->taken = events->shared->put - (events->capacity - needed - 10);
    assert_true(remote_submit(&f.remote, &r, LOGPROBS_NONE, false, 1, &area));
    for (int i = 0; ring_room(events) >= needed; i++) {
        assert_true(i < TIMEOUT_MS);
        usleep(1000);
    }
    remote_cancel(&f.remote, area);
    remote_cancel(&f.remote, area); // one is sent
    assert_int_equal(ring_room(&f.remote.channel.commands), f.remote.channel.commands.capacity - 1);
    end(&f);
    fixture_deinit(&f);
}

static void test_what_can_not_start(void **state)
{
    (void)state;
    struct fixture f;
    fixture_init(&f);
    f.config.pool_bytes_max = 1000;
    assert_int_equal(start(&f), CHANNEL_FAILED);
    assert_int_equal(f.remote.channel.shared->failure.code, ISO_E_NOFIT);
    remote_close(&f.remote);
    f.config.pool_bytes_max = 0;
    f.config.plan_hash.low ^= 1;
    assert_int_equal(start(&f), CHANNEL_FAILED);
    assert_non_null(strstr(f.remote.channel.shared->failure.text, "changed while it was being loaded"));
    await(f.remote.pid_fd);
    assert_int_not_equal(remote_reap(&f.remote), 0);
    remote_close(&f.remote);
    fixture_deinit(&f);
}

// A unit that died is seen by its pidfd; one that wrote nonsense, by its events.
static void test_death_and_nonsense(void **state)
{
    (void)state;
    struct fixture f;
    struct channel_event e;
    fixture_init(&f);
    assert_int_equal(start(&f), CHANNEL_READY);
    kill(f.remote.pid, SIGKILL);
    await(f.remote.pid_fd);
    assert_true(WIFSIGNALED(remote_reap(&f.remote)));
    remote_close(&f.remote);
    static const struct channel_event NONSENSE[] = {
        {.kind = CHANNEL_TOKEN, .serial = 2},
        {.kind = CHANNEL_TOKEN, .serial = 1, .area = SLOTS},
        {.kind = CHANNEL_TOKEN, .serial = 1, .area = UINT32_MAX},
        {.kind = CHANNEL_TOKEN, .serial = 0, .area = 1},
        {.kind = CHANNEL_STEP + 1, .serial = 1},
        {.kind = CHANNEL_CANCELLED, .serial = 1}, // nobody asked
        {.kind = CHANNEL_TOKEN, .serial = 1, .finish = UNIT_NONFINITE + 1},
        {.kind = CHANNEL_TOKEN, .serial = 1, .token = VOCAB},
        {.kind = CHANNEL_TOKEN, .serial = 1, .top = {[3] = {.id = VOCAB}}},
        {.kind = CHANNEL_REFUSED, .serial = 1, .err = ISO_ERR_COUNT},
    };
    assert_int_equal(start(&f), CHANNEL_READY);
    for (size_t i = 0; i < ARRAY_LEN(NONSENSE); i++) {
        f.remote.serials[0] = 1; // as if a request were out
        f.remote.broken = false;
        assert_true(ring_put(&f.remote.channel.events, &NONSENSE[i]));
        assert_int_equal(remote_take(&f.remote, &e), RING_BROKEN);
        assert_true(f.remote.broken);
    }
    f.remote.serials[0] = 0;
    remote_close(&f.remote);
    for (int i = 0; i < 2; i++) { // counts that can't be
        assert_int_equal(start(&f), CHANNEL_READY);
        struct channel *c = &f.remote.channel;
        if (i == 0) {
            atomic_fetch_add(&c->events.shared->put, c->events.capacity + 1);
            assert_int_equal(remote_take(&f.remote, &e), RING_BROKEN);
        } else {
            struct unit_request r = request_of(0);
            uint32_t area;
            atomic_fetch_add(&c->commands.shared->taken, 1000);
            assert_true(remote_submit(&f.remote, &r, LOGPROBS_NONE, false, 1, &area));
        }
        assert_true(f.remote.broken);
        remote_close(&f.remote);
    }
    fixture_deinit(&f);
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "unit") == 0) {
        struct iso_errinfo e;
        return iso_err_exit_code(worker_run(&e));
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_answers_are_those_of_a_unit), cmocka_unit_test(test_cancel_and_refusal),
        cmocka_unit_test(test_a_front_that_takes_nothing), cmocka_unit_test(test_what_can_not_start),
        cmocka_unit_test(test_death_and_nonsense)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
