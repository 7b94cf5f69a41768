/* Single instructions that need several pages at once: unaligned words, rep movsb, gathers. With a budget of one page they must still finish. */
#include "hazard.h"
#include <immintrin.h>

/* Reads eight words from eight pages with one instruction. */
__attribute__((target("avx2"))) static int gather(const int *base, int stride, int *out) {
    __m256i index = _mm256_setr_epi32(0, stride, 2 * stride, 3 * stride, 4 * stride, 5 * stride, 6 * stride, 7 * stride);
    _mm256_storeu_si256((__m256i *)out, _mm256_i32gather_epi32(base, index, 4));
    return 8;
}

static void hazard(void) {
    size_t length = memory_bytes / 32 < 64 * PAGE ? 64 * PAGE : memory_bytes / 32;
    unsigned char *from = map_new(length), *to = map_new(length);
    for (size_t i = 0; i < length; i += 64) *(uint64_t *)(from + i) = word_at(i, 1);
    /* A word across every page border. */
    for (size_t at = PAGE - 3; at + 8 < length; at += PAGE) {
        uint64_t value = mix(at), got;
        memcpy(from + at, &value, 8);
        __asm__ volatile("movq (%1), %0" : "=r"(got) : "r"(from + at) : "memory");
        if (got != value) fail("the word across the border at %p is %lx, not %lx", from + at, got, value);
        __asm__ volatile("lock addq %1, (%0)" : : "r"(from + at), "r"(1UL) : "memory");
        memcpy(&got, from + at, 8);
        if (got != value + 1) fail("a locked add across the border at %p gave %lx, not %lx", from + at, got, value + 1);
    }
    /* One string instruction that walks over everything, source and target out of step. */
    unsigned char *source = from + 5, *target = to + 1234;
    size_t count = length - 2000;
    __asm__ volatile("rep movsb" : "+S"(source), "+D"(target), "+c"(count) : : "memory");
    for (size_t i = 0; i < length - 2000; i++)
        if (to[1234 + i] != from[5 + i]) fail("byte %zu copied by rep movsb differs", i);
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2")) {
        int out[8];
        for (size_t page = 0; page < 8; page++) *(int *)(from + page * 7 * PAGE + 64) = 1000 + page;
        for (int round = 0; round < 50; round++) {
            gather((int *)(from + 64), 7 * PAGE / 4, out);
            for (int i = 0; i < 8; i++)
                if (out[i] != 1000 + i) fail("gathered word %d is %d", i, out[i]);
        }
    } else {
        fprintf(stderr, "gather not tried: this processor has no AVX2\n");
    }
    /* A system call whose buffers need many pages. */
    int ends[2];
    NEED(pipe(ends) == 0);
    for (size_t at = 0; at + 16 * PAGE <= length; at += 16 * PAGE) {
        NEED(write(ends[1], from + at, 15 * PAGE + 100) == 15 * PAGE + 100);
        NEED(read(ends[0], to + at, 15 * PAGE + 100) == 15 * PAGE + 100);
        if (memcmp(from + at, to + at, 15 * PAGE + 100) != 0) fail("bytes through a pipe differ");
    }
}
