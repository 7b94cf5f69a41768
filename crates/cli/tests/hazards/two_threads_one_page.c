/* Threads that write different words of the same pages at the same time: no write is lost, one fetch serves all. */
#include "hazard.h"

enum { THREADS = 4 };
static volatile uint64_t *pages;
static _Atomic uint64_t *shared;
static pthread_barrier_t barrier;

static void *write_own_words(void *argument) {
    uint64_t me = (uintptr_t)argument, count = memory_bytes / PAGE;
    for (uint64_t round = 1; round <= 4; round++) {
        pthread_barrier_wait(&barrier);
        for (uint64_t page = 0; page < count; page++) {
            volatile uint64_t *word = pages + page * 512 + (page * 31 % 120) * 4 + me;
            uint64_t want = round == 1 ? 0 : mix(page * THREADS + me + (round - 1)) | 1;
            if (*word != want) fail("page %lu, thread %lu, round %lu: %lx, not %lx", page, me, round, *word, want);
            *word = mix(page * THREADS + me + round) | 1;
            atomic_fetch_add(shared + page * 512 + 511, 1);
        }
    }
    return NULL;
}

static void hazard(void) {
    pthread_t threads[THREADS];
    pages = map_new(memory_bytes);
    shared = (_Atomic uint64_t *)pages;
    pthread_barrier_init(&barrier, NULL, THREADS);
    for (uintptr_t i = 0; i < THREADS; i++) start_thread(threads + i, write_own_words, (void *)i);
    for (int i = 0; i < THREADS; i++) join_thread(threads[i]);
    for (uint64_t page = 0; page < memory_bytes / PAGE; page++) {
        if (pages[page * 512 + 511] != THREADS * 4) fail("page %lu: atomic counter is %lu", page, pages[page * 512 + 511]);
        for (uint64_t me = 0; me < THREADS; me++)
            if (pages[page * 512 + (page * 31 % 120) * 4 + me] != (mix(page * THREADS + me + 4) | 1))
                fail("page %lu lost the last write of thread %lu", page, me);
    }
}
