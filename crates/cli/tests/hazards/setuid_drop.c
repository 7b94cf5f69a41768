/* A program started as root drops to nobody, goes on paging, and forks. */
#include "hazard.h"
#include <grp.h>

static void hazard(void) {
    if (geteuid() != 0) skip("not root");
    char *memory = map_filled(memory_bytes, 1);
    NEED(setgroups(0, NULL) == 0 && setresgid(65534, 65534, 65534) == 0 && setresuid(65534, 65534, 65534) == 0);
    check(memory, memory_bytes, 1, "as nobody");
    fill(memory, memory_bytes, 2);
    char *more = map_filled(memory_bytes / 2, 3);
    check(memory, memory_bytes, 2, "as nobody, written");
    check(more, memory_bytes / 2, 3, "as nobody, new memory");
    for (int i = 0; i < 3; i++) {
        pid_t child = fork_or_fail();
        if (child == 0) {
            check(memory, memory_bytes, 2, "child of nobody");
            fill(memory, memory_bytes, 4);
            check(memory, memory_bytes, 4, "child of nobody, written");
            _exit(0);
        }
        reap(child, "child of nobody");
    }
    check(memory, memory_bytes, 2, "as nobody, after the children");
}
