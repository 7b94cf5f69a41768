/* fork from a thread while the heap is out, where the C library has what it knows of that thread: nothing may touch it
 * in the child before it is governed again. */
#include "hazard.h"

#define BLOCKS 64
#define BLOCK_BYTES 256

static char *memory;
static char *blocks[BLOCKS];

static void *forks(void *argument) {
    (void)argument;
    for (int round = 0; round < 10; round++) {
        check(memory, memory_bytes, 1, "memory");
        check(memory, memory_bytes, 1, "memory again");
        pid_t child = fork_or_fail();
        if (child == 0) {
            for (int i = 0; i < BLOCKS; i++) check(blocks[i], BLOCK_BYTES, 2, "the heap in the child");
            _exit(0);
        }
        reap(child, "child");
    }
    return NULL;
}

static void hazard(void) {
    pthread_t thread;
    memory = map_new(memory_bytes);
    fill(memory, memory_bytes, 1);
    for (int i = 0; i < BLOCKS; i++) {
        blocks[i] = malloc(BLOCK_BYTES);
        NEED(blocks[i]);
        fill(blocks[i], BLOCK_BYTES, 2);
        /* What the thread needs of the heap comes between them. */
        if (i == BLOCKS / 2) start_thread(&thread, forks, NULL);
    }
    join_thread(thread);
    for (int i = 0; i < BLOCKS; i++) check(blocks[i], BLOCK_BYTES, 2, "the heap");
}
