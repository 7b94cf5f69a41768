/* fork: the parent exits at once; the orphan still reads every byte, writes, and says ok. */
#include "hazard.h"

static void hazard(void) {
    char *memory = map_filled(memory_bytes, 1);
    int alive[2];
    NEED(pipe(alive) == 0);
    pid_t child = fork_or_fail();
    if (child != 0) _exit(0);
    close(alive[1]);
    char byte;
    NEED(read(alive[0], &byte, 1) == 0); /* end of file: the parent is gone */
    usleep(100000);
    check(memory, memory_bytes, 1, "orphan");
    fill(memory, memory_bytes, 2);
    check(memory, memory_bytes, 2, "orphan, after writing");
    pid_t grandchild = fork_or_fail();
    if (grandchild == 0) {
        check(memory, memory_bytes, 2, "the orphan's child");
        _exit(0);
    }
    reap(grandchild, "the orphan's child");
}
