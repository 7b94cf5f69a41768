/* 40 TiB, as a rule, of distinct addresses, one reservation after the other; then memory that was there before moves to a place that is new as well. */
#include "hazard.h"

static void hazard(void) {
    const size_t tib = (size_t)1 << 40;
    char *memory = map_filled(memory_bytes, 1);
    for (int i = 0; i < rounds(10); i++) {
        char *place = (char *)((4 + 4 * (size_t)i) * tib);
        char *much = mmap(place, 4 * tib, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
        if (much == MAP_FAILED) fail("reservation %d: %s", i, strerror(errno));
        fill(much, PAGE, i);
        usleep(60000); /* long enough to be seen */
        check(much, PAGE, i, "in a reservation");
        NEED(munmap(much, 4 * tib) == 0);
    }
    evict_others();
    char *moved = mremap(memory, memory_bytes, memory_bytes, MREMAP_MAYMOVE | MREMAP_FIXED, (char *)(50 * tib));
    NEED(moved != MAP_FAILED);
    for (size_t at = 0; at < memory_bytes; at += PAGE) check_as(moved + at, memory + at, PAGE, 1, "moved");
}
