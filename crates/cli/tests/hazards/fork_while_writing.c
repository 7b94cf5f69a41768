/* fork while other threads write: the child finds every page whole and unmoving, the writers never stop. */
#include "hazard.h"

/* Each writer keeps one counter a page, rising by page order: while a round is under way, pages before the cursor hold
 * round + 1 and pages after it hold round. A snapshot taken by fork must look exactly like that. */
struct writer {
    pthread_t thread;
    volatile uint64_t *pages;
    size_t count;
};
static atomic_int stop;

static void *write_on(void *argument) {
    struct writer *writer = argument;
    for (uint64_t round = 1; !atomic_load(&stop); round++)
        for (size_t i = 0; i < writer->count; i++) writer->pages[i * 512 + i % 512] = round;
    return NULL;
}

static void check_snapshot(struct writer *writer) {
    uint64_t first = writer->pages[0];
    for (size_t i = 1; i < writer->count; i++) {
        uint64_t now = writer->pages[i * 512 + i % 512];
        if (now != first && now + 1 != first) fail("page %zu holds round %lu after a page of round %lu", i, now, first);
        first = now;
    }
    for (size_t i = 0; i < writer->count; i++)
        if (writer->pages[i * 512 + i % 512] != writer->pages[i * 512 + i % 512]) fail("page %zu moves in the child", i);
}

static void hazard(void) {
    static struct writer writers[2];
    char *still = map_filled(memory_bytes / 2, 1);
    for (int i = 0; i < 2; i++) {
        writers[i].count = memory_bytes / 4 / PAGE;
        writers[i].pages = map_new(memory_bytes / 4);
        start_thread(&writers[i].thread, write_on, writers + i);
    }
    for (int i = 0; i < 8; i++) {
        usleep(50000);
        pid_t child = fork_or_fail();
        if (child == 0) {
            for (int w = 0; w < 2; w++) check_snapshot(writers + w);
            check(still, memory_bytes / 2, 1, "memory at rest, in the child");
            fill((void *)writers[0].pages, memory_bytes / 4, 3);
            check((void *)writers[0].pages, memory_bytes / 4, 3, "written in the child");
            _exit(0);
        }
        reap(child, "child");
    }
    atomic_store(&stop, 1);
    for (int i = 0; i < 2; i++) join_thread(writers[i].thread), check_snapshot(writers + i);
    check(still, memory_bytes / 2, 1, "memory at rest");
}
