/* thread_loop.h - one loop of a thread pool: its description, and how threads take its chunks.
 *
 * A decoded token has sixty loops of a few microseconds, and a cache line takes 0.1 us from one of
 * 16 cores to the next: one that all threads write, in turn, would take longer than the loop.  So
 * there is none.  The caller writes one line, which all workers watch; each thread has a lane, a
 * line with the counter of its range and that of the chunks it has done, which it alone writes
 * unless others take chunks of its range.  Nobody clears a lane: its counters hold the number of
 * the loop they are of, and one of an earlier loop is a counter at 0.  A worker that comes
 * late, when the loop is over, finds all ranges taken, and cannot take chunks of the next by
 * accident. */
#ifndef FV_BASE_THREAD_LOOP_H
#define FV_BASE_THREAD_LOOP_H

#include <stdatomic.h>

#include "thread_pool.h"

/* Numbers of loops wrap.  Counters that are this much older would be taken for newer ones, so at
 * each multiple of it all of them are made new; a job begins shortly before the first. */
#define RENEW (1u << 30)
#define FIRST_LOOP (RENEW - 4)

/* Loops of a job are numbered; a counter holds the number of its loop above its value. */
typedef uint32_t fv__loop_number;

static inline uint64_t fv__counter(fv__loop_number of, uint64_t value)
{
    return (uint64_t)of << 32 | value;
}

/* Lines that several cores write are 128 bytes apart: processors fetch them by pairs. */
typedef struct fv__lane {
    _Alignas(64) atomic_ullong next; /* of its range: chunks that are taken */
    atomic_ullong done;              /* by the thread of this slot */
    atomic_llong longest_ns;         /* a chunk took it; written before done */
    char apart[64];
} fv__lane;

/* A loop, as its caller describes it. */
typedef struct fv__loop {
    fv__loop_number number;
    int ranges;
    int helpers;   /* workers that may come */
    bool by_index; /* a worker's slot is its index + 1, not its number among those that come */
    bool steal;    /* workers take chunks of other ranges than theirs */
    int64_t n, grain, chunks;
    fv__range_fn fn;
    void *arg;
} fv__loop;

/* Cache lines by who writes them. */
typedef struct fv__job {
    /* The caller, as a loop begins: the loop.  number is 0 while the rest changes. */
    _Alignas(64) atomic_uint number;
    atomic_uint ranges, helpers;
    atomic_bool by_index, steal;
    atomic_llong n, grain, chunks;
    _Atomic(fv__range_fn) fn;
    _Atomic(void *) arg;
    char apart[64];
    /* Whoever is first.  drained: the number of a loop of which no chunk is left. */
    _Alignas(64) atomic_uint drained;
    atomic_ullong came; /* workers, where slots are not by index */
    char apart_too[64];
    _Alignas(64) atomic_uint asleep; /* the caller, and whoever wakes it */
    fv__lane *lane;                  /* one for each core; never changes */
    char apart_again[64];
    /* The caller alone.  When it had no chunk left, in which loop, and what a chunk took it. */
    _Alignas(64) atomic_uint closed;
    atomic_llong closed_ns, chunk_ns;
    atomic_bool taken; /* by a caller */
    char apart_at_last[64];
} fv__job;

/* What chunks took a thread. */
typedef struct fv__chunk_times {
    int64_t chunks, all_ns;
    int64_t longest_ns; /* of a chunk, or of several that take no longer than READ_NS */
    int64_t at, unread; /* when the clock was read, and chunks since */
} fv__chunk_times;

/* The number of a job's next loop; its lanes are `lanes`. */
fv__loop_number fv__loop_next(fv__job *j, int lanes);
/* Lets workers see it, the first chunk of the caller's range taken. */
void fv__loop_describe(fv__job *j, const fv__loop *l);
/* False where it changed meanwhile. */
bool fv__loop_read(fv__loop *l, fv__job *j);
/* Adds one to a counter of loop `of` that is below `most`, and returns what it was; -1 where it is
 * not below, or of a newer loop. */
int64_t fv__loop_count(atomic_ullong *at, fv__loop_number of, int64_t most);
/* Takes chunks until there are none; start: a reading of the clock shortly before. */
fv__chunk_times fv__loop_take(fv__job *j, const fv__loop *l, int slot, int64_t start);
/* Chunks that workers have done. */
int64_t fv__loop_done(fv__job *j, const fv__loop *l);

int64_t fv__now_ns(void);

#endif
