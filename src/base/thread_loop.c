/* thread_loop.c - one loop of a thread pool: its description, and how threads take its chunks. */
#include "thread_loop.h"

#include <time.h>

#define READ_NS 8000 /* of chunks between two readings of the clock, */
#define READ_MOST 16 /* and their number */

int64_t fv__now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

/* ---- the description of a loop ---- */

/* Without a fence, which the thread sanitizer does not know: a reader that sees any of the stores
 * behind the first sees that one too. */
void fv__loop_describe(fv__job *j, const fv__loop *l)
{
    atomic_store_explicit(&j->lane[0].next, fv__counter(l->number, 1), memory_order_relaxed);
    atomic_store_explicit(&j->number, 0, memory_order_relaxed);
    atomic_store_explicit(&j->ranges, (unsigned)l->ranges, memory_order_release);
    atomic_store_explicit(&j->helpers, (unsigned)l->helpers, memory_order_release);
    atomic_store_explicit(&j->by_index, l->by_index, memory_order_release);
    atomic_store_explicit(&j->steal, l->steal, memory_order_release);
    atomic_store_explicit(&j->n, l->n, memory_order_release);
    atomic_store_explicit(&j->grain, l->grain, memory_order_release);
    atomic_store_explicit(&j->chunks, l->chunks, memory_order_release);
    atomic_store_explicit(&j->fn, l->fn, memory_order_release);
    atomic_store_explicit(&j->arg, l->arg, memory_order_release);
    atomic_store_explicit(&j->number, l->number, memory_order_release);
}

bool fv__loop_read(fv__loop *l, fv__job *j)
{
    l->number = atomic_load_explicit(&j->number, memory_order_acquire);
    l->ranges = (int)atomic_load_explicit(&j->ranges, memory_order_acquire);
    l->helpers = (int)atomic_load_explicit(&j->helpers, memory_order_acquire);
    l->by_index = atomic_load_explicit(&j->by_index, memory_order_acquire);
    l->steal = atomic_load_explicit(&j->steal, memory_order_acquire);
    l->n = atomic_load_explicit(&j->n, memory_order_acquire);
    l->grain = atomic_load_explicit(&j->grain, memory_order_acquire);
    l->chunks = atomic_load_explicit(&j->chunks, memory_order_acquire);
    l->fn = atomic_load_explicit(&j->fn, memory_order_acquire);
    l->arg = atomic_load_explicit(&j->arg, memory_order_acquire);
    return l->number && atomic_load_explicit(&j->number, memory_order_relaxed) == l->number;
}

fv__loop_number fv__loop_next(fv__job *j, int lanes)
{
    fv__loop_number last = atomic_load_explicit(&j->number, memory_order_relaxed),
                    number = last + 1;
    if (number % RENEW) return number;
    if (!number) number = 1;
    for (int i = 0; i < lanes; i++) {
        atomic_store_explicit(&j->lane[i].next, fv__counter(last, UINT32_MAX),
                              memory_order_relaxed);
        atomic_store_explicit(&j->lane[i].done, 0, memory_order_relaxed);
    }
    atomic_store_explicit(&j->came, fv__counter(last, UINT32_MAX), memory_order_relaxed);
    atomic_store_explicit(&j->drained, last, memory_order_relaxed);
    return number;
}

/* ---- chunks ---- */

/* Reads the clock, and returns how many chunks may follow before it is read again: no more than
 * twice as many as just now, since the next may take longer.  Reading it takes 30 ns, a chunk of a
 * small product 600: after each of them it would be 2 % of a token. */
static int64_t read_clock(fv__chunk_times *t)
{
    int64_t end = fv__now_ns(), took = end - t->at, more = READ_NS * t->unread / (took + 1);
    more = smaller(more, smaller(2 * t->unread, READ_MOST));
    if (took > t->longest_ns) t->longest_ns = took;
    t->at = end;
    t->unread = 0;
    return more > 1 ? more : 1;
}

int64_t fv__loop_count(atomic_ullong *at, fv__loop_number of, int64_t most)
{
    unsigned long long was = atomic_load_explicit(at, memory_order_relaxed);
    for (;;) {
        int32_t newer = (int32_t)((fv__loop_number)(was >> 32) - of);
        int64_t value = newer < 0 ? 0 : (int64_t)(was & UINT32_MAX);
        if (newer > 0 || value >= most) return -1;
        if (atomic_compare_exchange_weak_explicit(at, &was, fv__counter(of, (uint64_t)value + 1),
                                                  memory_order_relaxed, memory_order_relaxed))
            return value;
    }
}

static int64_t first_chunk(const fv__loop *l, int range) { return l->chunks * range / l->ranges; }

/* Takes chunks until there are none.  The caller has taken the first of its range before it let
 * others see the loop: so it starts while they are still reading. */
fv__chunk_times fv__loop_take(fv__job *j, const fv__loop *l, int slot, int64_t start)
{
    fv__chunk_times t = {.at = start};
    int64_t until = 1;
    bool steal = !slot || l->steal;
    int r = 0;
    do {
        int range = (slot + r) % l->ranges;
        int64_t first = first_chunk(l, range), most = first_chunk(l, range + 1) - first;
        atomic_ullong *next = &j->lane[range].next;
        int64_t i = slot + r ? fv__loop_count(next, l->number, most) : 0;
        for (; i >= 0; i = fv__loop_count(next, l->number, most)) {
            int64_t from = (first + i) * l->grain;
            l->fn(l->arg, from, smaller(from + l->grain, l->n), slot);
            t.chunks++;
            if (++t.unread >= until) until = read_clock(&t);
        }
    } while (++r < l->ranges && steal &&
             atomic_load_explicit(&j->drained, memory_order_relaxed) != l->number);
    if (l->steal && atomic_load_explicit(&j->drained, memory_order_relaxed) != l->number)
        atomic_store_explicit(&j->drained, l->number, memory_order_relaxed);
    if (t.unread) read_clock(&t);
    t.all_ns = t.at - start;
    return t;
}

int64_t fv__loop_done(fv__job *j, const fv__loop *l)
{
    int64_t done = 0;
    for (int i = 1; i <= l->helpers; i++) {
        uint64_t x = atomic_load(&j->lane[i].done);
        if (x >> 32 == l->number) done += (int64_t)(x & UINT32_MAX);
    }
    return done;
}
