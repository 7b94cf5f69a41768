/* vmsplice: pages lent to a pipe read right after the memory they came from was evicted and fetched. */
#include "hazard.h"
#include <sys/uio.h>

static void hazard(void) {
    char *memory = map_filled(memory_bytes / 4, 1);
    int ends[2];
    NEED(pipe(ends) == 0);
    char *target = map_new(8 * PAGE);
    for (size_t at = 0; at + 8 * PAGE <= memory_bytes / 4; at += 64 * PAGE) {
        struct iovec vector = {memory + at, 8 * PAGE};
        NEED(vmsplice(ends[1], &vector, 1, 0) == 8 * PAGE);
        if (at % (1024 * PAGE) == 0) evict_others();
        NEED(read(ends[0], target, 8 * PAGE) == 8 * PAGE);
        check_as(target, memory + at, 8 * PAGE, 1, "spliced");
    }
    check(memory, memory_bytes / 4, 1, "the source");
}
