/* A PROT_NONE reservation of 64 GiB made usable in pieces, as allocators and runtimes do, and given back in pieces. */
#include "hazard.h"

static void hazard(void) {
    size_t reserved = 64UL << 30, piece = 256 * PAGE, pieces = memory_bytes / piece;
    char *base = mmap(NULL, reserved, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    NEED(base != MAP_FAILED);
    size_t stride = reserved / (pieces + 1) / PAGE * PAGE;
    for (size_t i = 0; i < pieces; i++) {
        NEED(mprotect(base + i * stride, piece, PROT_READ | PROT_WRITE) == 0);
        fill(base + i * stride, piece, i);
    }
    for (size_t i = 0; i < pieces; i++) check(base + i * stride, piece, i, "a piece of the reservation");
    for (size_t i = 0; i < pieces; i += 2) {
        NEED(madvise(base + i * stride, piece, MADV_DONTNEED) == 0);
        NEED(mprotect(base + i * stride, piece, PROT_NONE) == 0);
    }
    for (size_t i = 0; i < pieces; i += 2) {
        NEED(mprotect(base + i * stride, piece, PROT_READ | PROT_WRITE) == 0);
        check_zero(base + i * stride, piece, "given back and taken again");
    }
    for (size_t i = 1; i < pieces; i += 2) check(base + i * stride, piece, i, "a piece that was kept");
    /* Pieces next to each other grow one usable range upward. */
    char *growing = base + reserved - 2 * memory_bytes;
    for (size_t at = 0; at + piece <= memory_bytes; at += piece) {
        NEED(mprotect(growing + at, piece, PROT_READ | PROT_WRITE) == 0);
        fill(growing + at, piece, 77);
    }
    check(growing, memory_bytes / piece * piece, 77, "grown upward");
    NEED(munmap(base, reserved) == 0);
}
