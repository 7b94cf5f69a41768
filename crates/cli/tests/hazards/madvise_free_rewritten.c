/* MADV_FREE, and the pages written again at once, as allocators do: they hold, and count as resident like any others. */
#include "hazard.h"

static void hazard(void) {
    enum { CHUNK = 64 * PAGE };
    char *memory = map_filled(memory_bytes, 0);
    for (size_t at = 0; at < memory_bytes; at += CHUNK) {
        fill(memory + at, CHUNK, 1);
        NEED(madvise(memory + at, CHUNK, MADV_FREE) == 0);
        fill(memory + at, CHUNK, 2);
    }
    check(memory, memory_bytes, 2, "freed and rewritten");
}
