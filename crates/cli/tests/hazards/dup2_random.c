/* dup2 and open over all kinds of descriptor numbers while paging: nothing of the agent's is hit. */
#include "hazard.h"
#include <sys/resource.h>

static void hazard(void) {
    char *memory = map_filled(memory_bytes, 1), byte;
    struct rlimit limit;
    NEED(getrlimit(RLIMIT_NOFILE, &limit) == 0);
    int null = open("/dev/null", O_RDWR), most = limit.rlim_cur < 20000 ? limit.rlim_cur : 20000;
    NEED(null >= 0);
    struct churn *churn = start_churn(memory_bytes / 4);
    for (int i = 0; i < 1200; i++) {
        int target = i < 300 ? 10 + i : i < 600 ? most - 1 - (i - 300) : 10 + (int)(mix(i) % (most - 10));
        if (dup2(null, target) != target) fail("dup2 to %d: %s", target, strerror(errno));
        if (read(target, &byte, 1) != 0) fail("descriptor %d is not /dev/null", target);
        if (i % 100 == 99) check(memory + (i / 100) * (memory_bytes / 12 / PAGE * PAGE), memory_bytes / 12 / PAGE * PAGE, 1, "between dup2");
        if (i % 3) close(target);
    }
    pid_t child = fork_or_fail();
    if (child == 0) {
        for (int fd = 3; fd < most; fd++) dup2(null, fd);
        check(memory, memory_bytes, 1, "child whose descriptors are all /dev/null");
        _exit(0);
    }
    reap(child, "child");
    /* All slots taken: the program gets EMFILE from its own open only, and paging goes on. */
    for (int fd = 3; fd < most; fd++) dup2(null, fd);
    if ((rlim_t)most == limit.rlim_cur) NEED(open("/dev/null", O_RDONLY) < 0 && errno == EMFILE);
    check(memory, memory_bytes, 1, "every descriptor taken");
    fill(memory, memory_bytes, 2);
    check(memory, memory_bytes, 2, "every descriptor taken, written");
    stop_churn(churn);
}
