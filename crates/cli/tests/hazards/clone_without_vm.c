/* clone() of glibc without CLONE_VM, on a stack of malloc memory: right bytes, or an error or a signal. */
#include "hazard.h"

static char *memory;

static int child_main(void *argument) {
    (void)argument;
    check(memory, memory_bytes, 1, "clone child");
    fill(memory, memory_bytes / 4, 2);
    check(memory, memory_bytes / 4, 2, "clone child, written");
    return 0;
}

static int sharing_child(void *argument) {
    *(volatile int *)argument = 42;
    check(memory, memory_bytes, 1, "child that shares the memory");
    fill(memory, memory_bytes, 3);
    return 0;
}

static void hazard(void) {
    memory = map_filled(memory_bytes, 1);
    char *stack = map_new(MIB);
    int status;
    pid_t child = clone(child_main, stack + MIB, SIGCHLD, NULL);
    if (child < 0) {
        fprintf(stderr, "clone without CLONE_VM is refused: %s\n", strerror(errno));
    } else {
        NEED(waitpid(child, &status, 0) == child);
        if (WIFEXITED(status) && WEXITSTATUS(status) != 0) fail("the child read wrong bytes");
        if (WIFSIGNALED(status)) fprintf(stderr, "clone child got signal %d, not wrong data\n", WTERMSIG(status));
    }
    check(memory, memory_bytes, 1, "parent");
    /* With CLONE_VM but not as a thread: one memory, two processes. */
    volatile int *flag = map_new(PAGE);
    child = clone(sharing_child, stack + MIB, CLONE_VM | SIGCHLD, (void *)flag);
    NEED(child > 0);
    reap(child, "child that shares the memory");
    NEED(*flag == 42);
    check(memory, memory_bytes, 3, "written by the child that shares the memory");
}
