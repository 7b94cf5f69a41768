/* fork by threads whose descriptor table or network is not the first thread's, and after the first thread has ended. Descriptors, limits and
 * signal state are as they were, in parent and child. */
#include "hazard.h"
#include <sys/resource.h>

#define FDS 1024

static char *memory;

struct state {
    unsigned char fds[FDS];
    sigset_t mask;
    struct sigaction on_sigsys, on_sigchld;
    struct rlimit files;
};

static void look(struct state *state) {
    memset(state, 0, sizeof *state);
    for (int fd = 0; fd < FDS; fd++) {
        int flags = fcntl(fd, F_GETFD);
        state->fds[fd] = flags < 0 ? 0 : 1 + flags;
    }
    NEED(pthread_sigmask(SIG_SETMASK, NULL, &state->mask) == 0);
    NEED(sigaction(SIGSYS, NULL, &state->on_sigsys) == 0);
    NEED(sigaction(SIGCHLD, NULL, &state->on_sigchld) == 0);
    NEED(getrlimit(RLIMIT_NOFILE, &state->files) == 0);
}

static void same(const struct state *before, const char *what) {
    struct state now;
    look(&now);
    for (int fd = 0; fd < FDS; fd++)
        if (before->fds[fd] != now.fds[fd]) fail("%s: descriptor %d is %d, was %d", what, fd, now.fds[fd], before->fds[fd]);
    if (memcmp(&before->mask, &now.mask, sizeof now.mask)) fail("%s: the signal mask changed", what);
    if (before->on_sigsys.sa_handler != now.on_sigsys.sa_handler) fail("%s: SIGSYS is handled otherwise", what);
    if (before->on_sigchld.sa_handler != now.on_sigchld.sa_handler) fail("%s: SIGCHLD is handled otherwise", what);
    if (before->files.rlim_cur != now.files.rlim_cur) fail("%s: another limit on descriptors", what);
}

static void try(const char *what) {
    struct state before;
    for (int i = 0; i < 3; i++) {
        look(&before);
        pid_t child = fork_or_fail();
        if (child == 0) {
            same(&before, what);
            check(memory, memory_bytes, 1, what);
            fill(memory, memory_bytes, 2);
            check(memory, memory_bytes, 2, what);
            same(&before, what);
            _exit(0);
        }
        reap(child, what);
        same(&before, what);
    }
    check(memory, memory_bytes, 1, what);
}

static void *own_table(void *argument) {
    (void)argument;
    NEED(unshare(CLONE_FILES) == 0);
    /* Numbers that mean something else in the first thread's table. */
    for (int i = 0; i < 8; i++) NEED(open("/dev/zero", O_RDONLY) >= 0);
    try("a table of its own");
    return NULL;
}

static void *own_network(void *argument) {
    (void)argument;
    if (unshare(CLONE_NEWNET) == 0) try("a network of its own");
    else if (unshare(CLONE_NEWUSER | CLONE_NEWNET) == 0) try("a network and users of its own");
    return NULL;
}

static void *after_main(void *argument) {
    pthread_join(*(pthread_t *)argument, NULL);
    try("the first thread has ended");
    printf("ok %s\n", HAZARD);
    fflush(stdout);
    exit(0);
}

static void hazard(void) {
    static pthread_t first, thread;
    first = pthread_self();
    memory = map_filled(memory_bytes, 1);
    try("as usual");
    start_thread(&thread, own_table, NULL);
    join_thread(thread);
    start_thread(&thread, own_network, NULL);
    join_thread(thread);
    start_thread(&thread, after_main, &first);
    pthread_exit(NULL);
}
