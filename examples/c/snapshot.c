/* Saves a table while another thread goes on writing it, and brings it back as it is touched.
 *
 *     cc -pthread snapshot.c $(pkg-config --cflags --libs pagetide) && ./a.out FILE
 */
#define _DEFAULT_SOURCE
#include <pagetide.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#define PAGES 8192

static pthread_mutex_t writing = PTHREAD_MUTEX_INITIALIZER;
static volatile int done;
static unsigned long *table; /* one number a page; all are equal but the last few, or one more */

static void check(int status, const char *what) {
    if (status != PAGETIDE_OK) {
        fprintf(stderr, "%s: %s\n", what, pagetide_last_error());
        exit(status == PAGETIDE_DENIED ? 77 : 1);
    }
}

static void *write_on(void *context) {
    (void)context;
    for (unsigned long round = 1; !done; round++) {
        pthread_mutex_lock(&writing);
        for (size_t page = 0; page < PAGES; page++)
            table[page * 512] = round;
        pthread_mutex_unlock(&writing);
    }
    return NULL;
}

/* The writer holds still while the memory is armed. */
static void hold(void (*arm)(void *arming), void *arming, void *context) {
    pthread_mutex_t *lock = (pthread_mutex_t *)context;
    pthread_mutex_lock(lock);
    arm(arming);
    pthread_mutex_unlock(lock);
}

int main(int argc, char **argv) {
    if (argc != 2) {
        fprintf(stderr, "usage: %s FILE\n", argv[0]);
        return 2;
    }
    const size_t length = PAGES * 4096;
    void *memory = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return 1;
    table = (unsigned long *)memory;

    struct pagetide_span span = {"table", NULL, memory, length};
    struct pagetide_snapshotter *snapshotter;
    check(pagetide_snapshotter_new(&span, 1, NULL, &snapshotter), "snapshotter");
    pthread_t writer;
    if (pthread_create(&writer, NULL, write_on, NULL) != 0)
        return 1;

    struct pagetide_snapshot_options options = PAGETIDE_INIT(options);
    options.hold = hold;
    options.hold_context = &writing;
    struct pagetide_snapshot *snapshot;
    check(pagetide_snapshot_start(snapshotter, argv[1], &options, &snapshot), "snapshot");
    struct pagetide_snapshot_report report = PAGETIDE_INIT(report);
    check(pagetide_snapshot_wait(snapshot, &report), "wait");
    done = 1;
    pthread_join(writer, NULL);
    pagetide_snapshotter_free(snapshotter);

    struct pagetide_restored *restored;
    check(pagetide_restore(argv[1], NULL, &restored), "restore");
    void *data;
    size_t restored_length;
    check(pagetide_restored_data(restored, "table", &data, &restored_length), "data");
    const unsigned long *saved = (const unsigned long *)data;
    size_t wrong = restored_length != length;
    for (size_t page = 0; page < PAGES; page++)
        wrong += saved[page * 512] != saved[0];
    check(pagetide_restored_wait(restored), "restored");
    printf("%zu pages differ; the writer was held for %lu us\n", wrong,
           (unsigned long)(report.pause_ns / 1000));
    pagetide_restored_free(restored);
    return wrong == 0 ? 0 : 1;
}
