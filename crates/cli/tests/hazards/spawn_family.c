/* posix_spawn, system() and popen() from a program whose memory is mostly evicted, and from threads. */
#include "hazard.h"
#include <spawn.h>

static void *spawns(void *argument) {
    for (int i = 0; i < 10; i++) {
        int status = system("exit 5");
        if (!WIFEXITED(status) || WEXITSTATUS(status) != 5) fail("system gave %x", status);
    }
    return argument;
}

static void hazard(void) {
    size_t length = memory_bytes;
    char *memory = map_filled(length, 1), line[64] = "";
    struct churn *churn = start_churn(memory_bytes / 4);
    /* Arguments and environment live in evicted memory. */
    char **arguments = (char **)map_new(PAGE);
    arguments[0] = strcpy((char *)map_new(PAGE), "sh");
    arguments[1] = strcpy((char *)map_new(PAGE), "-c");
    arguments[2] = strcpy((char *)map_new(PAGE), "exit 6");
    for (int i = 0; i < 20; i++) {
        pid_t child;
        evict_others();
        extern char **environ;
        int error = posix_spawn(&child, "/bin/sh", NULL, NULL, arguments, environ);
        if (error) fail("posix_spawn: %s", strerror(error));
        reap_code(child, 6, "posix_spawn");
        if (i == 2) memory_bytes /= 8; /* what evict_others() walks over */
    }
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) start_thread(threads + i, spawns, NULL);
    for (int i = 0; i < 10; i++) {
        FILE *stream = popen("echo $((6 * 7))", "r");
        NEED(stream && fgets(line, sizeof line, stream) && strcmp(line, "42\n") == 0);
        NEED(pclose(stream) == 0);
    }
    for (int i = 0; i < 2; i++) join_thread(threads[i]);
    stop_churn(churn);
    check(memory, length, 1, "after spawning");
}
