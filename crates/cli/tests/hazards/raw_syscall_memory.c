/* Memory from mmap and brk by raw system calls is right at once, and under the budget within 50 ms. */
#include "hazard.h"

static long raw(long number, long a, long b, long c, long d, long e, long f) {
    register long r10 __asm__("r10") = d, r8 __asm__("r8") = e, r9 __asm__("r9") = f;
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return result;
}

static void hazard(void) {
    int governed = is_governed(); /* also lets malloc take its heap before brk moves behind its back */
    for (int round = 0; round < 3; round++) {
        char *memory = (char *)raw(SYS_mmap, 0, memory_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        NEED((long)memory > 0);
        fill(memory, memory_bytes / 2, 1);
        usleep(200000);
        fill(memory + memory_bytes / 2, memory_bytes / 2, 1);
        check(memory, memory_bytes, 1, "raw mmap");
        NEED(raw(SYS_munmap, (long)memory, memory_bytes / 2, 0, 0, 0, 0) == 0);
        char *again = (char *)raw(SYS_mmap, (long)memory, memory_bytes / 2, PROT_READ | PROT_WRITE,
                                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
        NEED(again == memory);
        check_zero(again, memory_bytes / 2, "raw munmap and mmap of the same addresses");
        check(memory + memory_bytes / 2, memory_bytes / 2, 1, "left by raw munmap");
        NEED(raw(SYS_munmap, (long)memory, memory_bytes, 0, 0, 0, 0) == 0);
    }
    char *old = (char *)raw(SYS_brk, 0, 0, 0, 0, 0, 0);
    char *start = (char *)(((uintptr_t)old + PAGE - 1) & ~(PAGE - 1));
    NEED((char *)raw(SYS_brk, (long)start + memory_bytes, 0, 0, 0, 0, 0) == start + memory_bytes);
    fill(start, memory_bytes, 2);
    check(start, memory_bytes, 2, "raw brk");
    usleep(300000);
    if (governed && getenv("HAZARD_RESIDENT_MAX") && resident_anonymous() > strtoul(getenv("HAZARD_RESIDENT_MAX"), 0, 0))
        fail("raw memory is not governed after 300 ms: %zu bytes are resident", resident_anonymous());
    check(start, memory_bytes, 2, "raw brk, later");
}
