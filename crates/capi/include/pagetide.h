/*
 * pagetide.h: page-level control of a program's memory from user space, on stock Linux.
 *
 *   page   memory larger than RAM: a pagetide_region is plain memory of which at most a budget is
 *          resident; the rest is in a store and comes back when it is touched
 *   track  which pages were written (pagetide_tracker); snapshots while the program writes on
 *          (pagetide_snapshotter); memory back from them as it is touched (pagetide_restore)
 *   lock   memory that stays once it is touched (pagetide_mlock2, pagetide_hold), files of which a
 *          part is used (pagetide_locked_file), secrets (pagetide_secret)
 *
 * Compile with `pkg-config --cflags --libs pagetide`.
 *
 * Results. A function that returns int returns PAGETIDE_OK or a pagetide_status. After a failure
 * pagetide_last_error() says what went wrong and what to do; a handle that was to be made is NULL.
 *
 * Threads. Functions may be called from any thread. Two threads may use one handle at a time,
 * except where a function says "alone": then nobody else may be using the handle. A function that
 * frees or ends a handle is always alone.
 *
 * Forks. A forked child has no region, tracker, snapshot, snapshotter or restored memory of its
 * parent's: calls on their handles fail with PAGETIDE_FORKED, and the memory is not mapped there.
 * Functions that free them free the handle alone.
 *
 * Handles. NULL is refused with PAGETIDE_INVALID; functions that free do nothing with it.
 *
 * Structures begin with their own size, so that programs and libraries of different versions fit
 * together. Make them with PAGETIDE_INIT, which sets everything else to its default:
 *
 *     struct pagetide_region_options options = PAGETIDE_INIT(options);
 *     options.resident = 64 << 20;
 *
 * No function lets a C++ or Rust exception out, and none may be thrown through one: callbacks
 * return.
 */
#ifndef PAGETIDE_H
#define PAGETIDE_H

#include <stddef.h>
#include <stdint.h>

/* The initial value of a structure of this library's. */
#ifdef __cplusplus
template <typename T> inline T PagetideInitial() {
    T value = T();
    value.size = sizeof(T);
    return value;
}
#define PAGETIDE_INIT(variable) PagetideInitial<decltype(variable)>()
extern "C" {
#else
#define PAGETIDE_INIT(variable) {.size = sizeof(variable)}
#endif

/* Why a call failed. New ones may be added. */
enum pagetide_status {
    PAGETIDE_OK = 0,
    PAGETIDE_INVALID = 1,     /* an argument; the message names it and what was expected */
    PAGETIDE_SYSTEM = 2,      /* a system call failed; see pagetide_last_errno() */
    PAGETIDE_DENIED = 3,      /* no right to a userfaultfd, or the kernel lacks one */
    PAGETIDE_UNSUPPORTED = 4, /* this kernel, or this kind of memory, cannot do it */
    PAGETIDE_STORE = 5,       /* the store cannot be opened */
    PAGETIDE_BUSY = 6,        /* in use: pins are held, a snapshot is under way, another tracker */
    PAGETIDE_LIMIT = 7,       /* over a limit: pins over the budget, RLIMIT_MEMLOCK, a maximum */
    PAGETIDE_TIMEOUT = 8,     /* not in time: the budget does not hold yet, a thread does not stop */
    PAGETIDE_FILE = 9,        /* a file cannot be read or written */
    PAGETIDE_DAMAGED = 10,    /* bytes are lost or are not what was written */
    PAGETIDE_CANCELLED = 11,  /* by pagetide_snapshot_cancel() */
    PAGETIDE_NOT_FOUND = 12,  /* no such file, name or snapshot */
    PAGETIDE_FORKED = 13,     /* the handle belongs to the process that this one was forked from */
    PAGETIDE_INTERNAL = 14    /* a defect of the library's */
};

/* What the last failed call of this thread says: what went wrong and what to do. Valid until the
 * thread's next failing call; "" before the first. */
const char *pagetide_last_error(void);

/* The system's error number behind the last failed call of this thread; 0 if there is none. */
int pagetide_last_errno(void);

/* The library's version, as "0.1.0". */
const char *pagetide_version(void);

/* ---- Page ------------------------------------------------------------------------------------ */

/* Memory of which at most a budget is resident. It may be read and written by any thread and given
 * to any system call. It must not be unmapped, moved or emptied (madvise). A page whose bytes the
 * store lost raises SIGBUS, as a failing disk does under a mapped file. */
struct pagetide_region;

enum pagetide_delivery {
    PAGETIDE_DELIVERY_THREAD = 0, /* a thread of the library's serves faults; system calls work */
    PAGETIDE_DELIVERY_SIGNAL = 1  /* the faulting thread does, in a SIGBUS handler: about half the
                                     cost and no right needed, but system calls on pages that are
                                     not resident fail with EFAULT: pin them */
};

enum pagetide_policy {
    PAGETIDE_POLICY_DEFAULT = 0,
    PAGETIDE_POLICY_S3FIFO = 1,
    PAGETIDE_POLICY_FIFO = 2
};

struct pagetide_region_options {
    size_t size;       /* sizeof(struct pagetide_region_options) */
    uint64_t resident; /* the most bytes that may be resident; 0: the whole length */
    const char *store; /* a store's URI, as "file:/var/tmp/" or "ram:?max=2G"; NULL: "ram:" */
    int delivery;      /* enum pagetide_delivery */
    int policy;        /* enum pagetide_policy: which pages go first */
};

/* Makes a region of `length` bytes, rounded up to whole pages, all zeros. `options` may be NULL. */
int pagetide_region_new(size_t length, const struct pagetide_region_options *options,
                        struct pagetide_region **out);

/* Unmaps the memory and ends the threads. Alone. PAGETIDE_BUSY while pins are held: then it stays
 * as it was. Memory that a tracker or snapshotter is made over lasts until that is freed, too. */
int pagetide_region_free(struct pagetide_region *region);

/* The first byte; NULL for a NULL handle. */
void *pagetide_region_data(const struct pagetide_region *region);

/* Bytes, a whole number of pages; 0 for a NULL handle. */
size_t pagetide_region_length(const struct pagetide_region *region);

/* Changes the most bytes that may be resident (at least a page) and waits until the bound holds:
 * PAGETIDE_TIMEOUT after ten seconds. */
int pagetide_region_set_budget(const struct pagetide_region *region, uint64_t resident);

/* Starts making bytes resident, as far as the budget has room, without waiting. */
int pagetide_region_prefetch(const struct pagetide_region *region, size_t offset, size_t length);

/* Makes bytes non-resident, except what is pinned and what the store does not take (it is full),
 * and waits until that is done. */
int pagetide_region_evict(const struct pagetide_region *region, size_t offset, size_t length);

/* Bytes that stay resident until they are released. It lies in the caller's memory, and needs no
 * initial value. It may be moved; of copies one alone is to be released. */
struct pagetide_pin {
    uint64_t reserved[4]; /* the library's */
};

/* Makes bytes resident and keeps them so. Pins nest, 254 deep. All pins together must fit in the
 * budget (a page that is pinned twice counts twice). PAGETIDE_LIMIT for either. A call that fails
 * leaves a pin of nothing. */
int pagetide_region_pin(const struct pagetide_region *region, size_t offset, size_t length,
                        struct pagetide_pin *out);

/* Leaves a pin of nothing, of which a release does nothing, as in a forked child. Alone. */
void pagetide_pin_release(struct pagetide_pin *pin);

/* Counters since the region was made. docs/statistics.md says what each counts. */
struct pagetide_region_stats {
    size_t size; /* sizeof(struct pagetide_region_stats) */
    uint64_t budget_bytes;
    uint64_t resident_bytes;
    uint64_t resident_bytes_max;
    uint64_t store_bytes;
    uint64_t store_pages;
    uint64_t faults;
    uint64_t faults_waited;
    uint64_t zero_faults;
    uint64_t fetches;
    uint64_t fetched_pages;
    uint64_t prefetched_pages;
    uint64_t evictions;
    uint64_t clean_drops;
    uint64_t writebacks;
    uint64_t errors;
    uint64_t fault_mean_ns;
    uint64_t fault_p50_ns;
    uint64_t fault_p99_ns;
    uint64_t fault_max_ns;
};

int pagetide_region_stats(const struct pagetide_region *region, struct pagetide_region_stats *out);

/* ---- Track ----------------------------------------------------------------------------------- */

/* Memory with a name: a region (then `address` and `length` are not looked at), or whole pages that
 * the program has mapped readable and writable and keeps so for as long as what is made over them
 * lives. The name, of 1 to 255 bytes of UTF-8, is that of the memory in snapshots. */
struct pagetide_span {
    const char *name;
    const struct pagetide_region *region;
    void *address;
    size_t length;
};

/* Tells which pages were written since it was last asked. */
struct pagetide_tracker;

/* How writes are noticed, best first; docs/track.md compares them. */
enum pagetide_method {
    PAGETIDE_METHOD_BEST = 0,
    PAGETIDE_METHOD_ASYNC = 1,                     /* the kernel takes note (Linux 6.7) */
    PAGETIDE_METHOD_WRITE_PROTECT_UNPOPULATED = 2, /* faults, served by a thread (6.4) */
    PAGETIDE_METHOD_PRE_READ = 3,                  /* the same; every page is read beforehand */
    PAGETIDE_METHOD_MPROTECT = 4,                  /* mprotect and SIGSEGV */
    PAGETIDE_METHOD_PAGER = 5                      /* a region's own pager; for regions alone */
};

/* Tracks `count` spans from now on. */
int pagetide_tracker_new(const struct pagetide_span *spans, size_t count, int method,
                         struct pagetide_tracker **out);

/* The method in use; 0 for a NULL handle. */
int pagetide_tracker_method(const struct pagetide_tracker *tracker);

/* A run of pages that were written. */
struct pagetide_dirty {
    size_t span;   /* which of the spans the tracker was made with, from 0 */
    size_t offset; /* bytes from its beginning */
    size_t length; /* bytes */
};

/* Calls `found` for each run of pages written since the last take, in the order of the spans and
 * addresses. `dirty` is valid during the call. A write meanwhile is reported by this take, by the
 * next, or by both; never by none. Alone; `found` must not use the tracker. */
int pagetide_tracker_take(struct pagetide_tracker *tracker,
                          void (*found)(const struct pagetide_dirty *dirty, void *context),
                          void *context);

void pagetide_tracker_free(struct pagetide_tracker *tracker);

/* Takes snapshots of some memory, one at a time, while the program goes on writing it. */
struct pagetide_snapshotter;

struct pagetide_snapshotter_options {
    size_t size;         /* sizeof(struct pagetide_snapshotter_options) */
    size_t extra_memory; /* the most bytes for pages' old contents; 0: 4 MiB or a 32nd */
    int delivery;        /* enum pagetide_delivery: of first writes to memory that is no region */
    int incremental;     /* not 0: snapshots may hold what changed since an earlier one */
};

int pagetide_snapshotter_new(const struct pagetide_span *spans, size_t count,
                             const struct pagetide_snapshotter_options *options,
                             struct pagetide_snapshotter **out);

/* Gives up a snapshot that is under way. */
void pagetide_snapshotter_free(struct pagetide_snapshotter *snapshotter);

/* A snapshot being taken. */
struct pagetide_snapshot;

struct pagetide_snapshot_options {
    size_t size;          /* sizeof(struct pagetide_snapshot_options) */
    const uint8_t *since; /* the 16 bytes of an earlier snapshot's id: what changed; NULL: all */
    int pre_arm;          /* not 0: protects most memory before the pause, which shrinks */
    int reserved;         /* 0 */
    /* Holds every writer still, calls arm(arming) once, and lets them go. NULL: all other threads of
     * the process are parked by a signal for about a millisecond. */
    void (*hold)(void (*arm)(void *arming), void *arming, void *context);
    void *hold_context;
};

/* Begins a snapshot into the file `path`, which appears when it is complete; a file that was there
 * is replaced then. Returns when the writers go on. `options` may be NULL. */
int pagetide_snapshot_start(const struct pagetide_snapshotter *snapshotter, const char *path,
                            const struct pagetide_snapshot_options *options,
                            struct pagetide_snapshot **out);

/* Pages done, and how many there are. Either pointer may be NULL. */
int pagetide_snapshot_progress(const struct pagetide_snapshot *snapshot, uint64_t *done,
                               uint64_t *total);

/* Gives it up: nothing of it remains. Returns at once. */
int pagetide_snapshot_cancel(const struct pagetide_snapshot *snapshot);

struct pagetide_snapshot_report {
    size_t size;    /* sizeof(struct pagetide_snapshot_report) */
    uint8_t id[16]; /* for pagetide_snapshot_options.since */
    uint64_t pause_ns;
    uint64_t duration_ns;
    uint64_t pages;
    uint64_t zero_pages;
    uint64_t faults;
    uint64_t copies_aside;
    uint64_t waits;
    uint64_t extra_bytes;
    uint64_t file_bytes;
};

/* Waits until the file is complete and durable, and ends the handle, whatever it returns. `report`
 * may be NULL. Alone. */
int pagetide_snapshot_wait(struct pagetide_snapshot *snapshot,
                           struct pagetide_snapshot_report *report);

/* The id, 16 bytes, of the snapshot in the file `path`. */
int pagetide_snapshot_id(const char *path, uint8_t *id);

/* ---- Restore --------------------------------------------------------------------------------- */

/* Memory that comes back from a snapshot. */
struct pagetide_restored;

struct pagetide_restore_options {
    size_t size;        /* sizeof(struct pagetide_restore_options) */
    const char *replay; /* a working set's file: those pages first; NULL: none */
    int record;         /* not 0: notes the order of first touches; fetches what is touched alone */
    int no_background;  /* not 0: fetches only what is touched (and a working set) */
    /* Memory that has to be at a certain address, since it holds pointers to itself: `name` and
     * `address` of each are looked at, and nothing may be mapped there. NULL: anywhere. */
    const struct pagetide_span *places;
    size_t place_count;
};

/* Maps all memory of the snapshot `path` (and of those it builds on, which are beside it). It can be
 * used when this returns: pages arrive as they are touched, and the rest meanwhile. */
int pagetide_restore(const char *path, const struct pagetide_restore_options *options,
                     struct pagetide_restored **out);

/* The memory called `name`. It is there until the handle is freed, and must not be unmapped, moved
 * or emptied before pagetide_restored_wait() has returned. `length` may be NULL. */
int pagetide_restored_data(const struct pagetide_restored *restored, const char *name, void **data,
                           size_t *length);

/* Waits until all of it is there. Without background, and when recording, it returns only after a
 * failure. */
int pagetide_restored_wait(const struct pagetide_restored *restored);

/* Writes what was recorded to the file `path`, which appears when it is complete. */
int pagetide_restored_save_working_set(const struct pagetide_restored *restored, const char *path);

/* Unmaps the memory. */
void pagetide_restored_free(struct pagetide_restored *restored);

/* Reads all of the memory called `name` of the snapshot `path` into `length` bytes at `into`, by
 * several threads. `length` must be the memory's. Needs no userfaultfd. After a failure the bytes
 * are not to be used. */
int pagetide_read_memory(const char *path, const char *name, void *into, size_t length);

/* ---- Lock ------------------------------------------------------------------------------------ */

/* For pagetide_mlock2 (one of them) and pagetide_munlock2 (one or both). */
enum pagetide_lock_flags {
    PAGETIDE_LOCK_FULL = 1,   /* every page at once */
    PAGETIDE_LOCK_ONFAULT = 2 /* present pages at once, each other when it is touched */
};

/* For pagetide_mlockall and pagetide_munlockall2. */
enum pagetide_lock_all_flags {
    PAGETIDE_LOCK_ALL_CURRENT = 1,
    PAGETIDE_LOCK_ALL_FUTURE = 2,
    PAGETIDE_LOCK_ALL_ONFAULT = 4
};

/* As mlock2(2) and its relatives, with the whole flag set proposed for it in 2015: one mode can be
 * unlocked alone, and future locking ended alone. They act for the process: locking again replaces
 * the mode, one unlock undoes any number of locks. pagetide_last_errno() is what the system call
 * would have set. docs/lock.md has the contract. */
int pagetide_mlock2(const void *address, size_t length, unsigned flags);
int pagetide_munlock(const void *address, size_t length);
int pagetide_munlock2(const void *address, size_t length, unsigned flags);
int pagetide_mlockall(unsigned flags);
int pagetide_munlockall(void);
int pagetide_munlockall2(unsigned flags);

/* Call it after memory that was locked here was unmapped or moved otherwise. */
int pagetide_lock_forget(const void *address, size_t length);

/* Pages locked on behalf of one owner. Any number of owners may hold a page, in either mode; it is
 * unlocked when the last lets go. */
struct pagetide_hold;

/* `mode` is PAGETIDE_LOCK_FULL or PAGETIDE_LOCK_ONFAULT. The memory stays mapped until the hold is
 * released. */
int pagetide_hold(const void *address, size_t length, int mode, struct pagetide_hold **out);

void pagetide_hold_release(struct pagetide_hold *hold);

/* A file, mapped and locked as it is touched. */
struct pagetide_locked_file;

enum pagetide_access {
    PAGETIDE_ACCESS_ADAPTIVE = 0,   /* what is read around a fault follows the program */
    PAGETIDE_ACCESS_RANDOM = 1,     /* the page alone is read; what is cached around is mapped */
    PAGETIDE_ACCESS_EXACT = 2,      /* the page alone is read, mapped and locked (Linux 6.7) */
    PAGETIDE_ACCESS_SEQUENTIAL = 3, /* far ahead */
    PAGETIDE_ACCESS_NORMAL = 4      /* the device's read-around */
};

struct pagetide_locked_file_options {
    size_t size;      /* sizeof(struct pagetide_locked_file_options) */
    uint64_t offset;  /* bytes, with `length`: a part of the file */
    uint64_t length;  /* bytes; 0: the whole file */
    int mode;         /* PAGETIDE_LOCK_FULL or _ONFAULT; 0: on fault */
    int access;       /* enum pagetide_access */
    int private_copy; /* not 0: writable; what is written never goes to the file */
    int reserved;     /* 0 */
};

int pagetide_locked_file_open(const char *path, const struct pagetide_locked_file_options *options,
                              struct pagetide_locked_file **out);

/* The first byte; NULL for a NULL handle, or an empty file. Written only with `private_copy`. */
const void *pagetide_locked_file_data(const struct pagetide_locked_file *file);

/* Bytes; 0 for a NULL handle. */
size_t pagetide_locked_file_length(const struct pagetide_locked_file *file);

/* Reads and locks bytes now. */
int pagetide_locked_file_load(const struct pagetide_locked_file *file, size_t offset,
                              size_t length);

void pagetide_locked_file_close(struct pagetide_locked_file *file);

/* A growable buffer that is never in swap or a core dump, between guard pages, wiped when it shrinks
 * and when it is freed. If the bytes before or behind it were overwritten, the process is ended. */
struct pagetide_secret;

enum pagetide_secret_in_child {
    PAGETIDE_SECRET_WIPED = 0, /* a forked child has an empty buffer */
    PAGETIDE_SECRET_ABSENT = 1 /* it has none */
};

struct pagetide_secret_options {
    size_t size;      /* sizeof(struct pagetide_secret_options) */
    int in_child;     /* enum pagetide_secret_in_child */
    int memfd_secret; /* not 0: memory that the kernel itself does not map (Linux 5.14) */
};

/* Makes an empty buffer for at most `length_max` bytes. */
int pagetide_secret_new(size_t length_max, const struct pagetide_secret_options *options,
                        struct pagetide_secret **out);

/* Makes it `length` bytes long: new ones are zeros, old ones beyond are wiped. The data do not move.
 * Alone. */
int pagetide_secret_resize(struct pagetide_secret *secret, size_t length);

/* The first byte; NULL if there is none, as in a forked child, and for a NULL handle. */
void *pagetide_secret_data(struct pagetide_secret *secret);

/* Bytes; 0 for a NULL handle. */
size_t pagetide_secret_length(const struct pagetide_secret *secret);

/* Sets `equal` to 1 or 0, in a time that does not depend on the contents. */
int pagetide_secret_equals(const struct pagetide_secret *secret, const void *bytes, size_t length,
                           int *equal);

void pagetide_secret_free(struct pagetide_secret *secret);

#ifdef __cplusplus
}
#endif

#endif
