// Pieces made by several threads: all of them, in order, each in a buffer of its own, whatever the threads do.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <time.h>
#include <cmocka.h>

#include "base/num.h"
#include "compile/workers.h"

#define BUFFER_BYTES 5000

struct run {
    uint32_t n, taken, bad; // piece `bad` fails; n: none does
    bool bad_take;
};

static void fill(uint32_t number, uint8_t *bytes)
{
    for (uint32_t i = 0; i < BUFFER_BYTES; i++)
        bytes[i] = (uint8_t)(number * 31 + i);
}

static enum iso_err make(void *context, uint32_t number, uint8_t *buffer, struct iso_errinfo *reterr)
{
    const struct run *r = context;
    const struct timespec nap = {.tv_nsec = number * 7919 % 13 * 20000}; // later pieces are often made first
    nanosleep(&nap, NULL);
    fill(number, buffer);
    // The one after it fails too, and sooner; the first is told of.
    if (!r->bad_take && (number == r->bad || number == r->bad + 1))
        return iso_fail(reterr, ISO_E_IO, number, NULL, "piece %u is bad", number);
    return ISO_OK;
}

static enum iso_err take(void *context, uint32_t number, const uint8_t *buffer, struct iso_errinfo *reterr)
{
    struct run *r = context;
    uint8_t want[BUFFER_BYTES];
    assert_int_equal(number, r->taken);
    fill(number, want);
    assert_memory_equal(buffer, want, sizeof want);
    r->taken++;
    return r->bad_take && number == r->bad
               ? iso_fail(reterr, ISO_E_IO, number, NULL, "taking %u failed", number)
               : ISO_OK;
}

static void test_all_in_order(void **state)
{
    (void)state;
    static const uint32_t THREADS[] = {1, 2, 7}, PIECES[] = {0, 1, 2, 13, 200};
    for (size_t t = 0; t < ARRAY_LEN(THREADS); t++) {
        struct workers *w;
        assert_int_equal(workers_open(THREADS[t], BUFFER_BYTES, &w, NULL), ISO_OK);
        for (size_t i = 0; i < ARRAY_LEN(PIECES); i++) {
            struct run r = {.n = PIECES[i], .bad = UINT32_MAX - 1};
            assert_int_equal(workers_run(w, r.n, make, take, &r, NULL), ISO_OK);
            assert_int_equal(r.taken, r.n);
        }
        workers_close(w);
    }
}

static void test_errors(void **state)
{
    (void)state;
    struct workers *w;
    struct iso_errinfo e;
    assert_int_equal(workers_open(3, BUFFER_BYTES, &w, &e), ISO_OK);
    for (uint32_t bad = 0; bad < 20; bad++) {
        struct run making = {.bad = bad}, taking = {.bad = bad, .bad_take = true},
                   good = {.bad = UINT32_MAX - 1};
        assert_int_equal(workers_run(w, 20, make, take, &making, &e), ISO_E_IO);
        assert_int_equal(e.offset, bad);
        assert_int_equal(making.taken, bad);
        assert_int_equal(workers_run(w, 20, make, take, &taking, &e), ISO_E_IO);
        assert_non_null(strstr(e.text, "taking"));
        assert_int_equal(taking.taken, bad + 1);
        assert_int_equal(workers_run(w, 20, make, take, &good, &e), ISO_OK); // usable after an error
    }
    workers_close(w);
    workers_close(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_in_order),
        cmocka_unit_test(test_errors),
    };
    return cmocka_run_group_tests_name("workers", tests, NULL, NULL);
}
