// The team of threads: every thread runs every run, barriers hold, a start that fails leaves nothing behind,
// and workers compute in the defined floating-point environment.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "base/fpenv.h"
#include "unit/team.h"

#define THREADS  4
#define RUNS     300
#define BARRIERS 5

// The thread whose pthread_create fails; 0: none. Linked with --wrap.
static int fail_at;
static int created;

int __real_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*start)(void *),
                          void *argument);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*start)(void *),
                          void *argument);

int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*start)(void *),
                          void *argument)
{
    if (++created == fail_at)
        return EAGAIN;
    return __real_pthread_create(thread, attributes, start, argument);
}

// What the kernel is said to permit real-time threads; NULL: it is asked.
static const char *rt_runtime_us;

FILE *__real_fopen64(const char *path, const char *mode);
FILE *__wrap_fopen64(const char *path, const char *mode);

FILE *__wrap_fopen64(const char *path, const char *mode)
{
    if (rt_runtime_us && strcmp(path, "/proc/sys/kernel/sched_rt_runtime_us") == 0)
        return fmemopen((void *)rt_runtime_us, strlen(rt_runtime_us), "r");
    return __real_fopen64(path, mode);
}

static enum iso_err open_plain(struct team *team, uint32_t threads)
{
    return team_open(team, &(struct team_config){.threads = threads}, NULL);
}

static int threads_alive(void)
{
    int n = 0;
    DIR *folder = opendir("/proc/self/task");
    assert_non_null(folder);
    while (readdir(folder))
        n++;
    closedir(folder);
    return n - 2; // "." and ".."
}

struct count {
    struct team *team;
    uint32_t reached[THREADS]; // plain: the barrier alone makes the others' values visible
    uint32_t wrong[THREADS];
};

// Between two barriers every thread has counted the same.
static void count_up(void *context, uint32_t thread)
{
    struct count *c = context;
    for (int i = 0; i < BARRIERS; i++) {
        c->reached[thread]++;
        team_barrier(c->team);
        for (uint32_t t = 0; t < c->team->threads; t++)
            c->wrong[thread] += c->reached[t] != c->reached[thread];
        team_barrier(c->team);
    }
}

static void test_barriers(void **state)
{
    (void)state;
    for (uint32_t threads = 1; threads <= THREADS; threads++) {
        struct team team;
        struct count c = {.team = &team};
        assert_int_equal(open_plain(&team, threads), ISO_OK);
        for (uint32_t run = 1; run <= RUNS; run++) {
            team_run(&team, count_up, &c);
            for (uint32_t t = 0; t < threads; t++)
                assert_int_equal(c.reached[t], run * BARRIERS);
        }
        team_close(&team);
        team_close(&team); // a second time does nothing
        for (uint32_t t = 0; t < threads; t++)
            assert_int_equal(c.wrong[t], 0);
    }
}

static void test_open_and_close(void **state)
{
    (void)state;
    int before = threads_alive();
    for (int i = 0; i < 100; i++) {
        struct team team;
        assert_int_equal(open_plain(&team, 1 + (uint32_t)i % THREADS), ISO_OK);
        team_close(&team);
    }
    assert_int_equal(threads_alive(), before);
}

static void test_start_fails(void **state)
{
    (void)state;
    int before = threads_alive();
    for (int i = 1; i < THREADS; i++) {
        struct team team;
        struct iso_errinfo e = {0};
        created = 0;
        fail_at = i;
        assert_int_equal(team_open(&team, &(struct team_config){.threads = THREADS}, &e), ISO_E_NOMEM);
        fail_at = 0;
        assert_non_null(strstr(e.text, "starting thread"));
        assert_int_equal(threads_alive(), before);
        team_close(&team); // nothing is open
    }
}

static void test_cpu_does_not_exist(void **state)
{
    (void)state;
    cpu_set_t saved;
    assert_int_equal(sched_getaffinity(0, sizeof saved, &saved), 0);
    uint32_t cpu = 0;
    while (!CPU_ISSET(cpu, &saved))
        cpu++;
    const uint32_t ABSENT[] = {CPU_SETSIZE - 1, CPU_SETSIZE, UINT32_MAX};
    int before = threads_alive();
    for (size_t i = 0; i < sizeof ABSENT / sizeof ABSENT[0]; i++) {
        for (uint32_t at = 0; at < 3; at++) { // also after one or two that exist
            struct team team;
            struct iso_errinfo e = {0};
            uint32_t cpus[3] = {cpu, cpu, cpu};
            cpus[at] = ABSENT[i];
            assert_int_equal(team_open(&team, &(struct team_config){.threads = 3, .cpus = cpus}, &e),
                             ISO_E_USAGE);
            assert_non_null(strstr(e.text, "CPU"));
            assert_int_equal(threads_alive(), before);
        }
    }
    assert_int_equal(sched_setaffinity(0, sizeof saved, &saved), 0);
}

static void see_cpu(void *context, uint32_t thread)
{
    cpu_set_t set;
    uint32_t *cpus = context;
    cpus[thread] = UINT32_MAX;
    if (sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) == 1)
        for (cpus[thread] = 0; !CPU_ISSET(cpus[thread], &set);)
            cpus[thread]++;
}

static void test_pinning(void **state)
{
    (void)state;
    cpu_set_t saved;
    struct team team;
    uint32_t first = 0, last, seen[3];
    assert_int_equal(sched_getaffinity(0, sizeof saved, &saved), 0);
    while (!CPU_ISSET(first, &saved))
        first++;
    for (last = CPU_SETSIZE - 1; !CPU_ISSET(last, &saved);)
        last--;
    const uint32_t cpus[3] = {last, first, last};
    assert_int_equal(team_open(&team, &(struct team_config){.threads = 3, .cpus = cpus}, NULL), ISO_OK);
    team_run(&team, see_cpu, seen);
    team_close(&team);
    assert_int_equal(sched_setaffinity(0, sizeof saved, &saved), 0);
    assert_memory_equal(seen, cpus, sizeof cpus);
}

// ---- real-time scheduling

static void see_policy(void *context, uint32_t thread)
{
    ((int *)context)[thread] = sched_getscheduler(0);
}

// Where the kernel would stop such a thread for a part of each period it is refused, and the caller is as it was.
static void test_fifo_is_refused(void **state)
{
    (void)state;
    static const char *const LESS[] = {"950000", "0", "999999", "no number"};
    int before = threads_alive();
    for (size_t i = 0; i < sizeof LESS / sizeof LESS[0]; i++) {
        struct team team;
        struct iso_errinfo e = {0};
        rt_runtime_us = LESS[i];
        assert_int_equal(team_open(&team, &(struct team_config){.threads = 2, .fifo = true}, &e),
                         ISO_E_UNSUPPORTED);
        rt_runtime_us = NULL;
        assert_non_null(strstr(e.text, "sched_rt_runtime_us"));
        assert_int_equal(sched_getscheduler(0), SCHED_OTHER);
        assert_int_equal(threads_alive(), before);
    }
}

// Where the kernel permits all of a period, every thread has it, or the system's refusal is told.
static void test_fifo_is_taken(void **state)
{
    (void)state;
    struct team team;
    struct iso_errinfo e = {0};
    int seen[3] = {-1, -1, -1};
    rt_runtime_us = "-1";
    enum iso_err err = team_open(&team, &(struct team_config){.threads = 3, .fifo = true}, &e);
    rt_runtime_us = NULL;
    if (err) {
        assert_int_equal(err, ISO_E_UNSUPPORTED);
        assert_non_null(strstr(e.text, "CAP_SYS_NICE"));
        print_message("# only the refusal could be tested: this user may not use SCHED_FIFO\n");
    } else {
        team_run(&team, see_policy, seen);
        team_close(&team);
        for (int i = 0; i < 3; i++)
            assert_int_equal(seen[i], SCHED_FIFO);
    }
    assert_int_equal(sched_getscheduler(0), SCHED_OTHER);
}

// 2^-149 * 1: zero where denormals are flushed.
static void multiply_denormal(void *context, uint32_t thread)
{
    volatile float smallest = 0x1p-149f, one = 1;
    ((volatile float *)context)[thread] = smallest * one;
}

static void test_denormals_are_kept(void **state)
{
    (void)state;
    struct team team;
    float seen[2] = {0};
#ifdef __x86_64__
    unsigned saved = _mm_getcsr();
    _mm_setcsr(saved |
               0x8040); // flush to zero, as a library built with fast-math leaves it; threads inherit it
    assert_int_equal(open_plain(&team, 2), ISO_OK);
    team_run(&team, multiply_denormal, seen);
    team_close(&team);
    _mm_setcsr(saved);
#else
    assert_int_equal(open_plain(&team, 2), ISO_OK);
    team_run(&team, multiply_denormal, seen);
    team_close(&team);
#endif
    assert_true(seen[1] > 0);
}

#define ITEMS_MAX 1000

struct taking {
    struct team *team;
    uint32_t items, least;
    bool lags; // thread 0 waits until the others have taken all they can
    _Atomic uint32_t done, wrong;
    _Atomic uint8_t times[2][ITEMS_MAX]; // how often an item was taken, before and after a barrier
};

static void take_all(void *context, uint32_t thread)
{
    struct taking *t = context;
    for (int round = 0; round < 2; round++) {
        uint32_t begin, end;
        while (t->lags && thread == 0 && atomic_load(&t->done) + 1 < t->team->threads)
            sched_yield();
        while (team_take(t->team, t->items, t->least, &begin, &end)) {
            bool fits = begin < end && end <= t->items && (end - begin >= t->least || end == t->items);
            if (!fits || (t->lags && thread == 0))
                atomic_fetch_add(&t->wrong, 1);
            for (uint32_t i = begin; fits && i < end; i++)
                atomic_fetch_add(&t->times[round][i], 1);
        }
        atomic_fetch_add(&t->done, 1);
        team_barrier(t->team);
        atomic_store(&t->done, 0);
        team_barrier(t->team);
    }
}

// Every item is taken once between barriers, whatever the threads' pace.
static void test_take(void **state)
{
    (void)state;
    const uint32_t ITEMS[] = {0, 1, 2, 63, 64, 65, ITEMS_MAX}, LEAST[] = {1, 4, 100};
    for (uint32_t threads = 1; threads <= THREADS; threads++) {
        struct team team;
        assert_int_equal(open_plain(&team, threads), ISO_OK);
        for (size_t i = 0; i < 2 * (sizeof ITEMS / sizeof ITEMS[0]) * (sizeof LEAST / sizeof LEAST[0]); i++) {
            struct taking t = {.team = &team,
                               .items = ITEMS[i / 2 % (sizeof ITEMS / sizeof ITEMS[0])],
                               .least = LEAST[i / 2 / (sizeof ITEMS / sizeof ITEMS[0])],
                               .lags = i % 2 && threads > 1};
            team_run(&team, take_all, &t);
            assert_int_equal(t.wrong, 0);
            for (uint32_t item = 0; item < ITEMS_MAX; item++)
                for (int round = 0; round < 2; round++)
                    assert_int_equal(t.times[round][item], item < t.items);
        }
        team_close(&team);
    }
}

// Parts shrink towards the end: one caller does not take what others could have.
static void test_parts(void **state)
{
    (void)state;
    static const struct {
        uint32_t threads, items, least, parts[10];
    } CASES[] = {
        {1, 100, 4, {100}},
        {2, 100, 4, {33, 22, 15, 10, 6, 4, 4, 4, 2}},
        {4, 9, 1, {1, 1, 1, 1, 1, 1, 1, 1, 1}},
        {2, 3, 100, {3}},
        {2, UINT32_MAX, UINT32_MAX / 2, {UINT32_MAX / 2, UINT32_MAX / 2, 1}},
    };
    for (size_t c = 0; c < sizeof CASES / sizeof CASES[0]; c++) {
        struct team team;
        uint32_t at = 0, begin, end;
        assert_int_equal(open_plain(&team, CASES[c].threads), ISO_OK);
        for (size_t i = 0; at < CASES[c].items; i++, at = end) {
            assert_true(team_take(&team, CASES[c].items, CASES[c].least, &begin, &end));
            assert_int_equal(begin, at);
            assert_int_equal(end - begin, CASES[c].parts[i]);
        }
        assert_false(team_take(&team, CASES[c].items, CASES[c].least, &begin, &end));
        team_close(&team);
    }
}

static void note_interrupt(void *context, uint32_t thread)
{
    sigset_t blocked;
    pthread_sigmask(SIG_BLOCK, NULL, &blocked);
    ((int *)context)[thread] = sigismember(&blocked, SIGINT);
}

// A worker that took a signal would leave the caller in the wait that the signal should end.
static void test_signals_go_to_the_caller(void **state)
{
    (void)state;
    struct team team;
    int blocked[THREADS];
    assert_int_equal(open_plain(&team, THREADS), ISO_OK);
    team_run(&team, note_interrupt, blocked);
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(blocked[i], i > 0);
    team_close(&team);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_barriers),
        cmocka_unit_test(test_open_and_close),
        cmocka_unit_test(test_parts),
        cmocka_unit_test(test_start_fails),
        cmocka_unit_test(test_cpu_does_not_exist),
        cmocka_unit_test(test_pinning),
        cmocka_unit_test(test_signals_go_to_the_caller),
        cmocka_unit_test(test_fifo_is_refused),
        cmocka_unit_test(test_fifo_is_taken),
        cmocka_unit_test(test_denormals_are_kept),
        cmocka_unit_test(test_take),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
