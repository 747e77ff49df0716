/* thread_pool.c - a thread pool in which nobody waits for a thread that has no core.
 *
 * OpenMP's loops end in a barrier of all threads.  If one of them has no core just then (another
 * process runs there, or the cgroup's quota is used up), all others wait for a time slice, 3 ms, at
 * the end of a loop that takes 50 us: with as many threads as cores a decode step became up to 17
 * times slower than with half of them.  Here a loop ends when its chunks are done:
 *
 *    caller   describes a loop and gives it a number, wakes sleepers; takes chunks until none is
 *             left; waits until those that workers have taken are done
 *    worker   reads the description, takes chunks until none is left, says how many it has done
 *
 * A worker that never ran took no chunk and costs nothing.  One that is interrupted while it holds
 * a chunk does cost: it finds out that it was late, by far more than a chunk takes.  Where waiting
 * for late workers takes more of the time than one worker less would, it stays away for a while,
 * the longer the more often that happens in the pool.  So beside another process's thread the pool
 * soon uses the cores that are left, and tries again now and then; and beside a thread that needs a
 * core now and then for a moment (one that sends what was computed) it keeps them.  Where it was
 * the caller that lost its core, some worker stays away: one thread less is what the machine has
 * room for.
 *
 * Chunks are handed out from ranges, one a thread, so that threads keep to the rows they had in the
 * loop before (their cache holds them); one whose range is empty takes from the others'.  How, and
 * what it costs, is in thread_loop.h.
 *
 * Workers spin for SPIN_NS after a loop, as the next one mostly comes within microseconds, then
 * sleep on a futex.  There are never more workers than cores beside the caller's, whatever
 * number of threads a loop may use.  Everything is owned by the pool; a job lives in the pool
 * too, so that a worker that comes late looks at valid memory. */
#include "thread_pool.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "thread_loop.h"

#define JOBS 8              /* loops at once, of several contexts; more run on their caller alone */
#define CHUNKS 8            /* of one range, where the caller does not say */
#define SPIN_NS 100000      /* a worker, for the next loop */
#define WAIT_NS 50000       /* a caller, for the chunks of others, before it sleeps */
#define LATE_NS 200000      /* after the end of a loop: this worker had no core */
#define PENALTY_NS 16000000 /* the first time it stays away; four times as long each time */
#define PENALTY_MOST 256000000
#define ABSENT_MOST 8 /* at most one in so many workers stays away, or one */

typedef struct worker {
    pthread_t thread;
    fv__thread_pool *pool;
    int index;
    fv__loop_number seen[JOBS]; /* the loops it has looked at last */
    int64_t clock;              /* when it was read last */
} worker;

struct fv__thread_pool {
    fv_env env;
    pid_t pid;
    int cores;
    pthread_mutex_t mutex; /* for growing */
    worker **worker;
    int room;
    fv__lane *lanes;                  /* of all jobs */
    atomic_int n;                     /* workers */
    _Alignas(64) atomic_uint posted;  /* what idle workers watch beside the first fv__job */
    _Alignas(64) atomic_int asleep;   /* workers that a futex wakes */
    atomic_int absent;                /* workers that stay away */
    atomic_int unwanted;              /* workers that should: the caller had no core */
    atomic_llong late_ns, penalty_ns; /* when somebody was late last, and what it cost */
    atomic_uint closing;
    fv__job jobs[JOBS];
};

static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

/* ---- pauses and futexes ---- */

static inline void pause_core(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb" ::: "memory"); /* yield is no pause on most cores */
#endif
}

void fv__thread_pause(int i)
{
    if (i % 1024 == 1023)
        sched_yield();
    else
        pause_core();
}

static void futex_wait(atomic_uint *at, unsigned seen, const struct timespec *most)
{
    syscall(SYS_futex, at, FUTEX_WAIT_PRIVATE, seen, most, NULL, 0);
}

static void futex_wake(atomic_uint *at, int n)
{
    syscall(SYS_futex, at, FUTEX_WAKE_PRIVATE, n, NULL, NULL, 0);
}

/* ---- workers ---- */

/* After its chunks: by how much this worker holds the loop up, as one that lost its core does; 0:
 * not. */
static int64_t lateness(fv__job *j, const fv__loop *l, const fv__chunk_times *t)
{
    if (t->longest_ns <= LATE_NS ||
        atomic_load_explicit(&j->closed, memory_order_acquire) != l->number)
        return 0;
    int64_t late = t->at - atomic_load_explicit(&j->closed_ns, memory_order_relaxed);
    int64_t usual = 3 * atomic_load_explicit(&j->chunk_ns, memory_order_relaxed);
    return late > LATE_NS && late > usual ? late : 0;
}

/* Whether waiting has cost more, since somebody was last waited for, than one of n + 1 threads less
 * would have.  Several that are late together count once. */
static bool costs_more(fv__thread_pool *p, int64_t late, int64_t *ago)
{
    int64_t now = fv__now_ns();
    *ago = now - atomic_exchange(&p->late_ns, now);
    if (*ago < late / 2) return false;
    return late * (atomic_load_explicit(&p->n, memory_order_relaxed) + 1) > *ago;
}

/* Says that chunks are done, and wakes the caller if it waits for that. */
static void report(fv__job *j, const fv__loop *l, int slot, const fv__chunk_times *t)
{
    fv__lane *own = &j->lane[slot];
    atomic_store_explicit(&own->longest_ns, t->longest_ns, memory_order_relaxed);
    atomic_store(&own->done, fv__counter(l->number, (uint64_t)t->chunks));
    if (!atomic_load(&j->asleep)) return;
    atomic_store(&j->asleep, 0);
    futex_wake(&j->asleep, 1);
}

/* True if there was something to help with.  A slot is below the loop's number of threads. */
static bool help(worker *w, int which, int64_t *late)
{
    fv__job *j = &w->pool->jobs[which];
    fv__loop l;
    if (atomic_load_explicit(&j->number, memory_order_relaxed) == w->seen[which] ||
        !fv__loop_read(&l, j))
        return false;
    w->seen[which] = l.number;
    int64_t number = l.by_index ? w->index : fv__loop_count(&j->came, l.number, l.helpers);
    if (number < 0 || number >= l.helpers) return false;
    int slot = (int)number + 1;
    fv__chunk_times t = fv__loop_take(j, &l, slot, w->clock);
    if (!t.chunks) return false;
    int64_t by = lateness(j, &l, &t);
    if (by > *late) *late = by;
    report(j, &l, slot, &t);
    w->clock = t.at;
    return true;
}

/* Longer than the last time if that was just now, shorter if it is long ago. */
static int64_t next_penalty(fv__thread_pool *p, int64_t ago)
{
    int64_t ns = atomic_load(&p->penalty_ns);
    if (ago > 4 * ns)
        ns /= 4;
    else if (ago > PENALTY_NS / 8)
        ns *= 4;
    ns = ns < PENALTY_NS ? PENALTY_NS : smaller(ns, PENALTY_MOST);
    atomic_store(&p->penalty_ns, ns);
    return ns;
}

static void stay_away(fv__thread_pool *p, int64_t ago)
{
    int64_t ns = next_penalty(p, ago);
    struct timespec t = {.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000};
    atomic_fetch_add(&p->absent, 1);
    futex_wait(&p->closing, 0, &t);
    atomic_fetch_sub(&p->absent, 1);
}

/* Whether one more worker may.  On a virtual machine many are late now and then, and none of them
 * because of a process that stays. */
static bool may_stay_away(fv__thread_pool *p)
{
    return atomic_load(&p->absent) <= (atomic_load(&p->n) - 1) / ABSENT_MOST;
}

/* One of the workers that the pool has too many of. */
static bool is_unwanted(fv__thread_pool *p)
{
    int n = atomic_load_explicit(&p->unwanted, memory_order_relaxed);
    return n > 0 && atomic_compare_exchange_strong(&p->unwanted, &n, n - 1);
}

/* A loop of the first job, the one of a pool with one caller, or a post. */
static bool is_news(worker *w, unsigned posted)
{
    fv__thread_pool *p = w->pool;
    return atomic_load_explicit(&p->jobs[0].number, memory_order_acquire) != w->seen[0] ||
           atomic_load_explicit(&p->posted, memory_order_acquire) != posted;
}

/* True as soon as there is something new; false when the time is over.  The clock is left at most
 * 32 pauses behind: chunks that follow are timed from there. */
static bool spin_until_news(worker *w, unsigned posted, int64_t until)
{
    for (; (w->clock = fv__now_ns()) < until;)
        for (int i = 0; i < 32; i++) {
            if (is_news(w, posted)) return true;
            pause_core();
        }
    return false;
}

/* It spins for so long after it last helped: loops that others fill do not keep it awake.  A loop
 * that is posted as it falls asleep goes on without it. */
static void *work(void *arg)
{
    worker *w = arg;
    fv__thread_pool *p = w->pool;
    int64_t awake_until = 0;
    while (!atomic_load_explicit(&p->closing, memory_order_acquire)) {
        bool any = false;
        int64_t late = 0, ago = 0;
        unsigned posted = atomic_load(&p->posted);
        for (int i = 0; i < JOBS; i++) any |= help(w, i, &late);
        if (((late && costs_more(p, late, &ago)) || is_unwanted(p)) && may_stay_away(p)) {
            stay_away(p, ago);
            w->clock = fv__now_ns();
            continue;
        }
        if (any) awake_until = w->clock + SPIN_NS;
        if (any || spin_until_news(w, posted, awake_until)) continue;
        atomic_fetch_add(&p->asleep, 1);
        if (!atomic_load(&p->closing) && !is_news(w, posted)) futex_wait(&p->posted, posted, NULL);
        atomic_fetch_sub(&p->asleep, 1);
        w->clock = fv__now_ns();
    }
    return NULL;
}

/* ---- the caller ---- */

static fv__job *free_job(fv__thread_pool *p)
{
    for (int i = 0; i < JOBS; i++) {
        bool no = false;
        if (!atomic_load_explicit(&p->jobs[i].taken, memory_order_relaxed) &&
            atomic_compare_exchange_strong(&p->jobs[i].taken, &no, true))
            return &p->jobs[i];
    }
    return NULL;
}

/* Slots are by index where that keeps a worker at its range and nobody is missing among the first
 * workers: none sleeps or stays away, nor is at another caller's loop. */
static void post(fv__thread_pool *p, fv__job *j, fv__loop *l)
{
    int n = atomic_load_explicit(&p->n, memory_order_relaxed),
        asleep = atomic_load_explicit(&p->asleep, memory_order_relaxed),
        awake = n - asleep - atomic_load_explicit(&p->absent, memory_order_relaxed);
    bool first = j == &p->jobs[0],
         alone = first && !atomic_load_explicit(&p->jobs[1].taken, memory_order_relaxed);
    l->by_index = l->helpers >= n || (alone && awake == n);
    l->steal = l->chunks > l->ranges || awake < l->helpers || !alone;
    fv__loop_describe(j, l);
    bool wake = asleep > 0 && l->helpers > awake;
    if (wake || !first) atomic_fetch_add(&p->posted, 1);
    if (wake) futex_wake(&p->posted, (int)smaller(l->helpers - awake, asleep));
}

/* Until workers have done so many.  It sleeps soon, because the worker it waits for may need this
 * very core. */
static void wait_for_workers(fv__job *j, const fv__loop *l, int64_t chunks)
{
    for (int64_t until = 0, now; fv__loop_done(j, l) < chunks;) {
        for (int i = 0; i < 32; i++) {
            pause_core();
            if (fv__loop_done(j, l) == chunks) return;
        }
        now = fv__now_ns();
        if (!until) until = now + WAIT_NS;
        if (now < until) continue;
        atomic_store(&j->asleep, 1);
        if (fv__loop_done(j, l) < chunks) futex_wait(&j->asleep, 1, NULL);
        atomic_store(&j->asleep, 0);
    }
}

/* Whether the caller lost its core: one of its chunks took far longer than a worker's. */
static bool lost_core(fv__job *j, const fv__loop *l, const fv__chunk_times *t)
{
    int64_t usual = 0;
    if (t->longest_ns <= LATE_NS) return false;
    for (int i = 1; i <= l->helpers && !usual; i++)
        if (atomic_load_explicit(&j->lane[i].done, memory_order_relaxed) >> 32 == l->number)
            usual = atomic_load_explicit(&j->lane[i].longest_ns, memory_order_relaxed);
    return usual && t->longest_ns > 4 * usual;
}

void fv__parallel_for(fv__thread_pool *p, int threads, int64_t n, int64_t grain, fv__range_fn fn,
                      void *arg)
{
    if (n < 1) return;
    fv__job *j = threads > 1 && n > 1 && p && p->cores > 1 ? free_job(p) : NULL;
    if (!j) {
        fn(arg, 0, n, 0);
        return;
    }
    int64_t ranges = smaller(smaller(threads, p->cores), n);
    if (!grain) grain = n / (ranges * CHUNKS);
    if (grain <= n >> 31) grain = (n >> 31) + 1; /* a counter has 32 bits */
    fv__loop l = {
        .number = fv__loop_next(j, p->cores), .n = n, .grain = grain, .fn = fn, .arg = arg};
    l.chunks = (n - 1) / grain + 1;
    l.ranges = (int)smaller(ranges, l.chunks);
    l.helpers = l.ranges - 1;
    int64_t start = fv__now_ns();
    post(p, j, &l);
    fv__chunk_times t = fv__loop_take(j, &l, 0, start);
    if (t.chunks < l.chunks) {
        atomic_store_explicit(&j->closed_ns, t.at, memory_order_relaxed);
        atomic_store_explicit(&j->chunk_ns, t.all_ns / t.chunks, memory_order_relaxed);
        atomic_store_explicit(&j->closed, l.number, memory_order_release);
        wait_for_workers(j, &l, l.chunks - t.chunks);
    }
    int64_t ago;
    if (lost_core(j, &l, &t) && costs_more(p, t.longest_ns, &ago))
        atomic_store_explicit(&p->unwanted, 1, memory_order_relaxed);
    atomic_store_explicit(&j->taken, false, memory_order_release);
}

/* ---- making and ending ---- */

/* Signals belong to the program's own threads. */
static int start_worker(fv__thread_pool *p)
{
    worker *w = fv__alloc(&p->env, sizeof *w);
    if (!w) return ENOMEM;
    sigset_t all, old;
    *w = (worker){.pool = p, .index = atomic_load(&p->n), .clock = fv__now_ns()};
    for (int i = 0; i < JOBS; i++) w->seen[i] = FIRST_LOOP;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int rc = pthread_create(&w->thread, NULL, work, w);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (rc)
        fv__free(&p->env, w, sizeof *w);
    else
        p->worker[atomic_fetch_add(&p->n, 1)] = w;
    return rc;
}

int fv__thread_pool_grow(fv__thread_pool *p, int threads)
{
    int rc = 0, want = (int)smaller(threads, p->cores) - 1;
    pthread_mutex_lock(&p->mutex);
    if (want > p->room) {
        size_t have = (size_t)p->room * sizeof *p->worker;
        if (!fv__grow(&p->env, (void **)&p->worker, &have, (size_t)want * sizeof *p->worker))
            rc = ENOMEM;
        p->room = (int)(have / sizeof *p->worker);
    }
    while (!rc && atomic_load(&p->n) < want) rc = start_worker(p);
    pthread_mutex_unlock(&p->mutex);
    return rc;
}

static size_t lanes_bytes(const fv__thread_pool *p)
{
    return (size_t)p->cores * JOBS * sizeof *p->lanes;
}

int fv__thread_pool_new(fv__thread_pool **out, const fv_env *env, int threads, int cores)
{
    fv__thread_pool *p = fv__alloc(env, sizeof *p);
    if (!p) return ENOMEM;
    if (env) p->env = *env;
    p->pid = getpid();
    p->cores = cores;
    pthread_mutex_init(&p->mutex, NULL);
    p->lanes = fv__alloc(env, lanes_bytes(p));
    for (int i = 0; i < JOBS; i++) {
        p->jobs[i].lane = p->lanes + (ptrdiff_t)i * cores;
        atomic_init(&p->jobs[i].number, FIRST_LOOP);
    }
    int rc = p->lanes ? fv__thread_pool_grow(p, threads) : ENOMEM;
    if (rc) {
        fv__thread_pool_free(p);
        p = NULL;
    }
    *out = p;
    return rc;
}

/* A child of fork has the pool's memory but none of its threads. */
void fv__thread_pool_free(fv__thread_pool *p)
{
    if (!p) return;
    fv_env env = p->env;
    atomic_store(&p->closing, 1);
    atomic_fetch_add(&p->posted, 1);
    futex_wake(&p->posted, INT_MAX);
    futex_wake(&p->closing, INT_MAX);
    for (int i = 0; i < atomic_load(&p->n); i++) {
        if (p->pid == getpid()) pthread_join(p->worker[i]->thread, NULL);
        fv__free(&env, p->worker[i], sizeof *p->worker[i]);
    }
    fv__free(&env, p->worker, (size_t)p->room * sizeof *p->worker);
    fv__free(&env, p->lanes, lanes_bytes(p));
    pthread_mutex_destroy(&p->mutex);
    fv__free(&env, p, sizeof *p);
}
