/* A library that lets a governed program start only when the file named by SLOW_UNTIL is there; before that it makes
 * that name with ".waits" behind it. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

__attribute__((constructor)) static void wait_for_it(void) {
    char waits[4096];
    const char *file = getenv("SLOW_UNTIL");
    if (!file || !getenv("PAGETIDE_BUDGET")) return;
    snprintf(waits, sizeof waits, "%s.waits", file);
    close(open(waits, O_CREAT | O_WRONLY, 0600));
    for (int i = 0; i < 6000 && access(file, F_OK) != 0; i++) usleep(10000);
}
