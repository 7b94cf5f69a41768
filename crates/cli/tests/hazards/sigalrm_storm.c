/* SIGALRM a thousand times a second while memory is filled and verified; system calls restart or say EINTR. */
#include "hazard.h"
#include <sys/time.h>

static volatile sig_atomic_t ticks;
static char *memory;
static void on_alarm(int sig) {
    (void)sig;
    size_t at = (size_t)(ticks * 7919UL) % (memory_bytes / 2 / PAGE) * PAGE;
    check(memory + at, PAGE, 1, "memory from the handler");
    ticks++;
}

static void hazard(void) {
    memory = map_filled(memory_bytes, 1);
    struct sigaction action = {.sa_handler = on_alarm, .sa_flags = SA_RESTART};
    NEED(sigaction(SIGALRM, &action, NULL) == 0);
    struct itimerval every = {{0, 1000}, {0, 1000}};
    NEED(setitimer(ITIMER_REAL, &every, NULL) == 0);
    double end = now_seconds() + 2;
    char *other = memory + memory_bytes / 2;
    uint64_t seed = 2;
    do {
        fill(other, memory_bytes / 2, seed);
        check(other, memory_bytes / 2, seed++, "under the storm");
        check(memory, memory_bytes / 2, 1, "at rest under the storm");
    } while (now_seconds() < end);
    memset(&every, 0, sizeof every);
    setitimer(ITIMER_REAL, &every, NULL);
    if (ticks < 100) fail("only %d of about 2000 alarms came", (int)ticks);
}
