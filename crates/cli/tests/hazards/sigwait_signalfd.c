/* sigwait, sigtimedwait and signalfd see exactly the program's own signals; no stray signal from anyone else. */
#include "hazard.h"
#include <sys/signalfd.h>

/* Set when no more signals are wanted: those sent while one is pending are one, however slow the machine is. */
static volatile int enough;

static void *send(void *argument) {
    pid_t me = getpid();
    while (!enough) {
        usleep(5000);
        kill(me, (uintptr_t)argument);
    }
    return NULL;
}

static void hazard(void) {
    sigset_t set, all;
    siginfo_t info;
    pthread_t thread;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    sigaddset(&set, SIGUSR2);
    sigaddset(&set, SIGRTMIN + 3);
    NEED(pthread_sigmask(SIG_BLOCK, &set, NULL) == 0);
    char *memory = map_filled(memory_bytes, 1);
    struct churn *churn = start_churn(memory_bytes / 4);
    start_thread(&thread, send, (void *)SIGUSR1);
    for (int i = 0; i < 10; i++) {
        int sig;
        NEED(sigwait(&set, &sig) == 0 && sig == SIGUSR1);
        check(memory + i * (memory_bytes / 10 / PAGE * PAGE), memory_bytes / 10 / PAGE * PAGE, 1, "between sigwaits");
    }
    enough = 1;
    join_thread(thread);
    struct timespec soon = {0, 1000000};
    while (sigtimedwait(&set, &info, &soon) == SIGUSR1) continue;
    int fd = signalfd(-1, &set, 0);
    NEED(fd >= 0);
    for (int i = 0; i < 20; i++) {
        struct signalfd_siginfo *got = map_new(PAGE); /* the kernel writes into memory never touched */
        union sigval value = {.sival_int = i};
        NEED(sigqueue(getpid(), SIGRTMIN + 3, value) == 0);
        NEED(read(fd, got, sizeof *got) == sizeof *got);
        if ((int)got->ssi_signo != SIGRTMIN + 3 || got->ssi_int != i) fail("signal %u with %d", got->ssi_signo, got->ssi_int);
    }
    stop_churn(churn);
    sigfillset(&all);
    NEED(pthread_sigmask(SIG_BLOCK, &all, NULL) == 0); /* paging goes on with everything blocked */
    fill(memory, memory_bytes, 2);
    check(memory, memory_bytes, 2, "all signals blocked");
    sigset_t pending;
    NEED(sigpending(&pending) == 0);
    for (int sig = 1; sig < 65; sig++)
        if (sigismember(&pending, sig) == 1) fail("signal %d is pending and nobody sent it", sig);
}
