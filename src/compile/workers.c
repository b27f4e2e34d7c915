#include "compile/workers.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>

#include "base/arena.h"
#include "base/assert.h"
#include "base/fpenv.h"
#include "base/num.h"

#define BUFFER_ALIGN 4096

struct piece {
    uint8_t *buffer;
    bool made;
    enum iso_err err;
    struct iso_errinfo info;
};

// Piece i is in pieces[i % n_pieces]. Everything below `lock` is guarded by it.
struct workers {
    struct arena arena;
    pthread_t threads[WORKERS_MAX];
    uint32_t n_threads, n_pieces;
    pthread_mutex_t lock;
    pthread_cond_t changed; // there is something to make, a piece was made, or the end has come
    struct piece pieces[WORKERS_PIECES_MAX];
    workers_make *make;
    void *context;
    uint32_t n;                    // pieces of this run
    uint32_t next, taken, at_work; // first not begun; first not taken; being made
    bool closing;
};

static void make_piece(struct workers *w, uint32_t number)
{
    struct piece *p = &w->pieces[number % w->n_pieces];
    workers_make *make = w->make;
    void *context = w->context;
    w->at_work++;
    pthread_mutex_unlock(&w->lock);
    struct fpenv env = fpenv_enter();
    enum iso_err err = make(context, number, p->buffer, &p->info);
    fpenv_leave(env);
    pthread_mutex_lock(&w->lock);
    p->err = err;
    p->made = true;
    w->at_work--;
    pthread_cond_broadcast(&w->changed);
}

static void *worker(void *argument)
{
    struct workers *w = argument;
    pthread_mutex_lock(&w->lock);
    while (!w->closing) {
        if (w->next < w->n && w->next - w->taken < w->n_pieces)
            make_piece(w, w->next++);
        else
            pthread_cond_wait(&w->changed, &w->lock);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

uint32_t workers_usable(void)
{
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) ? 1
                                                  : (uint32_t)num_min((uint64_t)CPU_COUNT(&set), WORKERS_MAX);
}

enum iso_err workers_open(uint32_t threads, uint64_t buffer_bytes, struct workers **ret,
                          struct iso_errinfo *reterr)
{
    ASSERT(threads >= 1 && threads <= WORKERS_MAX);
    struct workers *w = calloc(1, sizeof *w);
    if (!w)
        return iso_fail(reterr, ISO_E_NOMEM, 0, NULL, "the system refused memory to compile");
    w->n_pieces = 2 * threads;
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->changed, NULL);
    buffer_bytes = num_align(buffer_bytes, BUFFER_ALIGN);
    bool ok = arena_init(&w->arena, w->n_pieces * buffer_bytes) == ISO_OK;
    for (uint32_t i = 0; i < w->n_pieces && ok; i++)
        w->pieces[i].buffer = w->arena.base + i * buffer_bytes;
    while (w->n_threads < threads && ok) {
        ok = pthread_create(&w->threads[w->n_threads], NULL, worker, w) == 0;
        w->n_threads += ok;
    }
    if (w->n_threads == 0) { // fewer threads than asked for are enough
        workers_close(w);
        return iso_fail(reterr, ISO_E_NOMEM, 0, NULL, "the system refused memory or threads to compile");
    }
    *ret = w;
    return ISO_OK;
}

void workers_close(struct workers *w)
{
    if (!w)
        return;
    pthread_mutex_lock(&w->lock);
    w->closing = true;
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->lock);
    for (uint32_t i = 0; i < w->n_threads; i++)
        pthread_join(w->threads[i], NULL);
    pthread_cond_destroy(&w->changed);
    pthread_mutex_destroy(&w->lock);
    arena_deinit(&w->arena);
    free(w);
}

enum iso_err workers_run(struct workers *w, uint32_t n, workers_make *make, workers_take *take, void *context,
                         struct iso_errinfo *reterr)
{
    enum iso_err err = ISO_OK;
    pthread_mutex_lock(&w->lock);
    w->make = make;
    w->context = context;
    w->n = n;
    w->next = w->taken = 0;
    pthread_cond_broadcast(&w->changed);
    while (w->taken < n && !err) {
        struct piece *p = &w->pieces[w->taken % w->n_pieces];
        while (!p->made)
            pthread_cond_wait(&w->changed, &w->lock);
        pthread_mutex_unlock(&w->lock);
        err = p->err;
        if (err && reterr)
            *reterr = p->info;
        if (!err)
            err = take(context, w->taken, p->buffer, reterr);
        pthread_mutex_lock(&w->lock);
        p->made = false;
        w->taken++;
        pthread_cond_broadcast(&w->changed);
    }
    w->n = 0; // after an error no more is begun
    while (w->at_work > 0)
        pthread_cond_wait(&w->changed, &w->lock);
    for (uint32_t i = 0; i < w->n_pieces; i++)
        w->pieces[i].made = false;
    pthread_mutex_unlock(&w->lock);
    return err;
}
