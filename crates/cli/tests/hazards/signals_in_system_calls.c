/* System calls that write to evicted memory while signals wait: the kernel lets a thread sleep in such a fault only as
 * long as no signal is pending, and then has it fault again and again. Everything arrives, and nothing stands still. */
#include "hazard.h"
#include <sys/time.h>

static const size_t PIECE = 64UL << 10;
static volatile uint64_t *touched;
static atomic_long signals;
static int ends[2];

/* A page of its own each time, so that handlers fault as well. */
static void on_signal(int number) {
    (void)number;
    size_t page = (size_t)atomic_fetch_add(&signals, 1) % (memory_bytes / PAGE);
    touched[page * 512]++;
}

static void *write_all(void *argument) {
    char *memory = argument;
    for (size_t done = 0; done < memory_bytes;) {
        size_t rest = memory_bytes - done;
        ssize_t count = write(ends[1], memory + done, rest < PIECE ? rest : PIECE);
        if (count < 0 && errno != EINTR) fail("write: %s", strerror(errno));
        if (count > 0) done += (size_t)count;
    }
    return NULL;
}

static void hazard(void) {
    /* On a busy machine a thread that faults again and again takes the processor from those that it waits for. */
    if (memory_bytes > 16 * MIB) memory_bytes = 16 * MIB;
    char *source = map_filled(memory_bytes, 1), *copy = map_new(memory_bytes);
    touched = map_new(memory_bytes);
    /* Parts of the memory are mappings of their own, so that pages leave one by one. */
    for (size_t at = 0; at < memory_bytes; at += 32 * PAGE) NEED(mprotect(source + at, PAGE, PROT_READ) == 0);
    NEED(pipe(ends) == 0);
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    NEED(sigaction(SIGALRM, &action, NULL) == 0);
    sigset_t alarms;
    sigemptyset(&alarms);
    sigaddset(&alarms, SIGALRM);
    for (int round = 0, most = rounds(8); round < most; round++) {
        pthread_t writer;
        /* Signals are this thread's. */
        NEED(pthread_sigmask(SIG_BLOCK, &alarms, NULL) == 0);
        start_thread(&writer, write_all, source);
        NEED(pthread_sigmask(SIG_UNBLOCK, &alarms, NULL) == 0);
        struct itimerval timer = {{0, 1000}, {0, 1000}};
        NEED(setitimer(ITIMER_REAL, &timer, NULL) == 0);
        for (size_t done = 0; done < memory_bytes;) {
            ssize_t count = read(ends[0], copy + done, memory_bytes - done);
            if (count < 0 && errno != EINTR) fail("read: %s", strerror(errno));
            if (count > 0) done += (size_t)count;
        }
        struct itimerval none = {0};
        NEED(setitimer(ITIMER_REAL, &none, NULL) == 0);
        join_thread(writer);
        check_as(copy, source, memory_bytes, 1, "read from the pipe");
    }
    check(source, memory_bytes, 1, "at the end");
    uint64_t sum = 0;
    for (size_t page = 0; page < memory_bytes / PAGE; page++) sum += touched[page * 512];
    if (sum != (uint64_t)atomic_load(&signals)) fail("%lu touches of %ld", (unsigned long)sum, atomic_load(&signals));
}
