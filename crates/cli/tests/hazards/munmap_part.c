/* munmap of holes in evicted memory: what is left stays, what is mapped back is zeros, what is gone is SIGSEGV. */
#include "hazard.h"
#include <setjmp.h>

static sigjmp_buf back;
static void on_segv(int sig) { siglongjmp(back, sig); }

static void hazard(void) {
    size_t piece = 37 * PAGE, pieces = memory_bytes / piece;
    char *memory = map_filled(pieces * piece, 1);
    for (size_t i = 1; i < pieces; i += 3) NEED(munmap(memory + i * piece, piece) == 0);
    signal(SIGSEGV, on_segv);
    for (size_t i = 1; i < pieces; i += 30) {
        if (sigsetjmp(back, 1) == 0) {
            char got = *(volatile char *)(memory + i * piece + PAGE);
            fail("unmapped memory reads %d", got);
        }
    }
    signal(SIGSEGV, SIG_DFL);
    for (size_t i = 1; i < pieces; i += 6)
        NEED(mmap(memory + i * piece, piece, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1,
                  0) == memory + i * piece);
    for (size_t i = 0; i < pieces; i++) {
        if (i % 3 != 1) check(memory + i * piece, piece, 1, "left mapped");
        else if (i % 6 == 1) check_zero(memory + i * piece, piece, "mapped again");
    }
    for (size_t i = 1; i < pieces; i += 6) fill(memory + i * piece, piece, 2);
    for (size_t i = 0; i < pieces; i++) {
        if (i % 3 != 1) check(memory + i * piece, piece, 1, "left mapped, second pass");
        else if (i % 6 == 1) check(memory + i * piece, piece, 2, "mapped again and written");
    }
}
