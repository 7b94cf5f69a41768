/* The heap by sbrk: grows, shrinks (what is left stays) and grows again (zeros). */
#include "hazard.h"

static char *align_up(char *p) { return (char *)(((uintptr_t)p + PAGE - 1) & ~(PAGE - 1)); }

static void hazard(void) {
    char *start = align_up(sbrk(0));
    NEED(brk(start) == 0);
    for (int round = 0; round < 3; round++) {
        NEED(sbrk(memory_bytes) == start);
        check_zero(start, memory_bytes, "the grown heap");
        fill(start, memory_bytes, round + 1);
        check(start, memory_bytes, round + 1, "the heap written");
        NEED(brk(start + memory_bytes / 2) == 0);
        check(start, memory_bytes / 2, round + 1, "left after shrinking");
        NEED(brk(start + memory_bytes) == 0);
        check_zero(start + memory_bytes / 2, memory_bytes / 2, "grown again");
        check(start, memory_bytes / 2, round + 1, "left after growing again");
        NEED(brk(start) == 0);
    }
    for (size_t at = 0; at < memory_bytes; at += 33 * PAGE) {
        char *grown = sbrk(33 * PAGE);
        NEED(grown == start + at);
        fill(grown, 33 * PAGE, 8);
    }
    check(start, memory_bytes / (33 * PAGE) * (33 * PAGE), 8, "grown in small steps");
    NEED(brk(start) == 0);
}
