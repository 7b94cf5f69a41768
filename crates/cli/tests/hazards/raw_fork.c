/* fork by raw system call: the child has the right bytes, or an error or a signal at once; never wrong bytes. */
#include "hazard.h"
#include <linux/sched.h>

/* The ways to get a child with a copy of the memory that no libc wrapper sees. */
static pid_t raw(int way) {
    switch (way) {
    case 0: return syscall(SYS_fork);
    case 1: return syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL);
    case 2: return syscall(SYS_clone, SIGCHLD | CLONE_FS | CLONE_FILES, NULL, NULL, NULL, NULL);
    default: {
        struct clone_args clone3 = {.exit_signal = SIGCHLD};
        return syscall(SYS_clone3, &clone3, sizeof clone3);
    }
    }
}

static void hazard(void) {
    char *memory = map_filled(memory_bytes, 1);
    for (int way = 0; way < 4; way++) {
        fflush(stdout);
        pid_t child = raw(way);
        if (child < 0) {
            fprintf(stderr, "raw fork %d is refused: %s\n", way, strerror(errno));
            continue;
        }
        if (child == 0) {
            /* No libc call before the bytes are checked; a wrong word exits with 1. */
            check(memory, memory_bytes, 1, "raw child");
            _exit(0);
        }
        fill(memory, memory_bytes / 4, 1);
        int status;
        NEED(waitpid(child, &status, 0) == child);
        if (WIFSIGNALED(status)) {
            int sig = WTERMSIG(status);
            if (sig != SIGSEGV && sig != SIGBUS && sig != SIGKILL && sig != SIGSYS) fail("way %d: signal %d", way, sig);
            fprintf(stderr, "raw fork %d: the child got signal %d, an error and not wrong data\n", way, sig);
        } else if (WEXITSTATUS(status) == 1) {
            fail("way %d: the child read wrong bytes", way);
        }
        check(memory, memory_bytes, 1, "parent");
    }
}
