/* Uses an eighth of its memory all the time, and walks through the rest, ROUNDS times: what is used must not make room for what is walked through. Every word is verified. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#define PAGE 4096UL

static uint64_t word(size_t page) { return page * 0x9e3779b97f4a7c15UL | 1; }

static void expect(volatile uint64_t *memory, size_t page) {
    uint64_t got = memory[page * PAGE / 8 + page % 512];
    if (got != word(page)) {
        fprintf(stderr, "page %zu holds %lx, not %lx\n", page, (unsigned long)got, (unsigned long)word(page));
        exit(1);
    }
}

int main(int count, char **arguments) {
    size_t mib = count > 1 ? strtoul(arguments[1], NULL, 0) : 64, rounds = count > 2 ? strtoul(arguments[2], NULL, 0) : 3;
    size_t pages = mib << 8, hot = pages / 8;
    volatile uint64_t *memory = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return 1;
    for (size_t page = 0; page < pages; page++) memory[page * PAGE / 8 + page % 512] = word(page);
    size_t next = 0;
    for (size_t round = 0; round < rounds; round++)
        for (size_t page = hot; page < pages; page++) {
            /* No order that could be read ahead. */
            expect(memory, hot + (page * 7919) % (pages - hot));
            for (size_t i = 0; i < 8; i++, next = (next + 1) % hot) expect(memory, (next * 5077) % hot);
        }
    puts("verified");
}
