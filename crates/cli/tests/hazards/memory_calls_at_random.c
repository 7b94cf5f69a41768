/* Threads, and children they fork, do at random whatever can be done to memory, each to areas of its own, and
 * read what ought to be in every page: zeros, or the words of its generation.
 *
 * Arguments: MIB (not used) SECONDS THREADS SEED, 0 for the default. What a thread does follows from the seed
 * and its number; how threads meet does not, so that a failure repeats only now and then. */
#include "hazard.h"
#include <sys/prctl.h>
#include <sys/uio.h>
#ifndef MREMAP_DONTUNMAP
#define MREMAP_DONTUNMAP 4
#endif

enum {
    AREAS = 6,
    PAGES_MAX = 300,
    THREADS_MAX = 64,
    WORDS = PAGE / 8,
    EVENTS = 512,
    EVENTS_SHOWN = 30,
    EVENTS_OF_OTHERS = 4,
    CHILD_STEPS = 200,
    CHILD_SECONDS = 60,
    DEPTH_MAX = 2,
    READ_WRITE = PROT_READ | PROT_WRITE,
};

/* What a page ought to be. */
struct page {
    uint64_t generation;
    int rights;
};

/* Memory mapped as a whole; no start when there is none. */
struct area {
    char *start;
    size_t pages;
    struct page page[PAGES_MAX];
};

/* Pages [first, end) of an area. */
struct part {
    struct area *area;
    size_t first, end;
};

/* What was done to [start + first, start + end). */
struct event {
    const char *what;
    double seconds;
    uint64_t step;
    int area, depth;
    char *start;
    size_t pages, first, end;
};

struct worker {
    pthread_t thread;
    int number;
    uint64_t random, step, written;
    int ends[2];
    struct area areas[AREAS];
    struct event events[EVENTS];
    size_t event_count;
};

static struct worker workers[THREADS_MAX];
static long threads;
static double began;
static uint64_t seed;
static int depth; /* 0 in the program, 1 in a child, 2 in a child of that */
static int governed;
static atomic_int stop;
static __thread struct worker *this_worker;

static uint64_t random_word(struct worker *worker) { return mix(worker->random += 0x9e3779b97f4a7c15UL); }

static size_t random_below(struct worker *worker, size_t limit) { return random_word(worker) % limit; }

static struct area *random_area(struct worker *worker) { return &worker->areas[random_below(worker, AREAS)]; }

static struct part whole(struct area *area) { return (struct part){area, 0, area->pages}; }

static char *start_of(struct part part) { return part.area->start + part.first * PAGE; }

static size_t length_of(struct part part) { return (part.end - part.first) * PAGE; }

/* Failures: each says how to repeat it. */

__attribute__((noreturn, format(printf, 1, 2))) static void wrong(const char *format, ...) {
    char text[360];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    fail("seed %lu, %ld threads, thread %d, step %lu, fork depth %d: %s", seed, threads,
         this_worker ? this_worker->number : -1, this_worker ? this_worker->step : 0, depth, text);
}

static void note(struct worker *worker, const char *what, struct part part) {
    worker->events[worker->event_count++ % EVENTS] = (struct event){
        .what = what,
        .seconds = now_seconds() - began,
        .step = worker->step,
        .area = part.area - worker->areas,
        .depth = depth,
        .start = part.area->start,
        .pages = part.area->pages,
        .first = part.first,
        .end = part.end,
    };
}

static int is_about(const struct event *event, int area, const char *address) {
    const char *start = event->start + event->first * PAGE, *end = event->start + event->end * PAGE;
    return event->area == area || (start <= address && address < end);
}

/* The last events that were about the area, or about the address when it was of another. */
static void show_events(const struct worker *worker, int area, const char *address, int most) {
    size_t count = worker->event_count, oldest = count > EVENTS ? count - EVENTS : 0, from = count;
    for (int found = 0; from > oldest && found < most; from--)
        found += is_about(&worker->events[(from - 1) % EVENTS], area, address);
    for (size_t i = from; i < count; i++) {
        const struct event *event = &worker->events[i % EVENTS];
        if (is_about(event, area, address))
            dprintf(2, "  %.6f s: thread %d step %lu depth %d: area %d at %p: %s pages %zu..%zu of %zu\n",
                    event->seconds, worker->number, event->step, event->depth, event->area,
                    (void *)event->start, event->what, event->first, event->end, event->pages);
    }
}

static void show_history(const struct worker *worker, const struct area *area, const char *address) {
    for (int i = 0; i < threads; i++)
        if (&workers[i] != worker) show_events(&workers[i], -1, address, EVENTS_OF_OTHERS);
    show_events(worker, area - worker->areas, address, EVENTS_SHOWN);
}

/* How many mappings an area is to the kernel; says which, if asked to. */
static int mappings_of(const struct area *area, int is_shown) {
    uintptr_t from, to, start = (uintptr_t)area->start, end = start + area->pages * PAGE;
    char line[512];
    int count = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    if (!maps) wrong("/proc/self/maps: %s", strerror(errno));
    while (fgets(line, sizeof line, maps)) {
        if (sscanf(line, "%lx-%lx", &from, &to) != 2 || from >= end || to <= start) continue;
        count++;
        if (is_shown) dprintf(2, "  mapping %s", line);
    }
    fclose(maps);
    return count;
}

/* Of the area last noted, as every call does with its own. */
__attribute__((noreturn)) static void call_failed(int line, const char *call, int error) {
    const struct worker *worker = this_worker;
    if (worker && worker->event_count) {
        const struct area *area = &worker->areas[worker->events[(worker->event_count - 1) % EVENTS].area];
        show_history(worker, area, area->start);
        mappings_of(area, 1);
    }
    wrong("line %d: %s: %s", line, call, strerror(error));
}

#define MUST(call)                                                                                   \
    do {                                                                                             \
        if (!(call)) call_failed(__LINE__, #call, errno);                                            \
    } while (0)

static void on_fault(int signal, siginfo_t *info, void *context) {
    (void)context;
    char *address = info->si_addr;
    for (int i = 0; i < threads; i++)
        for (int j = 0; j < AREAS; j++) {
            const struct worker *worker = &workers[i];
            const struct area *area = &worker->areas[j];
            if (address < area->start || address >= area->start + area->pages * PAGE) continue;
            size_t page = (address - area->start) / PAGE;
            show_history(worker, area, address);
            wrong("signal %d (si_code %d) at %p: page %zu of %zu of area %d of thread %d, rights %d", signal,
                  info->si_code, (void *)address, page, area->pages, j, i, area->page[page].rights);
        }
    wrong("signal %d (si_code %d) at %p, in no area", signal, info->si_code, (void *)address);
}

/* Contents of pages: the generation is in every word. By its last two bits a page is one repeated word,
 * counts, or does not compress. */

static const uint64_t word_steps[] = {0, 1, 0x9e3779b97f4a7c15UL, 0xbf58476d1ce4e5b9UL};

static uint64_t word_of(uint64_t generation, size_t i) {
    return generation ? (generation << 16) + i * word_steps[generation % 4] : 0;
}

/* The generation a word is of; UINT64_MAX if of none. */
static uint64_t generation_of(uint64_t word, size_t i) {
    if (word == 0) return 0;
    for (int kind = 0; kind < 4; kind++) {
        uint64_t generation = (word - i * word_steps[kind]) >> 16;
        if (word_of(generation, i) == word) return generation;
    }
    return UINT64_MAX;
}

static void write_page(struct worker *worker, struct area *area, size_t page) {
    uint64_t generation = ++worker->written * THREADS_MAX + worker->number;
    volatile uint64_t *words = (uint64_t *)(area->start + page * PAGE);
    area->page[page].generation = generation;
    for (size_t i = 0; i < WORDS; i++) words[i] = word_of(generation, i);
}

static void check_page(const struct worker *worker, const struct area *area, size_t page, const void *bytes,
                       const char *how) {
    const volatile uint64_t *words = bytes;
    uint64_t expected = area->page[page].generation;
    for (size_t i = 0; i < WORDS; i++) {
        uint64_t word = words[i], found = generation_of(word, i);
        if (word == word_of(expected, i)) continue;
        char *address = area->start + page * PAGE;
        show_history(worker, area, address);
        wrong("%s, page %zu of %zu of area %d at %p: expected generation %lx, found %lx in word %zu (%lx); "
              "read again it is %lx, and word 0 of generation %lx",
              how, page, area->pages, (int)(area - worker->areas), (void *)address, expected, found, i, word,
              words[i], generation_of(words[0], 0));
    }
}

static void check_part(const struct worker *worker, struct part part, const char *how) {
    for (size_t i = part.first; i < part.end; i++)
        if (part.area->page[i].rights & PROT_READ)
            check_page(worker, part.area, i, part.area->start + i * PAGE, how);
}

static void check_all(struct worker *worker, const char *how) {
    for (int i = 0; i < AREAS; i++) check_part(worker, whole(&worker->areas[i]), how);
}

/* What calls leave of areas. */

static void set_fresh(struct part part) {
    for (size_t i = part.first; i < part.end; i++) part.area->page[i] = (struct page){0, READ_WRITE};
}

static void cut_front(struct area *area, size_t pages) {
    area->pages -= pages;
    area->start = area->pages ? area->start + pages * PAGE : NULL;
    memmove(area->page, area->page + pages, area->pages * sizeof area->page[0]);
}

/* Leaves it mapped, if it is. */
static void forget(struct area *area) {
    area->start = NULL;
    area->pages = 0;
}

static void drop(struct area *area) {
    if (area->start) MUST(munmap(area->start, area->pages * PAGE) == 0);
    forget(area);
}

static void map_area(struct worker *worker, struct area *area) {
    size_t pages = 1 + random_below(worker, PAGES_MAX / 2);
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | (random_below(worker, 4) ? 0 : MAP_NORESERVE);
    char *start = mmap(NULL, pages * PAGE, READ_WRITE, flags, -1, 0);
    if (start == MAP_FAILED) {
        MUST(errno == ENOMEM);
        return;
    }
    area->start = start;
    area->pages = pages;
    set_fresh(whole(area));
    note(worker, "map", whole(area));
    size_t written = random_below(worker, 2) ? random_below(worker, pages) : 0;
    for (size_t i = 0; i < written; i++) write_page(worker, area, i);
}

/* mremap is of one mapping: what differs in rights is several. */
static void allow_all(struct worker *worker, struct area *area) {
    note(worker, "allow all", whole(area));
    MUST(mprotect(area->start, area->pages * PAGE, READ_WRITE) == 0);
    for (size_t i = 0; i < area->pages; i++) area->page[i].rights = READ_WRITE;
}

/* EFAULT says that the area is several mappings: advice, MAP_NORESERVE and forks keep neighbours apart whose
 * rights are the same. Under Pagetide they are moved one after the other. */
static void must_be_refusable(const struct area *area, int error, int flags) {
    int is_known = error == ENOMEM || (error == EINVAL && (flags & MREMAP_DONTUNMAP)) ||
                   (error == EFAULT && !governed && mappings_of(area, 0) > 1);
    if (!is_known) call_failed(__LINE__, "mremap", error);
}

/* What is done. */

static void write_part(struct worker *worker, struct part part) {
    for (size_t i = part.first; i < part.end; i++)
        if (part.area->page[i].rights == READ_WRITE) write_page(worker, part.area, i);
}

static void read_part(struct worker *worker, struct part part) { check_part(worker, part, "read"); }

static void protect(struct worker *worker, struct part part) {
    static const int choices[] = {PROT_NONE, PROT_READ, READ_WRITE};
    int rights = choices[random_below(worker, 3)];
    MUST(mprotect(start_of(part), length_of(part), rights) == 0);
    for (size_t i = part.first; i < part.end; i++) part.area->page[i].rights = rights;
}

static void discard(struct worker *worker, struct part part) {
    (void)worker;
    MUST(madvise(start_of(part), length_of(part), MADV_DONTNEED) == 0);
    for (size_t i = part.first; i < part.end; i++) part.area->page[i].generation = 0;
}

/* Advice may be refused, as populating what cannot be written is; it changes no byte. */
static void advise(struct worker *worker, struct part part) {
    enum { COLD = 20, PAGEOUT = 21, POPULATE_READ = 22, POPULATE_WRITE = 23 };
    static const int choices[] = {MADV_WILLNEED, MADV_RANDOM, MADV_SEQUENTIAL, MADV_MERGEABLE,
                                  COLD,          PAGEOUT,     POPULATE_READ,   POPULATE_WRITE};
    madvise(start_of(part), length_of(part), choices[random_below(worker, 8)]);
}

static void unmap_front_or_back(struct worker *worker, struct part part) {
    struct area *area = part.area;
    size_t at = part.first;
    if (at == 0) {
        drop(area);
    } else if (random_below(worker, 2)) {
        MUST(munmap(area->start, at * PAGE) == 0);
        cut_front(area, at);
    } else {
        MUST(munmap(area->start + at * PAGE, (area->pages - at) * PAGE) == 0);
        area->pages = at;
    }
    note(worker, "what is left", whole(area));
}

static void map_over(struct worker *worker, struct part part) {
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
    if (mmap(start_of(part), length_of(part), READ_WRITE, flags, -1, 0) == MAP_FAILED) {
        MUST(errno == ENOMEM);
        forget(part.area);
        return;
    }
    set_fresh(part);
    for (size_t i = part.first; i < part.end; i++)
        if (random_below(worker, 2)) write_page(worker, part.area, i);
}

static void resize(struct worker *worker, struct part part) {
    struct area *area = part.area;
    size_t before = area->pages, pages = 1 + random_below(worker, PAGES_MAX);
    allow_all(worker, area);
    char *start = mremap(area->start, before * PAGE, pages * PAGE, MREMAP_MAYMOVE);
    if (start == MAP_FAILED) {
        must_be_refusable(area, errno, MREMAP_MAYMOVE);
        drop(area);
        return;
    }
    area->start = start;
    area->pages = pages;
    if (pages > before) set_fresh((struct part){area, before, pages});
    note(worker, "resized", whole(area));
}

/* As many pages as both have. */
static void move_over_another(struct worker *worker, struct part part) {
    struct area *from = part.area, *to = random_area(worker);
    if (from == to || !to->start) return;
    size_t pages = from->pages < to->pages ? from->pages : to->pages;
    allow_all(worker, to);
    allow_all(worker, from);
    int flags = MREMAP_MAYMOVE | MREMAP_FIXED;
    if (mremap(from->start, pages * PAGE, pages * PAGE, flags, to->start) == MAP_FAILED) {
        must_be_refusable(from, errno, flags);
        /* What was there is unmapped now, or not: it may be another thread's already. */
        forget(to);
        drop(from);
        return;
    }
    memcpy(to->page, from->page, pages * sizeof to->page[0]);
    cut_front(from, pages);
    note(worker, "moved away", whole(from));
    note(worker, "moved here", (struct part){to, 0, pages});
}

static void move_and_keep(struct worker *worker, struct part part) {
    struct area *old = part.area, *new = random_area(worker);
    int flags = MREMAP_MAYMOVE | MREMAP_DONTUNMAP;
    allow_all(worker, old);
    char *start = mremap(old->start, old->pages * PAGE, old->pages * PAGE, flags, NULL);
    if (start == MAP_FAILED) {
        must_be_refusable(old, errno, flags);
        drop(old);
        return;
    }
    if (new == old) {
        MUST(munmap(old->start, old->pages * PAGE) == 0);
    } else {
        drop(new);
        *new = *old;
        set_fresh(whole(old));
    }
    new->start = start;
    note(worker, "moved here, the old place kept", whole(new));
}

/* A page through a pipe, to another page or to the stack. */
static void through_pipe(struct worker *worker, struct part part) {
    struct area *area = part.area;
    size_t from = part.first, to = random_below(worker, area->pages);
    if (!(area->page[from].rights & PROT_READ)) return;
    MUST(write(worker->ends[1], start_of(part), PAGE) == PAGE);
    if (random_below(worker, 2) && area->page[to].rights == READ_WRITE) {
        note(worker, "read from the pipe to", (struct part){area, to, to + 1});
        MUST(read(worker->ends[0], area->start + to * PAGE, PAGE) == PAGE);
        area->page[to].generation = area->page[from].generation;
        check_page(worker, area, to, area->start + to * PAGE, "through a pipe");
    } else {
        uint64_t bytes[WORDS];
        MUST(read(worker->ends[0], bytes, PAGE) == PAGE);
        check_page(worker, area, from, bytes, "through a pipe to the stack");
    }
}

static void read_as_process(struct worker *worker, struct part part) {
    struct area *area = part.area;
    uint64_t bytes[WORDS];
    struct iovec local = {bytes, PAGE}, remote = {start_of(part), PAGE};
    if (!(area->page[part.first].rights & PROT_READ)) return;
    ssize_t got = process_vm_readv(getpid(), &local, 1, &remote, 1, 0);
    if (got < 0 && (errno == EPERM || errno == ENOSYS)) return;
    MUST(got == PAGE);
    check_page(worker, area, part.first, bytes, "process_vm_readv");
}

static void lock_and_unlock(struct worker *worker, struct part part) {
    (void)worker;
    MUST(mlock(start_of(part), PAGE) == 0 || errno == ENOMEM || errno == EPERM);
    MUST(munlock(start_of(part), PAGE) == 0 || errno == ENOMEM);
}

static void unmap(struct worker *worker, struct part part) {
    (void)worker;
    drop(part.area);
}

/* Children. */

static void do_a_step(struct worker *worker);

/* How long a child may take: HAZARD_CHILD_SECONDS, for slow systems, or as many as are usual. */
static unsigned child_seconds(void) {
    const char *given = getenv("HAZARD_CHILD_SECONDS");
    return given && atoi(given) > 0 ? (unsigned)atoi(given) : CHILD_SECONDS;
}

__attribute__((noreturn)) static void live_as_child(struct worker *worker) {
    alarm(child_seconds());
    depth++;
    /* What it does and writes is its own from here on, and so is its pipe. */
    MUST(close(worker->ends[0]) == 0 && close(worker->ends[1]) == 0 && pipe(worker->ends) == 0);
    worker->random ^= mix(depth);
    worker->written += (1 + random_below(worker, 1 << 18)) << 22;
    check_all(worker, "in a child, just forked");
    for (int i = 0; i < CHILD_STEPS; i++) do_a_step(worker);
    check_all(worker, "in a child, at its end");
    _exit(0);
}

/* Waits for a child, for any if it is -1; 0 when there is none. */
static int reap_child(pid_t child) {
    int status;
    pid_t got;
    do got = waitpid(child, &status, 0);
    while (got < 0 && errno == EINTR);
    if (got < 0) return 0;
    if (WIFSIGNALED(status)) wrong("child %d died of signal %d", (int)got, WTERMSIG(status));
    if (WEXITSTATUS(status) != 0) wrong("child %d exited with %d", (int)got, WEXITSTATUS(status));
    return 1;
}

static void fork_child(struct worker *worker, struct part part) {
    (void)part;
    /* Before Linux 5.11 no governed program forks. */
    const char *forks = getenv("HAZARD_FORKS");
    if (depth == DEPTH_MAX || (forks && *forks == '0')) return;
    pid_t child = fork();
    MUST(child >= 0);
    if (child == 0) live_as_child(worker);
    int writes = random_below(worker, 2) ? 100 : 0;
    for (int i = 0; i < writes; i++) {
        struct area *area = random_area(worker);
        size_t page = area->start ? random_below(worker, area->pages) : 0;
        if (area->start && area->page[page].rights == READ_WRITE) write_page(worker, area, page);
    }
    /* A child's child may outlive the child, and is waited for by the program then. */
    if (depth > 0 && random_below(worker, 3) == 0) return;
    MUST(reap_child(child));
}

static const struct operation {
    const char *name;
    void (*apply)(struct worker *worker, struct part part);
    size_t weight;
    int takes_whole;
} operations[] = {
    {"write", write_part, 1200, 0},
    {"read", read_part, 1000, 0},
    {"mprotect", protect, 200, 0},
    {"discard", discard, 200, 0},
    {"advise", advise, 80, 0},
    {"unmap front or back", unmap_front_or_back, 120, 0},
    {"map over", map_over, 160, 0},
    {"resize", resize, 240, 1},
    {"move over another", move_over_another, 160, 1},
    {"move and keep", move_and_keep, 80, 1},
    {"through a pipe", through_pipe, 160, 0},
    {"process_vm_readv", read_as_process, 80, 0},
    {"lock and unlock", lock_and_unlock, 40, 0},
    {"read", read_part, 40, 1},
    {"unmap", unmap, 40, 1},
    {"fork", fork_child, 10, 1},
};

static const struct operation *random_operation(struct worker *worker) {
    size_t total = 0, count = sizeof operations / sizeof operations[0];
    for (size_t i = 0; i < count; i++) total += operations[i].weight;
    size_t at = random_below(worker, total);
    const struct operation *operation = operations;
    for (; at >= operation->weight; operation++) at -= operation->weight;
    return operation;
}

/* Half of them are of a few pages. */
static struct part random_part(struct worker *worker, struct area *area) {
    size_t first = random_below(worker, area->pages), count = 1 + random_below(worker, area->pages - first);
    if (random_below(worker, 2) && count > 8) count = 1 + count % 8;
    return (struct part){area, first, first + count};
}

static void do_a_step(struct worker *worker) {
    struct area *area = random_area(worker);
    worker->step++;
    if (!area->start) {
        map_area(worker, area);
        return;
    }
    const struct operation *operation = random_operation(worker);
    struct part part = operation->takes_whole ? whole(area) : random_part(worker, area);
    note(worker, operation->name, part);
    operation->apply(worker, part);
}

static void *work(void *argument) {
    struct worker *worker = this_worker = argument;
    while (!atomic_load(&stop)) do_a_step(worker);
    check_all(worker, "at the end");
    return NULL;
}

static uint64_t argument(int i, uint64_t otherwise) {
    uint64_t given = arg_count > i ? strtoul(args[i], NULL, 10) : 0;
    return given ? given : otherwise;
}

static uint64_t seed_of_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return 1 + mix(now.tv_sec * 1000000000UL + now.tv_nsec + ((uint64_t)getpid() << 40)) % 1000000000;
}

static void hazard(void) {
    uint64_t seconds = argument(2, 2);
    began = now_seconds();
    threads = argument(3, 8);
    seed = argument(4, seed_of_now());
    governed = is_governed();
    if (threads > THREADS_MAX) fail("%ld threads are more than %d", threads, THREADS_MAX);
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO};
    MUST(sigaction(SIGSEGV, &action, NULL) == 0 && sigaction(SIGBUS, &action, NULL) == 0);
    MUST(prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0);
    for (int i = 0; i < threads; i++) {
        workers[i].number = i;
        workers[i].random = mix(seed) + mix(i + 1);
        MUST(pipe(workers[i].ends) == 0);
        start_thread(&workers[i].thread, work, &workers[i]);
    }
    sleep(seconds);
    atomic_store(&stop, 1);
    for (int i = 0; i < threads; i++) join_thread(workers[i].thread);
    while (reap_child(-1)) {}
}
