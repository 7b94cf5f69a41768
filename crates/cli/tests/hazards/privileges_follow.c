/* A program started as root gives up its privileges, first for a while and then for good: no thread of its process keeps more than it. */
#include "hazard.h"
#include <dirent.h>
#include <grp.h>

struct rights {
    unsigned uid[3], gid[3];
    unsigned long permitted, effective;
};

static struct rights rights_of(const char *task) {
    char path[300], line[512];
    struct rights rights = {0};
    snprintf(path, sizeof path, "/proc/self/task/%s/status", task);
    FILE *status = fopen(path, "r");
    if (!status) return rights;
    while (fgets(line, sizeof line, status)) {
        sscanf(line, "Uid: %u %u %u", &rights.uid[0], &rights.uid[1], &rights.uid[2]);
        sscanf(line, "Gid: %u %u %u", &rights.gid[0], &rights.gid[1], &rights.gid[2]);
        sscanf(line, "CapPrm: %lx", &rights.permitted);
        sscanf(line, "CapEff: %lx", &rights.effective);
    }
    fclose(status);
    return rights;
}

/* Waits until every thread has the rights of the first. */
static void all_as_the_first(const char *what) {
    double deadline = now_seconds() + 60;
    char first[32];
    snprintf(first, sizeof first, "%d", (int)getpid());
    for (;;) {
        struct rights wanted = rights_of(first);
        int others = 0;
        DIR *tasks = opendir("/proc/self/task");
        NEED(tasks);
        for (struct dirent *entry; (entry = readdir(tasks));) {
            if (entry->d_name[0] == '.') continue;
            struct rights have = rights_of(entry->d_name);
            others += memcmp(&have, &wanted, sizeof have) != 0;
        }
        closedir(tasks);
        if (others == 0) return;
        if (now_seconds() > deadline) fail("%s: %d threads have other rights than the first", what, others);
        usleep(5000);
    }
}

static void hazard(void) {
    if (geteuid() != 0) skip("not root");
    char *memory = map_filled(memory_bytes / 4, 1);
    all_as_the_first("as root");
    NEED(setegid(65534) == 0 && seteuid(65534) == 0);
    all_as_the_first("as nobody for a while");
    check(memory, memory_bytes / 4, 1, "as nobody for a while");
    NEED(seteuid(0) == 0 && setegid(0) == 0);
    all_as_the_first("as root again");
    fill(memory, memory_bytes / 4, 2);
    NEED(setgroups(0, NULL) == 0 && setresgid(65534, 65534, 65534) == 0 && setresuid(65534, 65534, 65534) == 0);
    all_as_the_first("as nobody for good");
    check(memory, memory_bytes / 4, 2, "as nobody for good");
    evict_others();
    check(memory, memory_bytes / 4, 2, "as nobody, evicted and fetched");
}
