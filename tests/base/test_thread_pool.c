/* test_thread_pool.c - loops on a thread pool: each iteration is run once, whatever the number of
 * threads, cores and callers, inside of other loops and in the child of a fork. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/thread_pool.h"

enum { N = 1000, THREADS = 8, CALLERS = 12 };

typedef struct marks {
    fv__thread_pool *pool;
    int threads;
    int times[N];
    int in_slot[THREADS]; /* calls running in a slot: never two */
    bool bad_slot;
} marks;

static void mark(void *arg, int64_t lo, int64_t hi, int slot)
{
    marks *m = arg;
    if (slot < 0 || slot >= m->threads ||
        __atomic_add_fetch(&m->in_slot[slot], 1, __ATOMIC_RELAXED) != 1)
        __atomic_store_n(&m->bad_slot, true, __ATOMIC_RELAXED);
    for (int64_t i = lo; i < hi; i++) m->times[i]++;
    if (slot >= 0 && slot < THREADS) __atomic_sub_fetch(&m->in_slot[slot], 1, __ATOMIC_RELAXED);
}

static void loop(fv__thread_pool *p, int threads, int64_t n, int64_t grain)
{
    marks m = {.pool = p, .threads = threads};
    fv__parallel_for(p, threads, n, grain, mark, &m);
    for (int64_t i = 0; i < N; i++) assert_int_equal(m.times[i], i < n);
    assert_false(m.bad_slot);
}

static fv__thread_pool *pool_of(int threads, int cores)
{
    fv__thread_pool *p = NULL;
    assert_int_equal(fv__thread_pool_new(&p, NULL, threads, cores), 0);
    return p;
}

/* More threads than cores, and more than this machine has. */
static void each_iteration_is_run_once(void **state)
{
    (void)state;
    for (int threads = 1; threads <= THREADS; threads++)
        for (int cores = 1; cores <= 4; cores++) {
            fv__thread_pool *p = pool_of(threads, cores);
            for (int64_t n = 0; n < 40; n++) loop(p, threads, n, n % 4);
            for (int i = 0; i < 50; i++) loop(p, threads, N, 0);
            fv__thread_pool_free(p);
        }
}

static void a_pool_grows(void **state)
{
    (void)state;
    fv__thread_pool *p = pool_of(1, 4);
    for (int threads = 1; threads <= THREADS; threads++) {
        assert_int_equal(fv__thread_pool_grow(p, threads), 0);
        loop(p, THREADS, N, 1);
    }
    fv__thread_pool_free(p);
    fv__thread_pool_free(NULL);
}

static void *call(void *arg)
{
    marks *m = arg;
    for (int i = 0; i < 200; i++) fv__parallel_for(m->pool, m->threads, N, i % 40, mark, m);
    return NULL;
}

/* More callers than the pool has jobs: some run their loop alone. */
static void many_callers(void **state)
{
    (void)state;
    static marks m[CALLERS];
    pthread_t id[CALLERS];
    fv__thread_pool *p = pool_of(4, 4);
    for (int i = 0; i < CALLERS; i++) {
        m[i] = (marks){.pool = p, .threads = 4};
        assert_int_equal(pthread_create(&id[i], NULL, call, &m[i]), 0);
    }
    for (int i = 0; i < CALLERS; i++) {
        pthread_join(id[i], NULL);
        assert_false(m[i].bad_slot);
        for (int k = 0; k < N; k++) assert_int_equal(m[i].times[k], 200);
    }
    fv__thread_pool_free(p);
}

typedef struct outer {
    fv__thread_pool *pool;
    marks inner[16];
} outer;

static void loops_inside(void *arg, int64_t lo, int64_t hi, int slot)
{
    outer *o = arg;
    (void)slot;
    for (int64_t i = lo; i < hi; i++) fv__parallel_for(o->pool, 4, N, 0, mark, &o->inner[i]);
}

static void a_loop_inside_of_a_loop(void **state)
{
    (void)state;
    static outer o;
    o.pool = pool_of(4, 4);
    for (int i = 0; i < 16; i++) o.inner[i].threads = 4;
    fv__parallel_for(o.pool, 4, 16, 1, loops_inside, &o);
    for (int i = 0; i < 16; i++)
        for (int k = 0; k < N; k++) assert_int_equal(o.inner[i].times[k], 1);
    fv__thread_pool_free(o.pool);
}

/* Its threads are not there. */
static void in_the_child_of_a_fork(void **state)
{
    (void)state;
    fv__thread_pool *p = pool_of(4, 4);
    loop(p, 4, N, 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (!child) {
        marks m = {.pool = p, .threads = 4};
        fv__parallel_for(p, 4, N, 0, mark, &m);
        fv__thread_pool_free(p);
        for (int i = 0; i < N; i++)
            if (m.times[i] != 1) _exit(1);
        _exit(0);
    }
    int status = -1;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    fv__thread_pool_free(p);
}

static void wait_a_while(void *arg, int64_t lo, int64_t hi, int slot)
{
    (void)lo, (void)hi;
    /* all but the caller lose their core for longer than a chunk takes */
    struct timespec t = {.tv_nsec = slot ? 2000000 : 10000};
    nanosleep(&t, NULL);
    __atomic_add_fetch((int *)arg, 1, __ATOMIC_RELAXED);
}

/* Workers that hold a loop up stay away, and the loops that follow do not wait for them.  How much
 * time that saves is a matter of the machine; that nothing is lost is not. */
static void late_workers_lose_nothing(void **state)
{
    (void)state;
    int done = 0;
    fv__thread_pool *p = pool_of(2, 2);
    for (int i = 0; i < 200; i++) fv__parallel_for(p, 2, 8, 1, wait_a_while, &done);
    assert_int_equal(done, 200 * 8);
    fv__thread_pool_free(p);
}

static void cores_are_counted(void **state)
{
    (void)state;
    assert_in_range(fv__cores(NULL), 1, 1 << 16);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_iteration_is_run_once),
        cmocka_unit_test(a_pool_grows),
        cmocka_unit_test(many_callers),
        cmocka_unit_test(a_loop_inside_of_a_loop),
        cmocka_unit_test(in_the_child_of_a_fork),
        cmocka_unit_test(late_workers_lose_nothing),
        cmocka_unit_test(cores_are_counted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
