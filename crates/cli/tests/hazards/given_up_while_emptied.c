/* Pages that are given up, and used again, while the pager is about to empty them where they are, as it does with read-only memory: what is
 * written then is a new page, and stays. */
#include "hazard.h"

enum { THREADS = 4, PAGES = 64, READ_ONLY_PART = 3 };
static const double SECONDS = 3;

static void *work(void *argument) {
    uint64_t random = 1 + (uintptr_t)argument;
    uint64_t written[PAGES] = {0};
    char *memory = map_new(PAGES * 4096);
    NEED(mprotect(memory, PAGES * 4096, PROT_READ) == 0);
    double began = now_seconds();
    for (uint64_t step = 1; now_seconds() - began < SECONDS; step++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        size_t i = (random >> 33) % PAGES;
        volatile uint64_t *words = (uint64_t *)(memory + i * 4096);
        uint64_t found[] = {words[0], words[511]};
        if (found[0] != written[i] || found[1] != written[i])
            fail("page %zu at %p: expected %lu twice, found %lu and %lu", i, (void *)words, written[i], found[0], found[1]);
        if ((random >> 13) % 2) {
            NEED(madvise((void *)words, 4096, MADV_DONTNEED) == 0);
            written[i] = 0;
        } else {
            NEED(mprotect((void *)words, 4096, PROT_READ | PROT_WRITE) == 0);
            words[0] = words[511] = written[i] = step;
            if ((random >> 14) % READ_ONLY_PART) NEED(mprotect((void *)words, 4096, PROT_READ) == 0);
        }
        if ((random >> 15) % 2) {
            found[0] = words[0];
            if (found[0] != written[i])
                fail("page %zu at %p, right after: expected %lu, found %lu", i, (void *)words, written[i], found[0]);
        }
    }
    return NULL;
}

static void hazard(void) {
    pthread_t threads[THREADS];
    for (uintptr_t i = 0; i < THREADS; i++) start_thread(&threads[i], work, (void *)i);
    for (int i = 0; i < THREADS; i++) join_thread(threads[i]);
}
