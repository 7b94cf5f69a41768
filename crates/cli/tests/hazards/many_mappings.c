/* Thousands of small mappings with alternating protection: none is lost, none is mixed up. */
#include "hazard.h"

static void hazard(void) {
    enum { COUNT = 6000 };
    static char *at[COUNT];
    size_t length = memory_bytes / COUNT / PAGE * PAGE;
    if (length < PAGE) length = PAGE;
    for (int i = 0; i < COUNT; i++) {
        at[i] = map_filled(length, i);
        if (i % 2) NEED(mprotect(at[i], length, PROT_READ) == 0);
    }
    for (int i = 0; i < COUNT; i++) check(at[i], length, i, "a small mapping");
    for (int i = 0; i < COUNT; i += 3) NEED(munmap(at[i], length) == 0);
    for (int i = 0; i < COUNT; i += 3) at[i] = map_filled(length, i + COUNT);
    for (int i = 0; i < COUNT; i++) check(at[i], length, i % 3 ? i : i + COUNT, "a small mapping, second pass");
}
