/* Fifty forks in a row, the parent writing between them; every child verifies its own moment. */
#include "hazard.h"

static void hazard(void) {
    char *memory = map_filled(memory_bytes, 1);
    size_t part = memory_bytes / 50 / PAGE * PAGE;
    for (int i = 0; i < 50; i++) {
        fill(memory + i * part, part, 2);
        pid_t child = fork_or_fail();
        if (child == 0) {
            size_t from = (i / 10) * 10 * part;
            check(memory + from, (i + 1) * part - from, 2, "child, written before the fork");
            check(memory + (i + 1) * part, part * (i % 10 < 2 ? 49 - i : i < 48), 1, "child, not written before the fork");
            fill(memory + (i + 1) % 50 * part, part, 3);
            _exit(0);
        }
        if (i % 7) reap(child, "child");
        else {
            fill(memory + (i + 1) % 50 * part, part, 1 + (i == 49));
            reap(child, "child");
        }
    }
    check(memory, 50 * part, 2, "parent");
}
