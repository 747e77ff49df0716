/* eval.c - fovea eval: how good a model, or what it wrote, is.
 *
 * Everything is the library's (fv_eval): what is compared with what follows from the model's
 * architecture or from --task. Options that only some evaluations use are accepted by all of them;
 * an evaluation says what it lacks. */
#include <stdio.h>

#include <stdlib.h>

#include "cli.h"
#include "fovea/author/shots.h"

typedef struct eval_values {
    cli_model model;
    fv_eval_opt o;
    const char *shots, *examples, *prompt, *words, *recipe;
    int64_t seeds, most;
    cli_settings settings;
} eval_values;

static const cli_option options[] = {
    CLI_MODEL(eval_values),
    CLI_TEXT(eval_values, o.task, 0, "task", "NAME",
             "what is evaluated: classify, tag, answer, perplexity, translate, summarize, caption, "
             "detect, "
             "segment or "
             "retrieve; auto, or if not given: what the model's architecture is for"),
    CLI_CHOICE(eval_values, o.format, 0, "format", fv_formats, "of FILE; auto goes by its name"),
    CLI_TEXT(eval_values, o.source_field, 0, "source-field", "NAME",
             "field with the text: a name, or a number from 1 in a table; of JSON also a.b[0]"),
    CLI_TEXT(eval_values, o.target_field, 0, "target-field", "NAME",
             "field with the label or reference; of JSON a list of references, too; of images "
             "and texts in one space a second field with key words, a comma between"),
    CLI_TEXT(eval_values, o.images, 0, "images", "PATH",
             "what a table's first field is looked up in: a folder, an archive, an IDX file"),
    CLI_TEXT(eval_values, o.where, 0, "where", "FIELD=VALUE",
             "only such rows of a table of images"),
    CLI_TEXT(eval_values, o.between, 0, "between", "NAME",
             "of images and texts in one space: also from image to image, between the values of "
             "this field (styles)"),
    CLI_TEXT(eval_values, o.baseline, 0, "baseline", "FIELD=VALUE",
             "captions: compare with the text of the nearest image among such rows"),
    CLI_TEXT(eval_values, o.split, 0, "split", "NAME",
             "annotated images: those of ImageSets/Main/NAME.txt, COCO's file NAME, or FROM-TO: "
             "numbers that name files with masks"),
    CLI_FLAG(eval_values, o.header, 0, "header",
             "the first line of a table only names its columns"),
    CLI_FLAG(eval_values, o.latin1, 0, "latin1", "FILE is ISO-8859-1, not UTF-8"),
    CLI_TEXT(eval_values, o.label_until, 0, "label-until", "CHARS",
             "a label ends where one of these characters stands, the model's too"),
    CLI_INT(eval_values, o.window, 0, "window", "N", 0, 1 << 20,
            "tokens the model reads at once; 0: as answer and score have it"),
    CLI_INT(eval_values, o.stride, 0, "stride", "N", 0, 1 << 20,
            "tokens that windows of a context share, or that one of running text moves on by; 0: "
            "likewise"),
    CLI_INT(eval_values, o.cache, 0, "cache", "N", 0, 1 << 20,
            "perplexity: also that with a continuous cache of the last N states, in which words "
            "come again (Grave et al. 2017); 0: none"),
    CLI_REAL(eval_values, o.cache_theta, 0, "cache-theta", "X", 0, 1e6,
             "what products of states are multiplied by in it; 0: 0.3"),
    CLI_REAL(eval_values, o.cache_weight, 0, "cache-weight", "X", 0, 0.999,
             "its share of a probability; 0: 0.1"),
    CLI_INT(eval_values, o.longest, 0, "longest", "N", 0, 1000,
            "tokens of an answer, at most; 0: 15"),
    CLI_FLAG(eval_values, o.or_none, 0, "or-none", "a context may hold no answer (SQuAD 2)"),
    CLI_FILE(eval_values, o.source, 0, "source", "FILE",
             "what the model reads, a text on each line; plain or gzip"),
    CLI_FILE(eval_values, o.reference, 0, "reference", "FILE", "what it should have written"),
    CLI_FILE(eval_values, o.hypothesis, 0, "hypothesis", "FILE",
             "what was written, in place of a model and a source"),
    CLI_TEXT(eval_values, o.prefix, 0, "prefix", "TEXT",
             "put before every text to summarise; as config.json says if not given"),
    CLI_FILE(eval_values, o.predictions, 'o', "predictions", "FILE",
             "also write what the model gave, a line for each record"),
    CLI_FLAG(eval_values, o.lowercase, 0, "lowercase", "BLEU without regard to case"),
    CLI_INT(eval_values, o.beam, 0, "beam", "N", 1, 256, "beams; as the model says, else 4"),
    CLI_INT(eval_values, o.batch, 0, "batch", "N", 0, 1 << 20,
            "records that are handled together; 0: as many as suit the task"),
    CLI_TEXT(eval_values, shots, 0, "shots", "K,K,..",
             "few-shot: prompt a language model with so many solved examples, for each number"),
    CLI_FILE(eval_values, examples, 0, "examples", "FILE",
             "with --shots: what they are drawn from, in the format of FILE"),
    CLI_INT(eval_values, seeds, 0, "seeds", "N", 0, 10000,
            "with --shots: draws for each number; 5 if not given"),
    CLI_INT(eval_values, most, 0, "most", "N", 0, 1e12, "with --shots: only the first N records"),
    CLI_TEXT(eval_values, prompt, 0, "prompt", "TEXT",
             "with --shots: what the model reads, {} being the text"),
    CLI_TEXT(eval_values, words, 0, "words", "LABEL=WORD ..",
             "with --shots: words that stand for labels in the prompt"),
    CLI_FILE(eval_values, recipe, 0, "recipe", "FILE",
             "few-shot: the keys of its section [shots]; options override them"),
    CLI_FLAG(eval_values, o.json, 0, "json", "one JSON object"),
    {0},
};

static const cli_example examples[] = {
    {"fovea eval -m run/model --header dev.tsv", "accuracy and F1 of labels: text, a tab, label"},
    {"fovea eval -m run/model --source-field sentence --target-field label dev.tsv",
     "the same, columns by name: GLUE's SST-2"},
    {"fovea eval -m run/model --latin1 --label-until : TREC_10.label",
     "labels before the texts: TREC's six classes"},
    {"fovea eval -m run/model test.tar.gz",
     "images: accuracy, top 5 and F1; a folder, an archive or an IDX file as in training"},
    {"fovea eval -m run/model --split test bccd.tar.gz", "average precision of boxes"},
    {"fovea eval -m run/model --source-field index --target-field caption --images "
     "images-idx4-ubyte.gz test.tsv",
     "texts that find their images, and back: recall at 1, 5 and 10"},
    {"fovea eval -m run/model --source-field index --target-field caption --images "
     "images-idx4-ubyte.gz --where split=test --baseline split=train captions.tsv",
     "captions: exact match, BLEU and chrF, beside the nearest image's text"},
    {"fovea eval -m run/model -o tags.txt eng.testb.gz",
     "entities as conlleval counts them, in CoNLL columns"},
    {"fovea eval -m run/model -o answers.json dev-v1.1.json.gz",
     "exact matches and F1 of answers, as SQuAD has them"},
    {"fovea eval -m gpt2 wiki.test.txt",
     "perplexity by token and by word, bits per character and byte"},
    {"fovea eval -m bart-cnn --task summarize --source-field article --target-field highlights "
     "test.jsonl",
     "ROUGE"},
    {"fovea eval -m run/model --source test.en --reference test.de", "BLEU and chrF of a model"},
    {"fovea eval --hypothesis out.de --reference test.de", "the same of a file"},
    {"fovea eval -m gpt2 --shots 0,1,4,8 --examples train.tsv --words '0=negative 1=positive' "
     "--prompt 'Review: {}\\nSentiment:' --header dev.tsv",
     "few-shot: accuracy, plain and calibrated, over five draws of the examples"},
    {"fovea eval -m run/model -s test.en -r test.de --beam 5 --length-penalty 0.6 --json",
     "for a script, other settings"},
    {0},
};

static bool print(void *user, const fv_task_result *r)
{
    const cli *c = user;
    if (r->note) fprintf(stderr, "%s: %s\n", c->name, r->note);
    fwrite(r->text, 1, r->n, stdout);
    return true;
}

/* The recipe's [shots], and what the command line says over it. */
static fv_status read_shots(fv_shots_opt *s, const eval_values *v, fv_err *e)
{
    char seeds[32], most[32];
    snprintf(seeds, sizeof seeds, "%lld", (long long)v->seeds);
    snprintf(most, sizeof most, "%lld", (long long)v->most);
    const char *set[][2] = {
        {"shots", v->shots},  {"examples", v->examples},          {"prompt", v->prompt},
        {"labels", v->words}, {"seeds", v->seeds ? seeds : NULL}, {"most", v->most ? most : NULL}};
    fv_status st = FV_OK;
    fv_fields_default(s, fv_shots_fields);
    if (v->recipe) st = fv_shots_read(s, NULL, v->recipe, e);
    for (size_t i = 0; !st && i < sizeof set / sizeof *set; i++)
        if (set[i][1]) st = fv_fields_set(s, fv_shots_fields, set[i][0], set[i][1], e);
    return st;
}

/* Notes on the way and the report both come through print(). */
static int run(const cli *c, const void *values, int n, char **operand)
{
    const eval_values *v = values;
    fv_eval_opt o = v->o;
    fv_device *d = NULL;
    fv_err e;
    if (fv_comm_open(&o.comm, NULL, (fv_comm_opt){0}, &e)) return cli_error(c, &e);
    int code = cli_open_device(c, &d, v->model.device, v->model.threads);
    cli_adapters adapters;
    cli_choose_weights(v->model.dtype, &o.weights, &o.widen);
    if (code == CLI_OK) code = cli_take_adapters(c, &v->model.adapters, &adapters, &o.adapters);
    if (code == CLI_OK) cli_name_ignored(c, v->model.verbose, v->model.dir);
    o.model = v->model.dir;
    o.file = n ? operand[0] : NULL;
    o.settings = v->settings.at;
    o.n_settings = v->settings.n;
    code = cli_agree(c, o.comm, code);
    void *user = (void *)(uintptr_t)c;
    fv_status st = FV_OK;
    if (code == CLI_OK && (v->shots || v->recipe)) {
        fv_shots_opt *s = calloc(1, sizeof *s);
        st = s ? read_shots(s, v, &e) : fv_fail(&e, FV_ENOMEM, "out of memory");
        if (!st) st = fv_eval_shots(d, &o, s, print, user, &e);
        free(s);
    } else if (code == CLI_OK) {
        st = fv_eval(d, &o, print, user, &e);
    }
    if (st) code = cli_error(c, &e);
    fv_comm_close(o.comm);
    fv_device_close(d);
    return code;
}

const cli_command eval_command = {
    .name = "eval",
    .summary = "measure how good a model is",
    .about =
        "Runs a model on records whose answers are known and prints how often it was right.  What "
        "is compared follows from the model's architecture or from --task.  Scores are in per "
        "cent.  A record that cannot be used (not UTF-8, an empty text, a label the model does not "
        "have) is an error.\n\n"
        "classify: accuracy, F1 of each label and its mean over labels (macro), as scikit-learn "
        "has them; --json adds the table of which label was given for which.  Labels are those of "
        "config.json's id2label or their numbers.\n\n"
        "tag: FILE has CoNLL's columns, the word first and its tag last; entities are counted as "
        "conlleval counts them, in IOB1 or IOB2.  --predictions writes word, tag and given tag, as "
        "conlleval reads them.\n\n"
        "answer: FILE is SQuAD's JSON; an answer that reads like one of those given is exact, and "
        "the F1 of its words counts beside it, without case, punctuation and articles, as in "
        "SQuAD's own script, which reads what --predictions writes.  Long contexts are read in "
        "windows as \"fovea answer\" does.\n\n"
        "perplexity: how likely a text is, by token and by word (what blanks separate), in bits "
        "per character and byte.  The file is one text, read through a window as \"fovea score "
        "--whole\" does.  A model with an encoder needs source and target in each record.  For a "
        "model that fills masks each line is a text, every token of it is masked in turn, and the "
        "result is called pseudo-perplexity.\n\n"
        "summarize: ROUGE-1, ROUGE-2 and ROUGE-L (F-measure, no stemmer), as the Python package "
        "rouge-score has them.\n\n"
        "With --shots K,K,.. a language model is judged without training: classify (labels by "
        "likelihood), answer and translate (by writing on).  K solved examples, drawn from "
        "--examples by seed, stand in front of every record; figures are means over --seeds draws "
        "with their deviation, and those after contextual calibration: scores of labels and of "
        "first tokens divided by those behind texts without content (Zhao et al. 2021).\n\n"
        "translate: translates the source and compares the result with the reference, record by "
        "record, or compares a file that is there already.  BLEU and chrF are those of sacreBLEU, "
        "with its signatures: BLEU with the tokens of mteval-v13a, which is what papers compare, "
        "and on the tokens as they stand, for text that is tokenised already.",
    CLI_OWN(eval_values),
    .fields = fv_gen_fields,
    .settings = offsetof(eval_values, settings),
    .operands = "[FILE]",
    .max_operands = 1,
};
