/* mremap of what the program mapped in pieces next to each other and touched at once, each before the pager can know of it: to the kernel they stay
 * several mappings, to the program they are one. */
#include "hazard.h"

enum { PIECES = 5 };

/* Neighbours, each touched at both ends as soon as it is mapped; the last page of the whole is left free for growth. */
static char *map_in_pieces(size_t piece, uint64_t seed) {
    char *room = map_new(PIECES * piece + 2 * piece);
    NEED(munmap(room, PIECES * piece + 2 * piece) == 0);
    for (int i = 0; i < PIECES; i++) {
        char *at = room + i * piece;
        char *mapped = mmap(at, piece, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
        NEED(mapped == at);
        at[0] = at[piece - 1] = 1;
        struct timespec governed = {.tv_nsec = 60 * 1000 * 1000};
        nanosleep(&governed, NULL);
    }
    fill(room, PIECES * piece, seed);
    return room;
}

/* A neighbour of governed memory, mapped and touched just now: natively one mapping with it. */
static void move_what_is_just_coming_under_the_pager(size_t piece, int flags, int upper_is_new) {
    char *to = map_new(2 * piece), *low = map_new(2 * piece), *new_half = low + upper_is_new * piece, *old_half = low + !upper_is_new * piece;
    NEED(munmap(new_half, piece) == 0);
    fill(old_half, piece, 7);
    struct timespec governed = {.tv_nsec = 60 * 1000 * 1000};
    nanosleep(&governed, NULL);
    NEED(mmap(new_half, piece, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) == new_half);
    fill(new_half, piece, 7);
    NEED(mremap(low, 2 * piece, 2 * piece, MREMAP_MAYMOVE | MREMAP_FIXED | flags, to) == to);
    check_as(to, low, 2 * piece, 7, "moved while half of it came under the pager");
    if (flags) check_zero(low, 2 * piece, "the old place");
    NEED(munmap(to, 2 * piece) == 0);
    if (flags) NEED(munmap(low, 2 * piece) == 0);
}

static void hazard(void) {
    for (int i = 0; i < 8; i++) {
        move_what_is_just_coming_under_the_pager(16 * PAGE, 0, i % 2);
        move_what_is_just_coming_under_the_pager(16 * PAGE, 4 /* MREMAP_DONTUNMAP */, i % 2);
    }
    size_t piece = memory_bytes / 8 / PIECES / PAGE * PAGE, length = PIECES * piece;
    char *from = map_in_pieces(piece, 1), *to = map_new(length);
    fill(to, length, 2);
    NEED(mremap(from, length, length, MREMAP_MAYMOVE | MREMAP_FIXED, to) == to);
    check_as(to, from, length, 1, "moved");
    NEED(mmap(from, PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) == from);
    NEED(munmap(from, PAGE) == 0 && munmap(to, length) == 0);

    char *first = map_in_pieces(piece, 3);
    char *grown = mremap(first, length, length + piece, MREMAP_MAYMOVE);
    NEED(grown != MAP_FAILED);
    check_as(grown, first, length, 3, "grown");
    check_zero(grown + length, piece, "the new part");
    NEED(munmap(grown, length + piece) == 0);

    first = map_in_pieces(piece, 4);
    char *wall = mmap(first + length, PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    NEED(wall == first + length);
    NEED(mremap(first, length, length + piece, 0) == MAP_FAILED && errno == ENOMEM);
    check(first, length, 4, "after a refused growth");
    grown = mremap(first, length, length + piece, MREMAP_MAYMOVE);
    NEED(grown != MAP_FAILED && grown != first);
    check_as(grown, first, length, 4, "grown and moved");
    check_zero(grown + length, piece, "the new part after the move");
    fill(grown, length + piece, 5);
    check(grown, length + piece, 5, "rewritten");
    NEED(munmap(grown, length + piece) == 0 && munmap(wall, PAGE) == 0);
}
