/* Threads that end by the bare system call, the first one too: the process ends with its last thread. */
#include "hazard.h"
#include <linux/seccomp.h>
#include <sys/prctl.h>

static char *memory;

static void *ends_later(void *argument) {
    usleep(200000);
    check(memory, memory_bytes / 4, 1, "a thread whose first thread has ended");
    syscall(SYS_exit, 5);
    return argument;
}

static void hazard(void) {
    memory = map_filled(memory_bytes / 4, 1);
    pid_t alone = fork_or_fail();
    if (alone == 0) {
        check(memory, memory_bytes / 4, 1, "the only thread");
        syscall(SYS_exit, 3);
    }
    reap_code(alone, 3, "a process whose only thread ended by itself");

    pid_t first = fork_or_fail();
    if (first == 0) {
        pthread_t thread;
        start_thread(&thread, ends_later, NULL);
        syscall(SYS_exit, 5);
    }
    reap_code(first, 5, "a process whose first thread ended first");

    pid_t strict = fork_or_fail();
    if (strict == 0) {
        NEED(prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT) == 0);
        check(memory, memory_bytes / 4, 1, "in strict mode");
        syscall(SYS_exit, 7);
    }
    reap_code(strict, 7, "a process in strict mode");
}
