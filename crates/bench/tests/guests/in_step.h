/* Rounds of threads of which none does more than the others, however unlike their CPUs run. */
#include "thread.h"
#include <pthread.h>

static pthread_barrier_t all_here;
static int another_round;

static void begin_rounds(unsigned threads)
{
    if (pthread_barrier_init(&all_here, NULL, threads) != 0)
        abort();
}

/* Waits for all threads to end their round, and says whether they begin another. */
static int in_step(double until)
{
    if (pthread_barrier_wait(&all_here) == PTHREAD_BARRIER_SERIAL_THREAD)
        another_round = now() < until;
    pthread_barrier_wait(&all_here);
    return another_round;
}
