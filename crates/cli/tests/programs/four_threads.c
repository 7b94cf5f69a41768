/* Four threads that write and verify every word of their memory: four_threads MIB ROUNDS. Prints a digest at the end,
 * the same for every run with the same arguments. */
#include "hazard.h"

enum { THREADS = 4 };
static char *memory;
static uint64_t digests[THREADS];
static long turns;

static void *work(void *argument) {
    uintptr_t me = (uintptr_t)argument;
    size_t length = memory_bytes / THREADS / PAGE * PAGE;
    /* Patterns of low addresses, so that the digest does not depend on where the kernel put the memory. */
    char *own = memory + me * length, *as = (char *)(me * length);
    for (long round = 0; round < turns; round++) {
        fill_as(own, as, length, round + me);
        for (int pass = 0; pass < 2; pass++) check_as(own, as, length, round + me, "a thread's memory");
        for (size_t i = 0; i < length / PAGE; i++) {
            size_t page = mix(i * 31 + round) % (length / PAGE);
            check_as(own + page * PAGE, as + page * PAGE, PAGE, round + me, "a random page");
        }
    }
    for (size_t i = 0; i < length / 8; i++) digests[me] = mix(digests[me] ^ ((uint64_t *)own)[i]);
    return NULL;
}

static void hazard(void) {
    pthread_t threads[THREADS];
    turns = arg_count > 2 ? atol(args[2]) : 2;
    memory = malloc(memory_bytes + PAGE);
    memory = (char *)(((uintptr_t)memory + PAGE - 1) & ~(PAGE - 1));
    for (uintptr_t i = 0; i < THREADS; i++) start_thread(threads + i, work, (void *)i);
    for (int i = 0; i < THREADS; i++) join_thread(threads[i]);
    for (int i = 0; i < THREADS; i++) printf("%016lx\n", digests[i]);
}
