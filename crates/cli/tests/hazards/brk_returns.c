/* A heap that shrinks while it is being attached, and grows back to the same size, is governed all the same: at once, not when
 * memory that was refused is next tried. The moment is met once in some thousand rounds. */
#include "hazard.h"

enum { ROUNDS = 400, PATIENCE_MS = 500 };

/* Whether all of the mappings from `start` to `end` are served by a userfaultfd. */
static int is_served(uintptr_t start, uintptr_t end) {
    FILE *smaps = fopen("/proc/self/smaps", "r");
    NEED(smaps);
    char line[512];
    uintptr_t from = 0, to = 0, a, b;
    int served = 1;
    while (fgets(line, sizeof line, smaps)) {
        if (sscanf(line, "%lx-%lx ", &a, &b) == 2) {
            from = a;
            to = b;
        } else if (!strncmp(line, "VmFlags:", 8) && from < end && to > start && !strstr(line, " um")) {
            served = 0;
        }
    }
    fclose(smaps);
    return served;
}

static void hazard(void) {
    int governed = is_governed();
    is_served(0, 0); /* lets the C library take what memory it wants for this, before the break moves */
    size_t bytes = 16 * MIB;
    char *start = (char *)(((uintptr_t)sbrk(0) + PAGE - 1) & ~(PAGE - 1));
    NEED(brk(start) == 0);
    for (int round = 0; round < rounds(ROUNDS); round++) {
        uint64_t random = mix(round);
        NEED(sbrk(bytes) == start);
        fill(start, (1 + random % 64) * 64 * PAGE / 4, round + 1);
        if (random & 1 << 10) usleep(random >> 20 & 4095);
        NEED(brk(start) == 0);
        NEED(sbrk(bytes) == start);
        fill(start, bytes / 8, round + 1);
        int waited = 0;
        /* The heap's last page stays the kernel's. */
        while (governed && !is_served((uintptr_t)start, (uintptr_t)start + bytes - PAGE)) {
            if (waited >= PATIENCE_MS) fail("round %d: the heap is not governed after %d ms", round, waited);
            usleep(5000);
            waited += 5;
        }
        check(start, bytes / 8, round + 1, "the heap grown again");
        NEED(brk(start) == 0);
    }
}
