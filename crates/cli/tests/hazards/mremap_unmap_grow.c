/* Memory is moved, unmapped from its very beginning, and what lies before it grows over the place: zeros there, not what was given up. */
#include "hazard.h"

enum { PAGES = 512, KEPT = 8, ROUNDS = 60, OTHERS = 2 };

enum { REST, WORK, END };
static int others_do;

/* While memory moves, the pager hardly sees a moment at which nothing is being given up. */
static void *give_up(void *at) {
    int now;
    while ((now = __atomic_load_n(&others_do, __ATOMIC_ACQUIRE)) != END) {
        if (now == WORK)
            NEED(madvise(at, PAGE, MADV_DONTNEED) == 0);
        else
            sched_yield();
    }
    return NULL;
}

static void let_others(int what) { __atomic_store_n(&others_do, what, __ATOMIC_RELEASE); }

static void hazard(void) {
    size_t all = PAGES * PAGE, kept = KEPT * PAGE;
    pthread_t others[OTHERS];
    for (int i = 0; i < OTHERS; i++) {
        char *own = map_filled(16 * PAGE, 3);
        NEED(pthread_create(&others[i], NULL, give_up, own) == 0);
    }
    char *room = mmap(NULL, 2 * all, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    NEED(room != MAP_FAILED);
    char *before = room + all - kept;
    fill(map_new(all), all, 1);
    char *first = map_filled(kept, 2);
    NEED(mremap(first, kept, kept, MREMAP_MAYMOVE | MREMAP_FIXED, before) == before);
    for (int round = 0; round < ROUNDS; round++) {
        char *old = map_new(all), *instead = map_new(all);
        /* The kernel may choose the very place that is to be moved to. */
        char *spare = old < room + 2 * all && old + all > room + all ? old : instead;
        if (spare == old) old = instead;
        NEED(munmap(spare, all) == 0);
        let_others(WORK);
        fill(old, all, round);
        NEED(mremap(old, all, all, MREMAP_MAYMOVE | MREMAP_FIXED, room + all) == room + all);
        NEED(munmap(room + all, all) == 0);
        NEED(mremap(before, kept, kept + all, 0) == before);
        let_others(REST);
        check_as(before, first, kept, 2, "before");
        check_zero(room + all, all, "given up, and grown over");
        NEED(mremap(before, kept + all, kept, 0) == before);
    }
    let_others(END);
    for (int i = 0; i < OTHERS; i++)
        NEED(pthread_join(others[i], NULL) == 0);
}
