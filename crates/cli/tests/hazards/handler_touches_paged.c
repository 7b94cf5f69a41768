/* Handlers that write evicted memory while the interrupted thread writes the same pages, in several threads. */
#include "hazard.h"

enum { THREADS = 3, SIGNALS = 400 };
static volatile uint64_t *pages;
static atomic_ulong handled, step;
static atomic_int stop;

static void on_signal(int sig) {
    (void)sig;
    int saved = errno;
    size_t count = memory_bytes / PAGE, n = atomic_fetch_add(&step, 1);
    for (size_t i = 0; i < 8; i++) __atomic_fetch_add(pages + (n * 131 + i * 977) % count * 512 + 8, 1, __ATOMIC_RELAXED);
    atomic_fetch_add(&handled, 1);
    errno = saved;
}

static void *walk(void *argument) {
    uint64_t me = (uintptr_t)argument, rounds = 0;
    for (; !atomic_load(&stop); rounds++)
        for (size_t page = 0; page < memory_bytes / PAGE; page++) {
            volatile uint64_t *word = pages + page * 512 + 16 + me;
            if (*word != rounds) fail("page %zu of thread %lu holds %lu, not %lu", page, me, *word, rounds);
            *word = rounds + 1;
        }
    return NULL;
}

static void hazard(void) {
    pthread_t threads[THREADS];
    pages = map_new(memory_bytes);
    struct sigaction action = {.sa_handler = on_signal};
    NEED(sigaction(SIGUSR2, &action, NULL) == 0);
    for (uintptr_t i = 0; i < THREADS; i++) start_thread(threads + i, walk, (void *)i);
    for (int i = 0; i < SIGNALS; i++) {
        NEED(pthread_kill(threads[i % THREADS], SIGUSR2) == 0);
        usleep(3000);
    }
    atomic_store(&stop, 1);
    for (int i = 0; i < THREADS; i++) join_thread(threads[i]);
    uint64_t sum = 0;
    for (size_t page = 0; page < memory_bytes / PAGE; page++) sum += pages[page * 512 + 8];
    if (sum != 8 * atomic_load(&handled)) fail("handlers counted %lu, not %lu", sum, 8 * atomic_load(&handled));
    if (atomic_load(&handled) < SIGNALS / 4) fail("only %lu signals were handled", atomic_load(&handled));
}
