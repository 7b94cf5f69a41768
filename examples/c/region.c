/* A table four times as large as the memory it may take.
 *
 *     cc region.c $(pkg-config --cflags --libs pagetide) && ./a.out
 */
#include <inttypes.h>
#include <pagetide.h>
#include <stdio.h>
#include <stdlib.h>

static void check(int status, const char *what) {
    if (status != PAGETIDE_OK) {
        fprintf(stderr, "%s: %s\n", what, pagetide_last_error());
        exit(status == PAGETIDE_DENIED ? 77 : 1);
    }
}

int main(void) {
    const size_t count = (64 << 20) / sizeof(uint64_t);
    struct pagetide_region_options options = PAGETIDE_INIT(options);
    options.resident = 16 << 20;
    options.store = "ram:?max=256M";
    struct pagetide_region *region;
    check(pagetide_region_new(count * sizeof(uint64_t), &options, &region), "region");

    uint64_t *table = (uint64_t *)pagetide_region_data(region);
    for (size_t i = 0; i < count; i++)
        table[i] = i * i;
    uint64_t sum = 0;
    for (size_t i = 0; i < count; i++)
        sum += table[i] ^ (i * i);

    /* What must not wait for the store is pinned. */
    struct pagetide_pin header;
    check(pagetide_region_pin(region, 0, 4096, &header), "pin");
    check(pagetide_region_set_budget(region, 4 << 20), "budget");
    sum += table[0];
    pagetide_pin_release(&header);

    struct pagetide_region_stats stats = PAGETIDE_INIT(stats);
    check(pagetide_region_stats(region, &stats), "stats");
    printf("%" PRIu64 " errors; %" PRIu64 " MiB resident at most, %" PRIu64 " pages evicted\n", sum,
           stats.resident_bytes_max >> 20, stats.evictions);
    check(pagetide_region_free(region), "free");
    return sum == 0 && stats.resident_bytes_max <= 16 << 20 && stats.evictions > 0 ? 0 : 1;
}
