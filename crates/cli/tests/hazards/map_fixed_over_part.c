/* MAP_FIXED over parts of evicted memory: anonymous (zeros), a file (its bytes), PROT_NONE and back. */
#include "hazard.h"

static void hazard(void) {
    size_t piece = 64 * PAGE, pieces = memory_bytes / piece;
    char *memory = map_filled(memory_bytes, 1);
    FILE *file = tmpfile();
    NEED(file);
    char *block = malloc(piece);
    memset(block, 0xA5, piece);
    NEED(fwrite(block, 1, piece, file) == piece && fflush(file) == 0);
    for (size_t i = 0; i < pieces; i++) {
        char *at = memory + i * piece;
        if (i % 4 == 1)
            NEED(mmap(at, piece, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == at);
        if (i % 4 == 2) NEED(mmap(at, piece, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, fileno(file), 0) == at);
        if (i % 4 == 3) {
            NEED(mmap(at, piece, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == at);
            NEED(mprotect(at, piece, PROT_READ | PROT_WRITE) == 0);
        }
    }
    for (int pass = 0; pass < 2; pass++)
        for (size_t i = 0; i < pieces; i++) {
            char *at = memory + i * piece;
            if (i % 4 == 0) check(at, piece, 1, "not mapped over");
            if (i % 4 == 1 && pass == 0) check_zero(at, piece, "anonymous memory mapped over"), fill(at, piece, 5);
            else if (i % 4 == 1) check(at, piece, 5, "anonymous memory mapped over and written");
            if (i % 4 == 2 && memcmp(at, block, piece) != 0) fail("the file mapped over piece %zu reads wrong", i);
            if (i % 4 == 3 && pass == 0) check_zero(at, piece, "reserved and given back"), fill(at, piece, 6);
            else if (i % 4 == 3) check(at, piece, 6, "reserved, given back and written");
        }
}
