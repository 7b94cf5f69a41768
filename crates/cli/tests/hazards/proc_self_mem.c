/* /proc/self/mem: reads and writes of evicted memory see what the program sees. The kernel does not wait for a pager there,
 * so a governed program may get EIO or EFAULT; wrong bytes it may never get. */
#include "hazard.h"

enum { PART = 64 * 4096 };
static size_t refused;

/* Whether the transfer was done; an error only where the program is governed, or the kernel forbids it. */
static int transferred(ssize_t done, int may_be_forbidden, const char *what) {
    if (done == PART) return 1;
    if ((!is_governed() && !may_be_forbidden) || (done < 0 && errno != EIO && errno != EFAULT)) fail("%s gave %zd: %s", what, done, strerror(errno));
    refused++;
    return 0;
}

static void hazard(void) {
    size_t parts = memory_bytes / PART;
    char *memory = map_filled(memory_bytes, 1), *buffer = map_new(PART), *written = calloc(parts, 1);
    int self = open("/proc/self/mem", O_RDWR);
    if (self < 0) skip("/proc/self/mem: %s", strerror(errno));
    for (size_t i = 0; i < parts; i++) {
        char *at = memory + i * PART;
        if (transferred(pread(self, buffer, PART, (off_t)(uintptr_t)at), 0, "a read"))
            check_as(buffer, at, PART, 1, "read by /proc/self/mem");
    }
    /* The second time over read-only memory, which a debugger may write too; newer kernels can be built to forbid that. */
    for (uint64_t seed = 2; seed < 4; seed++) {
        memset(written, 0, parts);
        for (size_t i = 0; i < parts; i += 2) {
            char *at = memory + i * PART;
            check(at, PART, seed - 1, "before it is written"); /* and so it is resident */
            fill_as(buffer, at, PART, seed);
            written[i] = transferred(pwrite(self, buffer, PART, (off_t)(uintptr_t)at), seed == 3, "a write");
            /* A write that was cut short has changed some pages: put them right in the program's own way. */
            if (!written[i]) {
                NEED(mprotect(at, PART, PROT_READ | PROT_WRITE) == 0);
                fill(at, PART, seed);
            }
        }
        evict_others();
        for (size_t i = 0; i < parts; i++)
            check(memory + i * PART, PART, i % 2 ? 1 : seed, written[i] ? "written by /proc/self/mem" : "not written by it");
        NEED(mprotect(memory, memory_bytes, PROT_READ) == 0);
    }
    if (refused) fprintf(stderr, "%zu of %zu transfers were refused\n", refused, 2 * parts);
}
