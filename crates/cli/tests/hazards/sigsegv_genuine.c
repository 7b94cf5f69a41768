/* A genuine bad access still reaches the program's SIGSEGV handler with the right address, also amid paging. */
#include "hazard.h"
#include <setjmp.h>

static sigjmp_buf back;
static void *volatile fault_address;
static void on_segv(int sig, siginfo_t *info, void *context) {
    (void)context;
    fault_address = info->si_addr;
    siglongjmp(back, sig);
}

static void hazard(void) {
    char *memory = map_filled(memory_bytes, 1);
    struct sigaction action = {.sa_sigaction = on_segv, .sa_flags = SA_SIGINFO};
    NEED(sigaction(SIGSEGV, &action, NULL) == 0 && sigaction(SIGBUS, &action, NULL) == 0);
    char *guard = mmap(NULL, PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char *volatile bad[] = {(char *)16, guard + 8, (char *)0x7ffffffff000 - 64 * 1024 * 1024 * 1024UL};
    for (int round = 0; round < 30; round++) {
        char *address = bad[round % 2];
        if (sigsetjmp(back, 1) == 0) {
            *(volatile char *)address = 1;
            fail("a write to %p worked", address);
        }
        if (fault_address != address) fail("the handler was told %p, not %p", fault_address, address);
        check(memory + round * (memory_bytes / 32), memory_bytes / 32, 1, "between bad accesses");
    }
    /* A mapped file that was cut short gives SIGBUS. */
    FILE *file = tmpfile();
    NEED(file && ftruncate(fileno(file), PAGE) == 0);
    char *mapped = mmap(NULL, 2 * PAGE, PROT_READ, MAP_SHARED, fileno(file), 0);
    NEED(mapped != MAP_FAILED);
    int sig = sigsetjmp(back, 1);
    if (sig == 0) {
        char got = *(volatile char *)(mapped + PAGE);
        fail("beyond the end of the file reads %d", got);
    }
    if (sig != SIGBUS || fault_address != mapped + PAGE) fail("signal %d at %p", sig, fault_address);
    check(memory, memory_bytes, 1, "memory");
    /* Without a handler a bad access ends the process with SIGSEGV. */
    pid_t child = fork_or_fail();
    if (child == 0) {
        signal(SIGSEGV, SIG_DFL);
        *(volatile char *)guard = 1;
        _exit(0);
    }
    int status;
    NEED(waitpid(child, &status, 0) == child);
    if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGSEGV) fail("the child ended with status %x, not SIGSEGV", status);
}
