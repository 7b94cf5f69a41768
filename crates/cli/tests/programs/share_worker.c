/* One of several processes that have a budget between them. `share_worker MIB HOW [FILE]` fills its memory, and
 * - pipe: copies its input to its output and looks at its memory between blocks;
 * - busy: goes through its memory, reading and writing, until FILE is there;
 * - forks: forks children that execute something at once;
 * - orphan: forks a child that does as with busy, and ends;
 * - idle: sleeps until FILE is there.
 * At the end every byte has to be right. */
#include "hazard.h"

static char *memory;

static void pipe_on(void) {
    static char block[65536];
    size_t at = 0, step = memory_bytes / 16;
    ssize_t count;
    while ((count = read(0, block, sizeof block)) > 0) {
        for (ssize_t done = 0; done < count;) {
            ssize_t written = write(1, block + done, count - done);
            NEED(written > 0);
            done += written;
        }
        check(memory + at, step, 1, "between two blocks");
        at = (at + step) % memory_bytes;
    }
    NEED(count == 0);
}

static void work_until(const char *file) {
    for (size_t at = 0, step = memory_bytes / 16; access(file, F_OK) != 0; at = (at + step) % memory_bytes) {
        check(memory + at, step, 1, "while it works");
        fill(memory + at, step / 4, 1);
    }
}

static void fork_on(void) {
    for (int i = 0; i < 12; i++) {
        pid_t child = fork();
        NEED(child >= 0);
        if (child == 0) {
            execlp("true", "true", NULL);
            _exit(1);
        }
        int status = -1;
        NEED(waitpid(child, &status, 0) == child);
        NEED(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
}

static void hazard(void) {
    NEED(arg_count >= 3);
    memory = map_filled(memory_bytes, 1);
    if (strcmp(args[2], "pipe") == 0) {
        pipe_on();
    } else if (strcmp(args[2], "busy") == 0) {
        work_until(args[3]);
    } else if (strcmp(args[2], "forks") == 0) {
        fork_on();
    } else if (strcmp(args[2], "orphan") == 0) {
        pid_t child = fork();
        NEED(child >= 0);
        if (child > 0) _exit(0);
        work_until(args[3]);
    } else {
        while (access(args[3], F_OK) != 0) usleep(50000);
    }
    check(memory, memory_bytes, 1, "at the end");
}
