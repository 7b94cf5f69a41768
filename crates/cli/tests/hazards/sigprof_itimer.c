/* A profiler's SIGPROF and a per-thread timer while threads page. */
#include "hazard.h"
#include <sys/time.h>

static atomic_ulong samples;
static void on_prof(int sig) {
    (void)sig;
    int saved = errno;
    atomic_fetch_add(&samples, 1);
    errno = saved;
}

static void hazard(void) {
    struct sigaction action = {.sa_handler = on_prof, .sa_flags = SA_RESTART};
    NEED(sigaction(SIGPROF, &action, NULL) == 0);
    struct itimerval every = {{0, 1000}, {0, 1000}};
    NEED(setitimer(ITIMER_PROF, &every, NULL) == 0);
    struct churn *one = start_churn(memory_bytes / 2), *two = start_churn(memory_bytes / 2);
    double end = now_seconds() + 2;
    while (now_seconds() < end) {
        char *memory = map_filled(memory_bytes / 8, 3);
        check(memory, memory_bytes / 8, 3, "main thread");
        munmap(memory, memory_bytes / 8);
    }
    stop_churn(one);
    stop_churn(two);
    memset(&every, 0, sizeof every);
    setitimer(ITIMER_PROF, &every, NULL);
    if (atomic_load(&samples) < 20) fail("only %lu samples in two seconds", atomic_load(&samples));
}
