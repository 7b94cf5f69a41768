/* exec of itself, five times over: the new image is governed as before, with fresh memory. */
#include "hazard.h"

static void hazard(void) {
    int turn = arg_count > 2 ? atoi(args[2]) : 0, governed = is_governed();
    if (arg_count > 3 && atoi(args[3]) != governed) fail("turn %d: governed is %d, not %s", turn, governed, args[3]);
    char *memory = map_filled(memory_bytes, turn + 1);
    check(memory, memory_bytes, turn + 1, "this turn's memory");
    char *fresh = map_new(memory_bytes / 2);
    check_zero(fresh, memory_bytes / 2, "new memory");
    if (turn == 5) return;
    struct churn *churn = start_churn(memory_bytes / 4); /* another thread is in the middle of a fault when exec comes */
    while (turn % 2 && atomic_load(&churn->rounds) == 0) usleep(1000);
    char mib[24], next[24], seen[24];
    snprintf(mib, sizeof mib, "%zu", memory_bytes / MIB);
    snprintf(next, sizeof next, "%d", turn + 1);
    snprintf(seen, sizeof seen, "%d", governed);
    fflush(stdout);
    execl("/proc/self/exe", args[0], mib, next, seen, NULL);
    fail("exec: %s", strerror(errno));
}
