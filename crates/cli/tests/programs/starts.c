/* starts WAY COUNT PROGRAM: starts PROGRAM that often, one after the other, with the argument 7, and exits with the last one's code; with 99 where it
 * could not be started. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;
static char *program, **words;
static const char *way;

static int code(int status) {
    return WIFEXITED(status) ? WEXITSTATUS(status) : 98;
}

static int is(const char *name) {
    return strcmp(way, name) == 0;
}

/* In the child. */
static void execute(void) {
    char *const bare[] = {NULL};
    if (strstr(way, "+execve")) execve(program, words, environ);
    if (strstr(way, "+execvp")) execvp(program, words);
    if (strstr(way, "+execl")) execl(program, program, "7", (char *)NULL);
    if (strstr(way, "+execv")) execv(program, words);
    if (strstr(way, "+bare-environment")) execve(program, words, bare);
    if (strstr(way, "+syscall")) syscall(SYS_execve, program, words, environ);
    if (strstr(way, "+at")) syscall(SYS_execveat, AT_FDCWD, program, words, environ, 0);
    if (strstr(way, "+descriptor")) fexecve(open(program, O_PATH | O_CLOEXEC), words, environ);
}

static int start(void) {
    int status, error = 0;
    pid_t child = 0;
    char line[4096];
    if (is("system") || is("popen")) {
        snprintf(line, sizeof line, "%s 7; exit $?", program);
        if (is("system")) return code(system(line));
        FILE *stream = popen(line, "r");
        return stream ? code(pclose(stream)) : 99;
    }
    if (is("posix_spawn")) error = posix_spawn(&child, program, NULL, NULL, words, environ);
    else if (is("posix_spawnp")) error = posix_spawnp(&child, program, NULL, NULL, words, environ);
    else if (is("spawn-elsewhere")) {
        /* Named from a directory that only the child changes to. */
        posix_spawn_file_actions_t actions;
        posix_spawn_file_actions_init(&actions);
        char *slash = strrchr(program, '/');
        snprintf(line, sizeof line, "%.*s", (int)(slash - program), program);
        posix_spawn_file_actions_addchdir_np(&actions, line);
        snprintf(line, sizeof line, ".%s", slash);
        words[1] = "-1"; /* waits to be ended */
        error = posix_spawn(&child, line, &actions, NULL, words, environ);
        if (!error) kill(child, SIGTERM);
    } else {
        child = strncmp(way, "vfork", 5) == 0 ? vfork() : fork();
        if (child == 0) {
            execute();
            _exit(99);
        }
    }
    if (error) return 99;
    if (waitpid(child, &status, 0) != child) return 97;
    return code(status);
}

int main(int count, char **arguments) {
    if (count != 4) return 96;
    way = arguments[1];
    program = arguments[3];
    words = (char *[]){program, "7", NULL};
    if (strncmp(way, "itself", 6) == 0) {
        execute();
        return 99;
    }
    int last = 0;
    for (int i = atoi(arguments[2]); i > 0; i--) last = start();
    return last;
}
