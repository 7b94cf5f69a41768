// A library, not a program: loaded after the agent, it ends the process by SIGABRT when a thread other than the process's first looks up a symbol.
// The C library counts the threads it has made itself; while that is one, it opens the loader's lock without waking who waits for it.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

typedef void *(*lookup)(void *, const char *);

void *dlsym(void *restrict handle, const char *restrict name)
{
	lookup next = (lookup)dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.34");
	if (!next)
		next = (lookup)dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
	if (syscall(SYS_gettid) != syscall(SYS_getpid))
		syscall(SYS_kill, syscall(SYS_getpid), SIGABRT);
	return next(handle, name);
}
