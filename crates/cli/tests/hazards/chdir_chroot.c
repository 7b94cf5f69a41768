/* chdir, chroot (when root) and umask: the store and the agent need no path any more. */
#include "hazard.h"
#include <sys/stat.h>

static void hazard(void) {
    char *memory = map_filled(memory_bytes, 1), directory[] = "/tmp/pagetide-hazard-XXXXXX";
    NEED(mkdtemp(directory) && chdir(directory) == 0);
    umask(0777);
    check(memory, memory_bytes, 1, "after chdir");
    pid_t child = fork_or_fail();
    if (child == 0) {
        int jailed = chroot(".") == 0;
        if (!jailed && errno != EPERM) fail("chroot: %s", strerror(errno));
        fill(memory, memory_bytes, 2);
        check(memory, memory_bytes, 2, jailed ? "in a chroot" : "chroot not permitted");
        pid_t grandchild = fork_or_fail();
        if (grandchild == 0) {
            check(memory, memory_bytes, 2, "forked in a chroot");
            fill(memory, memory_bytes / 2, 3);
            check(memory, memory_bytes / 2, 3, "forked in a chroot, written");
            _exit(0);
        }
        reap(grandchild, "grandchild");
        _exit(0);
    }
    reap(child, "child");
    NEED(rmdir(directory) == 0);
    check(memory, memory_bytes, 1, "with its directory gone");
    fill(memory, memory_bytes, 4);
    check(memory, memory_bytes, 4, "with its directory gone, written");
}
