/* close_range(3, ~0), and a loop that closes 3..1023, as daemons do: paging goes on, in children too. */
#include "hazard.h"

static void close_all(int way) {
    if (way == 0 && syscall(SYS_close_range, 3, ~0U, 0) != 0 && errno != ENOSYS) fail("close_range: %s", strerror(errno));
    if (way == 1)
        for (int fd = 3; fd < 1024; fd++) close(fd);
    if (way == 2 && syscall(SYS_close_range, 3, ~0U, 4 /* CLOEXEC */) != 0 && errno != ENOSYS && errno != EINVAL)
        fail("close_range: %s", strerror(errno));
    if (way == 3) closefrom(3);
    if (way == 4) {
        long most = sysconf(_SC_OPEN_MAX);
        for (int fd = 3; fd < (most < 70000 ? most : 70000); fd++) close(fd);
    }
}

static void hazard(void) {
    char *memory = map_filled(memory_bytes, 1);
    for (int way = 0; way < 5; way++) {
        close_all(way);
        check(memory, memory_bytes, 1 + way, "after closing everything");
        fill(memory, memory_bytes, 2 + way);
        pid_t child = fork_or_fail();
        if (child == 0) {
            close_all(way);
            check(memory, memory_bytes, 2 + way, "child after closing everything");
            fill(memory, memory_bytes, 20);
            check(memory, memory_bytes, 20, "child, written");
            _exit(0);
        }
        reap(child, "child");
        check(memory, memory_bytes, 2 + way, "parent after the child");
    }
    /* The lowest free descriptor is the one the program expects. */
    int fd = open("/dev/null", O_RDONLY);
    if (fd != 3) fail("the lowest free descriptor is %d, not 3", fd);
}
