/* SIGSTOP and SIGCONT, again and again, in the middle of paging: nothing hangs and nothing is lost. */
#include "hazard.h"

static void hazard(void) {
    char *memory = map_filled(memory_bytes / 2, 1);
    pid_t me = getpid(), child = fork_or_fail();
    if (child == 0) {
        for (int i = 0; i < 30; i++) {
            usleep(30000);
            kill(me, SIGSTOP);
            usleep(10000 + i % 3 * 30000);
            kill(me, SIGCONT);
        }
        check(memory, memory_bytes / 2, 1, "child");
        _exit(0);
    }
    struct churn *churn = start_churn(memory_bytes / 2);
    int status;
    pid_t got;
    while ((got = waitpid(child, &status, WNOHANG)) == 0 || (got < 0 && errno == EINTR))
        check(memory, memory_bytes / 2, 1, "while being stopped");
    NEED(got == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    stop_churn(churn);
    check(memory, memory_bytes / 2, 1, "afterwards");
    /* The other way: a child is stopped while it pages, and continued. */
    child = fork_or_fail();
    if (child == 0) {
        for (int round = 0; round < 4; round++) {
            fill(memory, memory_bytes / 2, 2 + round);
            check(memory, memory_bytes / 2, 2 + round, "stopped child");
        }
        _exit(0);
    }
    for (int i = 0; i < 10; i++) {
        kill(child, SIGSTOP);
        check(memory, memory_bytes / 2, 1, "parent of a stopped child");
        kill(child, SIGCONT);
        usleep(20000);
    }
    reap(child, "stopped child");
}
