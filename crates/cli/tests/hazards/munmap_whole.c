/* munmap of evicted memory, then the same addresses mapped anew: zeros, and the neighbours are untouched. */
#include "hazard.h"

static void hazard(void) {
    char *below = map_filled(memory_bytes / 4, 1), *above = map_filled(memory_bytes / 4, 3);
    for (int round = 0; round < 3; round++) {
        char *memory = map_filled(memory_bytes, 2 + round);
        check(memory, memory_bytes, 2 + round, "before munmap");
        NEED(munmap(memory, memory_bytes) == 0);
        char *again = mmap(memory, memory_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
        NEED(again == memory);
        check_zero(again, memory_bytes, "same addresses after munmap");
        fill(again, memory_bytes, 9);
        check(again, memory_bytes, 9, "same addresses rewritten");
        NEED(munmap(again, memory_bytes) == 0);
    }
    check(below, memory_bytes / 4, 1, "neighbour");
    check(above, memory_bytes / 4, 3, "neighbour");
}
