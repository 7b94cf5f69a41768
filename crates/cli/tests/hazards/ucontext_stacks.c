/* makecontext/swapcontext on stacks in malloc memory: many coroutines, evicted between turns, then fork from one. */
#include "hazard.h"
#include <ucontext.h>

enum { COROUTINES = 64 };
static ucontext_t main_context, contexts[COROUTINES];
static char *memory;

static void coroutine(int number) {
    size_t length = memory_bytes / 2 / COROUTINES / PAGE * PAGE;
    char *frame = __builtin_alloca(length);
    fill(frame, length, number);
    for (int turn = 0; turn < 4; turn++) {
        swapcontext(contexts + number, &main_context);
        check(frame, length, number + turn, "a coroutine's stack");
        fill(frame, length, number + turn + 1);
    }
    if (number == 0) {
        pid_t child = fork_or_fail();
        if (child == 0) {
            check(frame, length, number + 4, "the coroutine's stack in the child");
            check(memory, memory_bytes / 2, 1, "memory in the child");
            fill(frame, length, 99);
            check(frame, length, 99, "the coroutine's stack written in the child");
            _exit(0);
        }
        reap(child, "child forked from a coroutine");
        check(frame, length, number + 4, "the coroutine's stack after fork");
    }
}

static void hazard(void) {
    memory = map_filled(memory_bytes / 2, 1);
    size_t size = memory_bytes / 2 / COROUTINES + 64 * 1024;
    for (int i = 0; i < COROUTINES; i++) {
        NEED(getcontext(contexts + i) == 0);
        contexts[i].uc_stack.ss_sp = malloc(size);
        contexts[i].uc_stack.ss_size = size;
        contexts[i].uc_link = &main_context;
        makecontext(contexts + i, (void (*)(void))coroutine, 1, i);
    }
    for (int turn = 0; turn < 5; turn++)
        for (int i = 0; i < COROUTINES; i++) NEED(swapcontext(&main_context, contexts + i) == 0);
    check(memory, memory_bytes / 2, 1, "memory");
}
