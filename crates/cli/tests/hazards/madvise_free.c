/* MADV_FREE: a page reads old bytes or zeros, whole, until it is written; written pages hold. */
#include "hazard.h"

static void either(char *page, uint64_t seed) {
    if (*(volatile uint64_t *)page == 0) check_zero(page, PAGE, "freed, and its first word is zero");
    else check(page, PAGE, seed, "freed, and its first word is old");
}

static void hazard(void) {
    char *memory = map_filled(memory_bytes, 1);
    size_t pages = memory_bytes / PAGE;
    NEED(madvise(memory, memory_bytes / 2, MADV_FREE) == 0);
    for (size_t i = 0; i < pages / 2; i++) either(memory + i * PAGE, 1);
    check(memory + memory_bytes / 2, memory_bytes / 2, 1, "not freed");
    for (size_t i = 0; i < pages / 2; i += 2) fill(memory + i * PAGE, PAGE, 2);
    evict_others();
    for (size_t i = 0; i < pages / 2; i++) {
        if (i % 2 == 0) check(memory + i * PAGE, PAGE, 2, "freed and rewritten");
        else either(memory + i * PAGE, 1);
    }
    for (size_t i = 0; i < pages; i++) {
        if (i % 3 == 0) NEED(madvise(memory + i * PAGE, PAGE, MADV_FREE) == 0);
        fill(memory + i * PAGE, PAGE, 3);
    }
    check(memory, memory_bytes, 3, "freed one by one and rewritten");
}
