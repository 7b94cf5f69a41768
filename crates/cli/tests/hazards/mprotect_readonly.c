/* Read-only memory evicted while it is read-only: reads right, a write is SIGSEGV, and writable again later. */
#include "hazard.h"
#include <setjmp.h>

static sigjmp_buf back;
static void on_segv(int sig) { siglongjmp(back, sig); }

static void hazard(void) {
    char *memory = map_filled(memory_bytes, 1);
    NEED(mprotect(memory, memory_bytes, PROT_READ) == 0);
    signal(SIGSEGV, on_segv);
    for (int round = 0; round < 2; round++) {
        check(memory, memory_bytes, 1, "read-only");
        evict_others();
        for (size_t at = 0; at < memory_bytes; at += memory_bytes / 64) {
            if (sigsetjmp(back, 1) == 0) {
                *(volatile char *)(memory + at) = 1;
                fail("read-only memory at %p was written", memory + at);
            }
        }
    }
    signal(SIGSEGV, SIG_DFL);
    check(memory, memory_bytes, 1, "after refused writes");
    NEED(mprotect(memory, memory_bytes / 2, PROT_READ | PROT_WRITE) == 0);
    fill(memory, memory_bytes / 2, 2);
    check(memory, memory_bytes / 2, 2, "writable again");
    check(memory + memory_bytes / 2, memory_bytes / 2, 1, "still read-only");
    /* Never touched before it became read-only: zeros. */
    char *fresh = map_new(memory_bytes / 4);
    NEED(mprotect(fresh, memory_bytes / 4, PROT_READ) == 0);
    check_zero(fresh, memory_bytes / 4, "read-only and never written");
    NEED(mprotect(fresh, memory_bytes / 4, PROT_READ | PROT_WRITE) == 0);
    fill(fresh, memory_bytes / 4, 3);
    check(fresh, memory_bytes / 4, 3, "written after zeros were read");
}
