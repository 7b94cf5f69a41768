/* System calls on evicted and on never touched memory: read, write, readv, send, recv, pipes, getcwd, poll, ioctl. */
#include "hazard.h"
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>

static char *source;
static size_t length;
static int pair[2];

static void *writes(void *argument) {
    for (size_t at = 0; at < length;) {
        ssize_t done = (uintptr_t)argument ? send(pair[0], source + at, length - at < 300000 ? length - at : 300000, 0)
                                           : write(pair[0], source + at, length - at < 300001 ? length - at : 300001);
        if (done <= 0) fail("write: %s", strerror(errno));
        at += done;
    }
    close(pair[0]);
    return NULL;
}

static void hazard(void) {
    length = memory_bytes / 4;
    source = map_filled(length, 1);
    for (int kind = 0; kind < 2; kind++) {
        int ends[2];
        if (kind) NEED(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
        else NEED(pipe(ends) == 0);
        pair[0] = kind ? ends[0] : ends[1];
        pair[1] = kind ? ends[1] : ends[0];
        char *target = map_new(length);
        pthread_t thread;
        start_thread(&thread, writes, (void *)(uintptr_t)kind);
        for (size_t at = 0; at < length;) {
            struct iovec parts[2] = {{target + at, 5000}, {target + at + 5000, 200000}};
            ssize_t got = at + 205000 <= length ? readv(pair[1], parts, 2) : read(pair[1], target + at, length - at);
            if (got <= 0) fail("read: %zd %s", got, strerror(errno));
            at += got;
        }
        join_thread(thread);
        close(pair[1]);
        check_as(target, source, length, 1, kind ? "received through a socket" : "read from a pipe");
        munmap(target, length);
    }
    FILE *file = tmpfile();
    NEED(file);
    for (size_t at = 0; at < length; at += MIB) NEED(pwrite(fileno(file), source + at, MIB, at) == MIB);
    evict_others();
    char *target = map_filled(length, 2);
    evict_others();
    for (size_t at = 0; at < length; at += MIB) NEED(pread(fileno(file), target + at, MIB, at) == MIB);
    check_as(target, source, length, 1, "read from a file into evicted memory");
    /* Small results of system calls in memory that is away or was never there. */
    for (int i = 0; i < 64; i++) {
        char *page = i % 2 ? map_new(PAGE) : target + i * 40 * PAGE % length;
        NEED(getcwd(page, PAGE) != NULL && page[0] == '/');
        struct stat *meta = (struct stat *)(page + 1024);
        NEED(fstat(fileno(file), meta) == 0 && (size_t)meta->st_size == length);
        struct timespec *now = (struct timespec *)(page + 2048);
        NEED(syscall(SYS_clock_gettime, CLOCK_MONOTONIC, now) == 0 && now->tv_sec > 0);
        struct pollfd *polled = (struct pollfd *)(page + 3072);
        *polled = (struct pollfd){.fd = fileno(file), .events = POLLIN};
        NEED(poll(polled, 1, 100) == 1 && polled->revents & POLLIN);
        int *waiting = (int *)(page + 3500);
        NEED(ioctl(fileno(file), FIONREAD, waiting) == 0);
        if (i % 8 == 0) evict_others();
    }
    check(source, length, 1, "the source");
}
