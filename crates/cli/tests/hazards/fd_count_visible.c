/* /proc/self/fd shows the program's own descriptors and no others below 1024; numbers are handed out as without paging. */
#include "hazard.h"
#include <dirent.h>

static int count_low(void) {
    DIR *directory = opendir("/proc/self/fd");
    NEED(directory);
    int count = 0, own = dirfd(directory);
    for (struct dirent *entry; (entry = readdir(directory));) {
        int fd = atoi(entry->d_name);
        char link[64], target[256];
        if (entry->d_name[0] == '.' || fd == own || fd >= 1024) continue;
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        ssize_t length = readlink(link, target, sizeof target - 1);
        target[length < 0 ? 0 : length] = 0;
        if (fd > 2) fprintf(stderr, "descriptor %d is %s\n", fd, target);
        count += fd > 2;
    }
    closedir(directory);
    return count;
}

static void hazard(void) {
    int inherited = getenv("HAZARD_FDS") ? atoi(getenv("HAZARD_FDS")) : 0;
    char *memory = map_filled(memory_bytes, 1);
    if (count_low() != inherited) fail("%d descriptors are open below 1024, not %d", count_low(), inherited);
    int first = open("/dev/null", O_RDONLY), second = dup(first);
    if (inherited == 0 && (first != 3 || second != 4)) fail("new descriptors are %d and %d, not 3 and 4", first, second);
    check(memory, memory_bytes, 1, "memory");
    pid_t child = fork_or_fail();
    if (child == 0) {
        if (count_low() != inherited + 2) fail("%d descriptors in the child, not %d", count_low(), inherited + 2);
        check(memory, memory_bytes, 1, "child");
        if (count_low() != inherited + 2) fail("%d descriptors in the child, not %d", count_low(), inherited + 2);
        _exit(0);
    }
    reap(child, "child");
}
