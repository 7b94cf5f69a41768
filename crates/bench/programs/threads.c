// Eight threads: each sorts its part of COUNT numbers, then all count in one table at random.
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define THREADS 8

static uint64_t count, *numbers, *table;

static uint64_t mix(uint64_t x) {
    x += 0x9e3779b97f4a7c15;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    return x ^ (x >> 31);
}

static int compare(const void *a, const void *b) {
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static void *work(void *argument) {
    const uint64_t thread = (uintptr_t)argument, part = count / THREADS;
    uint64_t *own = numbers + thread * part;
    for (uint64_t i = 0; i < part; i++) own[i] = mix(thread * part + i) % count;
    qsort(own, part, sizeof *own, compare);
    for (uint64_t i = 0; i < part / 8; i++) {
        // Half of them in an eighth of the table.
        const double at = (mix(~(thread * part + i)) >> 11) * 0x1p-53;
        __atomic_fetch_add(&table[(uint64_t)(at * at * at * count)], own[i], __ATOMIC_RELAXED);
    }
    return NULL;
}

int main(int words, char **arguments) {
    pthread_t threads[THREADS];
    count = words > 1 ? strtoull(arguments[1], NULL, 10) / THREADS * THREADS : 0;
    numbers = malloc(count * sizeof *numbers);
    table = calloc(count, sizeof *table);
    if (count == 0 || !numbers || !table) return 1;
    for (uint64_t i = 0; i < count; i++) table[i] = i % 251;
    for (uintptr_t i = 0; i < THREADS; i++)
        if (pthread_create(&threads[i], NULL, work, (void *)i) != 0) return 1;
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    uint64_t digest = 0;
    for (uint64_t i = 0; i < count; i++) digest = digest * 31 + (numbers[i] ^ table[i]);
    printf("%lu %016lx\n", count, digest);
    return 0;
}
