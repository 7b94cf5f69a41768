/* malloc, calloc, realloc, posix_memalign and free in mixed sizes: calloc is zeros, realloc keeps, alignment holds. */
#include "hazard.h"

struct block {
    char *at;
    size_t length;
    uint64_t seed;
};

static void verify(struct block *block) {
    for (size_t i = 0; i < block->length; i++)
        if ((unsigned char)block->at[i] != (unsigned char)(mix(block->seed + i / 64) >> (i % 8 * 8)))
            fail("byte %zu of a block of %zu at %p differs", i, block->length, block->at);
}

static void scribble(struct block *block, size_t from) {
    for (size_t i = from; i < block->length; i++) block->at[i] = mix(block->seed + i / 64) >> (i % 8 * 8);
}

static void hazard(void) {
    static struct block blocks[4096];
    uint64_t random = 42;
    size_t held = 0;
    for (int step = 0; step < 24000; step++) {
        random = mix(random + step);
        struct block *block = blocks + random % 4096;
        size_t length = 1 + (random >> 20) % ((random >> 60) == 0 ? 1500000 : (random >> 60) < 4 ? 70000 : 2000);
        if (block->at && (random >> 13) % 3 == 0 && held < memory_bytes) {
            verify(block);
            size_t kept = length < block->length ? length : block->length;
            held += length - block->length;
            block->at = realloc(block->at, length);
            NEED(block->at);
            block->length = length;
            scribble(block, kept);
            continue;
        }
        if (block->at) {
            verify(block);
            free(block->at);
            held -= block->length;
            *block = (struct block){0};
        }
        if (held > memory_bytes) continue;
        if ((random >> 15) % 4 == 0) {
            block->at = calloc(1, length);
            NEED(block->at);
            for (size_t i = 0; i < length; i++)
                if (block->at[i]) fail("byte %zu of a calloc of %zu at %p is %d", i, length, block->at, block->at[i]);
        } else if ((random >> 15) % 4 == 1) {
            size_t alignment = 16UL << (random >> 17) % 12;
            void *aligned;
            NEED(posix_memalign(&aligned, alignment, length) == 0 && (uintptr_t)aligned % alignment == 0);
            block->at = aligned;
        } else {
            NEED((block->at = malloc(length)));
        }
        block->length = length;
        block->seed = random;
        held += length;
        scribble(block, 0);
    }
    for (size_t i = 0; i < 4096; i++)
        if (blocks[i].at) verify(blocks + i), free(blocks[i].at);
}
