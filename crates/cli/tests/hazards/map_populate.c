/* MAP_POPULATE of more than the budget: the call returns, the bytes are zeros, writing holds. */
#include "hazard.h"

static void hazard(void) {
    for (int round = 0; round < 3; round++) {
        char *memory = mmap(NULL, memory_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
        NEED(memory != MAP_FAILED);
        check_zero(memory, memory_bytes, "populated");
        fill(memory, memory_bytes, round);
        check(memory, memory_bytes, round, "populated and written");
        NEED(munmap(memory, memory_bytes) == 0);
    }
}
