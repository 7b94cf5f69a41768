/* Two hundred threads, sixteen at a time, each with memory of its own (mapped and malloc'ed), some ending in the middle. */
#include "hazard.h"

static void *live(void *argument) {
    uint64_t seed = (uintptr_t)argument;
    size_t length = memory_bytes / 16 / 2 / PAGE * PAGE;
    char *mapped = map_filled(length, seed), *heap = malloc(length);
    fill(heap, length, seed + 1000);
    check(mapped, length, seed, "a thread's mapping");
    check(heap, length, seed + 1000, "a thread's heap");
    static __thread char tls[20000];
    fill(tls, sizeof tls, seed);
    check(tls, sizeof tls, seed, "a thread's local storage");
    free(heap);
    if (munmap(mapped, length) != 0) fail("munmap");
    if (seed % 3 == 0) pthread_exit(argument);
    return argument;
}

static void hazard(void) {
    pthread_t threads[16];
    char *memory = map_filled(memory_bytes / 2, 1);
    for (uintptr_t i = 0; i < 200 + 16; i++) {
        if (i >= 16) {
            void *result;
            NEED(pthread_join(threads[i % 16], &result) == 0);
            if (result != (void *)(i - 16)) fail("thread %zu returned %p", i - 16, result);
        }
        if (i < 200) start_thread(threads + i % 16, live, (void *)i);
    }
    check(memory, memory_bytes / 2, 1, "the main thread's memory");
    /* A thread cancelled in the middle of touching evicted memory. */
    struct churn *churn = start_churn(memory_bytes / 2);
    usleep(100000);
    NEED(pthread_cancel(churn->thread) == 0);
    atomic_store(&churn->stop, 1);
    join_thread(churn->thread);
    check(memory, memory_bytes / 2, 1, "after the cancelled thread");
}
