/* Robust mutexes in evicted memory: the kernel walks the dead thread's list and the next owner is told. */
#include "hazard.h"

static pthread_mutex_t *mutexes;
enum { COUNT = 32 };
static pthread_mutex_t *at(int i) { return (pthread_mutex_t *)((char *)mutexes + i * PAGE); }

static void *die_holding(void *argument) {
    for (int i = 0; i < COUNT; i++) NEED(pthread_mutex_lock(at(i)) == 0);
    evict_others();
    return argument;
}

static void hazard(void) {
    mutexes = map_new(COUNT * PAGE);
    pthread_mutexattr_t robust;
    pthread_mutexattr_init(&robust);
    pthread_mutexattr_setrobust(&robust, PTHREAD_MUTEX_ROBUST);
    for (int i = 0; i < COUNT; i++) pthread_mutex_init(at(i), &robust);
    for (int round = 0; round < 3; round++) {
        pthread_t thread;
        start_thread(&thread, die_holding, NULL);
        join_thread(thread);
        evict_others();
        for (int i = 0; i < COUNT; i++) {
            int error = pthread_mutex_trylock(at(i));
            if (error == EBUSY) {
                /* The kernel's walk of the list stopped at a page that was not resident. */
                fail("mutex %d of %d was left locked by the dead thread", i, COUNT);
            }
            NEED(error == EOWNERDEAD);
            NEED(pthread_mutex_consistent(at(i)) == 0 && pthread_mutex_unlock(at(i)) == 0);
        }
    }
}
