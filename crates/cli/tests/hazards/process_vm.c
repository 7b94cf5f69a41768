/* process_vm_readv and writev from another process, into memory that is evicted. */
#include "hazard.h"
#include <sys/prctl.h>
#include <sys/uio.h>

enum { PASSES = 12 };

static void hazard(void) {
    char *memory = map_filled(memory_bytes, 1), *room = map_filled(memory_bytes / 2, 7);
    int go[2], done[2], passes = rounds(PASSES);
    char byte = 1;
    NEED(pipe(go) == 0 && pipe(done) == 0);
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
    pid_t owner = getpid(), helper = fork_or_fail();
    if (helper == 0) {
        size_t part = 64 * PAGE;
        char *buffer = map_new(part);
        NEED(read(go[0], &byte, 1) == 1);
        for (int pass = 0; pass < 2; pass++)
            for (size_t at = 0; at < memory_bytes; at += part) {
                struct iovec local = {buffer, part}, remote = {memory + at, part};
                ssize_t got = process_vm_readv(owner, &local, 1, &remote, 1, 0);
                if (got < 0 && (errno == EPERM || errno == ENOSYS)) skip("process_vm_readv: %s", strerror(errno));
                if (got != (ssize_t)part) fail("process_vm_readv at %p gave %zd: %s", memory + at, got, strerror(errno));
                check_as(buffer, memory + at, part, 1, "read from outside");
            }
        for (int pass = 0; pass < passes; pass++) {
            for (size_t at = 0; at < memory_bytes / 2; at += part) {
                fill_as(buffer, room + at, part, 8 + pass);
                struct iovec local = {buffer, part}, remote = {room + at, part};
                ssize_t put = process_vm_writev(owner, &local, 1, &remote, 1, 0);
                if (put != (ssize_t)part) fail("process_vm_writev at %p gave %zd: %s", room + at, put, strerror(errno));
            }
            for (size_t at = 0; at < memory_bytes / 2; at += part) {
                struct iovec local = {buffer, part}, remote = {room + at, part};
                NEED(process_vm_readv(owner, &local, 1, &remote, 1, 0) == (ssize_t)part);
                check_as(buffer, room + at, part, 8 + pass, "written from outside");
            }
        }
        NEED(write(done[1], &byte, 1) == 1);
        _exit(0);
    }
    evict_others();
    struct churn *churn = start_churn(memory_bytes / 2);
    NEED(write(go[1], &byte, 1) == 1);
    int status;
    NEED(waitpid(helper, &status, 0) == helper);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 77) _exit(77);
    NEED(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    stop_churn(churn);
    check(room, memory_bytes / 2, 8 + passes - 1, "written from outside");
    check(memory, memory_bytes, 1, "only read from outside");
}
