/* A child that outlives many siblings and keeps reading old pages while the parent rewrites everything. */
#include "hazard.h"

static void hazard(void) {
    char *memory = map_filled(memory_bytes, 1);
    pid_t slow = fork_or_fail();
    if (slow == 0) {
        for (int i = 0; i < 4; i++) {
            usleep(150000);
            check(memory, memory_bytes, 1, "the slow child");
        }
        _exit(0);
    }
    for (int i = 0; i < 4; i++) {
        fill(memory, memory_bytes, 2 + i);
        pid_t quick = fork_or_fail();
        if (quick == 0) {
            check(memory, memory_bytes, 2 + i, "a quick child");
            _exit(0);
        }
        reap(quick, "a quick child");
        check(memory, memory_bytes, 2 + i, "parent");
    }
    NEED(munmap(memory, memory_bytes) == 0);
    reap(slow, "the slow child");
}
