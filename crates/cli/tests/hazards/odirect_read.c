/* O_DIRECT reads into memory that is being evicted all the while: the device's bytes are never lost. */
#include "hazard.h"
#include "disk_file.h"

static int file;
static char *as;
static size_t file_length;

static void *read_directly(void *argument) {
    uint64_t random = (uintptr_t)argument;
    size_t length = 128 * PAGE, buffers = memory_bytes / 4 / length;
    char *memory = map_new(buffers * length);
    for (int round = 0; round < 6; round++) {
        size_t from[512];
        for (size_t i = 0; i < buffers && i < 512; i++) {
            random = mix(random + i);
            from[i] = random % ((file_length - length) / PAGE) * PAGE;
            ssize_t got = pread(file, memory + i * length, length, from[i]);
            if (got != (ssize_t)length) fail("pread O_DIRECT gave %zd: %s", got, strerror(errno));
            check_as(memory + i * length, as + from[i], length, 1, "right after an O_DIRECT read");
        }
        for (size_t i = 0; i < buffers && i < 512; i++)
            check_as(memory + i * length, as + from[i], length, 1, "later after an O_DIRECT read");
    }
    return NULL;
}

static void hazard(void) {
    pthread_t threads[2];
    file_length = memory_bytes / 2;
    as = mmap(NULL, file_length, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    file = disk_file(as, file_length, 1);
    struct churn *churn = start_churn(memory_bytes / 2);
    for (uintptr_t i = 0; i < 2; i++) start_thread(threads + i, read_directly, (void *)i);
    for (int i = 0; i < 2; i++) join_thread(threads[i]);
    stop_churn(churn);
}
