/* What calls cost from C; crates/capi/examples/cost.rs is the same in Rust, and compare.py runs both.
 *
 *     cost [PINS TAKES MIB]      prints the nanoseconds of a pin and its release, and of a take
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <pagetide.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

enum { PAGE = 4096, REGION_PAGES = 1024 };

static void check(int status) {
    if (status != PAGETIDE_OK) {
        fprintf(stderr, "%s\n", pagetide_last_error());
        exit(1);
    }
}

static double now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

/* Pins and releases pages that are resident, one after the other. */
static double pin_ns(size_t pins) {
    struct pagetide_region *region;
    check(pagetide_region_new((size_t)REGION_PAGES * PAGE, NULL, &region));
    char *memory = (char *)pagetide_region_data(region);
    for (size_t page = 0; page < REGION_PAGES; page++)
        memory[page * PAGE] = 1;
    double begun = now_ns();
    for (size_t i = 0; i < pins; i++) {
        struct pagetide_pin pin;
        check(pagetide_region_pin(region, i % REGION_PAGES * PAGE, PAGE, &pin));
        pagetide_pin_release(&pin);
    }
    double took = (now_ns() - begun) / (double)pins;
    check(pagetide_region_free(region));
    return took;
}

static void count(const struct pagetide_dirty *dirty, void *context) {
    *(size_t *)context += dirty->length;
}

static int ascending(const void *left, const void *right) {
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

/* Takes what was written to one in a hundred pages, at the same places each time; the median. */
static double take_ns(size_t takes, size_t length) {
    char *memory =
        (char *)mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    double *took = (double *)calloc(takes, sizeof(double));
    if (memory == MAP_FAILED || took == NULL)
        exit(1);
    madvise(memory, length, MADV_NOHUGEPAGE);
    size_t pages = length / PAGE;
    for (size_t page = 0; page < pages; page++)
        memory[page * PAGE] = 1;
    struct pagetide_span span = {"memory", NULL, memory, length};
    struct pagetide_tracker *tracker;
    check(pagetide_tracker_new(&span, 1, PAGETIDE_METHOD_BEST, &tracker));
    for (size_t i = 0; i < takes; i++) {
        uint64_t random = 1;
        for (size_t written = 0; written < pages / 100; written++) {
            random = random * 6364136223846793005u + 1442695040888963407u;
            memory[(random >> 33) % pages * PAGE] = (char)i;
        }
        size_t found = 0;
        double begun = now_ns();
        check(pagetide_tracker_take(tracker, count, &found));
        took[i] = now_ns() - begun;
        if (found < pages / 200 * PAGE || found > pages / 100 * PAGE)
            exit(1);
    }
    qsort(took, takes, sizeof(double), ascending);
    double median = took[takes / 2];
    pagetide_tracker_free(tracker);
    free(took);
    munmap(memory, length);
    return median;
}

int main(int count_of, char **arguments) {
    size_t pins = 1000, takes = 3, mib = 16;
    if (count_of == 4) {
        pins = strtoul(arguments[1], NULL, 10);
        takes = strtoul(arguments[2], NULL, 10);
        mib = strtoul(arguments[3], NULL, 10);
    }
    double pin = pin_ns(pins);
    printf("%.1f %.0f\n", pin, take_ns(takes, mib << 20));
    return 0;
}
