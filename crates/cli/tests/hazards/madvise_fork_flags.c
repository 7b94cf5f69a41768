/* MADV_WIPEONFORK and MADV_DONTFORK of evicted memory: zeros and nothing in the child, all there in the parent. */
#include "hazard.h"

static void hazard(void) {
    size_t third = memory_bytes / 3 / PAGE * PAGE;
    char *plain = map_filled(third, 1), *wiped = map_filled(third, 2), *kept_back = map_filled(third, 3);
    NEED(madvise(wiped, third, MADV_WIPEONFORK) == 0);
    NEED(madvise(kept_back, third, MADV_DONTFORK) == 0);
    pid_t child = fork_or_fail();
    if (child == 0) {
        uint64_t seen = 0;
        int ends[2];
        NEED(pipe(ends) == 0);
        check(plain, third, 1, "child, plain memory");
        check_zero(wiped, third, "child, WIPEONFORK");
        /* The address may be in use by something else in the child, readable or not, but never with the parent's bytes. The
         * kernel reads it for us, and says EFAULT where there is nothing to read. */
        if (write(ends[1], kept_back, sizeof seen) == sizeof seen) {
            NEED(read(ends[0], &seen, sizeof seen) == sizeof seen);
            if (seen == word_at((uintptr_t)kept_back, 3)) fail("child sees DONTFORK memory");
        } else {
            NEED(errno == EFAULT);
        }
        fill(wiped, third, 4);
        check(wiped, third, 4, "child, WIPEONFORK written");
        _exit(0);
    }
    fill(plain, third, 5);
    reap(child, "child");
    check(plain, third, 5, "parent, plain memory");
    check(wiped, third, 2, "parent, WIPEONFORK");
    check(kept_back, third, 3, "parent, DONTFORK");
}
