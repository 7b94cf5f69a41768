/* Locks the first of two parts of its memory, of so many MiB, and uses the second over and over for
 * so many seconds. Exit code 3 if it may not lock. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

int main(int argc, char **argv)
{
	if (argc != 4) {
		fprintf(stderr, "usage: locks_a_part LOCKED-MIB USED-MIB SECONDS\n");
		return 2;
	}
	size_t locked = strtoul(argv[1], NULL, 10) << 20, used = strtoul(argv[2], NULL, 10) << 20;
	unsigned char *first = mmap(NULL, locked, PROT_READ | PROT_WRITE,
				    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	unsigned char *second = malloc(used);
	time_t end = time(NULL) + atol(argv[3]);
	unsigned char round = 0;

	if (first == MAP_FAILED || !second)
		return 1;
	if (mlock(first, locked)) {
		perror("mlock");
		return 3;
	}
	for (size_t at = 0; at < locked; at += 4096)
		first[at] = at >> 12;
	for (size_t at = 0; at < used; at += 4096)
		second[at] = 0;
	while (time(NULL) < end) {
		for (size_t at = 0; at < used; at += 4096)
			if (second[at]++ != round)
				return 4;
		round++;
	}
	for (size_t at = 0; at < locked; at += 4096)
		if (first[at] != (unsigned char)(at >> 12))
			return 5;
	printf("ok %u\n", round);
	return 0;
}
