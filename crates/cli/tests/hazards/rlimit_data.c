/* RLIMIT_DATA lowered to what the program is about to use: it counts the program's memory and nothing of Pagetide's, here and in children. */
#include "hazard.h"
#include <sys/resource.h>

static size_t data_bytes(void) {
    char line[256];
    size_t kib = 0;
    FILE *status = fopen("/proc/self/status", "r");
    NEED(status != NULL);
    while (fgets(line, sizeof line, status)) sscanf(line, "VmData: %zu", &kib);
    fclose(status);
    return kib * 1024;
}

static void hazard(void) {
    char *memory = map_filled(memory_bytes, 1);
    size_t before = data_bytes();
    if (before > memory_bytes + 16 * MIB)
        fail("%zu MiB count as data where the program has %zu MiB", before / MIB, memory_bytes / MIB);
    struct rlimit limit = {before + memory_bytes / 2 + 2 * MIB, RLIM_INFINITY};
    NEED(setrlimit(RLIMIT_DATA, &limit) == 0);
    char *more = map_filled(memory_bytes / 2, 2);
    /* What is too much is refused, and does no harm. */
    NEED(mmap(NULL, 4 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED && errno == ENOMEM);
    for (int i = 0; i < 3; i++) {
        pid_t child = fork_or_fail();
        if (child == 0) {
            check(memory, memory_bytes, 1, "child under a limit");
            fill(more, memory_bytes / 2, 3);
            pid_t grandchild = fork_or_fail();
            if (grandchild == 0) {
                check(more, memory_bytes / 2, 3, "grandchild under a limit");
                _exit(0);
            }
            reap(grandchild, "grandchild");
            _exit(0);
        }
        reap(child, "child");
    }
    check(more, memory_bytes / 2, 2, "after the children");
    fill(memory, memory_bytes, 4);
    check(memory, memory_bytes, 4, "after the children, written");
}
