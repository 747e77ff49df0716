/* test_train_from.c - going on from a model's directory: with another head its body is kept and the
 * rest is told; with the same head its labels keep their numbers. */
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
#include "helper/lines.h"
#include "helper/program.h"

static const char masked[] =
    "[model]\nmodel_type = bert\narchitecture = BertForMaskedLM\nhidden_size = "
    "16\nnum_hidden_layers = 1\n"
    "num_attention_heads = 2\nintermediate_size = 24\nmax_position_embeddings = 32\n"
    "[data]\nobjective = masked\ntrain = lines.txt\ncontext = 16\n"
    "[tokenizer]\nkind = wordpiece\nvocab = 60\nmin_count = 1\n[train]\nupdates = 3\nbatch_tokens "
    "= 64\n";

/* With a learning rate of 0 nothing is learnt: what is saved is what was begun with. */
static const char classes[] =
    "[model]\nfrom = masked/model\narchitecture = BertForSequenceClassification\n"
    "[data]\nobjective = classify\ntrain = labels.tsv\nvalid = labels.tsv\n"
    "[train]\nupdates = 1\nlr = 0\nbatch_tokens = 64\nbest_by = metric\nresult = best\n";

static int set_up(void **state)
{
    if (scratch_open(state)) return -1;
    put_lines();
    put_labels();
    scratch_text("turned.tsv", "it was a day\tfair\nthe good dog\tgood\nso bad a film\tbad\n");
    scratch_text("masked.ini", masked);
    scratch_text("classes.ini", classes);
    return 0;
}

/* Tensors of two model directories: 1 equal, 0 different, -1: one of them has none of that name. */
static int same(const char *a, const char *b, const char *name)
{
    fv_st *x, *y;
    fv_st_info s, t;
    fv_err e;
    assert_int_equal(fv_st_open(&x, NULL, scratch("%s", a), &e), FV_OK);
    assert_int_equal(fv_st_open(&y, NULL, scratch("%s", b), &e), FV_OK);
    bool both = !fv_st_find(x, name, &s, NULL) && !fv_st_find(y, name, &t, NULL);
    int equal = both ? s.bytes == t.bytes && !memcmp(s.data, t.data, s.bytes) : -1;
    fv_st_close(x);
    fv_st_close(y);
    return equal;
}

static void another_head_stands_on_the_same_body(void **state)
{
    (void)state;
    succeeded(sh("$fovea train masked.ini -o masked --threads 1"));
    const result *r = succeeded(sh("$fovea train classes.ini -o classes --threads 1"));
    assert_non_null(strstr(r->err, "21 of 25 parameters come from masked/model\n"));
    assert_non_null(strstr(r->err, "  new: bert.pooler.dense.weight, bert.pooler.dense.bias, "
                                   "classifier.weight, classifier.bias\n"));
    assert_non_null(strstr(r->err, "  left out: cls.predictions.bias, "));
    assert_int_equal(same("masked/model", "classes/model",
                          "bert.embeddings.word_embeddings.weight"),
                     1);
    assert_int_equal(same("masked/model", "classes/model",
                          "bert.encoder.layer.0.attention.self.query.weight"),
                     1);
    assert_int_equal(same("masked/model", "classes/model",
                          "bert.encoder.layer.0.output.LayerNorm.bias"),
                     1);
    assert_int_equal(same("masked/model", "classes/model", "cls.predictions.bias"), -1);
    succeeded(sh("cmp masked/tokenizer.json classes/tokenizer.json"));
    /* what the log says of it is what an evaluation finds */
    json_t *log = json_line(succeeded(sh("grep valid_loss classes/train.jsonl")), 0);
    json_t *eval = json_line(succeeded(sh("$fovea eval -m classes/model --json labels.tsv")), 0);
    assert_string_equal(json_string_value(json_object_get(log, "metric")), "accuracy");
    double logged = json_number_value(json_object_get(log, "value")),
           found = json_number_value(json_object_get(eval, "accuracy"));
    assert_true(fabs(100 * logged - found) < 1e-6 && found > 0);
    json_decref(log);
    json_decref(eval);
}

static void the_same_head_keeps_its_labels(void **state)
{
    (void)state;
    succeeded(sh("sed 's/masked.model/classes\\/model/; /^architecture/d; "
                 "s/labels.tsv/turned.tsv/' classes.ini > again.ini; "
                 "$fovea train again.ini -o again --threads 1"));
    assert_int_equal(same("classes/model", "again/model", "classifier.weight"), 1);
    succeeded(sh("grep -A 3 id2label classes/model/config.json > a; grep -A 3 id2label "
                 "again/model/config.json > b; cmp a b"));
    refused(sh("printf 'a film\\tunknown\\n' >> turned.tsv; $fovea train again.ini -o more "
               "--threads 1 2>&1 >/dev/null | tail -n "
               "1 >&2; "
               "exit 1"),
            1, "classifier.weight is (3,16), expected (4,16)");
}

static void a_stranger_is_refused(void **state)
{
    (void)state;
    succeeded(sh("mkdir other; sed 's/\"bert\"/\"distilbert\"/; s/Bert/DistilBert/' "
                 "masked/model/config.json > other/config.json; "
                 "cp masked/model/model.safetensors masked/model/tokenizer.json other; "
                 "sed 's/masked.model/other/; s/Bert/DistilBert/' classes.ini > other.ini"));
    const result *r = sh("$fovea train other.ini -o refused --threads 1");
    assert_int_equal(r->code, 1);
    assert_true(!scratch_has("refused/model/model.safetensors"));
    refused(sh("sed 's/masked.model/nowhere/' classes.ini > no.ini; $fovea train no.ini -o no"), 1,
            "no.ini: [model] from: nowhere");
    refused(sh("$fovea train classes.ini -o no -q --set data.valid=nothing.tsv"), 1,
            "classes.ini: [data] valid: nothing.tsv");
}

/* Shapes are compared before there is memory for them: a configuration alone asks for none. */
static void a_wrong_configuration_takes_no_memory(void **state)
{
    (void)state;
    fv_mem_counter mem;
    fv_mem_counter_init(&mem);
    fv_env env = {.mem = &mem.mem};
    fv_device *d;
    fv_model *m;
    fv_err e;
    succeeded(sh("mkdir large; cp masked/model/* large; sed 's/\\(\"vocab_size\": "
                 "\\)[0-9]*/\\11000000/' masked/model/config.json > "
                 "large/config.json"));
    assert_int_equal(fv_device_open(&d, "cpu", (fv_device_opt){.threads = 1, .env = &env}, &e),
                     FV_OK);
    size_t before = mem.live;
    assert_int_equal(fv_model_open(&m, d, scratch("large"), (fv_model_opt){.train = true}, &e),
                     FV_ESHAPE);
    assert_non_null(strstr(e.text, "expected (1000000,16)"));
    assert_true(mem.peak < before + (2u << 20) && mem.live == before);
    fv_device_close(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(another_head_stands_on_the_same_body),
        cmocka_unit_test(the_same_head_keeps_its_labels),
        cmocka_unit_test(a_stranger_is_refused),
        cmocka_unit_test(a_wrong_configuration_takes_no_memory),
    };
    return cmocka_run_group_tests(tests, set_up, scratch_close);
}
