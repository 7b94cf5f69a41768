/* A table that stays in memory from where it is touched, and a secret that is never in swap.
 *
 *     cc lock.c $(pkg-config --cflags --libs pagetide) && ./a.out
 */
#define _DEFAULT_SOURCE
#include <pagetide.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

static int fail(const char *what) {
    fprintf(stderr, "%s: %s\n", what, pagetide_last_error());
    return 1;
}

int main(void) {
    const size_t length = 16 << 20;
    char *table = (char *)mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (table == MAP_FAILED)
        return 1;
    struct pagetide_hold *hold;
    switch (pagetide_hold(table, length, PAGETIDE_LOCK_ONFAULT, &hold)) {
    case PAGETIDE_OK:
        break;
    case PAGETIDE_LIMIT: /* the message has the line that raises it */
        fail("hold");
        return 77;
    default:
        return fail("hold");
    }
    table[5000] = 1; /* this page is locked from here on */
    pagetide_hold_release(hold);

    struct pagetide_secret *key;
    if (pagetide_secret_new(4096, NULL, &key) != PAGETIDE_OK)
        return fail("secret");
    if (pagetide_secret_resize(key, 13) != PAGETIDE_OK)
        return fail("resize");
    memcpy(pagetide_secret_data(key), "correct horse", 13);
    int equal = 0;
    if (pagetide_secret_equals(key, "correct horse", 13, &equal) != PAGETIDE_OK)
        return fail("equals");
    pagetide_secret_free(key);
    puts(equal ? "the key is right" : "the key is WRONG");
    return equal ? 0 : 1;
}
