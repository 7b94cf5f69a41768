/* Private file mappings beside paged memory: copied pages and file pages read right, also in a forked child. */
#include "hazard.h"

static void hazard(void) {
    size_t length = memory_bytes / 4;
    FILE *file = tmpfile();
    NEED(file);
    char *source = map_filled(length, 1);
    for (size_t at = 0; at < length; at += MIB) NEED(write(fileno(file), source + at, MIB) == MIB);
    char *private = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE, fileno(file), 0);
    char *shared = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    NEED(private != MAP_FAILED && shared != MAP_FAILED);
    fill_as(shared, source, length, 2);
    for (size_t at = 0; at < length; at += 2 * PAGE) fill_as(private + at, source + at, PAGE, 3);
    evict_others();
    for (size_t at = 0; at < length; at += PAGE)
        check_as(private + at, source + at, PAGE, at / PAGE % 2 ? 1 : 3, "private file mapping");
    pid_t child = fork_or_fail();
    if (child == 0) {
        for (size_t at = 0; at < length; at += PAGE)
            check_as(private + at, source + at, PAGE, at / PAGE % 2 ? 1 : 3, "private file mapping in the child");
        check_as(shared, source, length, 2, "shared memory in the child");
        fill_as(shared, source, length, 4);
        fill_as(private, source, length, 5);
        _exit(0);
    }
    reap(child, "child");
    check_as(shared, source, length, 4, "shared memory the child wrote");
    for (size_t at = 0; at < length; at += PAGE)
        check_as(private + at, source + at, PAGE, at / PAGE % 2 ? 1 : 3, "private file mapping after the child");
    check(source, length, 1, "the source");
}
