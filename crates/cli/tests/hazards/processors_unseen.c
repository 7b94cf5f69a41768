/* Where threads may run stays the program's own affair, whatever the pager does to be near a faulting thread: threads and programs begun
 * amid faults, by each way of the C library, may run wherever the program may; so may those begun by a bare system call, soon after. */
#include "hazard.h"
#include <spawn.h>

extern char **environ;
static int all;
static char *memory;
static char mib[24], expected[24];

static int processors(void) {
    cpu_set_t set;
    NEED(sched_getaffinity(0, sizeof set, &set) == 0);
    return CPU_COUNT(&set);
}

/* As the kernel sees it, asked behind everybody's back. */
static int truly(pid_t task) {
    unsigned long set[16] = {0};
    if (syscall(SYS_sched_getaffinity, task, sizeof set, set) < 0) return -1;
    int count = 0;
    for (int i = 0; i < 16; i++) count += __builtin_popcountl(set[i]);
    return count;
}

static void fault_for_a_while(unsigned seed) {
    size_t pages = memory_bytes / PAGE;
    struct timespec begin, now;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    do {
        for (int i = 0; i < 64; i++) {
            seed = seed * 1664525 + 1013904223;
            char *page = memory + (seed >> 8) % pages * PAGE;
            if (*(volatile uint64_t *)page != word_at((uintptr_t)page, 1)) fail("a page differs");
        }
        clock_gettime(CLOCK_MONOTONIC, &now);
    } while ((now.tv_sec - begin.tv_sec) * 1000 + (now.tv_nsec - begin.tv_nsec) / 1000000 < 6);
}

static void *thread_sees(void *unused) {
    int seen = truly(0);
    if (seen != all) fail("a new thread may run on %d of %d processors", seen, all);
    return unused;
}

static int heir(void *unused) {
    (void)unused;
    pause();
    return 0;
}

static void expect_begun(int way) {
    char *arguments[] = {args[0], mib, "child", expected, NULL};
    pid_t child = 0;
    char command[600];
    snprintf(command, sizeof command, "'%s' %s child %s", args[0], mib, expected);
    switch (way) {
    case 0:
        if ((child = fork_or_fail()) == 0) _exit(truly(0) == all ? 7 : 8);
        break;
    case 1:
        if ((child = vfork()) == 0) {
            execv(args[0], arguments);
            _exit(9);
        }
        break;
    case 2:
        NEED(posix_spawn(&child, args[0], NULL, NULL, arguments, environ) == 0);
        break;
    case 3: {
        int status = system(command);
        if (!WIFEXITED(status) || WEXITSTATUS(status) != 7) fail("system: status %x", status);
        return;
    }
    case 4: {
        FILE *pipe = popen(command, "r");
        NEED(pipe);
        int status = pclose(pipe);
        if (!WIFEXITED(status) || WEXITSTATUS(status) != 7) fail("popen: status %x", status);
        return;
    }
    case 5: {
        pthread_t thread;
        NEED(pthread_create(&thread, NULL, thread_sees, NULL) == 0);
        NEED(pthread_join(thread, NULL) == 0);
        return;
    }
    case 6:
        if (processors() != all) fail("sched_getaffinity counts %d of %d", processors(), all);
        return;
    }
    reap_code(child, 7, "child on all processors");
}

static void hazard(void) {
    if (arg_count > 3 && strcmp(args[2], "child") == 0) _exit(truly(0) == atoi(args[3]) ? 7 : 8);
    all = processors();
    if (all < 2) skip("one processor only");
    snprintf(mib, sizeof mib, "%zu", memory_bytes / MIB);
    snprintf(expected, sizeof expected, "%d", all);
    memory = map_filled(memory_bytes, 1);
    for (int turn = 0; turn < 5; turn++)
        for (int way = 0; way < 7; way++) {
            fault_for_a_while(turn * 7 + way);
            expect_begun(way);
        }
    /* A thread that nobody saw begin. */
    for (int turn = 0; turn < 3; turn++) {
        fault_for_a_while(turn);
        char *stack = mmap(NULL, 16 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        NEED(stack != MAP_FAILED);
        int flags = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | SIGCHLD;
        pid_t child = clone(heir, stack + 16 * PAGE, flags & ~CLONE_SIGHAND, NULL);
        NEED(child > 0);
        int seen = 0;
        for (int i = 0; i < 100 && seen != all; i++) {
            fault_for_a_while(i);
            seen = truly(child);
        }
        NEED(kill(child, SIGKILL) == 0 && waitpid(child, NULL, 0) == child);
        if (seen != all) fail("a process begun unseen may run on %d of %d processors", seen, all);
    }
    check(memory, memory_bytes, 1, "the program's memory");
}
