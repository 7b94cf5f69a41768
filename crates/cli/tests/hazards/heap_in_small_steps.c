/* The heap grows in small steps, as the C library's malloc does, and stays a few mappings to the
 * kernel: a process may have 65530 of them. Shrinking and growing again adds no more than one. */
#include "hazard.h"

#define STEP (33 * PAGE)
#define STEPS 160
#define MAPPINGS_MAX 16

static int mappings_in(const char *start, const char *end) {
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[4096];
    int count = 0;
    NEED(maps);
    while (fgets(line, sizeof line, maps)) {
        unsigned long first, last;
        if (sscanf(line, "%lx-%lx", &first, &last) == 2)
            count += first < (unsigned long)end && last > (unsigned long)start;
    }
    fclose(maps);
    return count;
}

static void grow(size_t steps) {
    for (size_t step = 0; step < steps; step++) {
        char *grown = sbrk(STEP);
        NEED(grown != (void *)-1);
        fill(grown, STEP, 3);
        /* Time to be looked at, as a program that works on what it has got would give. */
        usleep(4000);
    }
}

static void hazard(void) {
    char *start = sbrk(0);
    /* What else needs the heap has had its part. */
    NEED(mappings_in(start, start + PAGE) <= 1);
    start = (char *)(((uintptr_t)sbrk(0) + PAGE - 1) & ~(PAGE - 1));
    NEED(brk(start) == 0);
    size_t steps = memory_bytes / STEP < STEPS ? memory_bytes / STEP : STEPS;
    grow(steps);
    check(start, steps * STEP, 3, "the heap grown");
    NEED(brk(start + steps / 2 * STEP) == 0);
    grow(steps - steps / 2);
    check(start, steps * STEP, 3, "the heap shrunk and grown again");
    int count = mappings_in(start, start + steps * STEP);
    if (count > MAPPINGS_MAX)
        fail("the heap is %d mappings after %zu steps, more than %d", count, steps, MAPPINGS_MAX);
    NEED(brk(start) == 0);
}
