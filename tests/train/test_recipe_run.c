/* test_recipe_run.c - recipes from the outside: what is trained and written is what the recipe and
 * its source directory say, mistakes are found before anything is written, and a resumed run names
 * the key that differs. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "helper/lines.h"
#include "helper/program.h"

#define SIZES                                                                                      \
    "hidden_size = 16\nnum_hidden_layers = 1\nnum_attention_heads = 2\nintermediate_size = "       \
    "24\nmax_position_embeddings = 64\n"
#define TRAIN "[train]\nupdates = 4\nbatch_tokens = 64\nwarmup = 1\nsave_every = 2\n"

static const char causal[] = "[model]\nmodel_type = llama\n" SIZES
                             "[data]\nobjective = causal\ntrain = lines.txt\ncontext = 16\n"
                             "[tokenizer]\nkind = byte_bpe\nvocab = 270\nmin_count = 1\n" TRAIN;

static const char classify[] = "[model]\nmodel_type = bert\n" SIZES
                               "[data]\nobjective = classify\ntrain = labels.tsv\n"
                               "[tokenizer]\nkind = wordpiece\nvocab = 60\nmin_count = 1\n" TRAIN;

static const char pairs[] =
    "[model]\nmodel_type = bart\nd_model = 16\nencoder_layers = 1\ndecoder_layers = 1\n"
    "encoder_attention_heads = 2\ndecoder_attention_heads = 2\nencoder_ffn_dim = 24\n"
    "decoder_ffn_dim = 24\nmax_position_embeddings = 64\n"
    "[data]\ntrain = pairs.tsv\n[tokenizer]\nvocab = 60\nmin_count = 1\n" TRAIN;

static int set_up(void **state)
{
    if (scratch_open(state)) return -1;
    put_lines();
    scratch_text("labels.tsv",
                 "the cat sat\tgood\nso bad a film\tbad\nit was a day\tgood\nthe good dog\tgood\n"
                 "a bad day\tbad\n");
    scratch_text("pairs.tsv", "the cat\tle chat\nthe dog\tle chien\na cat\tun chat\na dog\tun "
                              "chien\nthe day\tle jour\n");
    scratch_text("causal.ini", causal);
    scratch_text("classify.ini", classify);
    scratch_text("pairs.ini", pairs);
    return 0;
}

static json_t *config(const char *path)
{
    json_t *o = json_load_file(scratch("%s", path), 0, NULL);
    assert_non_null(o);
    return o;
}

static int number(const char *path, const char *key)
{
    json_t *o = config(path);
    const json_t *v = json_object_get(o, key);
    int x = json_is_integer(v) ? (int)json_integer_value(v) : -1;
    json_decref(o);
    return x;
}

/* The word of the recipe, not the family's first: Qwen2 has biases, Mistral a window. */
static void the_model_type_is_the_recipes_word(void **state)
{
    (void)state;
    static const char *const types[][2] = {{"qwen2", "Qwen2ForCausalLM"},
                                           {"mistral", "MistralForCausalLM"}};
    for (int i = 0; i < 2; i++) {
        const char *t = types[i][0];
        succeeded(
            sh("$fovea train causal.ini -o %s -q --threads 1 --set model.model_type=%s", t, t));
        json_t *o = config(i ? "mistral/model/config.json" : "qwen2/model/config.json");
        assert_string_equal(json_string_value(json_object_get(o, "model_type")), t);
        assert_string_equal(json_string_value(
                                json_array_get(json_object_get(o, "architectures"), 0)),
                            types[i][1]);
        /* without it transformers takes 32 and 8 */
        assert_int_equal(json_integer_value(json_object_get(o, "num_key_value_heads")),
                         json_integer_value(json_object_get(o, "num_attention_heads")));
        json_decref(o);
    }
    const result *r = succeeded(sh("grep -c q_proj.bias qwen2/model/model.safetensors"));
    assert_true(atoi(r->out) > 0);
    assert_int_not_equal(sh("grep -q q_proj.bias mistral/model/model.safetensors")->code, 0);
}

/* transformers takes only vocabulary and merges from a qwen2's tokenizer.json and has Qwen2's rules
 * for the rest: the tokenizer has these rules too (digits one by one), or is not trained at all. */
static void a_qwen2_has_the_tokenizer_transformers_opens(void **state)
{
    (void)state;
    succeeded(sh("$fovea train causal.ini -o own -q --threads 1 --set model.model_type=qwen2"));
    const result *r = succeeded(sh("$fovea tokenize -m own/model --text 'the 123' --json"));
    assert_non_null(strstr(r->out, "\"1\",\"2\",\"3\""));
    static const char *const others[] = {"kind=bpe", "lowercase=true", "nfkc=true"};
    for (int i = 0; i < 3; i++) {
        r = sh("$fovea train causal.ini -o no -q --set model.model_type=qwen2 --set tokenizer.%s",
               others[i]);
        assert_int_not_equal(r->code, 0);
        assert_non_null(strstr(r->err, "a qwen2 needs kind = byte_bpe"));
    }
    assert_int_not_equal(sh("test -e no")->code, 0);
}

/* What the source says of its special tokens, templates and generation is used and written back. */
static void a_source_directory_keeps_its_settings(void **state)
{
    (void)state;
    succeeded(sh("$fovea train pairs.ini -o bart -q --threads 1 --set "
                 "model.decoder_start_token_id=1"));
    assert_int_equal(number("bart/model/config.json", "decoder_start_token_id"), 1);
    assert_int_equal(number("bart/model/generation_config.json", "decoder_start_token_id"), 1);
    succeeded(sh("cp -r bart/model source; "
                 "printf '{\"tokenizer_class\": \"BartTokenizer\", \"model_max_length\": 1024, "
                 "\"chat_template\": \"x\"}' > source/tokenizer_config.json; "
                 "printf '{\"decoder_start_token_id\": 1, \"forced_bos_token_id\": 2, "
                 "\"eos_token_id\": 1, \"pad_token_id\": 0, \"num_beams\": 3, \"max_length\": 20}' "
                 "> source/generation_config.json; "
                 "sed '/model_type/,/max_position/d; s/\\[model\\]/[model]\\nfrom = source/' "
                 "pairs.ini > tune.ini"));
    succeeded(sh("$fovea train tune.ini -o tuned -q --threads 1 --set train.lr=0 --set "
                 "data.valid=pairs.tsv --set train.bleu=2 --set generate.max_length=15"));
    succeeded(sh("cmp source/tokenizer_config.json tuned/model/tokenizer_config.json"));
    assert_int_equal(number("tuned/model/config.json", "decoder_start_token_id"), 1);
    assert_int_equal(number("tuned/model/generation_config.json", "forced_bos_token_id"), 2);
    assert_int_equal(number("tuned/model/generation_config.json", "num_beams"), 3);
    assert_int_equal(number("tuned/model/generation_config.json", "max_length"), 15);
    /* the decoder starts as config.json says: the loss differs from that of a start with pad */
    const result *r = succeeded(sh("grep -h valid_loss tuned/train.jsonl | tail -n 1"));
    json_t *a = json_line(r, 0);
    double one = json_number_value(json_object_get(a, "valid_loss"));
    json_decref(a);
    r = succeeded(
        sh("$fovea train tune.ini -o padded -q --threads 1 --set train.lr=0 --set "
           "data.valid=pairs.tsv --set model.decoder_start_token_id=0 > /dev/null; grep -h "
           "valid_loss padded/train.jsonl | tail -n 1"));
    a = json_line(r, 0);
    assert_true(json_number_value(json_object_get(a, "valid_loss")) != one);
    json_decref(a);
}

static void mistakes_leave_nothing_behind(void **state)
{
    (void)state;
    refused(sh("$fovea train classify.ini -o no/where -q --set data.train=missing.tsv"), 1,
            "missing.tsv");
    refused(sh("$fovea train classify.ini -o no/where -q --set train.freeze=nothing.*"), 1,
            "nothing.*");
    refused(sh("$fovea train classify.ini -o no/where -q --set "
               "model.architecture=BertForMaskedLM"),
            1,
            "[model] architecture: BertForMaskedLM cannot be trained with the objective classify; "
            "this family has BertForSequenceClassification");
    refused(sh("$fovea train pairs.ini -o no/where -q --set data.objective=tag"), 1,
            "this family has no head for it");
    refused(sh("$fovea train classify.ini -o no/where -q --set data.span=2"), 1,
            "[data] span: the objective classify has no such key");
    refused(sh("$fovea train classify.ini -o no/where -q --set data.contxt=2"), 1,
            "[data] contxt: no such key; did you mean context?");
    refused(sh("$fovea train classify.ini -o no/where -q --set train.eps=0"), 1, "[train] eps");
    assert_int_not_equal(sh("test -e no")->code, 0);
    succeeded(sh("mkdir there"));
    refused(sh("$fovea train classify.ini -o there -q --set train.freeze=nothing.*"), 1,
            "nothing.*");
    prints("ls there", "");
}

/* The clock stops a run as Ctrl-C does: after a whole update, saved; and a resumed run, which may
 * have another limit, ends with the bits of one that was never stopped. */
static void a_run_stops_in_time(void **state)
{
    (void)state;
    succeeded(sh("$fovea train causal.ini -o whole -q --threads 1"));
    const result *r = succeeded(
        sh("$fovea train causal.ini -o timed -q --threads 1 --set train.time_limit=1e-9"));
    assert_non_null(strstr(r->out, "Stopped after update 1 of 4"));
    succeeded(sh("$fovea train causal.ini -o timed -q --threads 1 --resume"));
    succeeded(sh("cmp whole/model/model.safetensors timed/model/model.safetensors"));
}

/* With fit_updates the same clock ends the schedule instead, and the run is whole; one that is fast
 * enough has the bits of one without a limit. */
static void a_run_fits_its_updates_to_the_time(void **state)
{
    (void)state;
    const result *r = succeeded(sh("$fovea train causal.ini -o fitted -q --threads 1 "
                                   "--set train.time_limit=1e-9 --set train.fit_updates=true"));
    assert_non_null(strstr(r->out, "fitted/model: 1 updates, loss "));
    succeeded(
        sh("$fovea train causal.ini -o quick -q --threads 1 --set train.time_limit=1000 --set "
           "train.fit_updates=true"));
    succeeded(sh("cmp whole/model/model.safetensors quick/model/model.safetensors"));
    refused(sh("$fovea train causal.ini -o none -q --set train.fit_updates=true"), 2,
            "there is no train.time_limit to fit");
}

static void a_resumed_run_names_what_differs(void **state)
{
    (void)state;
    succeeded(sh("$fovea train classify.ini -o runs/of/mine -q --threads 1"));
    refused(sh("$fovea train classify.ini -o runs/of/mine -q --resume --set train.lr=0.25"), 1,
            "train.lr is \"0.25\", but \"0.0005\" in the run that is resumed");
    refused(sh("$fovea train classify.ini -o runs/of/mine -q --resume --set model.hidden_size=32"),
            1, "model.hidden_size is \"32\", but \"16\"");
    const result *r = succeeded(sh("$fovea train classify.ini -o runs/of/mine --resume --threads "
                                   "1 --set train.updates=6 --set data.dir=."));
    assert_non_null(strstr(r->err, "resuming after update 4 of 6"));
    r = succeeded(sh("$fovea train classify.ini -o runs/of/mine --resume -q --set "
                     "train.updates=6"));
    assert_non_null(strstr(r->out, "6 updates, loss "));
    assert_null(strstr(r->out, "loss 0.0000"));
}

/* A word for another of the same length, two ids of the vocabulary exchanged: no size changes. */
static void a_resumed_run_reads_the_same_files(void **state)
{
    (void)state;
    succeeded(sh("cp classify.ini same.ini && cp $(sed -n 's/^train = //p' same.ini) same.tsv && "
                 "$fovea train same.ini -o runs/same -q --threads 1 --set data.train=same.tsv"));
    succeeded(sh("cp same.tsv was.tsv && sed -i 's/cat/rat/' same.tsv && ! cmp -s same.tsv "
                 "was.tsv"));
    refused(sh("$fovea train same.ini -o runs/same -q --resume --set train.updates=6 --set "
               "data.train=same.tsv"),
            1, "same.tsv: has changed since the run began");
    succeeded(sh("cp was.tsv same.tsv && cp runs/same/tokenizer.json was.json && sed -i "
                 "'s/\"lowercase\": *[a-z]*/\"lowercase\": false/;s/$/ /' "
                 "runs/same/tokenizer.json"));
    refused(sh("$fovea train same.ini -o runs/same -q --resume --set train.updates=6 --set "
               "data.train=same.tsv"),
            1, "tokenizer.json: has changed since the run began");
    succeeded(sh("cp was.json runs/same/tokenizer.json && $fovea train same.ini -o runs/same -q "
                 "--resume --set train.updates=6 --set data.train=same.tsv"));
}

/* Held-out records are counted once, in training or in evaluation. */
static void held_out_records_are_not_trained_on(void **state)
{
    (void)state;
    static const char *const recipes[] = {"classify.ini", "pairs.ini"};
    static const char *const files[] = {"labels.tsv", "pairs.tsv"};
    for (int i = 0; i < 2; i++) {
        const result *r = succeeded(
            sh("$fovea train %s --dry-run --set data.hold_out=0.2", recipes[i]));
        char want[80];
        snprintf(want, sizeof want, "%s: 4 of 4 records", files[i]);
        assert_non_null(strstr(r->out, want));
        snprintf(want, sizeof want, "%s: 1 of 1 records", files[i]);
        assert_non_null(strstr(r->out, want));
    }
}

static void keys_and_objectives_are_listed(void **state)
{
    (void)state;
    const result *r = succeeded(sh("$fovea train --help-keys"));
    assert_non_null(strstr(r->out, "[data] with objective = spans: "));
    assert_non_null(strstr(r->out, "mean length of a hidden span"));
    const char *updates = strstr(r->out, "\nupdates "), *lr = strstr(r->out, "\nlr ");
    assert_true(updates && lr);
    assert_non_null(strstr(updates, "may change on --resume"));
    assert_true(strcspn(lr + 1, "\n") < (size_t)(strstr(lr, "may change") - lr));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_model_type_is_the_recipes_word),
        cmocka_unit_test(a_qwen2_has_the_tokenizer_transformers_opens),
        cmocka_unit_test(a_source_directory_keeps_its_settings),
        cmocka_unit_test(mistakes_leave_nothing_behind),
        cmocka_unit_test(a_run_stops_in_time),
        cmocka_unit_test(a_run_fits_its_updates_to_the_time),
        cmocka_unit_test(a_resumed_run_names_what_differs),
        cmocka_unit_test(a_resumed_run_reads_the_same_files),
        cmocka_unit_test(held_out_records_are_not_trained_on),
        cmocka_unit_test(keys_and_objectives_are_listed),
    };
    return cmocka_run_group_tests(tests, set_up, scratch_close);
}
