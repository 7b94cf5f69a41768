/* Process-private mutexes, condition variables, read-write locks, barriers and raw futexes in evicted memory, contended. */
#include "hazard.h"
#include <linux/futex.h>

/* One cell a page, so that the locks are evicted while threads sleep on them. */
struct cell {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    pthread_rwlock_t lock;
    uint64_t counter, twin, turn;
    _Atomic uint32_t futex;
} __attribute__((aligned(4096)));

enum { THREADS = 4, CELLS = 64, ROUNDS = 150 };
static struct cell *cells;
static pthread_barrier_t *barrier;

static void *contend(void *argument) {
    uint64_t me = (uintptr_t)argument;
    char *own = map_filled(memory_bytes / 8, me);
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < CELLS; i++) {
            struct cell *cell = cells + i;
            pthread_mutex_lock(&cell->mutex);
            if (cell->counter != cell->twin) fail("mutex of cell %d let two threads in", i);
            cell->counter++;
            cell->twin++;
            pthread_mutex_unlock(&cell->mutex);
            pthread_rwlock_rdlock(&cell->lock);
            if (cell->counter == 0) fail("cell %d lost its counter", i);
            pthread_rwlock_unlock(&cell->lock);
        }
        struct cell *cell = cells + round % CELLS;
        pthread_mutex_lock(&cell->mutex);
        while (cell->turn % THREADS != me) pthread_cond_wait(&cell->changed, &cell->mutex);
        cell->turn++;
        pthread_cond_broadcast(&cell->changed);
        pthread_mutex_unlock(&cell->mutex);
        size_t slice = memory_bytes / 8 / 10 / PAGE * PAGE;
        check(own + round % 10 * slice, slice, me, "own memory between locks");
        pthread_barrier_wait(barrier);
    }
    /* A raw futex handed round. */
    for (uint32_t round = 0; round < 200; round++) {
        _Atomic uint32_t *word = &cells[0].futex;
        uint32_t now;
        while ((now = atomic_load(word)) % THREADS != me)
            if (syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, now, NULL, NULL, 0) < 0 && errno != EAGAIN && errno != EINTR)
                fail("futex wait: %s", strerror(errno));
        atomic_fetch_add(word, 1);
        syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, THREADS, NULL, NULL, 0);
        *(volatile char *)(own + mix(round * 7 + me) % (memory_bytes / 8));
    }
    return NULL;
}

static void hazard(void) {
    pthread_t threads[THREADS];
    cells = map_new(CELLS * sizeof *cells);
    barrier = malloc(sizeof *barrier);
    pthread_barrier_init(barrier, NULL, THREADS);
    for (int i = 0; i < CELLS; i++) {
        pthread_mutex_init(&cells[i].mutex, NULL);
        pthread_cond_init(&cells[i].changed, NULL);
        pthread_rwlock_init(&cells[i].lock, NULL);
    }
    struct churn *churn = start_churn(memory_bytes / 4);
    for (uintptr_t i = 0; i < THREADS; i++) start_thread(threads + i, contend, (void *)i);
    for (int i = 0; i < THREADS; i++) join_thread(threads[i]);
    stop_churn(churn);
    for (int i = 0; i < CELLS; i++)
        if (cells[i].counter != THREADS * ROUNDS) fail("cell %d counted %lu", i, cells[i].counter);
}
