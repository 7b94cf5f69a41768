/* Mappings that another thread divides and joins while the pager empties pages of them where they are, as it does with
 * read-only memory: the kernel tells of such pages twice then, and they are there all the same. */
#include "hazard.h"

enum { READERS = 2, DIVIDERS = 2 };
static const double SECONDS = 3;
static char *memory;
static atomic_int done;

static uint64_t next(uint64_t *random) {
    *random = *random * 6364136223846793005u + 1442695040888963407u;
    return *random >> 33;
}

/* A part of the memory has other rights for a moment, or is locked, and is a mapping of its own. What is written is what
 * is there. */
static void *divide(void *argument) {
    uint64_t random = 1 + (uintptr_t)argument;
    /* Each has a part of the memory to itself. */
    size_t pages = memory_bytes / PAGE / DIVIDERS;
    char *own = memory + ((uintptr_t)argument - READERS) * pages * PAGE;
    while (!atomic_load(&done)) {
        size_t first = next(&random) % pages, most = pages - first, count = 1 + next(&random) % 64;
        volatile uint64_t *part = (uint64_t *)(own + first * PAGE);
        size_t length = (count < most ? count : most) * PAGE;
        switch (next(&random) % 4) {
        case 0:
            /* Where so much may be locked. */
            if (mlock((void *)part, length) == 0) NEED(munlock((void *)part, length) == 0);
            break;
        case 1:
            NEED(mprotect((void *)part, length, PROT_READ | PROT_WRITE) == 0);
            part[0] = word_at((uintptr_t)part, 1);
            NEED(mprotect((void *)part, length, PROT_READ) == 0);
            break;
        default:
            NEED(mprotect((void *)part, length, PROT_READ | PROT_EXEC) == 0);
            NEED(mprotect((void *)part, length, PROT_READ) == 0);
        }
    }
    return NULL;
}

static void *read_all(void *argument) {
    uint64_t random = 100 + (uintptr_t)argument;
    size_t pages = memory_bytes / PAGE;
    while (!atomic_load(&done)) {
        size_t first = next(&random) % pages, count = pages - first < 64 ? pages - first : 64;
        check(memory + first * PAGE, count * PAGE, 1, "while others divide it");
    }
    return NULL;
}

static void hazard(void) {
    pthread_t threads[READERS + DIVIDERS];
    memory = map_filled(memory_bytes, 1);
    NEED(mprotect(memory, memory_bytes, PROT_READ) == 0);
    for (uintptr_t i = 0; i < READERS + DIVIDERS; i++)
        start_thread(&threads[i], i < READERS ? read_all : divide, (void *)i);
    double began = now_seconds();
    while (now_seconds() - began < SECONDS) usleep(10000);
    atomic_store(&done, 1);
    for (int i = 0; i < READERS + DIVIDERS; i++) join_thread(threads[i]);
    check(memory, memory_bytes, 1, "at the end");
}
