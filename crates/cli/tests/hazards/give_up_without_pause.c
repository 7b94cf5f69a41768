/* Threads that do nothing but give memory up leave the pager no moment to work by themselves: the others go on all the same. */
#include "hazard.h"

enum { OTHERS = 3, ROUNDS = 3 };

static int done;

static void *give_up(void *at) {
    while (!__atomic_load_n(&done, __ATOMIC_ACQUIRE))
        NEED(madvise(at, PAGE, MADV_DONTNEED) == 0);
    return NULL;
}

static void hazard(void) {
    pthread_t others[OTHERS];
    char *memory = map_filled(memory_bytes / 4, 1);
    for (int i = 0; i < OTHERS; i++) {
        char *own = map_filled(16 * PAGE, 3);
        NEED(pthread_create(&others[i], NULL, give_up, own) == 0);
    }
    for (int round = 0; round < ROUNDS; round++) {
        check(memory, memory_bytes / 4, round + 1, "among those who give up");
        fill(memory, memory_bytes / 4, round + 2);
    }
    __atomic_store_n(&done, 1, __ATOMIC_RELEASE);
    for (int i = 0; i < OTHERS; i++)
        NEED(pthread_join(others[i], NULL) == 0);
}
