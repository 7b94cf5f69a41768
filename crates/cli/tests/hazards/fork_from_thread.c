/* fork from a thread, with its stack and its memory; the child goes on as that thread. */
#include "hazard.h"

static char *memory;

static void *forks(void *argument) {
    uint64_t seed = (uintptr_t)argument;
    size_t length = memory_bytes / 4;
    char *own = memory + seed * length, on_stack[64 * 1024];
    fill(on_stack, sizeof on_stack, seed);
    for (int i = 0; i < 3; i++) {
        pid_t child = fork_or_fail();
        if (child == 0) {
            check(on_stack, sizeof on_stack, seed, "the thread's stack in the child");
            check(own, length, seed, "the thread's memory in the child");
            check(memory, length, 0, "other memory in the child");
            fill(own, length, seed + 10);
            check(own, length, seed + 10, "written in the child");
            _exit(0);
        }
        reap(child, "child");
        check(own, length, seed, "the thread's memory");
    }
    check(on_stack, sizeof on_stack, seed, "the thread's stack");
    return NULL;
}

static void hazard(void) {
    pthread_t threads[3];
    memory = map_new(memory_bytes);
    for (uintptr_t i = 0; i < 4; i++) fill(memory + i * (memory_bytes / 4), memory_bytes / 4, i);
    for (uintptr_t i = 0; i < 3; i++) start_thread(threads + i, forks, (void *)(i + 1));
    for (int i = 0; i < 3; i++) join_thread(threads[i]);
}
