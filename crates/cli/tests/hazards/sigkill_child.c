/* A child killed with SIGKILL in the middle of paging leaves its parent and its siblings unharmed. */
#include "hazard.h"

static void hazard(void) {
    char *memory = map_filled(memory_bytes, 1);
    for (int i = 0; i < 8; i++) {
        pid_t victim = fork_or_fail(), sibling;
        if (victim == 0) {
            for (uint64_t seed = 2;; seed++) fill(memory, memory_bytes, seed);
        }
        sibling = fork_or_fail();
        if (sibling == 0) {
            check(memory, memory_bytes, 1, "sibling");
            _exit(0);
        }
        usleep(20000 + i * 30000);
        NEED(kill(victim, SIGKILL) == 0);
        int status;
        NEED(waitpid(victim, &status, 0) == victim && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
        reap(sibling, "sibling");
        check(memory, memory_bytes, 1, "parent");
    }
}
