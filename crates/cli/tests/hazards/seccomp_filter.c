/* A seccomp filter that allows what the program itself needs; then one that forbids new descriptors. */
#include "hazard.h"
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>

static void install(struct sock_filter *code, unsigned short length) {
    struct sock_fprog program = {length, code};
    NEED(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) skip("seccomp: %s", strerror(errno));
}

static void hazard(void) {
    char *memory = map_filled(memory_bytes, 1);
    struct sock_filter allow[] = {BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
    install(allow, 1);
    check(memory, memory_bytes, 1, "under an allow-all filter");
    pid_t child = fork_or_fail();
    if (child == 0) {
        check(memory, memory_bytes, 1, "child under the filter");
        _exit(0);
    }
    reap(child, "child");
    /* Opening, sockets and ptrace are refused from here on; what is mapped must still page. */
    struct sock_filter deny[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_openat, 3, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_socket, 2, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_ptrace, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EACCES),
    };
    install(deny, sizeof deny / sizeof *deny);
    NEED(open("/dev/null", O_RDONLY) < 0 && errno == EACCES);
    fill(memory, memory_bytes, 2);
    check(memory, memory_bytes, 2, "with open refused");
    char *more = map_filled(memory_bytes / 2, 3);
    check(more, memory_bytes / 2, 3, "new memory with open refused");
    check(memory, memory_bytes, 2, "with open refused, second pass");
}
