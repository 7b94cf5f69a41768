/* Sends what changed of a table to a copy of it.
 *
 *     cc dirty.c $(pkg-config --cflags --libs pagetide) && ./a.out
 */
#define _DEFAULT_SOURCE
#include <pagetide.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

struct copy {
    const char *from;
    char *to;
    size_t bytes;
};

static void send_run(const struct pagetide_dirty *dirty, void *context) {
    struct copy *copy = (struct copy *)context;
    memcpy(copy->to + dirty->offset, copy->from + dirty->offset, dirty->length);
    copy->bytes += dirty->length;
}

int main(void) {
    const size_t length = 64 << 20;
    char *table = (char *)mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char *replica = (char *)calloc(1, length);
    if (table == MAP_FAILED || replica == NULL)
        return 1;

    struct pagetide_span span = {"table", NULL, table, length};
    struct pagetide_tracker *tracker;
    if (pagetide_tracker_new(&span, 1, PAGETIDE_METHOD_BEST, &tracker) != PAGETIDE_OK) {
        fprintf(stderr, "%s\n", pagetide_last_error());
        return 1;
    }
    size_t sent = 0;
    for (int round = 0; round < 3; round++) {
        for (size_t i = 0; i < 100; i++)
            table[(i * 7919 + round) * 4096 % length] = (char)(i + 1);
        struct copy copy = {table, replica, 0};
        if (pagetide_tracker_take(tracker, send_run, &copy) != PAGETIDE_OK) {
            fprintf(stderr, "%s\n", pagetide_last_error());
            return 1;
        }
        printf("round %d: %zu KiB sent\n", round, copy.bytes >> 10);
        sent += copy.bytes;
    }
    int same = memcmp(table, replica, length) == 0;
    pagetide_tracker_free(tracker);
    free(replica);
    munmap(table, length);
    printf("the copy is %s\n", same ? "the same" : "DIFFERENT");
    return same && sent >= 100 * 4096 && sent < length ? 0 : 1;
}
