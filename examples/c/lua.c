/* A Lua program that saves its whole heap while it goes on, beside its own two ways: writing what
 * it holds as text, and a forked child that writes the heap. A new process goes on from the file.
 *
 *     cc -no-pie -pthread lua.c $(pkg-config --cflags lua5.4) $(pkg-config --cflags --libs pagetide) \
 *         -l:liblua5.4.a -lm && ./a.out FILE [ACCOUNTS]
 *
 * A heap is full of pointers to itself and to Lua's functions. So it lies at an address of the
 * program's choice, and Lua is linked statically into a program that is always loaded at the same
 * place. It is saved between two calls of Lua, when nothing of it is on the C stack: a lock is held
 * during each.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#ifdef __cplusplus
extern "C" {
#endif
#include <lauxlib.h>
#include <lua.h>
#include <lualib.h>
#ifdef __cplusplus
}
#endif
#include <fcntl.h>
#include <pagetide.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static const char program[] =
    "accounts, transfers = {}, 0\n"
    "function open(name, balance)\n"
    "  accounts[#accounts + 1] = { name = name, balance = balance }\n"
    "end\n"
    "function fill(count)\n"
    "  for i = 1, count do open('account ' .. i, 1000) end\n"
    "end\n"
    "function work(count)\n"
    "  for _ = 1, count do\n"
    "    local from = accounts[math.random(#accounts)]\n"
    "    local to = accounts[math.random(#accounts)]\n"
    "    local amount = math.random(10)\n"
    "    from.balance, to.balance = from.balance - amount, to.balance + amount\n"
    "    transfers = transfers + 1\n"
    "  end\n"
    "end\n"
    "function balance(i) return accounts[i].balance end\n"
    "function digest()\n"
    "  local sum = transfers\n"
    "  for i, account in ipairs(accounts) do sum = sum * 31 + i * account.balance end\n"
    "  return sum\n"
    "end\n"
    "function save(write)\n"
    "  write(transfers .. '\\n')\n"
    "  for _, account in ipairs(accounts) do\n"
    "    write(account.name .. '\\t' .. account.balance .. '\\n')\n"
    "  end\n"
    "end\n"
    "function restore(text)\n"
    "  local first, rest = text:match('^(%d+)\\n()')\n"
    "  transfers = math.tointeger(first)\n"
    "  for name, balance in text:gmatch('([^\\t]+)\\t(-?%d+)\\n', rest) do\n"
    "    open(name, math.tointeger(balance))\n"
    "  end\n"
    "end\n";

/* ---- The heap -------------------------------------------------------------------------------- */

#define ADDRESS ((void *)0x200000000000)
#define CLASSES 48

/* At the beginning of the heap. Blocks are powers of two, from 16 bytes on; free ones are in a list
 * for each size. Lua says how long a block is when it gives it back. */
struct heap {
    lua_State *lua;
    size_t length;
    size_t used;
    void *free[CLASSES];
};
static struct heap *const heap = (struct heap *)ADDRESS;

static int class_of(size_t size) {
    return size <= 16 ? 4 : 64 - __builtin_clzl(size - 1);
}

static void *allocate(void *context, void *old, size_t old_size, size_t size) {
    (void)context;
    void *block = NULL;
    if (size > 0) {
        int class_number = class_of(size);
        if (old != NULL && class_of(old_size) == class_number)
            return old;
        block = heap->free[class_number];
        if (block != NULL) {
            memcpy(&heap->free[class_number], block, sizeof(void *));
        } else {
            size_t length = (size_t)1 << class_number;
            if (length > heap->length - heap->used)
                return NULL;
            block = (char *)ADDRESS + heap->used;
            heap->used += length;
        }
        if (old != NULL)
            memcpy(block, old, old_size < size ? old_size : size);
    }
    if (old != NULL) {
        void **first = &heap->free[class_of(old_size)];
        memcpy(old, first, sizeof(void *));
        *first = old;
    }
    return block;
}

/* ---- Lua, and times -------------------------------------------------------------------------- */

static void fail(const char *what, const char *why) {
    fprintf(stderr, "%s: %s\n", what, why);
    exit(1);
}

static void check(int status, const char *what) {
    if (status == PAGETIDE_DENIED) {
        fprintf(stderr, "%s\n", pagetide_last_error());
        exit(77);
    }
    if (status != PAGETIDE_OK)
        fail(what, pagetide_last_error());
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e3 + (double)time.tv_nsec / 1e6;
}

static void map_heap(size_t length) {
    void *mapped = mmap(ADDRESS, length, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    if (mapped != ADDRESS)
        fail("mmap", "the heap's address is taken");
}

/* Maps a heap of `length` bytes and loads the program. */
static void start_lua(size_t length) {
    map_heap(length);
    heap->length = length;
    heap->used = (sizeof(struct heap) + 63) & ~(size_t)63;
    heap->lua = lua_newstate(allocate, NULL);
    if (heap->lua == NULL)
        fail("lua_newstate", "no memory");
    /* Not the library io: its files are of this process alone. */
    luaL_requiref(heap->lua, "_G", luaopen_base, 1);
    luaL_requiref(heap->lua, "string", luaopen_string, 1);
    luaL_requiref(heap->lua, "math", luaopen_math, 1);
    lua_settop(heap->lua, 0);
    if (luaL_dostring(heap->lua, program) != LUA_OK)
        fail("the program", lua_tostring(heap->lua, -1));
}

/* Calls a function of the program with what is on Lua's stack; its result, if it has one. */
static long long call(const char *name, int arguments) {
    lua_State *lua = heap->lua;
    lua_getglobal(lua, name);
    lua_insert(lua, 1);
    if (lua_pcall(lua, arguments, 1, 0) != LUA_OK)
        fail(name, lua_tostring(lua, -1));
    long long result = lua_tointeger(lua, -1);
    lua_settop(lua, 0);
    return result;
}

static long long call_with(const char *name, long long argument) {
    lua_pushinteger(heap->lua, argument);
    return call(name, 1);
}

static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER; /* who waits for the other has it */
static pthread_mutex_t working = PTHREAD_MUTEX_INITIALIZER;
static long steps;          /* done since the heap that is being saved */
static double slowest_step; /* the longest of them, ms, waiting for the lock included */

/* A mutex alone would be taken again by who has just let go of it. */
static void lock(void) {
    pthread_mutex_lock(&turn);
    pthread_mutex_lock(&working);
    pthread_mutex_unlock(&turn);
}

static void step(void) {
    double begun = now();
    lock();
    call_with("work", 100);
    steps++;
    pthread_mutex_unlock(&working);
    double took = now() - begun;
    slowest_step = took > slowest_step ? took : slowest_step;
}

/* ---- Three ways to save ---------------------------------------------------------------------- */

struct cost {
    double pause; /* ms without a step */
    double ready; /* ms until the file is complete */
};

static FILE *text;

static int write_text(lua_State *lua) {
    size_t length;
    const char *bytes = luaL_checklstring(lua, 1, &length);
    return fwrite(bytes, 1, length, text) == length ? 0 : luaL_error(lua, "cannot write");
}

/* As text: nothing goes on meanwhile. */
static struct cost save_as_text(const char *path) {
    double begun = now();
    text = fopen(path, "w");
    if (text == NULL)
        fail(path, "cannot be opened");
    lua_pushcfunction(heap->lua, write_text);
    call("save", 1);
    if (fflush(text) != 0 || fsync(fileno(text)) != 0 || fclose(text) != 0)
        fail(path, "cannot be written");
    double took = now() - begun;
    struct cost cost = {took, took};
    return cost;
}

static void write_heap(const char *path) {
    int file = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    for (size_t done = 0; done < heap->used;) {
        ssize_t count = write(file, (char *)ADDRESS + done, heap->used - done);
        if (count <= 0)
            _exit(1);
        done += (size_t)count;
    }
    _exit(fsync(file) != 0);
}

/* A forked child writes the heap as it was. */
static struct cost save_by_fork(const char *path) {
    double begun = now();
    pid_t child = fork();
    if (child == 0)
        write_heap(path);
    struct cost cost = {now() - begun, 0};
    steps = 0;
    int status = 0;
    do
        step();
    while (child > 0 && waitpid(child, &status, WNOHANG) == 0);
    if (child < 0 || !WIFEXITED(status) || WEXITSTATUS(status) != 0)
        fail("the child", "cannot write the heap");
    cost.ready = now() - begun;
    return cost;
}

struct saving {
    struct pagetide_snapshotter *snapshotter;
    const char *path;
    int incremental;
    uint8_t id[16]; /* of the last snapshot */
    double pause;
};

/* No step is under way while the heap is armed. */
static void hold(void (*arm)(void *arming), void *arming, void *context) {
    double *pause = (double *)context;
    lock();
    double begun = now();
    arm(arming);
    steps = 0;
    *pause = now() - begun;
    pthread_mutex_unlock(&working);
}

static void *take_snapshot(void *context) {
    struct saving *saving = (struct saving *)context;
    struct pagetide_snapshot_options options = PAGETIDE_INIT(options);
    options.pre_arm = 1;
    options.hold = hold;
    options.hold_context = &saving->pause;
    options.since = saving->incremental ? saving->id : NULL;
    struct pagetide_snapshot *snapshot;
    check(pagetide_snapshot_start(saving->snapshotter, saving->path, &options, &snapshot),
          "snapshot");
    struct pagetide_snapshot_report report = PAGETIDE_INIT(report);
    check(pagetide_snapshot_wait(snapshot, &report), "wait");
    memcpy(saving->id, report.id, sizeof report.id);
    return NULL;
}

/* Another thread takes a snapshot: of all, or of what changed since the last one. */
static struct cost save_by_snapshot(struct saving *saving) {
    double begun = now();
    pthread_t thread;
    if (pthread_create(&thread, NULL, take_snapshot, saving) != 0)
        fail("pthread_create", "no thread");
    while (pthread_tryjoin_np(thread, NULL) != 0)
        step();
    struct cost cost = {saving->pause, now() - begun};
    return cost;
}

/* ---- Back, in a new process ------------------------------------------------------------------ */

static void *read_file(const char *path, size_t *length) {
    FILE *file = fopen(path, "r");
    struct stat found;
    if (file == NULL || fstat(fileno(file), &found) != 0)
        fail(path, "cannot be opened");
    *length = (size_t)found.st_size;
    void *bytes = malloc(*length);
    if (bytes == NULL || fread(bytes, 1, *length, file) != *length)
        fail(path, "cannot be read");
    fclose(file);
    return bytes;
}

/* argv: "back", the way, FILE, the heap's length, steps to do, the digest that is to follow. */
static int come_back(char **argv) {
    const char way = argv[2][0], *path = argv[3];
    size_t length = strtoull(argv[4], NULL, 10), read_length;
    long todo = strtol(argv[5], NULL, 10);
    struct pagetide_restored *restored = NULL;
    double begun = now();
    if (way == 't') {
        start_lua(length);
        char *bytes = (char *)read_file(path, &read_length);
        lua_pushlstring(heap->lua, bytes, read_length);
        free(bytes);
        call("restore", 1);
    } else if (way == 'f') {
        map_heap(length);
        int file = open(path, O_RDONLY);
        for (size_t done = 0;;) {
            ssize_t count = read(file, (char *)ADDRESS + done, length - done);
            if (count < 0)
                fail(path, "cannot be read");
            if (count == 0)
                break;
            done += (size_t)count;
        }
        close(file);
    } else {
        struct pagetide_span place = {"heap", NULL, ADDRESS, 0};
        struct pagetide_restore_options options = PAGETIDE_INIT(options);
        options.places = &place;
        options.place_count = 1;
        check(pagetide_restore(path, &options, &restored), "restore");
    }
    call_with("balance", 1000);
    double first = now() - begun;
    while (todo-- > 0)
        step();
    int same = call("digest", 0) == strtoll(argv[6], NULL, 10);
    if (restored != NULL)
        check(pagetide_restored_wait(restored), "restored");
    printf("%10.2f   %s\n", first, way == 't' ? "(the generator of numbers is another)"
                                   : same     ? "the same"
                                              : "DIFFERENT");
    pagetide_restored_free(restored);
    /* The generator's state is not in the text. */
    return same || way == 't' ? 0 : 1;
}

/* What saving took, and whether a new process goes on from there as this one did. */
static void report(const char *way, const char *path, struct cost cost) {
    long long digest = call("digest", 0);
    struct stat found;
    if (stat(path, &found) != 0)
        fail(path, "is not there");
    printf("%-12s %10.2f %10.2f %10.1f %8.1f ", way, cost.pause,
           slowest_step > cost.pause ? slowest_step : cost.pause, cost.ready,
           (double)found.st_size / (1 << 20));
    fflush(stdout);
    slowest_step = 0;
    pid_t child = fork();
    if (child == 0) {
        char length[32], count[32], expected[32];
        snprintf(length, sizeof length, "%zu", heap->length);
        snprintf(count, sizeof count, "%ld", steps);
        snprintf(expected, sizeof expected, "%lld", digest);
        execl("/proc/self/exe", "lua", "back", way, path, length, count, expected, (char *)NULL);
        _exit(127);
    }
    int status = 0;
    waitpid(child, &status, 0);
    if (child < 0 || !WIFEXITED(status) || WEXITSTATUS(status) != 0)
        fail(way, "the new process did not go on as this one did");
}

int main(int argc, char **argv) {
    if (argc == 7 && strcmp(argv[1], "back") == 0)
        return come_back(argv);
    if (argc < 2) {
        fprintf(stderr, "usage: %s FILE [ACCOUNTS]\n", argv[0]);
        return 2;
    }
    long accounts = argc > 2 ? strtol(argv[2], NULL, 10) : 20000;
    start_lua(((size_t)accounts * 512 + (32 << 20)) & ~(size_t)4095);
    call_with("fill", accounts);

    struct pagetide_span span = {"heap", NULL, ADDRESS, heap->length};
    struct pagetide_snapshotter_options options = PAGETIDE_INIT(options);
    options.delivery = PAGETIDE_DELIVERY_SIGNAL;
    options.incremental = 1;

    char path[4096];
    printf("%ld accounts, %.1f MiB of heap\n", accounts, (double)heap->used / (1 << 20));
    printf("%-12s %10s %10s %10s %8s %10s\n", "", "pause ms", "longest ms", "ready ms", "MiB",
           "back ms");
    snprintf(path, sizeof path, "%s.text", argv[1]);
    report("text", path, save_as_text(path));
    snprintf(path, sizeof path, "%s.fork", argv[1]);
    report("fork", path, save_by_fork(path));

    struct saving saving = {NULL, path, 0, {0}, 0};
    check(pagetide_snapshotter_new(&span, 1, &options, &saving.snapshotter), "snapshotter");
    snprintf(path, sizeof path, "%s.1", argv[1]);
    report("snapshot", path, save_by_snapshot(&saving));
    saving.incremental = 1;
    snprintf(path, sizeof path, "%s.2", argv[1]);
    report("incremental", path, save_by_snapshot(&saving));
    pagetide_snapshotter_free(saving.snapshotter);
    return 0;
}
