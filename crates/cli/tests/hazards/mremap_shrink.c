/* mremap that shrinks, then maps the freed part again: zeros there, the rest untouched. */
#include "hazard.h"

static void hazard(void) {
    char *memory = map_filled(memory_bytes, 1);
    for (size_t length = memory_bytes; length > 16 * PAGE; length /= 2) {
        size_t less = length / 2 / PAGE * PAGE;
        NEED(mremap(memory, length, less, 0) == memory);
        check(memory, less, 1, "left after shrinking");
        char *freed = mmap(memory + less, length - less, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
        NEED(freed == memory + less);
        check_zero(freed, length - less, "the freed part mapped again");
        fill(freed, length - less, 2);
        check(freed, length - less, 2, "the freed part written");
        NEED(munmap(freed, length - less) == 0);
    }
}
