/* Threads that empty and refill memory which they share with a forked child: the evictor makes such pages the parent's own before it moves them, and finds
 * that they have just been emptied. */
#include "hazard.h"

enum { THREADS = 6, PIECE_PAGES = 4 };

static atomic_int stop;
static char *memory;
static size_t part;

static void *discard(void *argument) {
    char *mine = memory + (uintptr_t)argument * part;
    for (uint64_t round = 1; !atomic_load(&stop); round++) {
        for (size_t at = 0; at + PIECE_PAGES * PAGE <= part; at += PIECE_PAGES * PAGE) {
            fill(mine + at, PIECE_PAGES * PAGE, round);
            NEED(madvise(mine + at, PIECE_PAGES * PAGE, MADV_DONTNEED) == 0);
            fill(mine + at, PIECE_PAGES * PAGE, round + 1);
        }
        check(mine, part / (PIECE_PAGES * PAGE) * (PIECE_PAGES * PAGE), round + 1, "refilled");
    }
    return NULL;
}

static void hazard(void) {
    pthread_t threads[THREADS];
    part = memory_bytes / THREADS / PAGE * PAGE;
    memory = map_filled(memory_bytes, 1);
    for (uintptr_t i = 0; i < THREADS; i++) start_thread(threads + i, discard, (void *)i);
    for (int i = 0; i < 40; i++) {
        pid_t child = fork_or_fail();
        if (child == 0) {
            usleep(60000);
            _exit(0);
        }
        reap(child, "child");
    }
    atomic_store(&stop, 1);
    for (int i = 0; i < THREADS; i++) join_thread(threads[i]);
}
