/* Deep recursion on many large thread stacks at once; every frame verifies what it left there. */
#include "hazard.h"

static void recurse(int depth, uint64_t seed) {
    char frame[4096 * 3];
    fill(frame, sizeof frame, seed + depth);
    if (depth > 0) recurse(depth - 1, seed);
    check(frame, sizeof frame, seed + depth, "a stack frame");
}

static void *deep(void *argument) {
    int depth = memory_bytes / 8 / (4096 * 3 + 512);
    for (int i = 0; i < 3; i++) recurse(depth, (uintptr_t)argument + i);
    return NULL;
}

static void hazard(void) {
    pthread_t threads[8];
    pthread_attr_t large;
    pthread_attr_init(&large);
    NEED(pthread_attr_setstacksize(&large, memory_bytes / 8 + MIB) == 0);
    for (uintptr_t i = 0; i < 8; i++) NEED(pthread_create(threads + i, &large, deep, (void *)(i * 100000)) == 0);
    for (int i = 0; i < 8; i++) join_thread(threads[i]);
    /* A stack the program made itself. */
    char *stack = map_new(memory_bytes / 4);
    pthread_attr_t own;
    pthread_attr_init(&own);
    NEED(pthread_attr_setstack(&own, stack, memory_bytes / 4) == 0);
    NEED(pthread_create(threads, &own, deep, (void *)7) == 0);
    join_thread(threads[0]);
    recurse(400, 5);
}
