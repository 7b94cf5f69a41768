/* Threads, forks, mappings that come and go, and verification of everything, for as long as asked: soak MIB SECONDS. */
#include "hazard.h"

enum { WORKERS = 3, SLOTS = 24 };
static double deadline;
static atomic_ulong operations;

struct slot {
    char *at;
    char *as; /* the address its pattern was written for; a move does not change the bytes */
    size_t length;
    uint64_t seed;
};

static void verify_slot(const struct slot *slot, const char *what) {
    if (slot->at) check_as(slot->at, slot->as, slot->length, slot->seed, what);
}

static void replace(struct slot *slot, uint64_t random, size_t most) {
    if (slot->at && munmap(slot->at, slot->length) != 0) fail("munmap: %s", strerror(errno));
    slot->length = (1 + random % (most / PAGE)) * PAGE;
    slot->at = slot->as = map_new(slot->length);
    slot->seed = random;
    check_zero(slot->at, slot->length, "a new mapping");
    fill(slot->at, slot->length, slot->seed);
}

static void fork_and_verify(struct slot *slots, uint64_t random) {
    pid_t child = fork_or_fail();
    if (child == 0) {
        for (int i = 0; i < SLOTS; i++) verify_slot(slots + i, "in a child");
        struct slot *slot = slots + random % SLOTS;
        if (slot->at) {
            fill_as(slot->at, slot->as, slot->length, 5);
            check_as(slot->at, slot->as, slot->length, 5, "written in a child");
        }
        if (random % 5 == 0) {
            pid_t grandchild = fork_or_fail();
            if (grandchild == 0) {
                for (int i = 0; i < SLOTS; i++)
                    if (slots + i != slot) verify_slot(slots + i, "in a grandchild");
                _exit(0);
            }
            if (random % 2) reap(grandchild, "grandchild"); /* otherwise its parent goes first */
        }
        _exit(0);
    }
    struct slot *slot = slots + (random >> 8) % SLOTS;
    if (slot->at) fill_as(slot->at, slot->as, slot->length, slot->seed = random);
    reap(child, "child");
}

static void step(struct slot *slots, uint64_t random, size_t most) {
    struct slot *slot = slots + (random >> 32) % SLOTS;
    uint64_t kind = random % 64;
    if (!slot->at || kind < 6) {
        replace(slot, random >> 3, most);
    } else if (kind < 40) {
        verify_slot(slot, "a mapping");
    } else if (kind < 52) {
        fill_as(slot->at, slot->as, slot->length, slot->seed = random);
    } else if (kind < 55) {
        if (madvise(slot->at, slot->length, MADV_DONTNEED) != 0) fail("madvise: %s", strerror(errno));
        check_zero(slot->at, slot->length, "dropped");
        fill_as(slot->at, slot->as, slot->length, slot->seed = random);
    } else if (kind < 58) {
        char *target = map_new(slot->length);
        slot->at = mremap(slot->at, slot->length, slot->length, MREMAP_MAYMOVE | MREMAP_FIXED, target);
        if (slot->at != target) fail("mremap: %s", strerror(errno));
        verify_slot(slot, "moved");
    } else if (kind < 61) {
        if (mprotect(slot->at, slot->length, PROT_READ) != 0) fail("mprotect: %s", strerror(errno));
        verify_slot(slot, "read-only");
        if (mprotect(slot->at, slot->length, PROT_READ | PROT_WRITE) != 0) fail("mprotect: %s", strerror(errno));
    } else if (kind == 61) {
        char *block = malloc(most);
        fill(block, most / PAGE * PAGE, random);
        check(block, most / PAGE * PAGE, random, "a malloc block");
        free(block);
    } else if (kind == 62 || kind == 63) {
        fork_and_verify(slots, random);
    }
    atomic_fetch_add(&operations, 1);
}

static void *work(void *argument) {
    static struct slot all[WORKERS][SLOTS];
    uint64_t me = (uintptr_t)argument, random = me + 1;
    size_t most = memory_bytes / WORKERS / SLOTS * 2;
    while (now_seconds() < deadline) {
        random = mix(random + 0x9e3779b97f4a7c15UL);
        step(all[me], random, most);
    }
    for (int i = 0; i < SLOTS; i++) verify_slot(all[me] + i, "at the end");
    return NULL;
}

static void hazard(void) {
    pthread_t threads[WORKERS];
    deadline = now_seconds() + (arg_count > 2 ? atof(args[2]) : 5);
    for (uintptr_t i = 0; i < WORKERS; i++) start_thread(threads + i, work, (void *)i);
    for (int i = 0; i < WORKERS; i++) join_thread(threads[i]);
    printf("%lu operations\n", atomic_load(&operations));
}
