/* The exec functions with variable arguments: gather them in an array and go on as execve or execvpe do.
 * The array is on the stack, as in the C library, so this is safe after vfork. */
#include <stdarg.h>
#include <unistd.h>

extern char **environ;
int pagetide_execve(const char *path, char *const argv[], char *const envp[]);
int pagetide_execvpe(const char *file, char *const argv[], char *const envp[]);

#define COUNT(first, list, count) \
    do { \
        va_start(list, first); \
        for (count = 1; va_arg(list, const char *) != NULL; count++) { } \
        va_end(list); \
    } while (0)

#define GATHER(first, list, argv, count) \
    do { \
        va_start(list, first); \
        argv[0] = (char *)first; \
        for (size_t i = 1; i <= count; i++) argv[i] = va_arg(list, char *); \
    } while (0)

int pagetide_c_execl(const char *path, const char *arg, ...) {
    va_list list;
    size_t count;
    COUNT(arg, list, count);
    char *argv[count + 1];
    GATHER(arg, list, argv, count);
    va_end(list);
    return pagetide_execve(path, argv, environ);
}

int pagetide_c_execlp(const char *file, const char *arg, ...) {
    va_list list;
    size_t count;
    COUNT(arg, list, count);
    char *argv[count + 1];
    GATHER(arg, list, argv, count);
    va_end(list);
    return pagetide_execvpe(file, argv, environ);
}

int pagetide_c_execle(const char *path, const char *arg, ...) {
    va_list list;
    size_t count;
    COUNT(arg, list, count);
    char *argv[count + 1];
    GATHER(arg, list, argv, count);
    char *const *envp = va_arg(list, char *const *);
    va_end(list);
    return pagetide_execve(path, argv, (char *const *)envp);
}
