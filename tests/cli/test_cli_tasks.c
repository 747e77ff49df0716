/* test_cli_tasks.c - forward, embed, words, classify, fill, tag and answer from outside, on the
 * tiny models of tests/golden. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <jansson.h>

#include <cmocka.h>

#include "fovea/fovea.h"
#include "helper/program.h"

#define TASKS FOVEA_TESTS "/golden/tasks/"
#define MODELS FOVEA_TESTS "/golden/models/"

static void forward(void **state)
{
    (void)state;
    fv_st *s;
    fv_st_info t;
    fv_err e;
    succeeded(fovea("forward -m " MODELS "bert-masked -i " MODELS
                    "bert-masked/in.safetensors -o out.safetensors --attentions "
                    "--hidden-states --grad --threads 2"));
    assert_int_equal(fv_st_open(&s, NULL, scratch("out.safetensors"), &e), FV_OK);
    static const char *const names[] = {"logits", "loss", "attentions.1", "hidden_states.2",
                                        "grad.cls.predictions.bias"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        assert_int_equal(fv_st_find(s, names[i], &t, &e), FV_OK);
    fv_st_close(s);

    refused(fovea("forward -m " MODELS "bert-masked -i x"), 2, "needed");
    refused(fovea("forward -m " MODELS "bert-masked -i missing.safetensors -o out.safetensors"), 1,
            "missing.safetensors");
    refused(fovea("forward -m " MODELS "distilbert -i " MODELS
                  "bert/in.safetensors -o out.safetensors"),
            1, "token_type_ids is no input of distilbert");
    refused(fovea("forward -m " MODELS "bert -i " MODELS
                  "bert/in.safetensors -o out.safetensors --grad"),
            1, "labels");
    refused(fovea("forward -m " MODELS "bert-one-token -i " MODELS
                  "marian/in.safetensors -o out.safetensors"),
            1, "decoder_input_ids");
}

static void embed(void **state)
{
    (void)state;
    const result *said = succeeded(
        fovea_reads("the cat\nnew york\n", "embed -m " TASKS "embed-mean --json"));
    json_t *j = json_line(said, 1);
    assert_string_equal(json_string_value(json_object_get(j, "text")), "new york");
    assert_int_equal(json_array_size(json_object_get(j, "embedding")), 16);
    json_decref(j);
    succeeded(
        fovea_reads("the cat\nnew york\n", "embed -m " TASKS "classify-bert -o v.npy --pool cls"));
    fv_array a;
    fv_err e;
    assert_int_equal(fv_array_open(&a, NULL, scratch("v.npy"), (fv_array_opt){0}, &e), FV_OK);
    assert_int_equal(a.shape.d[0], 2);
    assert_int_equal(a.shape.d[1], 16);
    fv_array_close(&a);
    refused(fovea_reads("x", "embed"), 2, "-m DIR");
}

static void tensors(void **state)
{
    (void)state;
    const result *r = succeeded(fovea("tensors " TASKS "embed-mean/model.safetensors"));
    assert_non_null(strstr(r->out, "embeddings.LayerNorm.bias\tf32\t(16)\n"));
    assert_non_null(strstr(r->err, "39 tensors, 6720 numbers"));
    json_t *j = json_line(succeeded(fovea("tensors --json " TASKS "embed-mean/model.safetensors")),
                          2);
    assert_int_equal(json_integer_value(json_array_get(json_object_get(j, "shape"), 0)), 50);
    json_decref(j);
    refused(fovea("tensors missing.safetensors"), 1, "missing.safetensors");
}

static void similar(void **state)
{
    (void)state;
    prints("printf 'the cat\\tthe cat\\nnew york\\tthe cat\\n' | $fovea similar -m " TASKS
           "embed-mean",
           "1.000000\n0.984083\n");
    refused(fovea_reads("the cat\n", "similar -m " TASKS "embed-mean"), 1, "with a tab between");
}

/* Files, the files of a folder in order of their names, or standard input; what cannot be read
 * leaves nothing on standard output. */
static void words(void **state)
{
    (void)state;
    succeeded(sh("mkdir -p texts/inner && printf 'red fox\\nred hen\\n' > texts/b.txt && "
                 "printf 'The Fox' > texts/a.txt && printf hidden > texts/.c && "
                 "printf '\\377' > texts/inner/d"));
    prints("$fovea words texts", "2\t2\tfox\n2\t1\tred\n1\t1\tthe\n1\t1\then\n");
    prints("$fovea words --print prepared texts", "the fox\nred fox red hen\n");
    prints("printf 'A b' | $fovea words --cased --print prepared", "A b\n");
    prints("cat texts/b.txt | $fovea words --lines --print tfidf --top 1 -",
           "standard input:1\t0.8148\tfox\nstandard input:2\t0.8148\then\n");
    json_t *j = json_line(
        succeeded(fovea("words --lines --json --query fox --query hen texts/b.txt texts/a.txt")),
        1);
    json_t *first = json_array_get(json_object_get(j, "documents"), 0);
    assert_string_equal(json_string_value(json_object_get(j, "query")), "hen");
    assert_string_equal(json_string_value(json_object_get(first, "document")), "texts/b.txt:2");
    json_decref(j);
    refused_silently(fovea("words texts/a.txt texts/inner/d"), 1, "d: line 1: not UTF-8");
    refused_silently(fovea("words missing"), 1, "missing");
    refused_silently(fovea("words --print all texts"), 2, "counts, prepared, tfidf");
}

static void verbose_names_what_is_ignored(void **state)
{
    (void)state;
    succeeded(sh("cp -r " TASKS "embed-mean m && chmod -R u+w m && "
                 "sed -i '0,/{/s//{\"unsloth_version\": \"1\", \"notes\": [],/' m/config.json"));
    const result *r = succeeded(fovea_reads("the cat\n", "embed -m m --verbose"));
    assert_non_null(strstr(r->err, "m: config.json has keys that nothing reads: unsloth_version, "
                                   "notes\n"));
    r = succeeded(fovea_reads("the cat\n", "embed -m " TASKS "embed-mean --verbose"));
    assert_non_null(strstr(r->err, "every key of config.json is used or known"));
    r = succeeded(fovea_reads("the cat\n", "embed -m m"));
    assert_null(strstr(r->err, "unsloth"));
}

/* A word of --dtype means what it says: the same as a model whose weights were stored so. */
static void weights_have_their_names(void **state)
{
    (void)state;
    static const char *const dtypes[] = {"q8", "q4", "int8"};
    for (int i = 0; i < 3; i++) {
        succeeded(fovea("quantize -m " TASKS "embed-mean -o embed-%s --weights %s", dtypes[i],
                        dtypes[i]));
        char *stored = strdup(
            succeeded(fovea_reads("the cat\n", "embed -m embed-%s", dtypes[i]))->out);
        const result *r = succeeded(
            fovea_reads("the cat\n", "embed -m " TASKS "embed-mean --dtype %s", dtypes[i]));
        assert_string_equal(r->out, stored);
        free(stored);
    }
}

static void classify(void **state)
{
    (void)state;
    const result *said = succeeded(
        fovea_reads("the cat\nthe cat\tsat\n", "classify -m " TASKS "classify-bert --json"));
    json_t *a = json_line(said, 0), *b = json_line(said, 1),
           *first = json_array_get(json_object_get(a, "labels"), 0);
    assert_int_equal(json_array_size(json_object_get(a, "labels")), 3);
    assert_null(json_object_get(a, "pair"));
    assert_string_equal(json_string_value(json_object_get(b, "pair")), "sat");
    char label[64];
    snprintf(label, sizeof label, "%s", json_string_value(json_object_get(first, "label")));
    json_decref(a);
    json_decref(b);
    succeeded(fovea_reads("the cat\n", "classify -m " TASKS "classify-bert"));
    assert_int_equal(strncmp(said->out, label, strlen(label)), 0);
    refused(fovea_reads("x", "classify -m " TASKS "tag-bert"), 1, "ForSequenceClassification");
    refused(fovea("classify -m " TASKS "classify-bert"), 1, "no text");
}

/* Labels of one's own: what transformers' zero-shot pipeline gives, and by likelihood. */
/* Each token of a label is hidden in turn; numbers of transformers 5.22.2 on the same ids. */
static void labels_are_filled_in(void **state)
{
    (void)state;
    static const char *const models[] = {"fill-bert", "fill-roberta"};
    static const double good[] = {0.0201878, 0.0512270}, cat[] = {0.9798110, 0.9487730};
    for (int i = 0; i < 2; i++) {
        const result *said = succeeded(
            fovea_reads("the cat sat on the mat\n",
                        "classify -m " TASKS "%s --labels good,bad,cat --json", models[i]));
        json_t *j = json_line(said, 0), *got = json_object_get(j, "labels");
        for (size_t k = 0; k < 2; k++) {
            json_t *x = json_array_get(got, k);
            assert_string_equal(json_string_value(json_object_get(x, "label")), k ? "good" : "cat");
            assert_true(fabs(json_number_value(json_object_get(x, "score")) - (k ? good : cat)[i]) <
                        1e-5);
        }
        json_decref(j);
    }
    refused(fovea_reads("so so so so so so so so so so so so so so so so so so so so so so so so "
                        "so so so so so so so so so so so so\n",
                        "classify -m " TASKS "fill-bert --labels a,b"),
            1, "the prompt leaves no room for a label");
}

static void labels(void **state)
{
    (void)state;
    const result *said;
    json_t *expect = json_load_file(TASKS "zero-shot/expect.json", 0, NULL);
    assert_non_null(expect);
    for (int many = 0; many < 2; many++) {
        said = succeeded(fovea_reads("The cat sat on the mat, and it was good!\na\nWas it?\n",
                                     "classify -m " TASKS
                                     "zero-shot --labels \"good, bad,so so\" --json %s",
                                     many ? "--many" : ""));
        for (int i = 0; i < 3; i++) {
            json_t *j = json_line(said, i), *got = json_object_get(j, "labels");
            json_t *want = json_array_get(json_object_get(expect,
                                                          many ? "many_results" : "results"),
                                          (size_t)i);
            for (size_t k = 0; k < 3; k++) {
                json_t *x = json_array_get(got, k);
                assert_string_equal(json_string_value(json_object_get(x, "label")),
                                    json_string_value(
                                        json_array_get(json_object_get(want, "labels"), k)));
                double score = json_number_value(
                    json_array_get(json_object_get(want, "scores"), k));
                assert_true(fabs(json_number_value(json_object_get(x, "score")) - score) < 2e-5);
            }
            json_decref(j);
        }
    }
    json_decref(expect);

    /* a model of children's stories knows who is happy */
    said = succeeded(fovea_reads(
        "One day Lily went to the park. She was so\nTom fell and hurt his leg. He was\n",
        "classify -m " FOVEA_TESTS "/golden/stories260K --labels happy,sad --prompt '{}' -k 0"));
    double happy, sad;
    assert_int_equal(sscanf(said->out, "happy %lf sad %*f sad %lf", &happy, &sad), 2);
    /* as transformers has it */
    assert_true(fabs(happy - 0.968422) < 1e-4 && fabs(sad - 0.845438) < 1e-4);
    refused(fovea_reads("x\n", "classify -m " TASKS "classify-bert --labels a,b"), 1, "entailment");
    refused(fovea_reads("x\n", "classify -m " TASKS "zero-shot --labels a,,b"), 2, "empty label");
    refused(fovea_reads("x\n", "classify -m " TASKS "zero-shot --labels a,b,a"), 2,
            "--labels: \"a\" is there twice");
    refused(fovea_reads("x\n", "classify -m " TASKS "zero-shot --labels a,b --hypothesis x"), 2,
            "--hypothesis: no {}");
    refused(fovea_reads("x\n",
                        "classify -m " FOVEA_TESTS "/golden/stories260K --labels a,b --prompt x"),
            2, "--prompt: no {}");
    refused(fovea_reads("x\n", "classify -m " TASKS "classify-bert --many"), 2, "needs --labels");
    scratch_text("solved.tsv", "good day\thappy\nbad day\tgloomy\n");
    refused(fovea_reads("x\n", "classify -m " FOVEA_TESTS
                               "/golden/stories260K --labels happy,sad --examples solved.tsv"),
            1, "solved.tsv: line 2: the label \"gloomy\" is none of --labels");
    refused(fovea_reads("x\n", "classify -m " TASKS "embed-cls --labels a,b"), 1,
            "does not write text");
}

static void fill(void **state)
{
    (void)state;
    const result *said = succeeded(
        fovea_reads("The [MASK] sat.\n", "fill -m " TASKS "fill-bert -k 2 --json"));
    json_t *j = json_line(said, 0), *masks = json_object_get(j, "masks");
    assert_int_equal(json_array_size(masks), 1);
    assert_int_equal(json_array_size(json_array_get(masks, 0)), 2);
    json_decref(j);
    refused(fovea_reads("no mask\n", "fill -m " TASKS "fill-bert"), 1, "[MASK]");
    refused(fovea_reads("[MASK]\n", "fill -m " TASKS "fill-bert -k 1000"), 1, "vocabulary");
}

static void tag(void **state)
{
    (void)state;
    const result *said = succeeded(
        fovea_reads("Angela Merkel\n\nK\303\266ln it\n", "tag -m " TASKS "tag-roberta --json"));
    for (int i = 0; i < 3; i++) {
        json_t *j = json_line(said, i), *x;
        const char *text = json_string_value(json_object_get(j, "text"));
        size_t k;
        json_array_foreach(json_object_get(j, "entities"), k, x)
            assert_non_null(strstr(text, json_string_value(json_object_get(x, "text"))));
        json_decref(j);
    }
}

static void answer(void **state)
{
    (void)state;
    assert_int_equal(mkdir(scratch("docs"), 0700), 0);
    scratch_text("docs/a.txt", "Angela Merkel was born in Hamburg.\n");
    const result *said = succeeded(fovea_reads("who?\nwhere?\n",
                                               "answer -m " TASKS
                                               "answer-bert --context docs/a.txt -k 3 --json"));
    json_t *j = json_line(said, 1);
    assert_int_equal(json_array_size(json_object_get(j, "answers")), 3);
    json_decref(j);
    succeeded(fovea_reads("who?\n",
                          "answer -m " TASKS "answer-roberta --docs docs --embedder " TASKS
                          "embed-mean --json"));
    j = json_line(said, 0);
    json_t *best = json_array_get(json_object_get(j, "answers"), 0);
    assert_string_equal(json_string_value(json_object_get(best, "file")), "docs/a.txt");
    json_decref(j);
    refused(fovea_reads("who?\n", "answer -m " TASKS "answer-bert"), 2, "--context");
    refused(fovea_reads("who?\n",
                        "answer -m " TASKS "answer-bert --context docs/a.txt --embedder " TASKS
                        "embed-mean"),
            2, "--docs");
    refused(fovea_reads("who?\n", "answer -m " TASKS "answer-bert --context nothing.txt"), 1,
            "nothing.txt");
}

/* Without an embedder BM25 chooses what is read: the one passage that has the question's words. */
static void answer_by_words(void **state)
{
    (void)state;
    assert_int_equal(mkdir(scratch("library"), 0700), 0);
    scratch_text("library/a.txt", "Angela Merkel was born in Hamburg.\n");
    scratch_text("library/b.txt", "A city of brick.\n");
    scratch_text("library/c.txt", "The river is in Hamburg.\n");
    const result *said = succeeded(
        fovea_reads("where is the river?\nwho was born in hamburg?\n",
                    "answer -m " TASKS "answer-roberta --docs library --passages 1 --json"));
    const char *const from[] = {"library/c.txt", "library/a.txt"};
    for (int i = 0; i < 2; i++) {
        json_t *j = json_line(said, i);
        json_t *best = json_array_get(json_object_get(j, "answers"), 0);
        assert_non_null(strstr(json_string_value(json_object_get(best, "file")), from[i]));
        json_decref(j);
    }
}

/* ---- lines as they are found in files ---- */

/* gzip, a byte-order mark and line ends of DOS change nothing, in any command. */
static void one_reader_for_all(void **state)
{
    (void)state;
    static const char *const commands[] = {
        "classify -m " TASKS "classify-bert",
        "embed -m " TASKS "embed-mean",
        "tag -m " TASKS "tag-bert",
        "score -m " FOVEA_TESTS "/golden/stories260K",
        "generate -m " FOVEA_TESTS "/golden/stories260K --max-new-tokens 3 --json",
        "tokenize -m " TASKS "embed-mean",
    };
    scratch_text("plain", "the cat\nnew york\n");
    scratch_text("dos", "\xEF\xBB\xBFthe cat\r\nnew york\r\n");
    succeeded(sh("gzip -c plain > plain.gz; gzip -c dos > dos.gz"));
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        static const char *const files[] = {"dos", "plain.gz", "dos.gz"};
        char *want = strdup(succeeded(sh("$fovea %s < plain", commands[i]))->out);
        assert_non_null(want);
        for (size_t k = 0; k < sizeof files / sizeof *files; k++) {
            /* tokenize reads all of a file as one text: its line ends stay */
            if (strstr(commands[i], "tokenize") && strncmp(files[k], "plain", 5)) continue;
            assert_string_equal(succeeded(sh("$fovea %s < %s", commands[i], files[k]))->out, want);
        }
        free(want);
    }
    refused(sh("head -c 30 plain.gz | $fovea embed -m " TASKS "embed-mean"), 1, "ends early");
}

/* A text is given by argument, by file or by standard input. */
static void texts_come_three_ways(void **state)
{
    (void)state;
    scratch_text("plain", "the cat\nnew york\n");
    char *want = strdup(succeeded(fovea("embed -m " TASKS "embed-mean plain"))->out);
    assert_non_null(want);
    assert_string_equal(
        succeeded(fovea("embed -m " TASKS "embed-mean --text 'the cat' --text 'new york'"))->out,
        want);
    assert_string_equal(succeeded(fovea("embed -m " TASKS "embed-mean -f plain"))->out, want);
    free(want);
    refused(fovea("embed -m " TASKS "embed-mean --text x plain"), 2, "one input too many");
}

/* ---- lines that fail ---- */

/* The bad line is named, the others give what they give alone, and the exit code tells. */
static void a_bad_line_does_not_end_the_others(void **state)
{
    (void)state;
    static const char *const commands[] = {"classify -m " TASKS "classify-bert",
                                           "embed -m " TASKS "embed-mean",
                                           "tag -m " TASKS "tag-bert"};
    scratch_text("good", "the cat\n\nnew york\n");
    scratch_text("bad", "the cat\n\xff\nnew york\n");
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        succeeded(sh("$fovea %s --json good | sed 2d > want", commands[i]));
        refused(sh("$fovea %s --json bad > all; C=$?; sed 2d all > got; exit $C", commands[i]), 1,
                "bad: line 2: not UTF-8 at byte 1");
        succeeded(sh("cmp want got && sed -n 2p all | grep -q '\"error\"'"));
    }
    /* plain output with a line for each stays in step */
    prints("$fovea classify -m " TASKS "classify-bert bad 2> /dev/null | sed -n 2p", "\n");
}

static void long_texts(void **state)
{
    (void)state;
    succeeded(
        sh("(echo the cat; yes cat | head -n 600 | tr '\\n' ' '; echo; echo new york) > long; "
           "sed 2d long > short"));
    static const char *const commands[] = {"classify -m " TASKS "classify-bert",
                                           "embed -m " TASKS "embed-mean"};
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        refused(sh("$fovea %s long > got; C=$?; sed -i 2d got; exit $C", commands[i]), 1,
                "long: line 2: 602 tokens, and the model sees ");
        succeeded(sh("$fovea %s short | cmp - got", commands[i]));
        succeeded(sh("$fovea %s --truncate long", commands[i]));
    }
    /* a tagger reads windows: an entity at the end of a long line is found where it stands */
    const result *r = succeeded(sh("$fovea tag -m " TASKS "tag-bert --json long"));
    json_t *j = json_line(r, 1), *entities = json_object_get(j, "entities");
    size_t n = json_array_size(entities);
    assert_true(n > 0);
    assert_int_equal(json_integer_value(json_object_get(json_array_get(entities, n - 1), "end")),
                     2399);
    json_decref(j);
    /* the mask was there */
    refused(sh("(yes cat | head -n 600 | tr '\\n' ' '; echo '[MASK]') | $fovea fill --truncate "
               "-m " TASKS "fill-bert"),
            1, "the [MASK] was cut off");
    refused(sh("(yes cat | head -n 600 | tr '\\n' ' '; echo '[MASK]') | $fovea fill -m " TASKS
               "fill-bert"),
            1, "603 tokens");
    refused(sh("echo cat | $fovea fill -m " TASKS "fill-bert"), 1, "there is no [MASK] in it");
}

/* Tasks whose record is a file: its path by argument or --file, or a setting instead. */
static void files_are_records(void **state)
{
    (void)state;
    const char *table = "i=0; echo date,a,b; while [ $i -lt 20 ]; do echo $i,$i,$((i%3)); "
                        "i=$((i+1)); done; echo 20,,1";
    succeeded(sh("(%s) > series.csv", table));
    const result *r = succeeded(
        fovea("forecast -m " MODELS "dlinear series.csv --missing previous --json"));
    assert_non_null(strstr(r->err, "series.csv: 1 missing values were filled"));
    json_t *j = json_line(r, 0);
    assert_int_equal(json_array_size(json_object_get(j, "dates")), 4);
    assert_string_equal(json_string_value(json_array_get(json_object_get(j, "dates"), 0)), "21");
    json_decref(j);
    r = succeeded(fovea("forecast -m " MODELS "dlinear -f series.csv --missing previous"));
    assert_memory_equal(r->out, "date,a,b\n21,", 12);
    r = succeeded(fovea("forecast -m " MODELS
                        "dlinear series.csv --missing previous --quantiles 0.1,0.5,0.9 --json"));
    j = json_line(r, 0);
    json_t *levels = json_object_get(json_array_get(json_object_get(j, "channels"), 1),
                                     "quantiles");
    double last = -1e9;
    for (int i = 0; i < 3; i++) {
        static const char *const level[] = {"0.1", "0.5", "0.9"};
        json_t *at = json_array_get(json_object_get(levels, level[i]), 3);
        assert_true(json_is_real(at) && json_real_value(at) >= last);
        last = json_real_value(at);
    }
    json_decref(j);
    r = succeeded(
        fovea("forecast -m " MODELS "dlinear series.csv --missing previous --quantiles 0.25"));
    assert_memory_equal(r->out, "date,a,b,a_q0.25,b_q0.25\n", 25);
    refused(fovea("forecast -m " MODELS "dlinear series.csv --missing previous --quantiles 1.5"), 1,
            "expected levels between 0 and 1");
    refused(fovea("forecast -m " MODELS "dlinear series.csv"), 1, "series.csv");
    refused(fovea("forecast -m " MODELS "dlinear"), 2, "a FILE is needed");
    refused(fovea("forecast -m " MODELS "sasrec series.csv"), 1, "does not forecast");

    r = succeeded(fovea("recommend -m " MODELS "sasrec --item 'item 1' --item 'item 3' --top 2 "
                        "--why --json"));
    j = json_line(r, 0);
    assert_int_equal(json_array_size(json_object_get(j, "items")), 2);
    assert_int_equal(json_array_size(json_object_get(j, "looked_at")), 2);
    json_decref(j);
    refused(fovea("recommend -m " MODELS "sasrec"), 2, "either a FILE or --item is needed");
    refused(fovea("recommend -m " MODELS "sasrec --item 7"), 1, "the model has no such item");
    refused(fovea("recommend -m " MODELS "sasrec --item 7 --evaluate"), 2, "--item");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(forward),
        cmocka_unit_test(embed),
        cmocka_unit_test(tensors),
        cmocka_unit_test(similar),
        cmocka_unit_test(words),
        cmocka_unit_test(verbose_names_what_is_ignored),
        cmocka_unit_test(weights_have_their_names),
        cmocka_unit_test(classify),
        cmocka_unit_test(labels),
        cmocka_unit_test(labels_are_filled_in),
        cmocka_unit_test(fill),
        cmocka_unit_test(tag),
        cmocka_unit_test(answer),
        cmocka_unit_test(answer_by_words),
        cmocka_unit_test(one_reader_for_all),
        cmocka_unit_test(texts_come_three_ways),
        cmocka_unit_test(a_bad_line_does_not_end_the_others),
        cmocka_unit_test(long_texts),
        cmocka_unit_test(files_are_records),
    };
    return cmocka_run_group_tests(tests, scratch_open, scratch_close);
}
