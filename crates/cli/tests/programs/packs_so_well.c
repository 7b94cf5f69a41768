/* Fills so many MiB of pages, of each page so many of its bytes with noise and the others with what
 * compresses well, and uses and changes them in no order. Every page is checked whenever it is used.
 * Prints a sum that depends on every one. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PAGE = 4096, WORDS = PAGE / 8 };

static uint64_t mix(uint64_t x)
{
	x ^= x >> 33;
	x *= 0xff51afd7ed558ccdu;
	x ^= x >> 33;
	x *= 0xc4ceb9fe1a85ec53u;
	return x ^ x >> 33;
}

/* The first word says how often the page was changed; the others follow from that. */
static void fill(uint64_t *page, uint64_t number, uint64_t change, long noise)
{
	page[0] = change;
	for (long word = 1; word < WORDS; word++)
		page[word] = word < noise ? mix(number * WORDS + word + (change << 40)) : number;
}

static uint64_t check(const uint64_t *page, uint64_t number, long noise)
{
	uint64_t change = page[0];

	for (long word = 1; word < WORDS; word++) {
		uint64_t right = word < noise ? mix(number * WORDS + word + (change << 40)) : number;
		if (page[word] != right) {
			fprintf(stderr, "FAILED: word %ld of page %llu is wrong\n", word,
				(unsigned long long)number);
			exit(1);
		}
	}
	return change;
}

int main(int argc, char **argv)
{
	if (argc != 4) {
		fprintf(stderr, "usage: packs_so_well MIB NOISE-BYTES-A-PAGE USES\n");
		return 2;
	}
	uint64_t pages = strtoul(argv[1], NULL, 10) << 8, sum = 0, state = 1;
	long noise = atol(argv[2]) / 8, uses = atol(argv[3]);
	uint64_t *memory = aligned_alloc(PAGE, pages * PAGE);

	if (!memory)
		return 1;
	for (uint64_t page = 0; page < pages; page++)
		fill(memory + page * WORDS, page + 1, 0, noise);
	for (long use = 0; use < uses; use++) {
		state = mix(state + use);
		uint64_t page = state % pages;
		uint64_t change = check(memory + page * WORDS, page + 1, noise);
		if (state >> 62 == 0)
			fill(memory + page * WORDS, page + 1, change + 1, noise);
		sum = sum * 31 + change + page;
	}
	for (uint64_t page = 0; page < pages; page++)
		sum = sum * 31 + check(memory + page * WORDS, page + 1, noise);
	printf("%llu\n", (unsigned long long)sum);
	return 0;
}
