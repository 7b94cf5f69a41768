/* Hints that may not change what is read: COLD, PAGEOUT, WILLNEED, HUGEPAGE, POPULATE_*, MERGEABLE, RANDOM. */
#include "hazard.h"

static void hazard(void) {
    static const int hints[] = {20 /* COLD */, 21 /* PAGEOUT */, MADV_WILLNEED, MADV_HUGEPAGE, 22 /* POPULATE_READ */,
                                23 /* POPULATE_WRITE */, MADV_MERGEABLE, MADV_RANDOM, 25 /* COLLAPSE */,
                                MADV_NOHUGEPAGE, MADV_UNMERGEABLE, MADV_NORMAL};
    char *memory = map_filled(memory_bytes, 1);
    size_t half = memory_bytes / 2 / PAGE * PAGE;
    for (size_t i = 0; i < sizeof hints / sizeof *hints; i++) {
        char what[64];
        snprintf(what, sizeof what, "after madvise(%d)", hints[i]);
        if (madvise(memory, half, hints[i]) != 0 && errno != EINVAL && errno != EAGAIN && errno != EBUSY && errno != ENOMEM)
            fail("%s: %s", what, strerror(errno));
        check(memory, memory_bytes, i + 1, what);
        fill(memory, memory_bytes, i + 2);
    }
    char *fresh = map_new(half);
    if (madvise(fresh, half, 22) == 0) check_zero(fresh, half, "populated for reading");
    if (madvise(fresh, half, 23) == 0) check_zero(fresh, half, "populated for writing");
    fill(fresh, half, 7);
    check(fresh, half, 7, "populated and written");
}
