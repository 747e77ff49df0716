/* thread_pool.c - a thread pool in which nobody waits for a thread that has no core.
 *
 * OpenMP's loops end in a barrier of all threads.  If one of them has no core just then (another
 * process runs there, or the cgroup's quota is used up), all others wait for a time slice, 3 ms, at
 * the end of a loop that takes 50 us: with as many threads as cores a decode step became up to 17
 * times slower than with half of them.  Here a loop ends when its iterations are done:
 *
 *    caller   fills a job, opens its gate, wakes sleepers; takes chunks until none is left; closes
 *             the gate; waits for the workers that are inside
 *    worker   passes an open gate, takes chunks until none is left, leaves
 *
 * A worker that never ran did not pass the gate and costs nothing.  One that is interrupted while
 * it holds a chunk does cost: it finds out that it was late, by far more than a chunk takes.  Where
 * waiting for late workers takes more of the time than one worker less would, it stays away for a
 * while, the longer the more often that happens in the pool.  So beside another process's thread
 * the pool soon uses the cores that are left, and tries again now and then; and beside a thread
 * that needs a core now and then for a moment (one that sends what was computed) it keeps them.
 * Where it was the caller that lost its core, some worker stays away: one thread less is what the
 * machine has room for.
 *
 * Chunks are handed out from ranges, one a thread, so that threads keep to the rows they had in the
 * loop before (their cache holds them); one whose range is empty takes from the others'.
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
#include <signal.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define JOBS 8              /* loops at once, of several contexts; more run on their caller alone */
#define RANGES 64           /* of one loop */
#define CHUNKS 8            /* of one range, where the caller does not say */
#define SPIN_NS 100000      /* a worker, for the next loop */
#define WAIT_NS 50000       /* a caller, for the workers inside, before it sleeps */
#define LATE_NS 200000      /* after the end of a loop: this worker had no core */
#define READ_NS 8000        /* of chunks between two readings of the clock, */
#define READ_MOST 16        /* and their number */
#define PENALTY_NS 16000000 /* the first time it stays away; four times as long each time */
#define PENALTY_MOST 256000000
#define ABSENT_MOST 8 /* at most one in so many workers stays away, or one */

/* ---- the gate of a job: open? is its caller asleep? workers that came, workers inside ---- */

#define OPEN (1u << 31)
#define ASLEEP (1u << 30)
#define CAME (1u << 15) /* one of them; 15 bits */
#define CAME_MASK (OPEN / 2 - CAME)
#define INSIDE_MASK (CAME - 1)

typedef struct range {
    _Alignas(64) atomic_llong next;
    int64_t end;
} range;

/* Cache lines by who writes them: with one line for all of it every worker waits for it five times
 * a loop, in turn with all others, which is microseconds on 16 cores. */
typedef struct job {
    _Alignas(64) atomic_uint gate; /* every worker, as it comes and as it leaves */
    /* Whoever is first.  drained: no chunk is left, nobody need come any more; worker_ns: the
     * longest chunk of some worker, 0: none came. */
    _Alignas(64) atomic_bool drained;
    atomic_llong worker_ns;
    _Alignas(64) fv__range_fn fn; /* the caller alone */
    void *arg;
    int64_t grain;
    uint32_t helpers; /* workers that may come */
    int ranges;
    atomic_bool taken;      /* by a caller */
    atomic_llong closed_ns; /* when the gate was closed */
    atomic_llong chunk_ns;  /* what a chunk took the caller */
    range range[RANGES];
} job;

typedef struct worker {
    pthread_t thread;
    fv__thread_pool *pool;
} worker;

struct fv__thread_pool {
    fv_env env;
    pid_t pid;
    int cores;
    pthread_mutex_t mutex; /* for growing */
    worker **worker;
    int room;
    atomic_int n;                     /* workers */
    _Alignas(64) atomic_uint posted;  /* jobs so far: what idle workers watch */
    _Alignas(64) atomic_int asleep;   /* workers that a futex wakes */
    atomic_int absent;                /* workers that stay away */
    atomic_int unwanted;              /* workers that should: the caller had no core */
    atomic_llong late_ns, penalty_ns; /* when somebody was late last, and what it cost */
    atomic_uint closing;
    job jobs[JOBS];
};

static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

/* ---- time and futexes ---- */

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static inline void pause_core(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb" ::: "memory"); /* yield is no pause on most cores */
#endif
}

static void futex_wait(atomic_uint *at, unsigned seen, const struct timespec *most)
{
    syscall(SYS_futex, at, FUTEX_WAIT_PRIVATE, seen, most, NULL, 0);
}

static void futex_wake(atomic_uint *at, int n)
{
    syscall(SYS_futex, at, FUTEX_WAKE_PRIVATE, n, NULL, NULL, 0);
}

/* True as soon as *at differs from `seen`; false when the time is over. */
static bool spin_until_changed(atomic_uint *at, unsigned seen, int64_t ns)
{
    for (int64_t end = now_ns() + ns; now_ns() < end;)
        for (int i = 0; i < 32; i++) {
            if (atomic_load_explicit(at, memory_order_acquire) != seen) return true;
            pause_core();
        }
    return false;
}

/* ---- chunks ---- */

typedef struct times {
    int64_t chunks, all_ns;
    int64_t longest_ns; /* of a chunk, or of several that take no longer than READ_NS */
    int64_t at, unread; /* when the clock was read, and chunks since */
} times;

/* Reads the clock, and returns how many chunks may follow before it is read again: no more than
 * twice as many as just now, since the next may take longer.  Reading it takes 30 ns, a chunk of a
 * small product 600: after each of them it would be 2 % of a token. */
static int64_t read_clock(times *t)
{
    int64_t end = now_ns(), took = end - t->at, more = READ_NS * t->unread / (took + 1);
    more = smaller(more, smaller(2 * t->unread, READ_MOST));
    if (took > t->longest_ns) t->longest_ns = took;
    t->at = end;
    t->unread = 0;
    return more > 1 ? more : 1;
}

/* Takes chunks until there are none. */
static times take_chunks(job *j, int slot, int64_t start)
{
    times t = {.at = start};
    int64_t until = 1;
    for (int r = 0; r < j->ranges; r++) {
        if (r == 1 && atomic_load_explicit(&j->drained, memory_order_relaxed)) break;
        range *x = &j->range[(slot + r) % j->ranges];
        while (atomic_load_explicit(&x->next, memory_order_relaxed) < x->end) {
            int64_t from = atomic_fetch_add_explicit(&x->next, j->grain, memory_order_relaxed);
            if (from >= x->end) break;
            int64_t to = from + j->grain < x->end ? from + j->grain : x->end;
            j->fn(j->arg, from, to, slot);
            t.chunks++;
            if (++t.unread >= until) until = read_clock(&t);
        }
    }
    if (!atomic_load_explicit(&j->drained, memory_order_relaxed))
        atomic_store_explicit(&j->drained, true, memory_order_relaxed);
    if (t.unread) read_clock(&t);
    t.all_ns = t.at - start;
    return t;
}

/* ---- workers ---- */

/* After a job: by how much this worker held it up, as one that lost its core does; 0: not. */
static int64_t lateness(job *j)
{
    if (atomic_load_explicit(&j->gate, memory_order_acquire) & OPEN) return 0;
    int64_t late = now_ns() - atomic_load_explicit(&j->closed_ns, memory_order_relaxed);
    int64_t usual = 3 * atomic_load_explicit(&j->chunk_ns, memory_order_relaxed);
    return late > LATE_NS && late > usual ? late : 0;
}

/* Whether waiting has cost more, since somebody was last waited for, than one of n + 1 threads less
 * would have.  Several that are late together count once. */
static bool costs_more(fv__thread_pool *p, int64_t late, int64_t *ago)
{
    int64_t now = now_ns();
    *ago = now - atomic_exchange(&p->late_ns, now);
    if (*ago < late / 2) return false;
    return late * (atomic_load_explicit(&p->n, memory_order_relaxed) + 1) > *ago;
}

/* The same of a caller: one of its chunks took far longer than a worker's. */
static bool lost_core(job *j, const times *t)
{
    int64_t usual = atomic_load_explicit(&j->worker_ns, memory_order_relaxed);
    return usual && t->longest_ns > LATE_NS && t->longest_ns > 4 * usual;
}

/* True if there was a job to help with.  The slot of a worker is its number among those that came,
 * so it is below the job's number of threads.  A job to which as many have come as there are
 * workers is not counted at any more, or a long one's counter would overflow. */
static bool help(fv__thread_pool *p, job *j, int64_t *late)
{
    uint32_t gate = atomic_load_explicit(&j->gate, memory_order_acquire);
    if (!(gate & OPEN) || atomic_load_explicit(&j->drained, memory_order_relaxed)) return false;
    if ((gate & CAME_MASK) / CAME >= (uint32_t)atomic_load(&p->n)) return false;
    gate = atomic_fetch_add_explicit(&j->gate, CAME + 1, memory_order_acquire);
    uint32_t number = (gate & CAME_MASK) / CAME;
    bool in = (gate & OPEN) && number < j->helpers;
    if (in) {
        times t = take_chunks(j, (int)number + 1, now_ns());
        if (t.chunks && !atomic_load_explicit(&j->worker_ns, memory_order_relaxed))
            atomic_store_explicit(&j->worker_ns, t.longest_ns, memory_order_relaxed);
        int64_t by = lateness(j);
        if (by > *late) *late = by;
    }
    gate = atomic_fetch_sub_explicit(&j->gate, 1, memory_order_release) - 1;
    if ((gate & ASLEEP) && !(gate & INSIDE_MASK)) futex_wake(&j->gate, 1);
    return in;
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

/* It spins for so long after it last helped: loops that others fill do not keep it awake. */
static void *work(void *arg)
{
    worker *w = arg;
    fv__thread_pool *p = w->pool;
    int64_t awake_until = 0;
    while (!atomic_load_explicit(&p->closing, memory_order_acquire)) {
        bool any = false;
        int64_t late = 0, ago = 0;
        unsigned seen = atomic_load(&p->posted);
        for (int i = 0; i < JOBS; i++) any |= help(p, &p->jobs[i], &late);
        if (((late && costs_more(p, late, &ago)) || is_unwanted(p)) && may_stay_away(p)) {
            stay_away(p, ago);
            continue;
        }
        int64_t now = now_ns();
        if (any) awake_until = now + SPIN_NS;
        if (any || spin_until_changed(&p->posted, seen, awake_until - now)) continue;
        atomic_fetch_add(&p->asleep, 1);
        if (!atomic_load(&p->closing)) futex_wait(&p->posted, seen, NULL);
        atomic_fetch_sub(&p->asleep, 1);
    }
    return NULL;
}

/* ---- the caller ---- */

static job *free_job(fv__thread_pool *p)
{
    for (int i = 0; i < JOBS; i++) {
        bool no = false;
        if (!atomic_load_explicit(&p->jobs[i].taken, memory_order_relaxed) &&
            atomic_compare_exchange_strong(&p->jobs[i].taken, &no, true))
            return &p->jobs[i];
    }
    return NULL;
}

static void post(fv__thread_pool *p, job *j)
{
    atomic_fetch_and_explicit(&j->gate, ~CAME_MASK, memory_order_relaxed);
    atomic_fetch_or_explicit(&j->gate, OPEN, memory_order_release);
    atomic_fetch_add(&p->posted, 1);
    int asleep = atomic_load(&p->asleep),
        awake = atomic_load_explicit(&p->n, memory_order_relaxed) - asleep -
                atomic_load_explicit(&p->absent, memory_order_relaxed),
        need = (int)j->helpers - awake;
    if (asleep > 0 && need > 0) futex_wake(&p->posted, need < asleep ? need : asleep);
}

/* Until the last worker has left.  It sleeps soon, because the worker it waits for may need this
 * very core. */
static void wait_for_workers(job *j)
{
    unsigned gate;
    while ((gate = atomic_load_explicit(&j->gate, memory_order_acquire)) & INSIDE_MASK) {
        if (spin_until_changed(&j->gate, gate, WAIT_NS)) continue;
        gate = atomic_fetch_or(&j->gate, ASLEEP) | ASLEEP;
        if (gate & INSIDE_MASK) futex_wait(&j->gate, gate, NULL);
        atomic_fetch_and(&j->gate, ~ASLEEP);
    }
}

void fv__parallel_for(fv__thread_pool *p, int threads, int64_t n, int64_t grain, fv__range_fn fn,
                      void *arg)
{
    if (n < 1) return;
    job *j = threads > 1 && n > 1 && p && p->cores > 1 ? free_job(p) : NULL;
    if (!j) {
        fn(arg, 0, n, 0);
        return;
    }
    int64_t ranges = smaller(smaller(threads, p->cores), smaller(RANGES, n));
    if (!grain) grain = n / (ranges * CHUNKS);
    j->fn = fn;
    j->arg = arg;
    j->grain = grain < 1 ? 1 : grain;
    j->ranges = (int)ranges;
    j->helpers = (uint32_t)smaller(smaller(threads, p->cores), (n + j->grain - 1) / j->grain) - 1;
    for (int64_t r = 0; r < ranges; r++) {
        atomic_store_explicit(&j->range[r].next, n * r / ranges, memory_order_relaxed);
        j->range[r].end = n * (r + 1) / ranges;
    }
    atomic_store_explicit(&j->worker_ns, 0, memory_order_relaxed);
    atomic_store_explicit(&j->drained, false, memory_order_relaxed);
    int64_t start = now_ns();
    post(p, j);
    times t = take_chunks(j, 0, start);
    atomic_store_explicit(&j->closed_ns, start + t.all_ns, memory_order_relaxed);
    atomic_store_explicit(&j->chunk_ns, t.all_ns / (t.chunks ? t.chunks : 1), memory_order_relaxed);
    atomic_fetch_and_explicit(&j->gate, ~OPEN, memory_order_acq_rel);
    wait_for_workers(j);
    int64_t ago;
    if (lost_core(j, &t) && costs_more(p, t.longest_ns, &ago))
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
    *w = (worker){.pool = p};
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

int fv__thread_pool_new(fv__thread_pool **out, const fv_env *env, int threads, int cores)
{
    fv__thread_pool *p = fv__alloc(env, sizeof *p);
    if (!p) return ENOMEM;
    if (env) p->env = *env;
    p->pid = getpid();
    p->cores = cores;
    pthread_mutex_init(&p->mutex, NULL);
    int rc = fv__thread_pool_grow(p, threads);
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
    pthread_mutex_destroy(&p->mutex);
    fv__free(&env, p, sizeof *p);
}
