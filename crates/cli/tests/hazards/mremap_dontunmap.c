/* mremap with DONTUNMAP: the bytes are at the new place, zeros at the old one; both can be written. */
#include "hazard.h"
#ifndef MREMAP_DONTUNMAP
#define MREMAP_DONTUNMAP 4
#endif

static void hazard(void) {
    char *memory = map_filled(memory_bytes, 1);
    char *moved = mremap(memory, memory_bytes, memory_bytes, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, NULL);
    if (moved == MAP_FAILED && errno == EINVAL) skip("this kernel has no MREMAP_DONTUNMAP");
    NEED(moved != MAP_FAILED && moved != memory);
    check_as(moved, memory, memory_bytes, 1, "moved");
    check_zero(memory, memory_bytes, "the old place");
    fill(memory, memory_bytes, 2);
    check_as(moved, memory, memory_bytes, 1, "moved, after the old place was written");
    fill(moved, memory_bytes, 3);
    check(memory, memory_bytes, 2, "the old place written");
    check(moved, memory_bytes, 3, "the new place written");
    NEED(munmap(memory, memory_bytes) == 0);
    check(moved, memory_bytes, 3, "the new place after the old one was unmapped");
}
