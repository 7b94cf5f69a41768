/* A mapping is shrunk, grown in place, and the process forks at once: the child has the new part too, as zeros. */
#include "hazard.h"

enum { ROUNDS = 300 };

static void hazard(void) {
    size_t all = 4 * MIB;
    char *memory = map_new(all);
    fill(memory, all, 1);
    for (size_t round = 0; round < (size_t)rounds(ROUNDS); round++) {
        size_t cut = (1 + mix(round) % 16) * PAGE, kept = all - cut;
        NEED(mremap(memory, all, kept, 0) == memory);
        if (mremap(memory, kept, all, 0) != memory) skip("there is no room to grow in place");
        pid_t child = fork_or_fail();
        if (child == 0) {
            check(memory, kept, 1, "what was kept, in the child");
            check_zero(memory + kept, cut, "what has grown, in the child");
            _exit(0);
        }
        int status;
        NEED(waitpid(child, &status, 0) == child);
        if (status != 0) fail("round %zu: the child ended with status 0x%x", round, status);
        check_zero(memory + kept, cut, "what has grown, in the parent");
        fill(memory, all, 1);
    }
}
