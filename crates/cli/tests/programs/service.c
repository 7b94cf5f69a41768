/* service MIB: a service as systemd has them. It fills MIB of memory, says that it is ready to NOTIFY_SOCKET, answers
 * each connection to the socket that it was handed (LISTEN_FDS) with its process ID once a forked child and itself have
 * found every word as it was, and exits with 7 on SIGTERM. What it was told by LISTEN_PID and WATCHDOG_PID has to be
 * its own process ID. */
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

static uint64_t *words;
static size_t count;

static void fail(const char *what) {
    fprintf(stderr, "FAILED: %s\n", what);
    exit(1);
}

static void ended(int number) {
    (void)number;
    _exit(7);
}

static int is_own(const char *name) {
    const char *value = getenv(name);
    return value && atol(value) == getpid();
}

static void notify(const char *text) {
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    const char *path = getenv("NOTIFY_SOCKET");
    if (!path) return;
    strncpy(to.sun_path, path, sizeof to.sun_path - 1);
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    socklen_t len = offsetof(struct sockaddr_un, sun_path) + strlen(path);
    if (fd < 0 || sendto(fd, text, strlen(text), 0, (struct sockaddr *)&to, len) < 0) fail("sd_notify");
    close(fd);
}

static void verify(void) {
    for (size_t i = 0; i < count; i++)
        if (words[i] != i * 0x9e3779b97f4a7c15u) fail("a word is not what it was");
}

static void verify_in_child(void) {
    int status;
    pid_t child = fork();
    if (child < 0) fail("fork");
    if (child == 0) {
        verify();
        _exit(0);
    }
    if (waitpid(child, &status, 0) != child || status != 0) fail("the child");
}

int main(int argc, char **argv) {
    count = (argc > 1 ? strtoul(argv[1], NULL, 10) : 16) << 17;
    words = malloc(count * sizeof *words);
    if (!words) fail("malloc");
    for (size_t i = 0; i < count; i++) words[i] = i * 0x9e3779b97f4a7c15u;
    if (!is_own("LISTEN_PID") || !getenv("LISTEN_FDS") || strcmp(getenv("LISTEN_FDS"), "1") != 0) fail("LISTEN_PID, LISTEN_FDS");
    if (getenv("WATCHDOG_PID") && !is_own("WATCHDOG_PID")) fail("WATCHDOG_PID");
    signal(SIGTERM, ended);
    notify("READY=1");
    for (;;) {
        int peer = accept(3, NULL, NULL);
        if (peer < 0) {
            if (errno == EINTR) continue;
            fail("accept on descriptor 3");
        }
        verify_in_child();
        verify();
        dprintf(peer, "%d\n", (int)getpid());
        close(peer);
        if (getenv("WATCHDOG_PID")) notify("WATCHDOG=1");
    }
}
