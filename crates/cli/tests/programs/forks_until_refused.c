// Forks children that stay, until a fork is refused. Each child that was forked has to be there,
// with what its parent had written, until it is told to go; and there is no other.
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOST = 64, BYTES = 1 << 20 };

static int fails(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, strerror(errno));
    return 1;
}

int main(void)
{
    unsigned char *memory = malloc(BYTES);
    pid_t children[MOST];
    int ends[2], count = 0, status;
    if (!memory || pipe(ends))
        return fails("setting up");
    memset(memory, 0x5a, BYTES);
    for (; count < MOST; count++) {
        pid_t pid = fork();
        if (pid < 0 && errno == EAGAIN)
            break;
        if (pid < 0)
            return fails("fork");
        if (pid == 0) {
            unsigned char byte;
            close(ends[1]);
            while (read(ends[0], &byte, 1) < 0 && errno == EINTR)
                ;
            for (int i = 0; i < BYTES; i++)
                if (memory[i] != 0x5a)
                    _exit(1);
            _exit(42);
        }
        children[count] = pid;
    }
    if (count == MOST)
        return fails("no fork was refused");
    if (count && waitpid(-1, &status, WNOHANG) != 0)
        return fails("a child has ended too early, or one is there that was not forked");
    close(ends[1]);
    for (int i = 0; i < count; i++)
        if (waitpid(children[i], &status, 0) != children[i] || status != 42 << 8)
            return fails("a child did not end as it should");
    if (waitpid(-1, &status, 0) != -1 || errno != ECHILD)
        return fails("there is a child too many");
    printf("%d children\n", count);
    return 0;
}
