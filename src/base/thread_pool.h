/* thread_pool.h - loops whose iterations are shared among threads that may or may not have a core.
 *
 * A loop of n iterations is cut into chunks; the caller and whichever workers are running take
 * chunks until none is left.  Which thread runs an iteration changes nothing about its result, as
 * long as iterations write to memory of their own. */
#ifndef FV_BASE_THREAD_POOL_H
#define FV_BASE_THREAD_POOL_H

#include "base/base.h"

typedef struct fv__thread_pool fv__thread_pool;

/* Iterations [lo, hi).  slot is smaller than the loop's number of threads and belongs to this
 * call until the loop ends: scratch memory of the thread is found by it. */
typedef void (*fv__range_fn)(void *arg, int64_t lo, int64_t hi, int slot);

/* A pool for loops of up to `threads` threads, the caller's included, of which at most `cores` run
 * at a time.  0, or why not: an errno. */
int fv__thread_pool_new(fv__thread_pool **out, const fv_env *env, int threads, int cores);
/* Makes it one for loops of `threads` threads, if it was for fewer. */
int fv__thread_pool_grow(fv__thread_pool *p, int threads);
/* No loop may be running.  NULL is left alone. */
void fv__thread_pool_free(fv__thread_pool *p);

/* Runs fn over [0, n) in chunks of `grain` (0: chosen by n and threads), on at most `threads`
 * threads; returns when all of it is done.  Any number of threads may call this at once, also from
 * inside of a loop.  In the child of a fork the caller does everything itself. */
void fv__parallel_for(fv__thread_pool *p, int threads, int64_t n, int64_t grain, fv__range_fn fn,
                      void *arg);

/* One turn, the i-th, of a loop that waits for another thread of the same parallel loop: a pause,
 * and after some of them the core for whoever wants it. */
void fv__thread_pause(int i);

/* Cores that this process may use: its affinity, bounded by the CPU quota of its cgroups. */
int fv__cores(const fv_env *env);

#endif
