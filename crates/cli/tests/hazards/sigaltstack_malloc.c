/* Signal handlers on an alternate stack in malloc memory that is evicted between signals; stack overflow is caught on it. */
#include "hazard.h"
#include <setjmp.h>

static volatile sig_atomic_t handled;
static char *memory;
static sigjmp_buf back;

static void on_usr1(int sig) {
    char frame[16384];
    fill(frame, sizeof frame, sig);
    check(memory + (handled % 16) * (memory_bytes / 16), 16 * PAGE, 1, "memory from the handler");
    check(frame, sizeof frame, sig, "the handler's frame");
    handled++;
}

static void on_segv(int sig) { siglongjmp(back, sig); }

static int overflow(int depth) {
    if (depth == 1 << 30) return 0;
    volatile char frame[65536];
    frame[depth % 65536] = depth;
    return overflow(depth + 1) + frame[(depth * 7) % 65536];
}

static void hazard(void) {
    size_t size = 256 * 1024;
    stack_t stack = {.ss_sp = malloc(size), .ss_size = size};
    NEED(sigaltstack(&stack, NULL) == 0);
    struct sigaction action = {.sa_handler = on_usr1, .sa_flags = SA_ONSTACK};
    NEED(sigaction(SIGUSR1, &action, NULL) == 0);
    memory = map_filled(memory_bytes, 1);
    for (int i = 0; i < 60; i++) {
        if (i % 12 == 0) evict_others();
        else check(memory + i * (memory_bytes / 64), memory_bytes / 64, 1, "between signals");
        memset((char *)stack.ss_sp, i, size / 2);
        raise(SIGUSR1);
    }
    NEED(handled == 60);
    action.sa_handler = on_segv;
    NEED(sigaction(SIGSEGV, &action, NULL) == 0);
    evict_others();
    if (sigsetjmp(back, 1) == 0) {
        overflow(0);
        fail("endless recursion came to an end");
    }
    check(memory, memory_bytes, 1, "after the stack overflow");
}
