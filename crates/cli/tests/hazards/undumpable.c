/* prctl(PR_SET_DUMPABLE, 0): /proc/self becomes root's, paging and fork go on. */
#include "hazard.h"
#include <sys/prctl.h>

static void hazard(void) {
    char *memory = map_filled(memory_bytes, 1);
    NEED(prctl(PR_SET_DUMPABLE, 0) == 0);
    check(memory, memory_bytes, 1, "undumpable");
    fill(memory, memory_bytes, 2);
    prctl(PR_SET_NAME, "renamed", 0, 0, 0);
    pid_t child = fork_or_fail();
    if (child == 0) {
        check(memory, memory_bytes, 2, "undumpable child");
        fill(memory, memory_bytes, 3);
        check(memory, memory_bytes, 3, "undumpable child, written");
        char *own = map_filled(memory_bytes / 4, 4);
        check(own, memory_bytes / 4, 4, "undumpable child, new memory");
        _exit(0);
    }
    reap(child, "undumpable child");
    check(memory, memory_bytes, 2, "undumpable parent");
    NEED(prctl(PR_SET_DUMPABLE, 1) == 0);
    check(memory, memory_bytes, 2, "dumpable again");
}
