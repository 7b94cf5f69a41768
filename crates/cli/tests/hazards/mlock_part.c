/* mlock of a part stays resident while everything else is evicted; munlock lets it go; bytes always right. */
#include "hazard.h"

static void check_present(char *memory, size_t length, const char *what) {
    int pagemap = open("/proc/self/pagemap", O_RDONLY);
    NEED(pagemap >= 0);
    for (size_t i = 0; i < length / PAGE; i++) {
        uint64_t entry;
        NEED(pread(pagemap, &entry, 8, ((uintptr_t)memory / PAGE + i) * 8) == 8);
        if (!(entry >> 63)) fail("%s: locked page %zu of %zu at %p is not resident", what, i, length / PAGE, memory + i * PAGE);
    }
    close(pagemap);
}

static void hazard(void) {
    char *memory = map_filled(memory_bytes, 1);
    char *part = memory + memory_bytes / 3 / PAGE * PAGE;
    size_t length = 256 * PAGE;
    if (mlock(part, length) != 0) {
        if (errno == EPERM || errno == ENOMEM) skip("mlock of %zu bytes: %s", length, strerror(errno));
        fail("mlock: %s", strerror(errno));
    }
    check_present(part, length, "right after mlock");
    for (int round = 0; round < 3; round++) {
        evict_others();
        check_present(part, length, "under pressure");
        check(part, length, 1 + round, "locked");
        fill(part, length, 2 + round);
        check_present(part, length, "after writing");
    }
    NEED(munlock(part, length) == 0);
    evict_others();
    check(part, length, 4, "unlocked");
    check(memory, part - memory, 1, "before the part");
    check(part + length, memory + memory_bytes - part - length, 1, "after the part");
    /* Locked before it was ever touched. */
    char *fresh = map_new(length);
    NEED(mlock(fresh, length) == 0);
    check_present(fresh, length, "locked untouched");
    check_zero(fresh, length, "locked untouched");
    fill(fresh, length, 9);
    evict_others();
    check_present(fresh, length, "locked untouched, under pressure");
    check(fresh, length, 9, "locked untouched");
    NEED(munmap(fresh, length) == 0);
}
