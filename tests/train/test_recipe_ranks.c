/* test_recipe_ranks.c - three families by recipe, each with 1, 2, 3, 4 and 8 ranks that are
 * threads: the same files of the model and of the moments; also where they share the parameters. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "helper/files.h"
#include "helper/rank_runs.h"
#include "helper/ranks.h"

#define TRAIN                                                                                      \
    "[train]\nupdates = 4\nbatch_tokens = 128\naccumulate = 2\nwarmup = 1\neval_every = 2\n"       \
    "save_every = 0\nshards = 8\n"

static const char *const recipes[] = {
    "[model]\nmodel_type = gpt2\nn_embd = 32\nn_layer = 2\nn_head = 2\nn_positions = 32\n"
    "[data]\nobjective = causal\ntrain = lines.txt\nhold_out = 0.2\ncontext = 16\n"
    "[tokenizer]\nkind = byte_bpe\nvocab = 270\nmin_count = 1\n" TRAIN,

    "[model]\nmodel_type = bert\nhidden_size = 32\nnum_hidden_layers = 2\nnum_attention_heads = 2\n"
    "intermediate_size = 48\nmax_position_embeddings = 64\n"
    "[data]\nobjective = masked\ntrain = lines.txt\nhold_out = 0.2\ncontext = 32\n"
    "[tokenizer]\nkind = wordpiece\nvocab = 60\nmin_count = 1\n" TRAIN "recompute = true\n",

    "[model]\nmodel_type = bart\nd_model = 32\nencoder_layers = 1\ndecoder_layers = 1\n"
    "encoder_attention_heads = 2\ndecoder_attention_heads = 2\nencoder_ffn_dim = 48\n"
    "decoder_ffn_dim = 48\nmax_position_embeddings = 64\n"
    "[data]\ntrain = pairs.tsv\nhold_out = 0.2\n[tokenizer]\nvocab = 60\nmin_count = 1\n" TRAIN,
};

static int set_up(void **state)
{
    char lines[9000], pairs[9000];
    size_t n = 0, m = 0;
    if (scratch_open(state)) return -1;
    for (int i = 0; i < 120; i++) {
        n += (size_t)snprintf(lines + n, sizeof lines - n, "line %d has the word %d and %d\n", i,
                              i * 7 % 31, i * 11 % 17);
        m += (size_t)snprintf(pairs + m, sizeof pairs - m, "the %d is %d\tle %d est %d\n", i % 13,
                              i * 5 % 11, i % 13, i * 5 % 11);
    }
    scratch_text("lines.txt", lines);
    scratch_text("pairs.tsv", pairs);
    return 0;
}

/* Trains by n ranks in a directory of their own; shared: the parameters are divided, too. */
static void train(const char *recipe, int family, int n, bool shared)
{
    char dir[512];
    snprintf(dir, sizeof dir, "%s", scratch(shared ? "parts-%d-%d" : "run-%d-%d", family, n));
    ranks_run run = {.recipe = recipe, .dir = dir};
    if (shared) run.set[0][0] = "train.shard_parameters", run.set[0][1] = "true";
    ranks_trained(&run, n);
}

static const char *const files[] = {"model/model.safetensors", "best/model.safetensors"};
enum { FILES = sizeof files / sizeof *files };

/* A run, below the scratch folder, has the result, the best model and the moments of one rank. */
static void check_run(int family, const char *run)
{
    for (int i = 0; i < FILES; i++)
        assert_true(
            same_files(scratch("run-%d-1/%s", family, files[i]), scratch("%s/%s", run, files[i])));
    assert_true(same_moments(scratch("run-%d-1/checkpoints/step-4", family),
                             scratch("%s/checkpoints/step-4", run)));
}

static void families_have_the_same_bits_for_any_number_of_ranks(void **state)
{
    (void)state;
    static const int ranks[] = {1, 2, 3, 4, 8};
    for (int f = 0; f < 3; f++) {
        char path[512], run[32];
        snprintf(path, sizeof path, "%s", scratch_text("r.ini", recipes[f]));
        for (int k = 0; k < 5; k++) {
            train(path, f, ranks[k], false);
            snprintf(run, sizeof run, "run-%d-%d", f, ranks[k]);
            if (k) check_run(f, run);
        }
    }
}

/* After the test above: of one rank each family's files are there. */
static void shared_parameters_change_no_bit(void **state)
{
    (void)state;
    static const int ranks[] = {2, 4};
    for (int f = 0; f < 3; f++) {
        char path[512], run[32];
        snprintf(path, sizeof path, "%s", scratch_text("r.ini", recipes[f]));
        for (int k = 0; k < 2; k++) {
            train(path, f, ranks[k], true);
            snprintf(run, sizeof run, "parts-%d-%d", f, ranks[k]);
            check_run(f, run);
        }
    }
}

/* All ranks read the weights in step, so each has as many shards as any other. */
static void shards_that_ranks_do_not_divide_are_refused(void **state)
{
    (void)state;
    ranks_end end[3];
    char path[512];
    snprintf(path, sizeof path, "%s", scratch_text("r.ini", recipes[0]));
    const ranks_run run = {.recipe = path, .set = {{"train.shard_parameters", "true"}}};
    ranks_train(&run, 3, end);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(end[i].st, FV_EUSAGE);
        assert_non_null(strstr(end[i].e.text, "train.shards = 8 is no multiple of 3 ranks"));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(families_have_the_same_bits_for_any_number_of_ranks),
        cmocka_unit_test(shared_parameters_change_no_bit),
        cmocka_unit_test(shards_that_ranks_do_not_divide_are_refused),
    };
    return cmocka_run_group_tests(tests, set_up, scratch_close);
}
