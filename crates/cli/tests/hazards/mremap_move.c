/* mremap with MAYMOVE|FIXED: evicted pages move with their addresses, what was at the target is gone, the source is free. */
#include "hazard.h"

static void hazard(void) {
    char *memory = map_filled(memory_bytes, 1);
    size_t piece = 19 * PAGE, pieces = memory_bytes / 2 / piece;
    char *target = map_filled(memory_bytes, 2);
    /* Scattered pieces, in reverse order, over occupied and over free addresses. */
    for (size_t i = 0; i < pieces; i++) {
        char *from = memory + i * piece, *to = target + (pieces - 1 - i) * piece;
        if (i % 2) NEED(munmap(to, piece) == 0);
        NEED(mremap(from, piece, piece, MREMAP_MAYMOVE | MREMAP_FIXED, to) == to);
    }
    for (size_t i = 0; i < pieces; i++)
        check_as(target + (pieces - 1 - i) * piece, memory + i * piece, piece, 1, "moved");
    check(memory + pieces * piece, memory_bytes - pieces * piece, 1, "not moved");
    check(target + pieces * piece, memory_bytes - pieces * piece, 2, "target beyond the moved pieces");
    char *again = mmap(memory, pieces * piece, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE,
                       -1, 0);
    NEED(again == memory);
    check_zero(memory, pieces * piece, "the old place mapped again");
    fill(memory, pieces * piece, 3);
    for (size_t i = 0; i < pieces; i++)
        check_as(target + (pieces - 1 - i) * piece, memory + i * piece, piece, 1, "moved, second pass");
    check(memory, pieces * piece, 3, "the old place written");
    /* Move everything back and forth as a whole. */
    char *home = map_new(memory_bytes);
    char *whole = map_filled(memory_bytes, 4);
    for (int i = 0; i < 4; i++) {
        char *from = i % 2 ? home : whole, *to = i % 2 ? whole : home;
        NEED(mremap(from, memory_bytes, memory_bytes, MREMAP_MAYMOVE | MREMAP_FIXED, to) == to);
    }
    check(whole, memory_bytes, 4, "moved there and back twice");
}
