/* A program started as root drops to nobody, goes on paging, and forks. Where the right to page went
 * with its privileges, for want of /dev/userfaultfd, each fork fails, and memory is as it was. */
#include "hazard.h"
#include <grp.h>

static int right_goes_with_privileges(void) {
    const char *mask = getenv("PAGETIDE_MASK");
    if (access("/dev/userfaultfd", R_OK | W_OK) == 0 && !(mask && strstr(mask, "device"))) return 0;
    FILE *file = fopen("/proc/sys/vm/unprivileged_userfaultfd", "r");
    int everybody = file != NULL && fgetc(file) == '1';
    if (file != NULL) fclose(file);
    return !everybody;
}

static void hazard(void) {
    if (geteuid() != 0) skip("not root");
    char *memory = map_filled(memory_bytes, 1);
    int must_fail = right_goes_with_privileges();
    NEED(setgroups(0, NULL) == 0 && setresgid(65534, 65534, 65534) == 0 && setresuid(65534, 65534, 65534) == 0);
    check(memory, memory_bytes, 1, "as nobody");
    fill(memory, memory_bytes, 2);
    char *more = map_filled(memory_bytes / 2, 3);
    check(memory, memory_bytes, 2, "as nobody, written");
    check(more, memory_bytes / 2, 3, "as nobody, new memory");
    for (int i = 0; i < 3; i++) {
        if (must_fail) {
            if (fork() >= 0 || errno != EPERM) fail("fork did not fail with EPERM: %s", strerror(errno));
            continue;
        }
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
