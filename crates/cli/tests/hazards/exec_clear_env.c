/* execve and execle with an empty or foreign environment: the new image is still governed, its environment as given. */
#include "hazard.h"

static void hazard(void) {
    extern char **environ;
    if (arg_count > 3) {
        if (atoi(args[2]) != is_governed()) fail("after exec, governed is %d, not %s", is_governed(), args[2]);
        if (strcmp(args[3], "foreign") == 0 && (!getenv("FOREIGN") || strcmp(getenv("FOREIGN"), "yes") != 0))
            fail("FOREIGN is not in the environment");
        if (getenv("HOME_OF_PARENT")) fail("a variable of the parent is in a cleared environment");
        char *memory = map_filled(memory_bytes / 2, 5);
        check(memory, memory_bytes / 2, 5, "exec'ed program");
        _exit(7);
    }
    char *memory = map_filled(memory_bytes, 1), mib[24];
    char *governed = is_governed() ? "1" : "0";
    char *empty[] = {NULL}, *foreign[] = {"FOREIGN=yes", "PATH=/bin", NULL};
    setenv("HOME_OF_PARENT", "1", 1);
    snprintf(mib, sizeof mib, "%zu", memory_bytes / MIB);
    for (int way = 0; way < 5; way++) {
        pid_t child = fork_or_fail();
        if (child == 0) {
            char *arguments[] = {args[0], mib, governed, way % 2 ? "foreign" : "empty", NULL};
            if (way == 0) execve("/proc/self/exe", arguments, empty);
            if (way == 1) execle("/proc/self/exe", args[0], mib, governed, "foreign", NULL, foreign);
            if (way == 2) clearenv(), execv("/proc/self/exe", arguments);
            if (way == 3) environ = foreign, execvp("/proc/self/exe", arguments);
            if (way == 4) {
                int fd = open("/proc/self/exe", O_RDONLY);
                fexecve(fd, arguments, empty);
            }
            fail("exec, way %d: %s", way, strerror(errno));
        }
        reap_code(child, 7, "exec with another environment");
    }
    check(memory, memory_bytes, 1, "parent");
}
