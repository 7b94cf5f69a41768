/* io_uring reads, plain and into registered buffers, into memory under eviction pressure. */
#include "hazard.h"
#include "disk_file.h"
#include <linux/io_uring.h>
#include <sys/uio.h>

enum { DEPTH = 32, CHUNK = 16 * 4096 };
static struct {
    int fd;
    _Atomic uint32_t *sq_tail, *cq_head, *cq_tail;
    uint32_t *sq_array, sq_mask, cq_mask;
    struct io_uring_sqe *entries;
    struct io_uring_cqe *completions;
} ring;

static void set_up(void) {
    struct io_uring_params params = {0};
    ring.fd = syscall(SYS_io_uring_setup, DEPTH, &params);
    if (ring.fd < 0) {
        if (errno == ENOSYS || errno == EPERM) skip("io_uring_setup: %s", strerror(errno));
        fail("io_uring_setup: %s", strerror(errno));
    }
    size_t sq_length = params.sq_off.array + params.sq_entries * 4;
    size_t cq_length = params.cq_off.cqes + params.cq_entries * sizeof(struct io_uring_cqe);
    char *sq = mmap(NULL, sq_length, PROT_READ | PROT_WRITE, MAP_SHARED, ring.fd, IORING_OFF_SQ_RING);
    char *cq = mmap(NULL, cq_length, PROT_READ | PROT_WRITE, MAP_SHARED, ring.fd, IORING_OFF_CQ_RING);
    ring.entries = mmap(NULL, params.sq_entries * sizeof(struct io_uring_sqe), PROT_READ | PROT_WRITE, MAP_SHARED, ring.fd,
                        IORING_OFF_SQES);
    NEED(sq != MAP_FAILED && cq != MAP_FAILED && ring.entries != MAP_FAILED);
    ring.sq_tail = (void *)(sq + params.sq_off.tail);
    ring.sq_array = (void *)(sq + params.sq_off.array);
    ring.sq_mask = *(uint32_t *)(sq + params.sq_off.ring_mask);
    ring.cq_head = (void *)(cq + params.cq_off.head);
    ring.cq_tail = (void *)(cq + params.cq_off.tail);
    ring.cq_mask = *(uint32_t *)(cq + params.cq_off.ring_mask);
    ring.completions = (void *)(cq + params.cq_off.cqes);
}

/* Reads chunk i of the file into chunk i of memory, DEPTH at a time, all in flight while other memory churns. */
static void read_all(int file, char *memory, const char *as, size_t length, int registered) {
    for (size_t base = 0; base < length / CHUNK; base += DEPTH) {
        for (size_t i = 0; i < DEPTH; i++) {
            uint32_t tail = atomic_load(ring.sq_tail), slot = tail & ring.sq_mask;
            size_t at = (base + i) * CHUNK;
            ring.entries[slot] = (struct io_uring_sqe){
                .opcode = registered ? IORING_OP_READ_FIXED : IORING_OP_READ,
                .fd = file,
                .off = at,
                .addr = (uintptr_t)(memory + at),
                .len = CHUNK,
                .user_data = at,
                .flags = i % 3 == 0 && !registered ? IOSQE_ASYNC : 0,
            };
            ring.sq_array[slot] = slot;
            atomic_store(ring.sq_tail, tail + 1);
        }
        int submitted = syscall(SYS_io_uring_enter, ring.fd, DEPTH, DEPTH, IORING_ENTER_GETEVENTS, NULL, 0);
        while (submitted < 0 && errno == EINTR)
            submitted = syscall(SYS_io_uring_enter, ring.fd, DEPTH, DEPTH, IORING_ENTER_GETEVENTS, NULL, 0);
        NEED(submitted == DEPTH);
        for (int i = 0; i < DEPTH; i++) {
            uint32_t head = atomic_load(ring.cq_head);
            while (head == atomic_load(ring.cq_tail)) sched_yield();
            struct io_uring_cqe *done = ring.completions + (head & ring.cq_mask);
            if (done->res != CHUNK) fail("read of chunk at %llu gave %d", done->user_data, done->res);
            check_as(memory + done->user_data, as + done->user_data, CHUNK, 1, "right after its completion");
            atomic_store(ring.cq_head, head + 1);
        }
    }
}

static void hazard(void) {
    /* Whole rounds. */
    size_t round = DEPTH * CHUNK, length = memory_bytes / 4 < round ? round : memory_bytes / 4 / round * round;
    char *as = mmap(NULL, length, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    int direct = disk_file(as, length, 1);
    set_up();
    struct churn *churn = start_churn(memory_bytes / 2);
    for (int round = 0; round < 3; round++) {
        char *memory = map_filled(length, 2); /* the read must replace what is evicted here */
        read_all(direct, memory, as, length, 0);
        check_as(memory, as, length, 1, "read by io_uring");
        munmap(memory, length);
    }
    /* Registered buffers are pinned: they may take the budget they need, and must stay right. */
    size_t pinned = 2 * MIB;
    char *buffer = map_filled(pinned, 3);
    struct iovec vector = {buffer, pinned};
    if (syscall(SYS_io_uring_register, ring.fd, IORING_REGISTER_BUFFERS, &vector, 1) != 0) {
        if (errno != ENOMEM && errno != EPERM) fail("register buffers: %s", strerror(errno));
        fprintf(stderr, "registered buffers not tried: %s\n", strerror(errno));
    } else {
        for (int round = 0; round < 8; round++) {
            check(buffer, pinned, 3, "registered buffer before the read");
            read_all(direct, buffer, as, pinned, 1);
            evict_others();
            check_as(buffer, as, pinned, 1, "registered buffer");
            fill(buffer, pinned, 3);
            evict_others();
        }
    }
    stop_churn(churn);
}
