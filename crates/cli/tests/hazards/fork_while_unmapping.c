/* Threads unmap memory piece by piece while another forks: what the child finds unmapped it maps anew, and what it writes there holds. */
#include "hazard.h"

enum { THREADS = 3, PIECE = 4 * PAGE, FORKS = 100 };

static atomic_int stop;
static char *memory;
static size_t part;

static void *unmap_and_map(void *argument) {
    char *mine = memory + (uintptr_t)argument * part;
    while (!atomic_load(&stop)) {
        for (size_t at = 0; at < part; at += PIECE) NEED(munmap(mine + at, PIECE) == 0);
        NEED(mmap(mine, part, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) == mine);
        fill(mine, part, 1);
        usleep(10000); /* long enough to be governed again */
    }
    return NULL;
}

/* In the child, which has one thread. */
static void use_what_is_free(void) {
    size_t pieces = THREADS * part / PIECE, mapped = 0;
    unsigned char present[PIECE / PAGE];
    char *anew = map_new(pieces);
    for (size_t i = 0; i < pieces; i++) {
        char *piece = memory + i * PIECE;
        if (mincore(piece, PIECE, present) == 0) continue;
        if (mmap(piece, PIECE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) != piece) fail("mmap: %s", strerror(errno));
        check_zero(piece, PIECE, "mapped anew in the child");
        fill(piece, PIECE, 2);
        anew[i] = 1;
        mapped++;
    }
    if (mapped == 0) return;
    evict_others();
    for (size_t i = 0; i < pieces; i++)
        if (anew[i]) check(memory + i * PIECE, PIECE, 2, "written anew in the child");
}

static void hazard(void) {
    pthread_t threads[THREADS];
    part = memory_bytes / 2 / THREADS / PIECE * PIECE;
    memory = map_filled(THREADS * part, 1);
    for (uintptr_t i = 0; i < THREADS; i++) start_thread(threads + i, unmap_and_map, (void *)i);
    for (int i = 0; i < rounds(FORKS); i++) {
        usleep(1000 * (i % 7));
        pid_t child = fork_or_fail();
        if (child == 0) {
            use_what_is_free();
            _exit(0);
        }
        reap(child, "child");
    }
    atomic_store(&stop, 1);
    for (int i = 0; i < THREADS; i++) join_thread(threads[i]);
}
