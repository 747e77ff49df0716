/* test_tensor_training.c - training of a model that 2 and 4 ranks share, and groups of ranks: the
 * losses and parameters of one rank to 1e-5, files that any number of ranks goes on from.  Ranks
 * are threads, or processes by MPI. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "fovea/store.h"
#include "helper/device.h"
#include "helper/files.h"
#include "helper/mpi.h"
#include "helper/program.h"
#include "helper/rank_runs.h"
#include "helper/ranks.h"

#if defined(__SANITIZE_THREAD__) /* ranks meet as often in each update: few are enough */
#define UPDATES "4"
#define HALF "2"
#define FIRST "1"
#define SECOND "3"
#else
#define UPDATES "10"
#define HALF "5"
#define FIRST "3"
#define SECOND "6"
#endif

#define REST                                                                                       \
    "[data]\nobjective = causal\ntrain = lines.txt\nhold_out = 0.2\ncontext = 16\n"                \
    "[tokenizer]\nkind = byte_bpe\nvocab = 270\nmin_count = 1\n"                                   \
    "[train]\nupdates = " UPDATES "\nbatch_tokens = 128\nwarmup = 1\nclip = 0.5\n"                 \
    "eval_every = " HALF "\nsave_every = " HALF "\n"

static const char *const recipes[] = {
    "[model]\nmodel_type = gpt2\nn_embd = 32\nn_layer = 2\nn_head = 4\nn_positions = 32\n"
    "resid_pdrop = 0\nembd_pdrop = 0\nattn_pdrop = 0\n" REST,

    "[model]\nmodel_type = llama\nhidden_size = 32\nnum_hidden_layers = 2\n"
    "num_attention_heads = 8\nnum_key_value_heads = 4\nintermediate_size = 48\n"
    "max_position_embeddings = 32\n" REST "accumulate = 2\nrecompute = true\n",
};
enum { FAMILIES = sizeof recipes / sizeof *recipes };

static int set_up(void **state)
{
    if (scratch_open(state)) return -1;
    for (int f = 0; f < FAMILIES; f++) {
        char name[32];
        ranks_recipe(recipes[f]);
        snprintf(name, sizeof name, "r%d.ini", f);
        scratch_text(name, recipes[f]);
    }
    return 0;
}

/* The biases of keys, which the softmax does not see: their gradients are rounding errors, of which
 * Adam makes steps as long as any.  GPT-2 has one bias for q, k and v. */
static bool is_noise(const char *name, int64_t i, int64_t n)
{
    return strstr(name, "c_attn.bias") && i >= n / 3 && i < 2 * n / 3;
}

/* The largest difference of an array, relative to its largest number. */
static double off(const fv_st *a, const fv_st *b, int k)
{
    fv_st_info t = fv_st_at(a, k), u;
    double most = 0, largest = 1e-30;
    fv_err e;
    check(fv_st_find(b, t.name, &u, &e), &e);
    assert_int_equal(t.count, u.count);
    float *x = malloc(2 * (size_t)t.count * sizeof *x), *y = x + t.count;
    check(fv_st_read(a, &t, x, FV_F32, t.count, &e), &e);
    check(fv_st_read(b, &u, y, FV_F32, u.count, &e), &e);
    for (int64_t i = 0; i < t.count; i++) {
        if (is_noise(t.name, i, t.count)) continue;
        double d = fabs((double)x[i] - (double)y[i]), size = fabs((double)x[i]);
        if (!(d <= most)) most = d;
        if (size > largest) largest = size;
    }
    free(x);
    return most / largest;
}

static void near_in(const char *one, const char *run, const char *file, double bar)
{
    char path[1024];
    fv_st *a, *b;
    fv_err e;
    snprintf(path, sizeof path, "%s", scratch("%s/%s", one, file));
    check(fv_st_open(&a, NULL, path, &e), &e);
    check(fv_st_open(&b, NULL, scratch("%s/%s", run, file), &e), &e);
    assert_int_equal(fv_st_count(a), fv_st_count(b));
    for (int k = 0; k < fv_st_count(a); k++) {
        double d = off(a, b, k);
        if (!(d <= bar)) fail_msg("%s/%s: %s differs by %g", run, file, fv_st_at(a, k).name, d);
    }
    fv_st_close(a);
    fv_st_close(b);
}

/* A GPU's products of other shapes are other kernels. */
static double bar(void) { return test_on_cpu() ? 1e-5 : 1e-4; }

/* The result, the best model, and the moments in whole arrays. */
static void same_run(const char *one, const char *run)
{
    near_in(one, run, "model/model.safetensors", bar());
    near_in(one, run, "best/model.safetensors", bar());
    /* squares of gradients */
    near_in(one, run, "checkpoints/step-" UPDATES "/moments.safetensors", 10 * bar());
    char first[1024];
    snprintf(first, sizeof first, "%s", scratch("%s/model/config.json", one));
    assert_true(same_files(first, scratch("%s/model/config.json", run)));
}

static void train(int family, const char *dir, int ranks, const char *n, const char *shards,
                  const char *updates, bool resume)
{
    char recipe[512], where[512];
    snprintf(recipe, sizeof recipe, "%s", scratch("r%d.ini", family));
    snprintf(where, sizeof where, "%s", scratch("%s", dir));
    const ranks_run run = {.recipe = recipe,
                           .dir = where,
                           .device = test_device(),
                           .resume = resume,
                           .set = {{"train.tensor_parallel", n},
                                   {"train.shards", shards},
                                   {"train.updates", updates}}};
    ranks_trained(&run, ranks);
}

static void ranks_that_share_a_model_train_it(void **state)
{
    (void)state;
    for (int f = 0; f < FAMILIES; f++) {
        char one[32], two[32];
        snprintf(one, sizeof one, "one-%d", f);
        snprintf(two, sizeof two, "two-%d", f);
        train(f, one, 1, "1", "0", UPDATES, false);
        train(f, two, 2, "2", "0", UPDATES, false);
        same_run(one, two);
        snprintf(two, sizeof two, "four-%d", f);
        train(f, two, 4, "4", "0", UPDATES, false);
        same_run(one, two);
    }
}

/* Two groups of two, which share the batches; later four ranks that share one model go on, and one
 * alone. */
static void groups_train_and_others_go_on(void **state)
{
    (void)state;
    for (int f = 0; f < FAMILIES; f++) {
        char one[32], two[32];
        snprintf(one, sizeof one, "one-%d", f);
        snprintf(two, sizeof two, "groups-%d", f);
        train(f, two, 4, "2", "2", UPDATES, false);
        same_run(one, two);
        snprintf(two, sizeof two, "change-%d", f);
        train(f, two, 4, "2", "2", FIRST, false);
        train(f, two, 4, "4", "2", SECOND, true);
        train(f, two, 1, "1", "2", UPDATES, true);
        near_in(one, two, "model/model.safetensors", bar());
    }
}

/* All ranks end with one sentence, and nothing is left behind. */
static void all_refuse(int ranks, const char *key, const char *value, const char *why)
{
    ranks_end end[RANK_RUNS_MOST];
    char recipe[512], dir[512];
    snprintf(recipe, sizeof recipe, "%s", scratch("r0.ini"));
    snprintf(dir, sizeof dir, "%s", scratch("refused"));
    const ranks_run run = {.recipe = recipe,
                           .dir = dir,
                           .set = {{"train.tensor_parallel", ranks == 4 ? "2" : "3"},
                                   {key, value}}};
    ranks_train(&run, ranks, end);
    for (int i = 0; i < ranks; i++) {
        assert_int_not_equal(end[i].st, FV_OK);
        if (!strstr(end[i].e.text, why)) fail_msg("rank %d: %s", i, end[i].e.text);
    }
    assert_int_not_equal(access(scratch("refused"), F_OK), 0);
}

static void what_cannot_be_shared_is_refused(void **state)
{
    (void)state;
    all_refuse(2, "train.shards", "0", "2 ranks cannot be put into groups of 3");
    all_refuse(3, "train.shards", "0", "cannot be divided evenly among 3 ranks");
    all_refuse(4, "train.shards", "0", "2 groups of ranks need batches cut into at least 2 shards");
    all_refuse(4, "train.shard_parameters", "true", "both divide the weights");
}

static void processes_share_a_model(void **state)
{
    (void)state;
#ifdef __SANITIZE_THREAD__
    skip(); /* MPI's own threads: make test-mpi-asan looks at processes */
#endif
    if (no_mpi() || !test_on_cpu()) skip();
    succeeded(sh(MPIRUN "-np 2 $fovea train r1.ini -o mpi-2 -q -t 1 "
                        "--set train.tensor_parallel=2"));
    same_run("one-1", "mpi-2");
    succeeded(sh(MPIRUN "-np 4 $fovea train r1.ini -o mpi-4 -q -t 1 --set train.shards=2 "
                        "--set train.tensor_parallel=2"));
    same_run("one-1", "mpi-4");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_that_share_a_model_train_it),
        cmocka_unit_test(groups_train_and_others_go_on),
        cmocka_unit_test(what_cannot_be_shared_is_refused),
        cmocka_unit_test(processes_share_a_model),
    };
    return cmocka_run_group_tests(tests, set_up, scratch_close);
}
