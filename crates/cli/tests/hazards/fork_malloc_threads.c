/* malloc after fork in a program whose other threads are busy in malloc: no lock is left held. */
#include "hazard.h"

static atomic_int stop;

static void *allocate(void *argument) {
    uint64_t random = (uintptr_t)argument;
    void *held[64] = {0};
    while (!atomic_load(&stop)) {
        random = mix(random + 1);
        void **at = held + random % 64;
        free(*at);
        *at = malloc(100 + (random >> 10) % 200000);
        if (!*at) fail("malloc");
        memset(*at, 1, 100);
    }
    for (int i = 0; i < 64; i++) free(held[i]);
    return NULL;
}

static void *child_thread(void *argument) {
    char *block = malloc(MIB);
    fill(block, MIB, 7);
    check(block, MIB, 7, "a thread made in the child");
    free(block);
    return argument;
}

static void hazard(void) {
    pthread_t threads[4];
    char *memory = map_filled(memory_bytes / 2, 1);
    for (uintptr_t i = 0; i < 4; i++) start_thread(threads + i, allocate, (void *)i);
    for (int i = 0; i < rounds(20); i++) {
        pid_t child = fork_or_fail();
        if (child == 0) {
            alarm(60);
            pthread_t thread;
            start_thread(&thread, child_thread, NULL);
            for (int j = 0; j < 300; j++) {
                char *block = malloc(1 + j * 997);
                memset(block, j, 1 + j * 997);
                if (j % 3) free(block);
            }
            join_thread(thread);
            if (i % 5 == 0) check(memory, memory_bytes / 2, 1, "child");
            _exit(0);
        }
        reap(child, "child");
    }
    atomic_store(&stop, 1);
    for (int i = 0; i < 4; i++) join_thread(threads[i]);
    check(memory, memory_bytes / 2, 1, "parent");
}
