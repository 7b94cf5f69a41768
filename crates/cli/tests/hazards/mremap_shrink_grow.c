/* Memory is moved, shrunk and grown again in place, at once: what comes back is zeros, not what was given up. */
#include "hazard.h"

enum { PAGES = 512, KEPT = 8, ROUNDS = 60 };

static void hazard(void) {
    size_t all = PAGES * PAGE, kept = KEPT * PAGE;
    int in_place = 0;
    for (int round = 0; round < ROUNDS; round++) {
        char *room = mmap(NULL, 2 * all, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        NEED(room != MAP_FAILED);
        char *old = map_new(all);
        fill(old, all, round);
        NEED(munmap(room, 2 * all) == 0);
        NEED(mremap(old, all, all, MREMAP_MAYMOVE | MREMAP_FIXED, room) == room);
        NEED(mremap(room, all, kept, 0) == room);
        char *grown = mremap(room, kept, all, 0);
        if (grown == MAP_FAILED)
            grown = mremap(room, kept, all, MREMAP_MAYMOVE);
        else
            in_place++;
        NEED(grown != MAP_FAILED);
        check_as(grown, old, kept, round, "kept");
        check_zero(grown + kept, all - kept, "given up and grown again");
        NEED(munmap(grown, all) == 0);
    }
    /* Else this shows nothing. */
    NEED(in_place > ROUNDS / 2);
}
