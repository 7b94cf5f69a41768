/* A database of SQLite's in memory, whose file is kept up to date by what was written, beside
 * SQLite's own two ways: a backup of it, and writing all of it.
 *
 *     cc sqlite.c $(pkg-config --cflags --libs sqlite3 pagetide) && ./a.out FILE [ROWS [CHANGES]]
 *
 * SQLite writes to the memory when a transaction is committed, so between two it is a whole
 * database. A crash while the file is written leaves it torn: who cannot have that writes the runs
 * to a log first, as SQLite's own way does it.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <fcntl.h>
#include <pagetide.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define ROUNDS 10

static void fail(const char *what, const char *why) {
    fprintf(stderr, "%s: %s\n", what, why);
    exit(1);
}

static void check(int status, const char *what) {
    if (status != PAGETIDE_OK) {
        fprintf(stderr, "%s: %s\n", what, pagetide_last_error());
        exit(status == PAGETIDE_DENIED ? 77 : 1);
    }
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e3 + (double)time.tv_nsec / 1e6;
}

static void run(sqlite3 *database, const char *sql) {
    if (sqlite3_exec(database, sql, NULL, NULL, NULL) != SQLITE_OK)
        fail(sql, sqlite3_errmsg(database));
}

static sqlite3_int64 ask(sqlite3 *database, const char *sql) {
    sqlite3_stmt *query;
    if (sqlite3_prepare_v2(database, sql, -1, &query, NULL) != SQLITE_OK ||
        sqlite3_step(query) != SQLITE_ROW)
        fail(sql, sqlite3_errmsg(database));
    sqlite3_int64 answer = sqlite3_column_int64(query, 0);
    sqlite3_finalize(query);
    return answer;
}

/* An empty database in `length` bytes at `memory`. */
static sqlite3 *open_in(char *memory, size_t length) {
    sqlite3 *database;
    if (sqlite3_open(":memory:", &database) != SQLITE_OK ||
        sqlite3_deserialize(database, "main", (unsigned char *)memory, 0, (sqlite3_int64)length,
                            0) != SQLITE_OK)
        fail("sqlite3_deserialize", sqlite3_errmsg(database));
    return database;
}

static void fill(sqlite3 *database, long rows) {
    char sql[256];
    run(database, "CREATE TABLE t (id INTEGER PRIMARY KEY, changed INTEGER, text BLOB)");
    snprintf(sql, sizeof sql,
             "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < %ld) "
             "INSERT INTO t SELECT i, 0, randomblob(100) FROM n",
             rows);
    run(database, sql);
}

static void change(sqlite3 *database, long rows, long changes, int round) {
    run(database, "BEGIN");
    for (long i = 0; i < changes; i++) {
        char sql[128];
        long row = 1 + (long)((unsigned long)(i + round * changes) * 2654435761UL % (unsigned long)rows);
        snprintf(sql, sizeof sql, "UPDATE t SET changed = changed + %d WHERE id = %ld", round, row);
        run(database, sql);
    }
    run(database, "COMMIT");
}

static void write_all(int file, const char *bytes, size_t length, off_t offset) {
    while (length > 0) {
        ssize_t count = pwrite(file, bytes, length, offset);
        if (count <= 0)
            fail("pwrite", "cannot write");
        bytes += count;
        offset += count;
        length -= (size_t)count;
    }
}

/* ---- Three ways to bring a file up to date; each returns the bytes written -------------------- */

struct update {
    int file;
    const char *memory;
    size_t database_length;
    size_t written;
};

static void write_run(const struct pagetide_dirty *dirty, void *context) {
    struct update *update = (struct update *)context;
    if (dirty->offset >= update->database_length)
        return;
    size_t rest = update->database_length - dirty->offset;
    size_t length = dirty->length < rest ? dirty->length : rest;
    write_all(update->file, update->memory + dirty->offset, length, (off_t)dirty->offset);
    update->written += length;
}

/* What was written since the last time. */
static size_t save_changes(sqlite3 *database, struct pagetide_tracker *tracker, int file) {
    sqlite3_int64 length;
    const char *memory = (const char *)sqlite3_serialize(database, "main", &length,
                                                         SQLITE_SERIALIZE_NOCOPY);
    if (memory == NULL)
        fail("sqlite3_serialize", "the database is not in the memory");
    struct update update = {file, memory, (size_t)length, 0};
    check(pagetide_tracker_take(tracker, write_run, &update), "take");
    if (ftruncate(file, (off_t)length) != 0 || fdatasync(file) != 0)
        fail("the file", "cannot be written");
    return update.written;
}

/* All of it, by SQLite's backup. */
static size_t save_by_backup(sqlite3 *database, const char *path) {
    sqlite3 *to;
    if (sqlite3_open(path, &to) != SQLITE_OK)
        fail(path, sqlite3_errmsg(to));
    sqlite3_backup *backup = sqlite3_backup_init(to, "main", database, "main");
    if (backup == NULL || sqlite3_backup_step(backup, -1) != SQLITE_DONE)
        fail(path, sqlite3_errmsg(to));
    size_t pages = (size_t)sqlite3_backup_pagecount(backup);
    sqlite3_backup_finish(backup);
    sqlite3_close(to);
    return pages * (size_t)ask(database, "PRAGMA page_size");
}

/* All of it, as bytes. */
static size_t save_serialized(sqlite3 *database, int file) {
    sqlite3_int64 length;
    unsigned char *bytes = sqlite3_serialize(database, "main", &length, 0);
    if (bytes == NULL)
        fail("sqlite3_serialize", "no memory");
    write_all(file, (const char *)bytes, (size_t)length, 0);
    sqlite3_free(bytes);
    if (ftruncate(file, (off_t)length) != 0 || fdatasync(file) != 0)
        fail("the file", "cannot be written");
    return (size_t)length;
}

/* Whether the file is a whole database with the same contents. */
static int is_same(sqlite3 *database, const char *path) {
    const char *question = "SELECT sum(id * changed) + count(*) FROM t";
    sqlite3 *copy;
    if (sqlite3_open_v2(path, &copy, SQLITE_OPEN_READONLY, NULL) != SQLITE_OK)
        fail(path, sqlite3_errmsg(copy));
    int same = ask(copy, question) == ask(database, question) &&
               ask(copy, "SELECT integrity_check = 'ok' FROM pragma_integrity_check") == 1;
    sqlite3_close(copy);
    return same;
}

int main(int argc, char **argv) {
    if (argc < 2) {
        fprintf(stderr, "usage: %s FILE [ROWS [CHANGES]]\n", argv[0]);
        return 2;
    }
    long rows = argc > 2 ? strtol(argv[2], NULL, 10) : 50000;
    long changes = argc > 3 ? strtol(argv[3], NULL, 10) : rows / 1000;
    size_t capacity = ((size_t)rows * 256 + (1 << 20)) & ~(size_t)4095;
    char *memory = (char *)mmap(NULL, capacity, PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        fail("mmap", "no memory");
    struct pagetide_span span = {"database", NULL, memory, capacity};
    struct pagetide_tracker *tracker;
    check(pagetide_tracker_new(&span, 1, PAGETIDE_METHOD_BEST, &tracker), "tracker");
    sqlite3 *database = open_in(memory, capacity);
    fill(database, rows);

    const char *ways[] = {"changes", "backup", "serialized"};
    char paths[3][4096];
    int files[3];
    size_t bytes[3] = {0, 0, 0};
    double times[3] = {0, 0, 0};
    for (int way = 0; way < 3; way++) {
        snprintf(paths[way], sizeof paths[way], "%s.%s", argv[1], ways[way]);
        files[way] = open(paths[way], O_RDWR | O_CREAT | O_TRUNC, 0600);
        if (files[way] < 0)
            fail(paths[way], "cannot be made");
    }
    for (int round = 0; round <= ROUNDS; round++) {
        if (round > 0)
            change(database, rows, changes, round);
        for (int way = 0; way < 3; way++) {
            double begun = now();
            size_t written = way == 0   ? save_changes(database, tracker, files[way])
                             : way == 1 ? save_by_backup(database, paths[way])
                                        : save_serialized(database, files[way]);
            /* The first time all of it is new. */
            if (round > 0) {
                bytes[way] += written;
                times[way] += now() - begun;
            }
        }
    }
    int wrong = 0;
    printf("%ld rows, %ld changed a round; MiB and ms a round\n", rows, changes);
    for (int way = 0; way < 3; way++) {
        int same = is_same(database, paths[way]);
        printf("%-12s %8.2f %8.2f  %s\n", ways[way], (double)bytes[way] / ROUNDS / (1 << 20),
               times[way] / ROUNDS, same ? "the same" : "DIFFERENT");
        wrong |= !same;
    }
    wrong |= bytes[0] == 0 || bytes[0] > bytes[2] / 2;
    sqlite3_close(database);
    pagetide_tracker_free(tracker);
    munmap(memory, capacity);
    return wrong;
}
