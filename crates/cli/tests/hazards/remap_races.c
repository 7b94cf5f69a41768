/* Threads that map, move and unmap at the same time, so that one moves memory to where another's was a moment ago: the kernel tells of the
 * move first now and then. Every word stays what it was. Calls are bare, as those inside the C library are; where a bare mremap is refused
 * (EFAULT: two mappings to the kernel), the block is copied, as realloc does. */
#include "hazard.h"

enum { THREADS = 5, SLOTS = 6, STEPS = 2000 };

struct block {
    char *start;
    size_t pages;
    uint64_t seed;
};

static void write_block(struct block *block, size_t from) {
    for (size_t i = from; i < block->pages; i++) *(uint64_t *)(block->start + i * PAGE) = mix(block->seed + i) | 1;
}

static void check_block(const struct block *block, size_t pages, const char *when) {
    for (size_t i = 0; i < pages; i++) {
        uint64_t found = *(volatile uint64_t *)(block->start + i * PAGE);
        if (found != (mix(block->seed + i) | 1))
            fail("%s: page %zu of %zu at %p holds %lx", when, i, pages, block->start + i * PAGE, found);
    }
}

static char *map(size_t pages) {
    char *start = (char *)syscall(SYS_mmap, 0, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    NEED(start != MAP_FAILED);
    return start;
}

static char *move(char *start, size_t before, size_t pages) {
    char *moved = (char *)syscall(SYS_mremap, start, before * PAGE, pages * PAGE, MREMAP_MAYMOVE);
    if (moved != MAP_FAILED) return moved;
    NEED(errno == EFAULT);
    moved = map(pages);
    memcpy(moved, start, (before < pages ? before : pages) * PAGE);
    NEED(syscall(SYS_munmap, start, before * PAGE) == 0);
    return moved;
}

static void *moves(void *argument) {
    struct block blocks[SLOTS] = {0};
    uint64_t state = 977 * ((uintptr_t)argument + 1), seed = (uintptr_t)argument << 48;
    for (int step = 0; step < STEPS; step++) {
        uint64_t random = mix(++state * 0x9e3779b97f4a7c15UL);
        struct block *block = &blocks[random % SLOTS];
        size_t pages = 40 + (random >> 16) % 60;
        if (!block->start) {
            block->start = map(pages);
            block->pages = pages;
            block->seed = seed += 1 << 20;
            write_block(block, 0);
        } else if (random >> 40 & 1) {
            size_t before = block->pages, kept = before < pages ? before : pages;
            block->start = move(block->start, before, pages);
            block->pages = pages;
            check_block(block, kept, "moved");
            write_block(block, kept);
        } else {
            check_block(block, block->pages, "before it is unmapped");
            NEED(syscall(SYS_munmap, block->start, block->pages * PAGE) == 0);
            block->start = NULL;
        }
    }
    for (int i = 0; i < SLOTS; i++)
        if (blocks[i].start) check_block(&blocks[i], blocks[i].pages, "at the end");
    return NULL;
}

static void hazard(void) {
    pthread_t threads[THREADS];
    for (uintptr_t i = 0; i < THREADS; i++) NEED(pthread_create(&threads[i], NULL, moves, (void *)i) == 0);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
}
