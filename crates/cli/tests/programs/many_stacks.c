/* 64 threads with stacks of 8 MiB and 1 GiB of address space without access; prints RssAnon (pages of files come in whatever size the system likes) and VmLck in KiB. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>

static pthread_barrier_t barrier;

static void *run(void *unused) {
    volatile char used[16384];
    for (int i = 0; i < (int)sizeof used; i += 512) used[i] = 1;
    pthread_barrier_wait(&barrier);
    pthread_barrier_wait(&barrier);
    return unused;
}

int main(void) {
    pthread_t threads[64];
    /* Where stacks happen to end at a multiple of 2 MiB, their first page is a huge one. */
    prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);
    if (mmap(NULL, 1UL << 30, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0) == MAP_FAILED) return 1;
    pthread_barrier_init(&barrier, NULL, 65);
    for (int i = 0; i < 64; i++)
        if (pthread_create(&threads[i], NULL, run, NULL)) return 1;
    pthread_barrier_wait(&barrier);
    long rss = -1, locked = -1;
    char line[256];
    FILE *status = fopen("/proc/self/status", "r");
    while (status && fgets(line, sizeof line, status)) {
        sscanf(line, "RssAnon: %ld", &rss);
        sscanf(line, "VmLck: %ld", &locked);
    }
    printf("%ld %ld\n", rss, locked);
    pthread_barrier_wait(&barrier);
    for (int i = 0; i < 64; i++) pthread_join(threads[i], NULL);
    return 0;
}
