/* mremap that grows, in place and moving: old bytes stay, new ones are zeros. */
#include "hazard.h"

static void hazard(void) {
    size_t half = memory_bytes / 2;
    char *room = map_new(memory_bytes);
    NEED(munmap(room + half, half) == 0);
    char *old = room;
    fill(room, half, 1);
    char *grown = mremap(room, half, memory_bytes, MREMAP_MAYMOVE);
    NEED(grown != MAP_FAILED);
    check_as(grown, old, half, 1, "grown");
    check_zero(grown + half, half, "the new part");
    fill_as(grown + half, old + half, half, 1);
    /* A wall right above forces the next growth to move. */
    mmap(grown + memory_bytes, PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    NEED(mremap(grown, memory_bytes, memory_bytes + half, 0) == MAP_FAILED && errno == ENOMEM);
    check_as(grown, old, memory_bytes, 1, "after a refused growth");
    char *moved = mremap(grown, memory_bytes, memory_bytes + half, MREMAP_MAYMOVE);
    NEED(moved != MAP_FAILED && moved != grown);
    check_as(moved, old, memory_bytes, 1, "grown and moved");
    check_zero(moved + memory_bytes, half, "the new part after the move");
    fill(moved, memory_bytes + half, 2);
    check(moved, memory_bytes + half, 2, "rewritten");
    /* Page by page, as an array that is appended to grows. */
    size_t length = PAGE;
    char *array = map_new(length);
    void *first = array;
    fill_as(array, first, length, 3);
    while (length < memory_bytes / 4) {
        array = mremap(array, length, length + 4 * PAGE, MREMAP_MAYMOVE);
        NEED(array != MAP_FAILED);
        fill_as(array + length, (char *)first + length, 4 * PAGE, 3);
        length += 4 * PAGE;
    }
    check_as(array, first, length, 3, "grown step by step");
}
