/* Whatever is given to it, the library returns a code and a message. */
#define _DEFAULT_SOURCE
#include <errno.h>
#include <pagetide.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static int wrong;

static void expect(int line, int found, int status, const char *part) {
    const char *text = pagetide_last_error();
    if (found != status || (status != PAGETIDE_OK && strstr(text, part) == NULL)) {
        fprintf(stderr, "line %d: status %d, expected %d, with '%s' in '%s'\n", line, found, status, part, text);
        wrong = 1;
    }
}
#define EXPECT(call, status, part) expect(__LINE__, call, status, part)

static void none(const struct pagetide_dirty *dirty, void *context) {
    (void)dirty;
    (void)context;
}

static void forget(void (*arm)(void *), void *arming, void *context) {
    (void)arm;
    (void)arming;
    (void)context;
}

static void regions(void) {
    struct pagetide_region *region = (struct pagetide_region *)1;
    struct pagetide_region_options options = PAGETIDE_INIT(options);
    EXPECT(pagetide_region_new(0, &options, &region), PAGETIDE_INVALID, "0 bytes");
    if (region != NULL)
        wrong = 1;
    EXPECT(pagetide_region_new(~(size_t)0, &options, &region), PAGETIDE_INVALID, "cannot be mapped");
    EXPECT(pagetide_region_new(4096, &options, NULL), PAGETIDE_INVALID, "out is NULL");
    options.delivery = 7;
    EXPECT(pagetide_region_new(4096, &options, &region), PAGETIDE_INVALID, "delivery is 7");
    options.delivery = 0;
    options.policy = -1;
    EXPECT(pagetide_region_new(4096, &options, &region), PAGETIDE_INVALID, "policy is -1");
    options.policy = 0;
    options.store = "no-such-store:";
    EXPECT(pagetide_region_new(4096, &options, &region), PAGETIDE_STORE, "no-such-store");
    options.store = "\xff\xfe";
    EXPECT(pagetide_region_new(4096, &options, &region), PAGETIDE_INVALID, "UTF-8");
    options.size = 0;
    EXPECT(pagetide_region_new(4096, &options, &region), PAGETIDE_INVALID, "sizeof");

    /* A program of a later version, with a member that this library does not know. */
    struct {
        struct pagetide_region_options known;
        size_t later;
    } newer;
    memset(&newer, 0, sizeof newer);
    newer.known.size = sizeof newer;
    newer.later = 1;
    EXPECT(pagetide_region_new(4096, &newer.known, &region), PAGETIDE_INVALID, "newer pagetide.h");
    newer.later = 0;
    EXPECT(pagetide_region_new(1 << 20, &newer.known, &region), PAGETIDE_OK, "");
    /* One of an earlier version, whose structure ended sooner. */
    EXPECT(pagetide_region_free(region), PAGETIDE_OK, "");
    size_t earlier[2] = {sizeof earlier, 64 << 10};
    EXPECT(pagetide_region_new(1 << 20, (struct pagetide_region_options *)earlier, &region), PAGETIDE_OK, "");

    struct pagetide_pin pin, beyond;
    EXPECT(pagetide_region_pin(region, 0, 8192, &pin), PAGETIDE_OK, "");
    EXPECT(pagetide_region_pin(region, 0, 1 << 20, &beyond), PAGETIDE_LIMIT, "budget of 16 pages");
    EXPECT(pagetide_region_pin(region, 1 << 20, 1, &beyond), PAGETIDE_INVALID, "beyond");
    EXPECT(pagetide_region_set_budget(region, 1 << 20), PAGETIDE_OK, "");
    struct pagetide_pin most[253];
    for (size_t i = 0; i < 253; i++) EXPECT(pagetide_region_pin(region, 0, 4096, &most[i]), PAGETIDE_OK, "");
    EXPECT(pagetide_region_pin(region, 0, 4096, &beyond), PAGETIDE_LIMIT, "pinned 254 times");
    for (size_t i = 0; i < 253; i++) pagetide_pin_release(&most[i]);
    EXPECT(pagetide_region_set_budget(region, 64 << 10), PAGETIDE_OK, "");
    EXPECT(pagetide_region_pin(region, ~(size_t)0, 2, &beyond), PAGETIDE_INVALID, "overflow");
    /* One that was refused, one of nothing, and one that was released hold nothing. */
    pagetide_pin_release(&beyond);
    EXPECT(pagetide_region_pin(region, 5, 0, &beyond), PAGETIDE_OK, "");
    pagetide_pin_release(&beyond);
    pagetide_pin_release(&most[0]);
    EXPECT(pagetide_region_pin(region, 0, 1, NULL), PAGETIDE_INVALID, "out is NULL");
    EXPECT(pagetide_region_evict(region, 0, 2 << 20), PAGETIDE_INVALID, "beyond");
    EXPECT(pagetide_region_prefetch(NULL, 0, 1), PAGETIDE_INVALID, "region is NULL");
    EXPECT(pagetide_region_stats(region, NULL), PAGETIDE_INVALID, "stats is NULL");
    EXPECT(pagetide_region_free(region), PAGETIDE_BUSY, "2 pages");
    ((char *)pagetide_region_data(region))[0] = 1;

    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        wrong = 0;
        EXPECT(pagetide_region_set_budget(region, 4096), PAGETIDE_FORKED, "forked child");
        EXPECT(pagetide_region_pin(region, 0, 1, &beyond), PAGETIDE_FORKED, "forked child");
        pagetide_pin_release(&pin);
        EXPECT(pagetide_region_free(region), PAGETIDE_OK, "");
        _exit(wrong);
    }
    int status;
    if (waitpid(child, &status, 0) != child || !WIFEXITED(status) || WEXITSTATUS(status) != 0) {
        fprintf(stderr, "the child ended with status %#x\n", status);
        wrong = 1;
    }
    pagetide_pin_release(&pin);
    EXPECT(pagetide_region_free(region), PAGETIDE_OK, "");
    EXPECT(pagetide_region_free(NULL), PAGETIDE_OK, "");
    pagetide_pin_release(NULL);
}

/* What a full store does not take stays where it is, and is counted. */
static void full_store(void) {
    struct pagetide_region_options options = PAGETIDE_INIT(options);
    options.store = "ram:?max=2M";
    struct pagetide_region *region;
    EXPECT(pagetide_region_new(8 << 20, &options, &region), PAGETIDE_OK, "");
    uint64_t *words = (uint64_t *)pagetide_region_data(region), random = 1;
    for (size_t i = 0; i < 1 << 20; i++)
        words[i] = random = random * 6364136223846793005ULL + 1442695040888963407ULL;
    EXPECT(pagetide_region_evict(region, 0, 8 << 20), PAGETIDE_OK, "");
    struct pagetide_region_stats stats = PAGETIDE_INIT(stats);
    EXPECT(pagetide_region_stats(region, &stats), PAGETIDE_OK, "");
    if (stats.resident_bytes < 5 << 20 || stats.errors == 0 || stats.store_pages == 0) {
        fprintf(stderr, "%lu bytes resident, %lu errors, %lu pages stored\n",
                (unsigned long)stats.resident_bytes, (unsigned long)stats.errors,
                (unsigned long)stats.store_pages);
        wrong = 1;
    }
    random = 1;
    for (size_t i = 0; i < 1 << 20; i++) {
        random = random * 6364136223846793005ULL + 1442695040888963407ULL;
        wrong |= words[i] != random;
    }
    EXPECT(pagetide_region_free(region), PAGETIDE_OK, "");
}

static void tracking(const char *directory) {
    char *memory = (char *)mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct pagetide_span span = {"table", NULL, memory, 1 << 20};
    struct pagetide_span crooked = {"table", NULL, memory + 1, 1 << 20};
    struct pagetide_span nameless = {NULL, NULL, memory, 1 << 20};
    struct pagetide_tracker *tracker;
    EXPECT(pagetide_tracker_new(&span, 0, 0, &tracker), PAGETIDE_INVALID, "nothing to track");
    EXPECT(pagetide_tracker_new(NULL, 1, 0, &tracker), PAGETIDE_INVALID, "spans is NULL");
    EXPECT(pagetide_tracker_new(&crooked, 1, 0, &tracker), PAGETIDE_INVALID, "whole pages");
    EXPECT(pagetide_tracker_new(&nameless, 1, 0, &tracker), PAGETIDE_INVALID, "name of span 0 is NULL");
    EXPECT(pagetide_tracker_new(&span, 1, 6, &tracker), PAGETIDE_INVALID, "method is 6");
    EXPECT(pagetide_tracker_new(&span, 1, -1, &tracker), PAGETIDE_INVALID, "method is -1");
    EXPECT(pagetide_tracker_new(&span, 1, 0, &tracker), PAGETIDE_OK, "");
    EXPECT(pagetide_tracker_take(tracker, NULL, NULL), PAGETIDE_INVALID, "found is NULL");
    EXPECT(pagetide_tracker_take(tracker, none, NULL), PAGETIDE_OK, "");
    if (pagetide_tracker_method(tracker) < 1 || pagetide_tracker_method(NULL) != 0)
        wrong = 1;
    pagetide_tracker_free(tracker);
    pagetide_tracker_free(NULL);

    struct pagetide_snapshotter *snapshotter;
    EXPECT(pagetide_snapshotter_new(&span, 1, NULL, &snapshotter), PAGETIDE_OK, "");
    struct pagetide_snapshot *snapshot;
    char path[4096];
    snprintf(path, sizeof path, "%s/no/such/directory/x", directory);
    EXPECT(pagetide_snapshot_start(snapshotter, path, NULL, &snapshot), PAGETIDE_NOT_FOUND, "no/such");
    snprintf(path, sizeof path, "%s/snapshot", directory);
    struct pagetide_snapshot_options options = PAGETIDE_INIT(options);
    options.hold = forget;
    EXPECT(pagetide_snapshot_start(snapshotter, path, &options, &snapshot), PAGETIDE_INVALID, "without arming");
    uint8_t id[16] = {1};
    options.hold = NULL;
    options.since = id;
    EXPECT(pagetide_snapshot_start(snapshotter, path, &options, &snapshot), PAGETIDE_NOT_FOUND, "cannot be built upon");
    EXPECT(pagetide_snapshot_wait(NULL, NULL), PAGETIDE_INVALID, "snapshot is NULL");
    memory[0] = 7;
    EXPECT(pagetide_snapshot_start(snapshotter, path, NULL, &snapshot), PAGETIDE_OK, "");
    struct pagetide_snapshot_report report = PAGETIDE_INIT(report);
    EXPECT(pagetide_snapshot_wait(snapshot, &report), PAGETIDE_OK, "");
    EXPECT(pagetide_snapshot_id(path, id), PAGETIDE_OK, "");
    if (memcmp(id, report.id, 16) != 0)
        wrong = 1;
    pagetide_snapshotter_free(snapshotter);

    struct pagetide_restored *restored;
    void *data;
    EXPECT(pagetide_restore("/no/such/snapshot", NULL, &restored), PAGETIDE_NOT_FOUND, "/no/such/snapshot");
    EXPECT(pagetide_restore("/proc/self/exe", NULL, &restored), PAGETIDE_DAMAGED, "exe");
    EXPECT(pagetide_restore(path, NULL, &restored), PAGETIDE_OK, "");
    EXPECT(pagetide_restored_data(restored, "chair", &data, NULL), PAGETIDE_NOT_FOUND, "it has 'table'");
    EXPECT(pagetide_restored_data(restored, "table", &data, NULL), PAGETIDE_OK, "");
    if (*(char *)data != 7)
        wrong = 1;
    pagetide_restored_free(restored);
    struct pagetide_span places[2] = {{"table", NULL, memory, 0}, {"chair", NULL, NULL, 0}};
    struct pagetide_restore_options placed = PAGETIDE_INIT(placed);
    placed.places = places;
    placed.place_count = 1;
    EXPECT(pagetide_restore(path, &placed, &restored), PAGETIDE_INVALID, "'table' cannot be mapped at address");
    placed.place_count = 2;
    EXPECT(pagetide_restore(path, &placed, &restored), PAGETIDE_NOT_FOUND, "chair");
    places[1].name = NULL;
    EXPECT(pagetide_restore(path, &placed, &restored), PAGETIDE_INVALID, "the name of a place is NULL");
    placed.places = NULL;
    EXPECT(pagetide_restore(path, &placed, &restored), PAGETIDE_INVALID, "places is NULL");
    char *whole = (char *)malloc(1 << 20);
    EXPECT(pagetide_read_memory(path, "table", whole, 4096), PAGETIDE_INVALID, "256 pages");
    EXPECT(pagetide_read_memory(path, "chair", whole, 1 << 20), PAGETIDE_NOT_FOUND, "it has table");
    EXPECT(pagetide_read_memory(path, "table", whole, 1 << 20), PAGETIDE_OK, "");
    if (whole[0] != 7)
        wrong = 1;
    free(whole);
}

/* A child has none of its parent's, and can free all of it without waiting for threads. */
static void handles_in_a_child(const char *directory) {
    char *memory[2], path[4096];
    for (int i = 0; i < 2; i++) {
        memory[i] = (char *)mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        memory[i][4096] = 7;
    }
    struct pagetide_span spans[2] = {{"a", NULL, memory[0], 1 << 20}, {"b", NULL, memory[1], 1 << 20}};
    struct pagetide_tracker *tracker;
    struct pagetide_snapshotter *snapshotter;
    struct pagetide_snapshot *snapshot;
    struct pagetide_restored *restored;
    snprintf(path, sizeof path, "%s/of-the-parent", directory);
    EXPECT(pagetide_tracker_new(&spans[0], 1, 0, &tracker), PAGETIDE_OK, "");
    EXPECT(pagetide_snapshotter_new(&spans[1], 1, NULL, &snapshotter), PAGETIDE_OK, "");
    EXPECT(pagetide_snapshot_start(snapshotter, path, NULL, &snapshot), PAGETIDE_OK, "");
    EXPECT(pagetide_snapshot_wait(snapshot, NULL), PAGETIDE_OK, "");
    EXPECT(pagetide_restore(path, NULL, &restored), PAGETIDE_OK, "");
    snprintf(path, sizeof path, "%s/under-way", directory);
    EXPECT(pagetide_snapshot_start(snapshotter, path, NULL, &snapshot), PAGETIDE_OK, "");

    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        alarm(60);
        wrong = 0;
        void *data;
        struct pagetide_snapshot *another;
        EXPECT(pagetide_tracker_take(tracker, none, NULL), PAGETIDE_FORKED, "forked child");
        EXPECT(pagetide_snapshot_start(snapshotter, path, NULL, &another), PAGETIDE_FORKED, "forked child");
        EXPECT(pagetide_snapshot_progress(snapshot, NULL, NULL), PAGETIDE_FORKED, "forked child");
        EXPECT(pagetide_snapshot_cancel(snapshot), PAGETIDE_FORKED, "forked child");
        EXPECT(pagetide_snapshot_wait(snapshot, NULL), PAGETIDE_FORKED, "forked child");
        EXPECT(pagetide_restored_data(restored, "b", &data, NULL), PAGETIDE_FORKED, "forked child");
        EXPECT(pagetide_restored_wait(restored), PAGETIDE_FORKED, "forked child");
        EXPECT(pagetide_restored_save_working_set(restored, "x"), PAGETIDE_FORKED, "forked child");
        pagetide_tracker_free(tracker);
        pagetide_snapshotter_free(snapshotter);
        pagetide_restored_free(restored);
        _exit(wrong);
    }
    int status;
    if (waitpid(child, &status, 0) != child || !WIFEXITED(status) || WEXITSTATUS(status) != 0) {
        fprintf(stderr, "the child ended with status %#x\n", status);
        wrong = 1;
    }
    EXPECT(pagetide_snapshot_wait(snapshot, NULL), PAGETIDE_OK, "");
    EXPECT(pagetide_restored_wait(restored), PAGETIDE_OK, "");
    EXPECT(pagetide_tracker_take(tracker, none, NULL), PAGETIDE_OK, "");
    pagetide_restored_free(restored);
    pagetide_snapshotter_free(snapshotter);
    pagetide_tracker_free(tracker);
}

/* Lengths that no memory has. */
static void lengths(const char *directory) {
    struct pagetide_hold *hold;
    struct pagetide_tracker *tracker;
    struct pagetide_span span = {"table", NULL, &hold, ~(size_t)0};
    size_t large = ~(size_t)0 / 2 + 1;
    EXPECT(pagetide_hold(&hold, ~(size_t)0, PAGETIDE_LOCK_ONFAULT, &hold), PAGETIDE_INVALID, "more than memory");
    EXPECT(pagetide_hold(&hold, large, PAGETIDE_LOCK_ONFAULT, &hold), PAGETIDE_INVALID, "more than memory");
    EXPECT(pagetide_tracker_new(&span, large, 0, &tracker), PAGETIDE_INVALID, "more than memory");
    EXPECT(pagetide_tracker_new(&span, 1, 0, &tracker), PAGETIDE_INVALID, "whole pages");
    struct pagetide_secret *secret;
    int equal;
    EXPECT(pagetide_secret_new(64, NULL, &secret), PAGETIDE_OK, "");
    EXPECT(pagetide_secret_equals(secret, "", large, &equal), PAGETIDE_INVALID, "more than memory");
    pagetide_secret_free(secret);
    char path[4096];
    snprintf(path, sizeof path, "%s/snapshot", directory);
    EXPECT(pagetide_read_memory(path, "table", &span, large), PAGETIDE_INVALID, "more than memory");
    EXPECT(pagetide_read_memory(path, "table", NULL, 1), PAGETIDE_INVALID, "into is NULL");
}

static void locking(void) {
    char *memory = (char *)mmap(NULL, 1 << 16, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT(pagetide_mlock2(memory, 1 << 16, 8), PAGETIDE_INVALID, "expected LOCKED (1) or ONFAULT (2)");
    if (pagetide_last_errno() != EINVAL)
        wrong = 1;
    EXPECT(pagetide_mlock2(memory, 1 << 16, PAGETIDE_LOCK_ONFAULT), PAGETIDE_OK, "");
    EXPECT(pagetide_munlock2(memory, 1 << 16, PAGETIDE_LOCK_FULL | PAGETIDE_LOCK_ONFAULT), PAGETIDE_OK, "");
    munmap(memory, 1 << 16);
    EXPECT(pagetide_mlock2(memory, 1 << 16, PAGETIDE_LOCK_ONFAULT), PAGETIDE_SYSTEM, "not mapped");
    struct pagetide_hold *hold;
    EXPECT(pagetide_hold(NULL, 4096, PAGETIDE_LOCK_ONFAULT, &hold), PAGETIDE_INVALID, "address is NULL");
    EXPECT(pagetide_hold(&hold, 1, 3, &hold), PAGETIDE_INVALID, "the mode is 3");
    struct pagetide_locked_file *file;
    EXPECT(pagetide_locked_file_open("/no/such/file", NULL, &file), PAGETIDE_NOT_FOUND, "/no/such/file");
    struct pagetide_locked_file_options part = PAGETIDE_INIT(part);
    part.offset = 4096;
    EXPECT(pagetide_locked_file_open("/proc/self/exe", &part, &file), PAGETIDE_INVALID, "give the length");
    EXPECT(pagetide_locked_file_open("/proc/self/exe", NULL, &file), PAGETIDE_OK, "");
    size_t length = pagetide_locked_file_length(file);
    EXPECT(pagetide_locked_file_load(file, length, 1), PAGETIDE_INVALID, "reach beyond");
    EXPECT(pagetide_locked_file_load(file, 0, 1), PAGETIDE_OK, "");
    if (memcmp(pagetide_locked_file_data(file), "\177ELF", 4) != 0)
        wrong = 1;
    pagetide_locked_file_close(file);
    struct pagetide_secret *secret;
    EXPECT(pagetide_secret_new(~(size_t)0, NULL, &secret), PAGETIDE_LIMIT, "do not fit");
    EXPECT(pagetide_secret_new(64, NULL, &secret), PAGETIDE_OK, "");
    EXPECT(pagetide_secret_resize(secret, 1 << 20), PAGETIDE_LIMIT, "do not fit");
    int equal = 7;
    EXPECT(pagetide_secret_equals(secret, "", 0, &equal), PAGETIDE_OK, "");
    if (equal != 1)
        wrong = 1;
    pagetide_secret_free(secret);
}

int main(int argc, char **argv) {
    if (argc != 2 || pagetide_last_error()[0] != 0)
        return 2;
    regions();
    full_store();
    tracking(argv[1]);
    handles_in_a_child(argv[1]);
    lengths(argv[1]);
    locking();
    return wrong;
}
