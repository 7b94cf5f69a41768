/* A signal that is blocked and pending stays so over a fork, in the parent; the child has none pending. */
#include "hazard.h"

static void hazard(void) {
    sigset_t blocked, pending;
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGUSR1);
    sigaddset(&blocked, SIGTERM);
    NEED(sigprocmask(SIG_BLOCK, &blocked, NULL) == 0);
    NEED(kill(getpid(), SIGUSR1) == 0 && kill(getpid(), SIGTERM) == 0);
    for (int round = 0; round < 10; round++) {
        pid_t child = fork_or_fail();
        NEED(sigpending(&pending) == 0);
        int here = sigismember(&pending, SIGUSR1) + sigismember(&pending, SIGTERM);
        if (child == 0) _exit(here == 0 ? 0 : 3);
        if (here != 2) fail("round %d: %d of two signals are pending", round, here);
        int status;
        NEED(waitpid(child, &status, 0) == child && status == 0);
    }
}
