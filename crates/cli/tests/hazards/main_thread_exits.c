/* The main thread ends with pthread_exit while others go on; the process ends when they do, with status 0. */
#include "hazard.h"

static char *memory;
static atomic_int left = 4;

static void *outlive(void *argument) {
    uint64_t seed = (uintptr_t)argument;
    size_t length = memory_bytes / 4;
    usleep(200000);
    for (int round = 0; round < 3; round++) {
        check(memory + seed * length, length, seed + round, "a thread after main");
        fill(memory + seed * length, length, seed + round + 1);
    }
    if (atomic_fetch_sub(&left, 1) == 1) {
        printf("ok %s\n", HAZARD);
        fflush(stdout);
    }
    return NULL;
}

static void hazard(void) {
    memory = map_new(memory_bytes);
    for (uintptr_t i = 0; i < 4; i++) {
        pthread_t thread;
        fill(memory + i * (memory_bytes / 4), memory_bytes / 4, i);
        start_thread(&thread, outlive, (void *)i);
        pthread_detach(thread);
    }
    pthread_exit(NULL);
}
