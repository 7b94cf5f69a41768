/* setrlimit(RLIMIT_NOFILE) lowered to almost nothing, soft and hard: paging and fork go on. */
#include "hazard.h"
#include <sys/resource.h>

static void hazard(void) {
    char *memory = map_filled(memory_bytes, 1);
    static const rlim_t limits[] = {1024, 256, 64, 24, 16, 8};
    for (int i = 0; i < 6; i++) {
        struct rlimit limit = {limits[i], limits[i]};
        NEED(setrlimit(RLIMIT_NOFILE, &limit) == 0);
        check(memory, memory_bytes, 1, "after setrlimit");
        fflush(stdout);
        pid_t child = fork();
        /* A governed child needs descriptors for its own pager: below 20 the fork may be refused, and nothing else may go wrong. */
        if (child < 0 && errno == EAGAIN && limits[i] < 20) continue;
        if (child < 0) fail("fork: %s", strerror(errno));
        if (child == 0) {
            check(memory, memory_bytes, 1, "child after setrlimit");
            char *own = map_filled(memory_bytes / 4, 2);
            check(own, memory_bytes / 4, 2, "child's own memory");
            _exit(0);
        }
        reap(child, "child");
    }
    /* The address space limit a program sets for itself counts its own memory. */
    struct rlimit limit = {1UL << 40, 1UL << 40};
    NEED(setrlimit(RLIMIT_AS, &limit) == 0);
    char *more = map_filled(memory_bytes / 2, 3);
    check(more, memory_bytes / 2, 3, "after RLIMIT_AS");
    check(memory, memory_bytes, 1, "after RLIMIT_AS");
    /* What a process that locks itself in does: no descriptor more. poll(2) works for none of its threads then. */
    for (rlim_t none = 2; none-- > 0;) {
        struct rlimit limit = {none, none};
        NEED(setrlimit(RLIMIT_NOFILE, &limit) == 0);
        check(memory, memory_bytes, 1, "without room for a descriptor");
        fill(more, memory_bytes / 2, 4 + none);
        check(more, memory_bytes / 2, 4 + none, "rewritten without room for a descriptor");
    }
}
