/* Where private memory was, shared memory is mapped at once: it is the program's, never the pager's. */
#include "hazard.h"

enum { THREADS = 16, ROUNDS = 1500, WRITES = 8 };

static void *work(void *argument) {
    uint64_t me = (uintptr_t)argument;
    for (uint64_t round = 0; round < (uint64_t)rounds(ROUNDS); round++) {
        size_t length = (1 + mix(me * ROUNDS + round) % 4) * PAGE;
        int rights = PROT_READ | PROT_WRITE;
        char *own = mmap(NULL, length, rights, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        NEED(own != MAP_FAILED);
        memset(own, 1, length);
        NEED(munmap(own, length) == 0);
        char *shared = mmap(NULL, length, rights, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        NEED(shared != MAP_FAILED);
        for (uint64_t seed = 1; seed <= WRITES; seed++) {
            fill(shared, length, seed);
            check(shared, length, seed, "shared memory");
        }
        NEED(munmap(shared, length) == 0);
    }
    return NULL;
}

static void hazard(void) {
    pthread_t threads[THREADS];
    for (uintptr_t i = 0; i < THREADS; i++) start_thread(threads + i, work, (void *)i);
    for (int i = 0; i < THREADS; i++) join_thread(threads[i]);
}
