/* A file on a real disk with the pattern in it, for reads that bypass the page cache. */
#ifndef DISK_FILE_H
#define DISK_FILE_H
#include "hazard.h"

/* Opens a new, already unlinked file of `length` bytes whose contents are the pattern of [as, as + length).
 * Skips the hazard where no directory takes O_DIRECT. */
static inline int disk_file(const void *as, size_t length, uint64_t seed) {
    const char *directories[] = {getenv("HAZARD_DISK_DIR"), "/var/tmp", ".", "/tmp"};
    void *block;
    if (posix_memalign(&block, PAGE, MIB) != 0) fail("posix_memalign");
    for (size_t i = 0; i < 4; i++) {
        char path[256];
        if (!directories[i]) continue;
        snprintf(path, sizeof path, "%s/pagetide-hazard-XXXXXX", directories[i]);
        int writer = mkstemp(path);
        if (writer < 0) continue;
        int direct = open(path, O_RDONLY | O_DIRECT);
        unlink(path);
        if (direct < 0) {
            close(writer);
            continue;
        }
        for (size_t at = 0; at < length; at += MIB) {
            size_t part = length - at < MIB ? length - at : MIB;
            fill_as(block, (const char *)as + at, part, seed);
            if (pwrite(writer, block, part, at) != (ssize_t)part) fail("writing the test file: %s", strerror(errno));
        }
        if (fdatasync(writer) != 0) fail("fdatasync: %s", strerror(errno));
        close(writer);
        free(block);
        return direct;
    }
    skip("no directory here takes O_DIRECT (set HAZARD_DISK_DIR)");
}
#endif
