/* fork and exec: the new program has nothing of the old one's memory, and is governed by itself. */
#include "hazard.h"

static void hazard(void) {
    if (arg_count > 2) { /* the exec'ed program */
        if (atoi(args[2]) != is_governed()) fail("exec'ed program: governed is %d, not %s", is_governed(), args[2]);
        char *memory = map_filled(memory_bytes / 2, 5);
        check(memory, memory_bytes / 2, 5, "exec'ed program");
        _exit(7);
    }
    char *memory = map_filled(memory_bytes, 1), mib[24];
    snprintf(mib, sizeof mib, "%zu", memory_bytes / MIB);
    for (int i = 0; i < 3; i++) {
        pid_t child = fork_or_fail();
        if (child == 0) {
            check(memory, MIB, 1, "child before exec");
            execl("/proc/self/exe", args[0], mib, is_governed() ? "1" : "0", NULL);
            fail("exec: %s", strerror(errno));
        }
        reap_code(child, 7, "exec'ed child");
    }
    check(memory, memory_bytes, 1, "parent");
}
