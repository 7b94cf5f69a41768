/* mprotect to PROT_NONE and back: evicted bytes stay; while it is PROT_NONE an access is SIGSEGV. */
#include "hazard.h"
#include <setjmp.h>

static sigjmp_buf back;
static void on_segv(int sig) { siglongjmp(back, sig); }

static void hazard(void) {
    char *memory = map_filled(memory_bytes, 1);
    signal(SIGSEGV, on_segv);
    signal(SIGBUS, on_segv);
    for (int round = 0; round < 3; round++) {
        NEED(mprotect(memory, memory_bytes, PROT_NONE) == 0);
        for (size_t at = 0; at < memory_bytes; at += memory_bytes / 16) {
            int sig = sigsetjmp(back, 1);
            if (sig == 0) {
                char got = *(volatile char *)(memory + at);
                fail("PROT_NONE memory at %p reads %d", memory + at, got);
            }
            if (sig != SIGSEGV) fail("PROT_NONE memory gave signal %d", sig);
        }
        evict_others();
        NEED(mprotect(memory, memory_bytes, PROT_READ | PROT_WRITE) == 0);
        check(memory, memory_bytes, 1 + round, "given back");
        fill(memory, memory_bytes, 2 + round);
    }
    for (size_t at = 0; at + PAGE <= memory_bytes; at += 3 * PAGE) NEED(mprotect(memory + at, PAGE, PROT_NONE) == 0);
    evict_others();
    for (size_t at = 0; at + PAGE <= memory_bytes; at += 3 * PAGE)
        NEED(mprotect(memory + at, PAGE, PROT_READ | PROT_WRITE) == 0);
    check(memory, memory_bytes, 4, "every third page was PROT_NONE");
}
