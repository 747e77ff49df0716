/* test_mpi_ranks.c - `mpirun -np N fovea train`: the files of one rank, whatever N; a run that goes
 * on with another N; ranks that disagree or fail name themselves.  Skipped without OpenMPI. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "helper/files.h"
#include "helper/mpi.h"
#include "helper/program.h"
#include "helper/ranks.h"

static const char recipe[] = "[model]\nmodel_type = gpt2\nn_embd = 32\nn_layer = 1\nn_head = 2\n"
                             "n_positions = 32\n[data]\nobjective = causal\ntrain = lines.txt\n"
                             "hold_out = 0.2\ncontext = 16\n"
                             "[tokenizer]\nkind = byte_bpe\nvocab = 270\nmin_count = 1\n"
                             "[train]\nupdates = 6\nbatch_tokens = 128\nwarmup = 1\n"
                             "save_every = 2\n"
                             "eval_every = 3\nshards = 4\n";

static int set_up(void **state)
{
    char text[8000];
    size_t n = 0;
    if (scratch_open(state)) return -1;
    for (int i = 0; i < 150; i++)
        n += (size_t)snprintf(text + n, sizeof text - n, "line %d has the word %d and %d\n", i,
                              i * 7 % 31, i * 11 % 17);
    scratch_text("lines.txt", text);
    scratch_text("other.txt", strchr(text, '\n') + 1);
    scratch_text("r.ini", recipe);
    return 0;
}

/* Two directories hold the same model, moments and evaluations. */
static void same_run(const char *a, const char *b)
{
    succeeded(sh("cmp %s/model/model.safetensors %s/model/model.safetensors", a, b));
    char first[512];
    snprintf(first, sizeof first, "%s", scratch("%s/checkpoints/step-6", a));
    assert_true(same_moments(first, scratch("%s/checkpoints/step-6", b)));
    succeeded(sh("diff -r %s/model %s/model", a, b));
}

static void processes_give_the_bits_of_one(void **state)
{
    (void)state;
    if (no_mpi()) skip();
    succeeded(sh("$fovea train r.ini -o one -q -t 1"));
    succeeded(sh(MPIRUN "-np 2 $fovea train r.ini -o two -q -t 1"));
    succeeded(sh(MPIRUN "-np 3 $fovea train r.ini -o three -q -t 1"));
    same_run("one", "two");
    same_run("one", "three");
    /* two updates by four ranks, the rest by two */
    succeeded(sh(MPIRUN "-np 4 $fovea train r.ini -o four -q -t 1 --set train.updates=2"));
    succeeded(sh(MPIRUN "-np 2 $fovea train r.ini -o four -q -t 1 --resume"));
    same_run("one", "four");
}

/* A sentence that names the rank, and no directory. */
static void ranks_that_disagree_stop(void **state)
{
    (void)state;
    if (no_mpi()) skip();
    /* each rank reads the file that its own number names */
    succeeded(sh("cp lines.txt data-0.txt; cp other.txt data-1.txt"));
    const result *r = sh(MPIRUN "-np 2 sh -c '$fovea train r.ini -o bad -q -t 1 --set "
                                "data.train=data-$OMPI_COMM_WORLD_RANK.txt'");
    assert_int_not_equal(r->code, 0);
    assert_non_null(strstr(r->err, "rank 1: the recipe is not the same as that of rank 0"));
    succeeded(sh("mkdir d0 d1; cp lines.txt d0; cp other.txt d1/lines.txt"));
    r = sh(MPIRUN "-np 2 sh -c '$fovea train r.ini -o bad -q -t 1 --set "
                  "data.dir=d$OMPI_COMM_WORLD_RANK'");
    assert_int_not_equal(r->code, 0);
    assert_non_null(strstr(r->err, "rank 1: the t")); /* the tokenizer, trained on other data */
    r = sh(MPIRUN "-np 2 $fovea train r.ini -o bad -q -t 1 --set train.shards=0");
    assert_int_not_equal(r->code, 0);
    assert_non_null(strstr(r->err, "2 ranks need batches cut into at least 2 shards"));
    succeeded(sh("test ! -e bad"));
}

/* A rank that is stopped: the others name it and end. */
static void a_lost_rank_is_named(void **state)
{
    (void)state;
    if (no_mpi()) skip();
    const result *r = sh(
        "FOVEA_RANK_TIMEOUT=4 " MPIRUN
        "-np 2 sh -c 'test $OMPI_COMM_WORLD_RANK = 0 || (sleep 2; kill -STOP $$) & "
        "exec $fovea train r.ini -o lost -q -t 1 --set train.updates=100000'");
    assert_int_not_equal(r->code, 0);
    assert_int_not_equal(r->code, 124); /* of timeout */
    assert_non_null(strstr(r->err, "rank 1 is lost: nothing was heard of it for 4 seconds"));
}

/* The same before it has joined: those on its machine find it. */
static void a_rank_that_never_joins_is_named(void **state)
{
    (void)state;
    if (no_mpi()) skip();
    const result *r = sh("FOVEA_RANK_TIMEOUT=2 " MPIRUN
                         "-np 2 sh -c 'test $OMPI_COMM_WORLD_RANK = 0 || kill -STOP $$; "
                         "exec $fovea train r.ini -o never -q -t 1'");
    assert_int_not_equal(r->code, 0);
    assert_int_not_equal(r->code, 124); /* of timeout */
    assert_non_null(strstr(r->err, "not all of them have joined"));
    assert_non_null(strstr(r->err, "rank 1 is stopped (process "));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(processes_give_the_bits_of_one),
        cmocka_unit_test(ranks_that_disagree_stop),
        cmocka_unit_test(a_lost_rank_is_named),
        cmocka_unit_test(a_rank_that_never_joins_is_named),
    };
    return cmocka_run_group_tests(tests, set_up, scratch_close);
}
