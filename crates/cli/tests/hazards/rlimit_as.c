/* RLIMIT_AS lowered below what the process has mapped already: no mapping succeeds any more, and the memory there is goes on, as before and in
 * a child that lowers it as soon as it runs. */
#include "hazard.h"
#include <sys/resource.h>

static void lower_limit(void) {
    struct rlimit limit = {memory_bytes / 2, memory_bytes / 2};
    NEED(setrlimit(RLIMIT_AS, &limit) == 0);
    NEED(mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED && errno == ENOMEM);
}

static void work_under_limit(char *filled, char *untouched) {
    lower_limit();
    check(filled, memory_bytes, 1, "filled before the limit");
    fill(untouched, memory_bytes, 2);
    fill(filled, memory_bytes, 3);
    check(untouched, memory_bytes, 2, "filled under the limit");
    check(filled, memory_bytes, 3, "written under the limit");
}

static void hazard(void) {
    char *filled = map_filled(memory_bytes, 1);
    char *untouched = map_new(memory_bytes);
    for (int i = 0; i < 4; i++) {
        pid_t child = fork_or_fail();
        if (child == 0) {
            work_under_limit(filled, untouched);
            _exit(0);
        }
        reap(child, "child");
    }
    check(filled, memory_bytes, 1, "after the children");
    work_under_limit(filled, untouched);
}
