/* Memory moved with MREMAP_FIXED, of which the pager knows a part only, while other threads get memory, which may come to where that part was: nobody
 * loses any. */
#include "hazard.h"
#include <stdatomic.h>

enum { AREAS = 200, PAGES = 32, FRESH = 8, OTHERS = 3 };
static atomic_int over;

static void *map_and_unmap(void *argument) {
    uint64_t seed = 1000 + (uintptr_t)argument;
    while (!atomic_load(&over)) {
        char *memory = map_new(FRESH * PAGE);
        fill(memory, FRESH * PAGE, seed);
        sched_yield();
        check(memory, FRESH * PAGE, seed, "got while others move theirs");
        NEED(munmap(memory, FRESH * PAGE) == 0);
    }
    return NULL;
}

static void *move(void *argument) {
    char **areas = argument;
    for (int i = 0; i < AREAS; i++) {
        char *to = map_new(PAGES * PAGE), *fresh = map_new(FRESH * PAGE);
        fill_as(fresh, areas[i], FRESH * PAGE, 2);
        const int flags = MREMAP_MAYMOVE | MREMAP_FIXED;
        NEED(mremap(fresh, FRESH * PAGE, FRESH * PAGE, flags, areas[i]) == areas[i]);
        if (mremap(areas[i], PAGES * PAGE, PAGES * PAGE, flags, to) != to) {
            /* It may be two mappings now, which Linux before 6.17 moves one by one only; and what was at the place is gone all the same. */
            const size_t rest = (PAGES - FRESH) * PAGE;
            NEED(errno == EFAULT);
            to = map_new(PAGES * PAGE);
            NEED(mremap(areas[i], FRESH * PAGE, FRESH * PAGE, flags, to) == to);
            NEED(mremap(areas[i] + FRESH * PAGE, rest, rest, flags, to + FRESH * PAGE) == to + FRESH * PAGE);
        }
        check_as(to, areas[i], FRESH * PAGE, 2, "moved twice");
        check_as(to + FRESH * PAGE, areas[i] + FRESH * PAGE, (PAGES - FRESH) * PAGE, 1, "moved once");
    }
    return NULL;
}

static void hazard(void) {
    static char *areas[AREAS];
    pthread_t mover, others[OTHERS];
    for (int i = 0; i < AREAS; i++) areas[i] = map_filled(PAGES * PAGE, 1);
    /* The pager knows of them after this. */
    usleep(100 * 1000);
    for (uintptr_t i = 0; i < OTHERS; i++) start_thread(&others[i], map_and_unmap, (void *)i);
    start_thread(&mover, move, areas);
    join_thread(mover);
    atomic_store(&over, 1);
    for (int i = 0; i < OTHERS; i++) join_thread(others[i]);
}
