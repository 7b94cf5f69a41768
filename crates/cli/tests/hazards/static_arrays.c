/* Large static arrays: .bss (zeros at first) and .data (its own values at first). */
#include "hazard.h"

static uint64_t bss[96 * MIB / 8];
static uint64_t data[2 * MIB / 8] = {0x1234567890abcdef, [1000] = 77, [2 * MIB / 8 - 1] = 99};

static void hazard(void) {
    size_t length = memory_bytes < sizeof bss ? memory_bytes : sizeof bss;
    check_zero(bss, length, ".bss at the start");
    NEED(data[0] == 0x1234567890abcdef && data[1000] == 77 && data[2 * MIB / 8 - 1] == 99 && data[1] == 0);
    fill(bss, length, 1);
    fill(data, sizeof data, 2);
    check(bss, length, 1, ".bss written");
    check(data, sizeof data, 2, ".data written");
    pid_t child = fork_or_fail();
    if (child == 0) {
        check(bss, length, 1, ".bss in the child");
        check(data, sizeof data, 2, ".data in the child");
        _exit(0);
    }
    fill(bss, length, 3);
    reap(child, "child");
    check(bss, length, 3, ".bss rewritten");
}
