/* Uses two parts of its memory, of so many MiB: the first often and all over, of the second a few
 * pages each round, at random. Prints a sum that depends on every access. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

static uint64_t state = 88172645463325252u;

static uint64_t random_number(void)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return state;
}

int main(int argc, char **argv)
{
	if (argc != 5) {
		fprintf(stderr, "usage: two_parts OFTEN-MIB SELDOM-MIB ROUNDS PAGES-A-ROUND\n");
		return 2;
	}
	size_t often = strtoul(argv[1], NULL, 10) << 20, seldom = strtoul(argv[2], NULL, 10) << 20;
	long rounds = atol(argv[3]), pages = atol(argv[4]);
	unsigned char *first = malloc(often), *second = malloc(seldom);
	uint64_t sum = 0;

	if (!first || !second)
		return 1;
	for (size_t at = 0; at < often; at += 8)
		*(uint64_t *)(first + at) = random_number();
	for (size_t at = 0; at < seldom; at += 8)
		*(uint64_t *)(second + at) = random_number() & 0xffff;
	for (long round = 0; round < rounds; round++) {
		for (size_t at = 0; at < often; at += 4096)
			for (int step = 0; step < 16; step++)
				sum = sum * 31 + first[(at + sum) % often];
		for (long page = 0; page < pages; page++)
			sum += second[random_number() % seldom]++;
	}
	printf("%llu\n", (unsigned long long)sum);
	return 0;
}
