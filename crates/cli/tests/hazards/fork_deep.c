/* fork three deep, each generation writing a part and forking again while its ancestors run or have gone. */
#include "hazard.h"

static void generation(char *memory, int depth) {
    size_t part = memory_bytes / 4;
    for (int i = 0; i < 4; i++) check(memory + i * part, part, i < depth ? 10 + i : 1, "inherited");
    if (depth == 3) return;
    fill(memory + depth * part, part, 10 + depth);
    pid_t child = fork_or_fail();
    if (child == 0) {
        generation(memory, depth + 1);
        _exit(0);
    }
    fill(memory + 3 * part, part, 50 + depth);
    pid_t second = fork_or_fail();
    if (second == 0) {
        check(memory + 3 * part, part, 50 + depth, "second child");
        _exit(0);
    }
    reap(second, "second child");
    reap(child, "child");
    for (int i = 0; i < 3; i++) check(memory + i * part, part, i <= depth ? 10 + i : 1, "after the children");
    check(memory + 3 * part, part, 50 + depth, "own part after the children");
}

static void hazard(void) { generation(map_filled(memory_bytes, 1), 0); }
