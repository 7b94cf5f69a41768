/* What every hazard shares: a pattern that names its own address, verification that says what differed, and a main().
 *
 * A hazard is one C file with `static void hazard(void)`. It exits 0 after printing `ok NAME`, 1 after saying what was
 * wrong, and 77 after `SKIPPED: reason`. No pattern word is ever zero, so a page that was lost and came back as zeros
 * is always caught. */
#ifndef HAZARD_H
#define HAZARD_H
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PAGE 4096UL
#define MIB (1UL << 20)
#ifndef HAZARD
#define HAZARD "hazard"
#endif

/* Bytes of memory a hazard works on; argv[1] is the number of MiB. */
static size_t memory_bytes = 64 * MIB;
static int arg_count;
static char **args;

static inline void report_line(const char *prefix, const char *format, va_list list) {
    char line[512];
    int used = snprintf(line, sizeof line, "%s %s (pid %d): ", prefix, HAZARD, (int)getpid());
    used += vsnprintf(line + used, sizeof line - used - 1, format, list);
    if (used > (int)sizeof line - 2) used = sizeof line - 2;
    line[used++] = '\n';
    if (write(2, line, used) < 0) _exit(3);
}

/* Says what was wrong and ends the process with 1, whatever thread or child this is. */
__attribute__((noreturn, format(printf, 1, 2))) static inline void fail(const char *format, ...) {
    va_list list;
    va_start(list, format);
    report_line("FAILED", format, list);
    _exit(1);
}

/* Says why the hazard cannot be tried here and ends the process with 77. */
__attribute__((noreturn, format(printf, 1, 2))) static inline void skip(const char *format, ...) {
    va_list list;
    va_start(list, format);
    report_line("SKIPPED:", format, list);
    _exit(77);
}

#define NEED(condition)                                                                              \
    do {                                                                                             \
        if (!(condition)) fail("line %d: %s: %s", __LINE__, #condition, strerror(errno));            \
    } while (0)

static inline uint64_t mix(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9UL;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebUL;
    return x ^ (x >> 31);
}

/* The word that belongs at an address. Pages are of four kinds, so that every path of a store is walked:
 * incompressible, half-compressible, one repeated word, and small numbers. */
static inline uint64_t word_at(uintptr_t address, uint64_t seed) {
    uint64_t page = mix((address >> 12) + seed * 0x9e3779b97f4a7c15UL);
    switch (page & 3) {
    case 0: return mix(page ^ address) | 1;
    case 1: return (address & 2048) ? (page | 1) : (mix(page ^ address) | 1);
    case 2: return page | 1;
    default: return ((page >> 56) << 16) + (address & 4095) + 1;
    }
}

/* Writes the pattern of [as, as + length) to `memory`. */
static inline void fill_as(void *memory, const void *as, size_t length, uint64_t seed) {
    volatile uint64_t *words = memory;
    for (size_t i = 0; i < length / 8; i++) words[i] = word_at((uintptr_t)as + i * 8, seed);
}

static inline void fill(void *memory, size_t length, uint64_t seed) { fill_as(memory, memory, length, seed); }

static inline void check_as(const void *memory, const void *as, size_t length, uint64_t seed, const char *what) {
    const volatile uint64_t *words = memory;
    for (size_t i = 0; i < length / 8; i++) {
        uint64_t want = word_at((uintptr_t)as + i * 8, seed), got = words[i];
        if (got != want)
            fail("%s: the word at %p (page %zu of %zu) is %016lx, not %016lx%s; read again it is %016lx", what,
                 (void *)(words + i), i / 512, length / PAGE, got, want, got == 0 ? ": zeros, data lost" : "", words[i]);
    }
}

static inline void check(const void *memory, size_t length, uint64_t seed, const char *what) {
    check_as(memory, memory, length, seed, what);
}

static inline void check_zero(const void *memory, size_t length, const char *what) {
    const volatile uint64_t *words = memory;
    for (size_t i = 0; i < length / 8; i++) {
        uint64_t got = words[i];
        if (got != 0)
            fail("%s: the word at %p (page %zu of %zu) is %016lx, not zero; read again it is %016lx", what,
                 (void *)(words + i), i / 512, length / PAGE, got, words[i]);
    }
}

/* New anonymous private memory. */
static inline void *map_new(size_t length) {
    void *memory = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) fail("mmap of %zu bytes: %s", length, strerror(errno));
    return memory;
}

/* New anonymous private memory with the pattern in it. */
static inline char *map_filled(size_t length, uint64_t seed) {
    char *memory = map_new(length);
    fill(memory, length, seed);
    return memory;
}

static inline pid_t fork_or_fail(void) {
    fflush(stdout);
    pid_t pid = fork();
    if (pid < 0) fail("fork: %s", strerror(errno));
    return pid;
}

/* Waits for a child that must exit with `code`. */
static inline void reap_code(pid_t pid, int code, const char *what) {
    int status;
    pid_t got;
    do got = waitpid(pid, &status, 0);
    while (got < 0 && errno == EINTR);
    if (got != pid) fail("%s: waitpid: %s", what, strerror(errno));
    if (WIFSIGNALED(status)) fail("%s: the child died of signal %d", what, WTERMSIG(status));
    if (WEXITSTATUS(status) != code) fail("%s: the child exited with %d, not %d", what, WEXITSTATUS(status), code);
}

static inline void reap(pid_t pid, const char *what) { reap_code(pid, 0, what); }

static inline void start_thread(pthread_t *thread, void *(*entry)(void *), void *argument) {
    int error = pthread_create(thread, NULL, entry, argument);
    if (error) fail("pthread_create: %s", strerror(error));
}

static inline void join_thread(pthread_t thread) {
    int error = pthread_join(thread, NULL);
    if (error) fail("pthread_join: %s", strerror(error));
}

/* How often something that takes a while is to be done: HAZARD_ROUNDS_PERCENT of `usual`, at least twice. For slow systems. */
static inline int rounds(int usual) {
    const char *percent = getenv("HAZARD_ROUNDS_PERCENT");
    int scaled = percent && atoi(percent) > 0 ? (int)((long)usual * atoi(percent) / 100) : usual;
    return scaled < 2 ? 2 : scaled;
}

static inline double now_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + now.tv_nsec / 1e9;
}

/* Whether the agent is in this process. */
static inline int is_governed(void) {
    char line[512];
    int found = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    if (!maps) fail("/proc/self/maps: %s", strerror(errno));
    while (fgets(line, sizeof line, maps)) found |= strstr(line, "libpagetide_preload") != NULL;
    fclose(maps);
    return found;
}

/* Bytes of this process's anonymous memory that are resident, as the kernel counts them. */
static inline size_t resident_anonymous(void) {
    char line[256];
    size_t kib = 0;
    FILE *status = fopen("/proc/self/status", "r");
    if (!status) fail("/proc/self/status: %s", strerror(errno));
    while (fgets(line, sizeof line, status)) sscanf(line, "RssAnon: %zu", &kib);
    fclose(status);
    return kib * 1024;
}

/* A thread that keeps writing and verifying memory of its own, so that everything else is evicted. */
struct churn {
    pthread_t thread;
    atomic_int stop;
    atomic_ulong rounds;
    char *memory;
    size_t length;
};

static inline void *churn_loop(void *argument) {
    struct churn *churn = argument;
    for (uint64_t seed = 1; !atomic_load(&churn->stop); seed++) {
        for (size_t at = 0; at < churn->length && !atomic_load(&churn->stop); at += 64 * PAGE) {
            size_t length = churn->length - at < 64 * PAGE ? churn->length - at : 64 * PAGE;
            fill(churn->memory + at, length, seed);
            size_t behind = (at + churn->length / 2) % churn->length / PAGE * PAGE;
            check(churn->memory + at, length, seed, "churn, just written");
            *(volatile char *)(churn->memory + behind);
        }
        atomic_fetch_add(&churn->rounds, 1);
    }
    return NULL;
}

static inline struct churn *start_churn(size_t length) {
    struct churn *churn = map_new(PAGE);
    churn->length = length / PAGE * PAGE;
    churn->memory = map_new(churn->length);
    start_thread(&churn->thread, churn_loop, churn);
    return churn;
}

static inline void stop_churn(struct churn *churn) {
    atomic_store(&churn->stop, 1);
    join_thread(churn->thread);
    munmap(churn->memory, churn->length);
}

/* Walks over other memory so that what was there before is evicted. */
static inline void evict_others(void) {
    char *other = map_filled(memory_bytes, 999);
    check(other, memory_bytes, 999, "other memory");
    munmap(other, memory_bytes);
}

static void hazard(void);

#ifndef HAZARD_OWN_MAIN
int main(int argc, char **argv) {
    arg_count = argc;
    args = argv;
    if (argc > 1 && atol(argv[1]) > 0) memory_bytes = atol(argv[1]) * MIB;
    hazard();
    printf("ok %s\n", HAZARD);
    fflush(stdout);
    return 0;
}
#endif
#endif
