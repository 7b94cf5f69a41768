/* fork: the child reads every byte, evicted ones too; both write on, and neither sees the other's bytes. */
#include "hazard.h"

static void hazard(void) {
    char *memory = map_filled(memory_bytes, 1);
    pid_t child = fork_or_fail();
    if (child == 0) {
        check(memory, memory_bytes, 1, "child, before writing");
        fill(memory, memory_bytes, 2);
        check(memory, memory_bytes, 2, "child, after writing");
        _exit(0);
    }
    fill(memory, memory_bytes / 2, 3);
    check(memory, memory_bytes / 2, 3, "parent, written while the child runs");
    check(memory + memory_bytes / 2, memory_bytes / 2, 1, "parent, not written");
    reap(child, "child");
    check(memory, memory_bytes / 2, 3, "parent, after the child");
    check(memory + memory_bytes / 2, memory_bytes / 2, 1, "parent, not written, after the child");
    /* Pages given back and zeros never written are as they were, in the child too. */
    NEED(madvise(memory, memory_bytes / 4, MADV_DONTNEED) == 0);
    char *fresh = map_new(memory_bytes / 4);
    child = fork_or_fail();
    if (child == 0) {
        check_zero(memory, memory_bytes / 4, "child, dropped before the fork");
        check_zero(fresh, memory_bytes / 4, "child, never touched");
        check(memory + memory_bytes / 2, memory_bytes / 2, 1, "child, second fork");
        NEED(munmap(memory + memory_bytes / 2, memory_bytes / 2) == 0);
        char *own = map_filled(memory_bytes, 5);
        check(own, memory_bytes, 5, "child, memory of its own");
        _exit(0);
    }
    reap(child, "second child");
    check_zero(memory, memory_bytes / 4, "parent, dropped");
    check(memory + memory_bytes / 2, memory_bytes / 2, 1, "parent, unmapped by the child");
}
