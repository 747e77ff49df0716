/* test_train_memory.c - training with a memory from segment to segment: a run that was stopped and
 * resumed ends with the same bits, a part of the memory may be drawn, and models without one are
 * refused. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "helper/program.h"

static const char recipe[] =
    "[model]\nmodel_type = transfo-xl\nn_layer = 2\nn_head = 2\nd_model = 16\nd_embed = 16\n"
    "d_head = 8\nd_inner = 24\nmem_len = 8\ncutoffs = 100 200\ndiv_val = 2\ndropout = 0.2\n"
    "dropout_embedding = 0.1\ndropout_input = 0.4\ndropout_output = 0.3\ndropout_qkv = 0.1\n"
    "dropconnect = 0.2\n"
    "variational_dropout = true\n"
    "[data]\nobjective = segments\ntrain = text.txt\nvalid = text.txt\ncontext = 6\nstreams = 3\n"
    "memory = 8\nmemory_min = 2\n"
    "[tokenizer]\nkind = byte_bpe\nvocab = 270\nmin_count = 1\n"
    "[train]\nupdates = 12\nlr = 0.01\nwarmup = 1\nschedule = constant\nsave_every = 4\n"
    "eval_every = 3\n";

static int set_up(void **state)
{
    if (scratch_open(state)) return -1;
    scratch_text("text.txt",
                 "the cat sat on the mat\nit was a good day\nthe dog ran in the park\n"
                 "so bad a film\nthe day was good\na cat ran on the mat\nthe film sat in a park\n");
    scratch_text("segments.ini", recipe);
    return 0;
}

/* Update 4 of 12 stands in the middle of an epoch: the memory of the segments before is needed. */
static void a_resumed_run_has_the_same_bits(void **state)
{
    (void)state;
    succeeded(sh("$fovea train segments.ini -o whole -q --threads 1"));
    succeeded(sh("$fovea train segments.ini -o parts -q --set train.updates=4"));
    prints("ls parts/checkpoints/step-4/carried.safetensors",
           "parts/checkpoints/step-4/carried.safetensors\n");
    const result *r = succeeded(sh("$fovea train segments.ini -o parts --resume"));
    assert_non_null(strstr(r->err, "resuming after update 4 of 12"));
    succeeded(sh("cmp whole/model/model.safetensors parts/model/model.safetensors"));
}

/* With all of the memory drawn always, nothing is drawn; with less another model comes out. */
static void a_random_memory_is_another_training(void **state)
{
    (void)state;
    succeeded(sh("$fovea train segments.ini -o all -q --set data.memory_min=8"));
    succeeded(sh("$fovea train segments.ini -o always -q --set data.memory_min=-1"));
    succeeded(sh("cmp all/model/model.safetensors always/model/model.safetensors"));
    assert_int_equal(sh("cmp -s all/model/model.safetensors whole/model/model.safetensors")->code,
                     1);
}

/* R-Drop: both passes over a batch see the memory of the one before, and one of them carries on.
 * Without dropout they are one pass, and twelve updates come to the loss they come to anyhow. */
static void two_passes_share_a_memory(void **state)
{
    static const char none[] = "-q --threads 1 --set model.dropout=0 --set model.dropout_input=0 "
                               "--set model.dropout_output=0 --set model.dropout_qkv=0 "
                               "--set model.dropconnect=0 "
                               "--set model.dropout_embedding=0";
    (void)state;
    succeeded(sh("$fovea train segments.ini -o once %s", none));
    succeeded(sh("$fovea train segments.ini -o twice %s --set distill.consistency=5", none));
    double loss[2];
    for (int i = 0; i < 2; i++) {
        const char *run = i ? "twice" : "once";
        json_t *j = json_line(succeeded(sh("grep valid_loss %s/train.jsonl | tail -n 1", run)), 0);
        loss[i] = json_number_value(json_object_get(j, "valid_loss"));
        json_decref(j);
    }
    assert_true(loss[0] > 1 && fabs(loss[0] - loss[1]) < 1e-3);

    succeeded(sh("$fovea train segments.ini -o drop -q --set distill.consistency=5"));
    succeeded(sh("$fovea train segments.ini -o cut -q --set distill.consistency=5 "
                 "--set train.updates=4"));
    succeeded(sh("$fovea train segments.ini -o cut -q --set distill.consistency=5 --resume"));
    succeeded(sh("cmp drop/model/model.safetensors cut/model/model.safetensors"));
    refused(sh("$fovea train segments.ini -o bad -q --set distill.teacher=whole/model"), 1,
            "no memory of the batches before");
}

/* The memory counts: scores of a text differ with how far back it reaches. */
static void a_longer_memory_changes_the_score(void **state)
{
    (void)state;
    succeeded(sh("$fovea score -m whole/model -w -f text.txt --window 4 --stride 3 > short"));
    succeeded(sh("$fovea score -m whole/model -w -f text.txt --window 40 --stride 3 > long"));
    assert_int_equal(sh("cmp -s short long")->code, 1);
    succeeded(sh("$fovea generate -m whole/model --max-new-tokens 3 'the cat'"));
}

static void mistakes_are_named(void **state)
{
    (void)state;
    refused(sh("$fovea train segments.ini -o bad -q --set model.mem_len=0"), 1,
            "carries no memory with mem_len 0");
    refused(sh("$fovea train segments.ini -o bad -q --set data.streams=500"), 1,
            "500 streams need more than");
    refused(sh("$fovea train segments.ini -o bad -q --set data.memory_min=9"), 1,
            "memory_min 9 is more than memory, 8");
    refused(sh("$fovea train segments.ini -o bad -q --set 'model.cutoffs=200 100'"), 1,
            "expected numbers that rise");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_resumed_run_has_the_same_bits),
        cmocka_unit_test(a_random_memory_is_another_training),
        cmocka_unit_test(two_passes_share_a_memory),
        cmocka_unit_test(a_longer_memory_changes_the_score),
        cmocka_unit_test(mistakes_are_named),
    };
    return cmocka_run_group_tests(tests, set_up, scratch_close);
}
