/* test_distill.c - learning from a teacher: a student that is the teacher has nothing to learn, a
 * smaller one learns, a model that agrees with itself under dropout learns, and what does not fit
 * together is refused. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "fovea/fovea.h"
#include "helper/program.h"

#define BERT                                                                                       \
    "[model]\nmodel_type = bert\narchitecture = BertForSequenceClassification\nhidden_size = "     \
    "16\nnum_hidden_layers = 2\nnum_attention_heads = 2\nintermediate_size = 24\n"                 \
    "max_position_embeddings = 40\nhidden_dropout_prob = 0\nattention_probs_dropout_prob = 0\n"
#define DATA                                                                                       \
    "[data]\nobjective = classify\ntrain = labels.tsv\nvalid = labels.tsv\n"                       \
    "[train]\nupdates = 20\nlr = 3e-3\nbatch_tokens = 64\nwarmup = 0\nlog_every = 1\n"             \
    "save_every = 1\n"
#define TEACHER "[distill]\nteacher = teacher/model\nalpha = 1\nhidden = 1\nattention = 1\n"

static int set_up(void **state)
{
    if (scratch_open(state)) return -1;
    scratch_text("labels.tsv",
                 "the cat sat\tgood\nso bad a film\tbad\nit was a day\tfair\nthe good dog\tgood\n"
                 "a bad day\tbad\nthe film was fair\tfair\n");
    scratch_text("two.tsv", "the cat sat\tgood\nso bad a film\tbad\n");
    scratch_text("teacher.ini", BERT DATA "[tokenizer]\nkind = wordpiece\nvocab = 60\n"
                                          "min_count = 1\n");
    scratch_text("same.ini", "[model]\nfrom = teacher/model\n" DATA TEACHER);
    scratch_text("small.ini", BERT DATA TEACHER "[tokenizer]\nfrom = teacher/model\n");
    scratch_text("plain.ini", "[model]\nfrom = teacher/model\n" DATA);
    scratch_text("pairs.tsv",
                 "the cat\tdie katze\na good dog\tein guter hund\nso bad\tso schlecht\n");
    scratch_text("pairs.ini", "[model]\nmodel_type = marian\nd_model = 16\nencoder_layers = 1\n"
                              "decoder_layers = 1\nencoder_attention_heads = 2\n"
                              "decoder_attention_heads = 2\nencoder_ffn_dim = 24\n"
                              "decoder_ffn_dim = 24\nmax_position_embeddings = 40\ndropout = 0\n"
                              "[data]\nobjective = seq2seq\ntrain = pairs.tsv\n"
                              "[tokenizer]\nkind = bpe\nvocab = 60\nmin_count = 1\n"
                              "[train]\nupdates = 12\nlr = 1e-2\nbatch_tokens = 64\nwarmup = 0\n"
                              "smooth = 0.1\nlog_every = 1\nsave_every = 0\n");
    succeeded(sh("$fovea train teacher.ini -o teacher --threads 1"));
    return 0;
}

static double first(const char *dir, const char *key)
{
    json_t *j = json_line(succeeded(sh("head -n 1 %s/train.jsonl", dir)), 0);
    double x = json_number_value(json_object_get(j, key));
    json_decref(j);
    return x;
}

static void the_teacher_has_nothing_to_learn(void **state)
{
    (void)state;
    succeeded(sh("$fovea train same.ini -o same --set train.updates=1 --threads 1"));
    succeeded(sh("$fovea train plain.ini -o plain --set train.updates=1 --threads 1"));
    double norm = first("same", "norm"), without = first("plain", "norm");
    assert_true(without > 1e-3);
    if (!(norm < 1e-5 * without)) fail_msg("a gradient of %g, %g from labels", norm, without);
}

/* With alpha 0 and nothing else the loss is that of labels. */
static void without_its_share_it_is_the_usual_loss(void **state)
{
    (void)state;
    succeeded(sh("$fovea train same.ini -o alone --set train.updates=1 --set distill.alpha=0 "
                 "--set distill.hidden=0 --set distill.attention=0 --threads 1"));
    assert_true(fabs(first("alone", "loss") - first("plain", "loss")) < 1e-6);
    assert_true(fabs(first("alone", "norm") - first("plain", "norm")) < 1e-5);
}

/* Half as wide, half as deep, with fewer heads: losses go down, and a stopped run ends alike. */
static void a_smaller_student_learns(void **state)
{
    (void)state;
    static const char smaller[] =
        "--set model.hidden_size=8 --set model.num_hidden_layers=1 --set "
        "model.num_attention_heads=1 --set model.intermediate_size=12 --threads 1";
    succeeded(sh("$fovea train small.ini -o small %s", smaller));
    succeeded(sh("$fovea train small.ini -o cut --set train.updates=7 %s", smaller));
    succeeded(sh("$fovea train small.ini -o cut --resume %s", smaller));
    succeeded(sh("cmp small/model/model.safetensors cut/model/model.safetensors"));
    json_t *last = json_line(succeeded(sh("grep '\"loss\"' small/train.jsonl | tail -n 1")), 0);
    double loss = json_number_value(json_object_get(last, "loss"));
    json_decref(last);
    assert_true(loss < first("small", "loss"));
}

/* R-Drop.  Without dropout both halves of the batch are one, and the loss is the usual one; with it
 * they differ, which costs something, in proportion to the weight, and the divergence is learnt
 * away.  A weight of 0 leaves every bit as it is. */
static void a_model_agrees_with_itself(void **state)
{
    (void)state;
    succeeded(sh("$fovea train pairs.ini -o pairs --set train.updates=1 --threads 1"));
    succeeded(sh("$fovea train pairs.ini -o twice --set train.updates=1 --threads 1 "
                 "--set distill.consistency=5"));
    assert_true(fabs(first("twice", "loss") - first("pairs", "loss")) < 1e-5);
    assert_true(fabs(first("twice", "norm") - first("pairs", "norm")) < 1e-4);

    static const char drop[] = "--set model.dropout=0.3 --threads 1";
    succeeded(sh("$fovea train pairs.ini -o one %s --set distill.consistency=1e-6", drop));
    succeeded(sh("$fovea train pairs.ini -o far %s --set distill.consistency=100", drop));
    succeeded(sh("$fovea train pairs.ini -o half %s --set distill.consistency=50", drop));
    double apart = first("far", "loss") - first("one", "loss");
    assert_true(apart > 0.01);
    assert_true(fabs(first("half", "loss") - first("one", "loss") - apart / 2) < 1e-4 * apart);
    succeeded(sh("$fovea train pairs.ini -o off %s", drop));
    succeeded(sh("$fovea train pairs.ini -o zero %s --set distill.consistency=0", drop));
    succeeded(sh("cmp off/model/model.safetensors zero/model/model.safetensors"));
    json_t *last = json_line(succeeded(sh("grep '\"loss\"' far/train.jsonl | tail -n 1")), 0);
    assert_true(json_number_value(json_object_get(last, "loss")) < first("far", "loss"));
    json_decref(last);
}

static void what_does_not_fit_is_refused(void **state)
{
    (void)state;
    refused(sh("$fovea train small.ini -q -o no --set data.train=two.tsv --set data.valid="), 1,
            "other labels");
    refused(sh("$fovea train small.ini -q -o no --set distill.teacher=nowhere"), 1,
            "[distill] teacher: nowhere");
    refused(sh("$fovea train small.ini -q -o no --set distill.consistency=1"), 1, "not both");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_teacher_has_nothing_to_learn),
        cmocka_unit_test(without_its_share_it_is_the_usual_loss),
        cmocka_unit_test(a_smaller_student_learns),
        cmocka_unit_test(a_model_agrees_with_itself),
        cmocka_unit_test(what_does_not_fit_is_refused),
    };
    return cmocka_run_group_tests(tests, set_up, scratch_close);
}
