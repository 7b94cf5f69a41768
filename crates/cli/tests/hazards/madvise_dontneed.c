/* MADV_DONTNEED of evicted, resident and untouched pages reads zeros; its neighbours stay. */
#include "hazard.h"

static void hazard(void) {
    char *memory = map_filled(memory_bytes, 1);
    size_t pages = memory_bytes / PAGE;
    for (size_t i = 0; i < pages; i += 5) NEED(madvise(memory + i * PAGE, PAGE, MADV_DONTNEED) == 0);
    for (int pass = 0; pass < 2; pass++)
        for (size_t i = 0; i < pages; i++) {
            if (i % 5) check(memory + i * PAGE, PAGE, 1, "not dropped");
            else check_zero(memory + i * PAGE, PAGE, "dropped");
        }
    for (size_t i = 0; i < pages; i += 5) fill(memory + i * PAGE, PAGE, 2);
    for (size_t i = 0; i < pages; i++) check(memory + i * PAGE, PAGE, i % 5 ? 1 : 2, "rewritten");
    for (int round = 0; round < 4; round++) {
        NEED(madvise(memory, memory_bytes, MADV_DONTNEED) == 0);
        check_zero(memory, memory_bytes, "dropped as a whole");
        fill(memory, memory_bytes, 3 + round);
        check(memory, memory_bytes, 3 + round, "written after the drop");
    }
    /* Written, dropped at once and read: the fault may be older than the drop. */
    for (size_t i = 0; i < pages; i++) {
        *(volatile uint64_t *)(memory + i * PAGE) = i + 1;
        NEED(madvise(memory + i * PAGE, PAGE, MADV_DONTNEED) == 0);
        if (i % 2) check_zero(memory + i * PAGE, PAGE, "dropped right after a write");
    }
    check_zero(memory, memory_bytes, "dropped one by one");
}
