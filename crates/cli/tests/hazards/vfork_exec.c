/* vfork and exec, over and over, with memory evicted around it. */
#include "hazard.h"

static void hazard(void) {
    char *memory = map_filled(memory_bytes, 1);
    struct churn *churn = start_churn(memory_bytes / 4);
    volatile int seen = 0;
    for (int i = 0; i < 30; i++) {
        char *const arguments[] = {"sh", "-c", "exit 9", NULL};
        pid_t child = vfork();
        if (child == 0) {
            seen++; /* shared with the parent until exec */
            execv("/bin/sh", arguments);
            _exit(127);
        }
        NEED(child > 0);
        reap_code(child, 9, "vfork child");
        check(memory + i * (memory_bytes / 32), memory_bytes / 32, 1, "between vforks");
    }
    NEED(seen == 30);
    stop_churn(churn);
    check(memory, memory_bytes, 1, "after vforks");
}
