/* test_adapter_run.c - adapters of every kind through the program: trained, stopped and resumed
 * with the same bits, and used. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "fovea/fovea.h"
#include "helper/lines.h"
#include "helper/program.h"

static const char classes[] =
    "[adapter]\nnum_virtual_tokens = 3\n"
    "[train]\nupdates = 8\nlr = 0.05\nbatch_tokens = 24\nsave_every = 1\nwarmup = 0\n";

static int set_up(void **state)
{
    if (scratch_open(state)) return -1;
    train_base(2);
    put_classify("classes.ini", classes);
    return 0;
}

/* Whole, and stopped on the way: the same adapter, which the program then uses by its name alone or
 * on the base. */
static void run(const char *name, const char *more)
{
    succeeded(sh("$fovea train classes.ini -o %s %s --threads 1", name, more));
    succeeded(
        sh("$fovea train classes.ini -o %s-cut %s --set train.updates=3 --threads 2", name, more));
    succeeded(sh("$fovea train classes.ini -o %s-cut %s --resume --threads 1", name, more));
    succeeded(sh("cmp %s/model/adapter_model.safetensors %s-cut/model/adapter_model.safetensors",
                 name, name));
    succeeded(sh("test ! -e %s/model/model.safetensors", name));
    json_t *log = json_line(succeeded(sh("grep valid_loss %s/train.jsonl | tail -n 1", name)), 0),
           *eval = json_line(succeeded(sh("$fovea eval -m %s/model --json labels.tsv", name)), 0);
    double logged = json_number_value(json_object_get(log, "value")),
           found = json_number_value(json_object_get(eval, "accuracy"));
    assert_true(100 * logged - found < 1e-6 && found - 100 * logged < 1e-6);
    json_decref(log);
    json_decref(eval);
}

static void every_kind_runs_and_resumes(void **state)
{
    (void)state;
    run("lora", "--set adapter.peft_type=LORA --set adapter.lora_dropout=0.1");
    run("text", "--set adapter.peft_type=PROMPT_TUNING --set adapter.prompt_tuning_init=TEXT "
                "--set adapter.prompt_tuning_init_text='the good film'");
    run("p-tuning", "--set adapter.peft_type=P_TUNING --set adapter.encoder_hidden_size=8");
    run("bottleneck", "--set adapter.peft_type=BOTTLENECK --set adapter.reduction_factor=4");
    run("prefix", "--set adapter.peft_type=PREFIX_TUNING");
    run("projected", "--set adapter.peft_type=PREFIX_TUNING --set adapter.prefix_projection=true");
}

/* Above weights of 4 bits: stopped and resumed with the same bits; the adapter goes with the float
 * model. */
static void above_four_bits(void **state)
{
    (void)state;
    const char *more = "--set adapter.peft_type=LORA --set train.base=q4 --threads 1";
    succeeded(sh("$fovea train classes.ini -o q4 %s", more));
    succeeded(sh("$fovea train classes.ini -o q4-cut %s --set train.updates=3", more));
    succeeded(sh("$fovea train classes.ini -o q4-cut %s --resume", more));
    succeeded(sh("cmp q4/model/adapter_model.safetensors q4-cut/model/adapter_model.safetensors"));
    succeeded(sh("$fovea eval -m q4/model labels.tsv"));
    refused(sh("$fovea train base.ini -q -o no --set train.base=q4 --threads 1"), 1,
            "from is missing");
}

/* Preferences, by DPO with a LoRA and by ORPO without one: the reference's log-probabilities are
 * those of the base, also where a run is resumed. */
static void preferences_resume(void **state)
{
    (void)state;
    static const char *const more[] = {"--set adapter.peft_type=LORA --set data.loss=dpo",
                                       "--set data.loss=orpo", NULL};
    scratch_text("pairs.ini", "[model]\nfrom = writer/model\n[data]\nobjective = preference\n"
                              "train = pairs.jsonl\n[train]\nupdates = 8\nlr = 0.01\nwarmup = 0\n"
                              "batch_tokens = 24\nsave_every = 1\n");
    train_writer();
    for (int i = 0; more[i]; i++) {
        succeeded(sh("$fovea train pairs.ini -o pairs-%d %s --threads 1", i, more[i]));
        succeeded(sh("$fovea train pairs.ini -o pairs-%d-cut %s --set train.updates=3 --threads 2",
                     i, more[i]));
        succeeded(sh("$fovea train pairs.ini -o pairs-%d-cut %s --resume --threads 1", i, more[i]));
        succeeded(sh("for f in pairs-%d/model/*model.safetensors; do cmp $f "
                     "pairs-%d-cut/model/$(basename $f) || exit 1; done",
                     i, i));
    }
}

/* A prompt begins as the embeddings of a text: its tokens with those the tokenizer puts around it,
 * over and over. */
static void a_prompt_begins_as_a_text(void **state)
{
    (void)state;
    fv_err e;
    fv_st *a, *b;
    fv_st_info x, table;
    succeeded(sh("$fovea train classes.ini -o still --set adapter.peft_type=PROMPT_TUNING --set "
                 "adapter.prompt_tuning_init=TEXT --set adapter.prompt_tuning_init_text='dog' "
                 "--set train.updates=1 --set train.lr=0 --threads 1"));
    json_t *ids = json_line(succeeded(sh("$fovea tokenize -m base/model --json --text dog")), 0);
    assert_non_null(ids);
    int64_t id = json_integer_value(json_array_get(json_object_get(ids, "ids"), 1));
    json_decref(ids);
    assert_int_equal(fv_st_open(&a, NULL, scratch("still/model/adapter_model.safetensors"), &e),
                     FV_OK);
    assert_int_equal(fv_st_open(&b, NULL, scratch("base/model/model.safetensors"), &e), FV_OK);
    assert_int_equal(fv_st_find(a, "prompt_embeddings", &x, &e), FV_OK);
    assert_int_equal(fv_st_find(b, "bert.embeddings.word_embeddings.weight", &table, &e), FV_OK);
    size_t row = 16 * sizeof(float);
    assert_memory_equal((const char *)x.data + row, (const char *)table.data + (size_t)id * row,
                        row);
    fv_st_close(a), fv_st_close(b);
}

/* BitFit: everything is frozen but biases and the head. */
static void only_biases_are_trained(void **state)
{
    (void)state;
    fv_err e;
    fv_st *a, *b;
    succeeded(sh("$fovea train classes.ini -o bias --set 'train.freeze=* !*.bias !classifier.*' "
                 "--threads 1"));
    assert_int_equal(fv_st_open(&a, NULL, scratch("bias/model/model.safetensors"), &e), FV_OK);
    assert_int_equal(fv_st_open(&b, NULL, scratch("base/model/model.safetensors"), &e), FV_OK);
    int changed = 0;
    for (int i = 0; i < fv_st_count(a); i++) {
        fv_st_info x = fv_st_at(a, i), y;
        if (fv_st_find(b, x.name, &y, NULL)) continue;
        size_t n = strlen(x.name);
        bool bias = n > 5 && !strcmp(x.name + n - 5, ".bias");
        bool same = x.bytes == y.bytes && !memcmp(x.data, y.data, x.bytes);
        if (!bias && !same) fail_msg("%s changed", x.name);
        changed += !same;
    }
    assert_true(changed > 5);
    fv_st_close(a), fv_st_close(b);
}

static void what_cannot_be_is_refused(void **state)
{
    (void)state;
    refused(sh("$fovea merge -m text/model -o merged"), 1, "virtual tokens cannot be folded");
    refused(sh("$fovea merge -m bottleneck/model -o merged"), 1, "bottlenecks cannot be folded");
    refused(sh("echo the cat | $fovea classify -m bottleneck/model --adapter bottleneck/model"), 1,
            "bottlenecks already");
    refused(sh("$fovea train classes.ini -q -o no --set adapter.peft_type=PROMPT_TUNING --set "
               "adapter.prompt_tuning_init=TEXT"),
            1, "prompt_tuning_init_text is empty");
    refused(sh("$fovea train classes.ini -q -o no --set adapter.peft_type=P_TUNING --set "
               "adapter.encoder_reparameterization_type=LSTM"),
            1, "LSTM");
    refused(sh("echo the cat | $fovea classify -m text/model --adapter prefix/model"), 1,
            "virtual tokens already");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_kind_runs_and_resumes), cmocka_unit_test(above_four_bits),
        cmocka_unit_test(preferences_resume),          cmocka_unit_test(a_prompt_begins_as_a_text),
        cmocka_unit_test(only_biases_are_trained),     cmocka_unit_test(what_cannot_be_is_refused),
    };
    return cmocka_run_group_tests(tests, set_up, scratch_close);
}
