/* daemon(): double fork, new session, descriptors closed; the daemon verifies everything and reports by a file. */
#include "hazard.h"
#include <sys/stat.h>

static void hazard(void) {
    char *memory = map_filled(memory_bytes, 1), path[] = "/tmp/pagetide-hazard-XXXXXX";
    close(mkstemp(path));
    pid_t starter = fork_or_fail();
    if (starter == 0) {
        fill(memory, memory_bytes / 2, 2);
        if (daemon(0, 0) != 0) fail("daemon: %s", strerror(errno));
        pid_t second = fork();
        if (second != 0) _exit(0);
        setsid();
        umask(0);
        check(memory, memory_bytes / 2, 2, "daemon, written before it");
        check(memory + memory_bytes / 2, memory_bytes / 2, 1, "daemon, inherited");
        fill(memory, memory_bytes, 3);
        check(memory, memory_bytes, 3, "daemon, written");
        int fd = open(path, O_WRONLY);
        if (write(fd, "fine", 4) != 4) _exit(1);
        _exit(0);
    }
    reap(starter, "starter");
    for (double end = now_seconds() + 60; now_seconds() < end; usleep(20000)) {
        struct stat meta;
        NEED(stat(path, &meta) == 0);
        if (meta.st_size == 4) {
            unlink(path);
            check(memory, memory_bytes, 1, "parent");
            return;
        }
    }
    unlink(path);
    fail("the daemon did not report within 60 s: it died or its memory differed");
}
