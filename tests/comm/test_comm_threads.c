/* test_comm_threads.c - collectives among ranks that are threads, sums in the order of a tree, and
 * what happens when a rank fails. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "comm/comm.h"
#include "helper/device.h"
#include "helper/ranks.h"

enum { MOST = 8 };

typedef struct rank {
    fv_comm *comm;
    int (*work)(fv_comm *c); /* 0: well */
    int result;
} rank;

static void *run_rank(void *self)
{
    rank *r = self;
    r->result = r->work(r->comm);
    fv_comm_close(r->comm);
    return NULL;
}

/* The work of n ranks, each a thread. */
static void among(int n, int (*work)(fv_comm *c))
{
    fv_err e;
    fv_comm *comm[MOST];
    rank r[MOST];
    pthread_t thread[MOST];
    check(fv_comm_threads(comm, n, NULL, &e), &e);
    for (int i = 0; i < n; i++) {
        r[i] = (rank){comm[i], work, -1};
        assert_int_equal(pthread_create(&thread[i], NULL, run_rank, &r[i]), 0);
    }
    for (int i = 0; i < n; i++) pthread_join(thread[i], NULL);
    for (int i = 0; i < n; i++) assert_int_equal(r[i].result, 0);
}

/* ---- collectives ---- */

static int everybody_gathers(fv_comm *c)
{
    int n = fv_comm_size(c), me = fv_comm_rank(c), all[MOST] = {0}, root = 7;
    fv_comm_part part[MOST];
    float x[10];
    for (int r = 0; r < n; r++) part[r] = (fv_comm_part){r, &all[r], sizeof(int)};
    all[me] = me + 1;
    if (fv_comm_all_gather(c, part, NULL)) return 1;
    for (int r = 0; r < n; r++)
        if (all[r] != r + 1) return 2;
    if (me == n - 1) root = 42;
    if (fv_comm_broadcast(c, &root, sizeof root, n - 1, NULL) || root != 42) return 3;
    for (int i = 0; i < 10; i++) x[i] = (float)(me + i);
    if (fv_comm_all_reduce(c, x, 10, NULL)) return 4;
    for (int i = 0; i < 10; i++)
        if (x[i] != (float)(n * (n - 1) / 2 + n * i)) return 5;
    return fv_comm_barrier(c, NULL) ? 6 : 0;
}

static int texts_come_in_order(fv_comm *c)
{
    char mine[16], *all;
    size_t len;
    snprintf(mine, sizeof mine, "<%d>", fv_comm_rank(c));
    if (fv_comm_gather_text(c, NULL, mine, strlen(mine), &all, &len, NULL)) return 1;
    if (fv_comm_rank(c)) return all ? 2 : 0;
    char want[200] = "";
    for (int r = 0; r < fv_comm_size(c); r++) snprintf(want + strlen(want), 16, "<%d>", r);
    int bad = strcmp(all, want) ? 3 : 0;
    fv__free(NULL, all, len + 1);
    return bad;
}

static void join(void *user, const char *text, size_t n)
{
    char *to = user;
    snprintf(to + strlen(to), 16, "%.*s;", (int)n, text);
}

/* Rank r has the numbers r + 1, r + 1 + size, ...; one of them in two parts, one empty. */
static int records_come_in_order(fv_comm *c)
{
    enum { EACH = 3 };
    int size = fv_comm_size(c), me = fv_comm_rank(c);
    char mine[400], got[800] = "", want[800] = "";
    size_t n = 0;
    for (int i = 0; i < 2 * EACH; i++) {
        char text[16];
        int number = me + 1 + i / 2 * size;
        int len = i % 2 ? 0 : snprintf(text, sizeof text, "%d", number);
        fv_comm_record h = {number, (uint64_t)len};
        memcpy(mine + n, &h, sizeof h);
        memcpy(mine + n + sizeof h, text, (size_t)len);
        n += sizeof h + (size_t)len;
    }
    for (int i = 1; i <= EACH * size; i++) snprintf(want + strlen(want), 16, "%d;;", i);
    if (fv_comm_gather_records(c, mine, n, join, got, NULL)) return 1;
    return strcmp(got, me ? "" : want) ? 2 : 0;
}

/* Groups of two and of three talk at their own pace, then all of them again. */
static int groups_talk(fv_comm *c)
{
    int me = fv_comm_rank(c), bad = 0;
    fv_comm *part[2];
    if (fv_comm_split(&part[0], c, me / 2, NULL) || fv_comm_split(&part[1], c, me % 2, NULL))
        return 20;
    for (int k = 0; !bad && k < 2; k++)
        for (int i = 0; !bad && i < 3 + me / 2 * !k + me % 2 * k; i++)
            bad = everybody_gathers(part[k]);
    if (!bad) bad = ranks_exchange(c);
    for (int k = 0; k < 2; k++) fv_comm_close(part[k]);
    return bad;
}

static void ranks_talk(void **state)
{
    (void)state;
    for (int n = 1; n <= MOST; n++) {
        among(n, ranks_exchange);
        among(n, everybody_gathers);
        among(n, texts_come_in_order);
        among(n, records_come_in_order);
        among(n, groups_talk);
    }
    assert_int_equal(ranks_exchange(NULL), 0);
    assert_int_equal(everybody_gathers(NULL), 0);
    assert_int_equal(texts_come_in_order(NULL), 0);
    assert_int_equal(records_come_in_order(NULL), 0);
}

/* ---- failures ---- */

/* Rank 1 fails; all leave with its sentence. */
static int one_fails(fv_comm *c)
{
    fv_err e = {0};
    bool mine = fv_comm_rank(c) == 1;
    fv_status st = mine ? fv_fail(&e, FV_EFORMAT, "the file is bad") : FV_OK;
    if (fv_comm_agree(c, st, &e) != FV_EFORMAT) return 1;
    return strcmp(e.text, mine ? "the file is bad" : "rank 1: the file is bad") ? 2 : 0;
}

static int one_aborts(fv_comm *c)
{
    fv_err e = {0};
    if (fv_comm_rank(c) == 1) {
        fv_comm_abort(c, "no memory is left");
        return 0;
    }
    if (fv_comm_barrier(c, &e) != FV_EDEVICE) return 1;
    return strcmp(e.text, "rank 1: no memory is left") ? 2 : 0;
}

static int one_leaves(fv_comm *c)
{
    fv_err e = {0};
    if (fv_comm_rank(c) == 1) return 0;
    return fv_comm_barrier(c, &e) == FV_EDEVICE && strstr(e.text, "has left") ? 0 : 1;
}

/* Of four, rank 1 aborts in its group {1 3}; rank 0 waits in {0 2}, which rank 2 does not join. */
static int one_of_a_group_aborts(fv_comm *c)
{
    fv_err e = {0};
    fv_comm *group;
    int me = fv_comm_rank(c), bad = 0;
    if (fv_comm_split(&group, c, me % 2, &e)) return 1;
    if (me == 1)
        fv_comm_abort(group, "no memory is left");
    else
        bad = !fv_comm_barrier(me == 2 ? c : group, &e) || !strstr(e.text, "rank 1: no memory");
    fv_comm_close(group);
    return bad ? 2 : 0;
}

static void a_rank_that_fails_stops_all(void **state)
{
    (void)state;
    for (int n = 2; n <= 4; n++) {
        among(n, one_fails);
        among(n, one_aborts);
    }
    among(2, one_leaves);
    among(4, one_of_a_group_aborts);
}

/* ---- trees ---- */

/* The sum of leaves [first, first + count) by the definition. */
static float sum_of(const float *x, int64_t first, int64_t count)
{
    if (count == 1) return x[first];
    int64_t left = 1;
    while (2 * left < count) left *= 2;
    return sum_of(x, first, left) + sum_of(x, first + left, count - left);
}

static void ranks_change_no_bit_of_a_sum(void **state)
{
    (void)state;
    float x[70];
    uint32_t seed = 1;
    for (int i = 0; i < 70; i++) {
        seed = seed * 1664525 + 1013904223;
        x[i] = (float)(int32_t)seed * (i % 3 ? 1.0f : 1e-4f);
    }
    for (int64_t n = 1; n <= 70; n++)
        for (int ranks = 1; ranks <= n && ranks <= 9; ranks++) {
            fv__node node[9 * FV__TREE_NODES];
            float value[9 * FV__TREE_NODES], sum;
            const float *at[9 * FV__TREE_NODES];
            int nodes = 0;
            for (int r = 0; r < ranks; r++)
                nodes += fv__tree_nodes(n, fv__tree_from(n, r, ranks),
                                        fv__tree_from(n, r + 1, ranks), node + nodes,
                                        FV__TREE_NODES);
            int64_t end = 0;
            for (int i = 0; i < nodes; i++) {
                assert_int_equal(node[i].first, end);
                assert_true(fv__tree_has(n, node[i]));
                value[i] = sum_of(x, node[i].first, node[i].count);
                at[i] = &value[i];
                end += node[i].count;
            }
            assert_int_equal(end, n);
            fv__tree_sum(&sum, at, node, nodes, n, 1);
            float want = sum_of(x, 0, n);
            assert_memory_equal(&sum, &want, sizeof sum);
        }
}

/* ---- what launchers say ---- */

static void launchers_are_known_by_their_variables(void **state)
{
    (void)state;
    static const char *const names[] = {
        "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "PMI_RANK", "PMI_SIZE",
        "SLURM_PROCID",         "SLURM_STEP_NUM_TASKS", "RANK",     "WORLD_SIZE"};
    fv_err e;
    fv_comm *c;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) unsetenv(names[i]);
    assert_int_equal(fv__launch_of_env().size, 0);
    for (size_t i = 0; i < sizeof names / sizeof *names; i += 2) {
        setenv(names[i], "2", 1);
        setenv(names[i + 1], "4", 1);
        fv__launch p = fv__launch_of_env();
        assert_int_equal(p.rank, 2);
        assert_int_equal(p.size, 4);
        unsetenv(names[i]);
        setenv(names[i + 1], "many", 1);
        assert_int_equal(fv__launch_of_env().size, 0);
        unsetenv(names[i + 1]);
    }
    check(fv_comm_open(&c, NULL, (fv_comm_opt){0}, &e), &e);
    assert_int_equal(fv_comm_size(c), 1);
    setenv("RANK", "0", 1);
    setenv("WORLD_SIZE", "2", 1);
    unsetenv("MASTER_ADDR");
    assert_int_equal(fv_comm_open(&c, NULL, (fv_comm_opt){0}, &e), FV_EARG);
    assert_non_null(strstr(e.text, "torchrun started 2 processes, but MASTER_ADDR"));
    assert_int_equal(fv_comm_open(&c, NULL, (fv_comm_opt){.engine = "mpy"}, &e), FV_EARG);
    assert_non_null(strstr(e.text, "did you mean mpi?"));
    unsetenv("RANK");
    unsetenv("WORLD_SIZE");
}

/* SLURM_STEP_TASKS_PER_NODE, and the cores of a rank among those of its machine. */
static void ranks_of_a_machine_share_its_cores(void **state)
{
    (void)state;
    assert_int_equal(fv__slurm_entry("2(x3),1", 0), 2);
    assert_int_equal(fv__slurm_entry("2(x3),1", 2), 2);
    assert_int_equal(fv__slurm_entry("2(x3),1", 3), 1);
    assert_int_equal(fv__slurm_entry("2(x3),1", 4), -1);
    assert_int_equal(fv__slurm_entry("2(y3)", 0), 2);
    assert_int_equal(fv__slurm_entry("2(x", 0), -1);
    assert_int_equal(fv__slurm_entry("", 0), -1);
    int all = 0;
    for (int r = 0; r < 3; r++) all += fv__cores_share(16, r, 3);
    assert_int_equal(all, 16);
    assert_int_equal(fv__cores_share(2, 5, 8), 1);
    assert_int_equal(fv__cores_share(7, 0, 1), 7);
    setenv("RANK", "0", 1);
    setenv("WORLD_SIZE", "4096", 1);
    setenv("LOCAL_WORLD_SIZE", "4096", 1);
    assert_int_equal(fv__cores_of_rank(NULL), 1);
    unsetenv("RANK");
    unsetenv("WORLD_SIZE");
    unsetenv("LOCAL_WORLD_SIZE");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_talk),
        cmocka_unit_test(a_rank_that_fails_stops_all),
        cmocka_unit_test(ranks_change_no_bit_of_a_sum),
        cmocka_unit_test(launchers_are_known_by_their_variables),
        cmocka_unit_test(ranks_of_a_machine_share_its_cores),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
