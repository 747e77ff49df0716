/* eval.c - fovea eval: how good a model, or what it wrote, is. */
#include "eval.h"

#include <string.h>

static const eval_kind *const kinds[] = {&eval_classify,   &eval_tag,       &eval_answer,
                                         &eval_perplexity, &eval_translate, &eval_summarize};
enum { N_KINDS = (int)(sizeof kinds / sizeof *kinds) };

static const char *const tasks[] = {"auto",       "classify",  "tag",       "answer",
                                    "perplexity", "translate", "summarize", NULL};

static const cli_option options[] = {
    CLI_MODEL(eval_values),
    CLI_CHOICE(eval_values, task, 0, "task", tasks,
               "what is evaluated; auto: what the model's architecture is for"),
    CLI_CHOICE(eval_values, format, 0, "format", fv_formats, "of FILE; auto goes by its name"),
    CLI_TEXT(eval_values, source_field, 0, "source-field", "NAME",
             "field with the text: a name, or a number from 1 in a table"),
    CLI_TEXT(eval_values, target_field, 0, "target-field", "NAME",
             "field with the label or reference"),
    CLI_FLAG(eval_values, header, 0, "header", "the first line of a table only names its columns"),
    CLI_FLAG(eval_values, latin1, 0, "latin1", "FILE is ISO-8859-1, not UTF-8"),
    CLI_TEXT(eval_values, label_until, 0, "label-until", "CHARS",
             "a label ends where one of these characters stands, the model's too"),
    CLI_INT(eval_values, window, 0, "window", "N", 0, 1 << 20,
            "tokens the model reads at once; 0: as answer and score have it"),
    CLI_INT(eval_values, stride, 0, "stride", "N", 0, 1 << 20,
            "tokens that windows of a context share, or that one of running text moves on by; 0: "
            "likewise"),
    CLI_INT(eval_values, longest, 0, "longest", "N", 0, 1000,
            "tokens of an answer, at most; 0: 15"),
    CLI_FLAG(eval_values, or_none, 0, "or-none", "a context may hold no answer (SQuAD 2)"),
    CLI_FILE(eval_values, source, 's', "source", "FILE",
             "what the model reads, a text on each line; plain or gzip"),
    CLI_FILE(eval_values, reference, 'r', "reference", "FILE", "what it should have written"),
    CLI_FILE(eval_values, hypothesis, 0, "hypothesis", "FILE",
             "what was written, in place of a model and a source"),
    CLI_TEXT(eval_values, prefix, 0, "prefix", "TEXT",
             "put before every text to summarise; as config.json says if not given"),
    CLI_FILE(eval_values, predictions, 'o', "predictions", "FILE",
             "also write what the model gave, a line for each record"),
    CLI_FLAG(eval_values, lowercase, 0, "lowercase", "BLEU without regard to case"),
    CLI_INT(eval_values, beam, 'b', "beam", "N", 1, 256, "beams; as the model says, else 4"),
    CLI_INT(eval_values, batch, 0, "batch", "N", 0, 1 << 20,
            "records that are handled together; 0: as many as suit the task"),
    CLI_FLAG(eval_values, json, 0, "json", "one JSON object"),
    {0},
};

static const cli_example examples[] = {
    {"fovea eval -m run/model --header dev.tsv", "accuracy and F1 of labels: text, a tab, label"},
    {"fovea eval -m run/model --source-field sentence --target-field label dev.tsv",
     "the same, columns by name: GLUE's SST-2"},
    {"fovea eval -m run/model --latin1 --label-until : TREC_10.label",
     "labels before the texts: TREC's six classes"},
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
    {"fovea eval -m run/model -s test.en -r test.de --beam 5 --length-penalty 0.6 --json",
     "for a script, other settings"},
    {0},
};

/* ---- shared by the kinds ---- */

int eval_in_slices(const eval_values *v, int64_t n, eval_slice *run, void *work)
{
    int code = CLI_OK;
    int64_t slice = v->batch ? v->batch : 1024;
    for (int64_t at = 0; code == CLI_OK && at < n; at += slice)
        code = run(work, at, n - at < slice ? n - at : slice);
    return code;
}

fv_records eval_records(const eval_values *v, const char *file)
{
    return (fv_records){.file = file,
                        .format = (fv_format)v->format,
                        .field = {v->source_field, v->target_field},
                        .header = v->header,
                        .latin1 = v->latin1,
                        .malformed = FV_REFUSE,
                        .empty = FV_REFUSE};
}

int eval_open_predictions(const cli *c, const eval_values *v, FILE **out)
{
    *out = v->predictions ? fopen(v->predictions, "w") : NULL;
    return v->predictions && !*out ? cli_fail(c, "%s: cannot be written", v->predictions) : CLI_OK;
}

int eval_close_predictions(const cli *c, const eval_values *v, FILE *f, int code)
{
    if (!f) return code;
    bool bad = ferror(f);
    bad = fclose(f) || bad;
    return bad && code == CLI_OK ? cli_fail(c, "%s: cannot be written", v->predictions) : code;
}

void eval_row(const char *name, int width, fv_match m)
{
    if (name)
        printf("%-*s %9.2f %9.2f %9.2f %9lld %9lld %9lld\n", width, name, fv_precision(m),
               fv_recall(m), fv_f1(m), (long long)m.right, (long long)m.given, (long long)m.gold);
    else
        printf("%-*s %9s %9s %9s %9s %9s %9s\n", width, "", "precision", "recall", "F1", "right",
               "given", "gold");
}

json_t *eval_match_json(fv_match m)
{
    return json_pack("{s:f, s:f, s:f, s:I, s:I, s:I}", "precision", fv_precision(m), "recall",
                     fv_recall(m), "f1", fv_f1(m), "right", (json_int_t)m.right, "given",
                     (json_int_t)m.given, "gold", (json_int_t)m.gold);
}

/* ---- which kind ---- */

static const eval_kind *kind_named(const char *name)
{
    for (int i = 0; i < N_KINDS; i++)
        if (!strcmp(kinds[i]->name, name)) return kinds[i];
    return NULL;
}

static int kind_of_model(const cli *c, const char *dir, const eval_kind **out)
{
    fv_dir *d;
    fv_err e;
    if (fv_dir_open(&d, NULL, dir, &e)) return cli_error(c, &e);
    const char *head = fv_json_text(fv_dir_config(d), "architectures.0");
    for (int i = 0; i < N_KINDS && head; i++)
        for (const char *const *part = kinds[i]->heads; *part && !*out; part++)
            if (strstr(head, *part)) *out = kinds[i];
    int code =
        *out ? CLI_OK
             : cli_fail(c,
                        "%s: what to evaluate is not clear from its architecture (%s); say --task",
                        dir, head ? head : "none is named");
    fv_dir_close(d);
    return code;
}

static int run(const cli *c, const void *values, int n, char **operand)
{
    const eval_values *v = values;
    const eval_kind *kind = v->task         ? kind_named(tasks[v->task])
                            : v->hypothesis ? &eval_translate
                                            : NULL;
    if (!kind && !v->model.dir)
        return cli_usage(c, "a model is needed, -m DIR, or what was written, --hypothesis FILE");
    int code = kind ? CLI_OK : kind_of_model(c, v->model.dir, &kind);
    return code == CLI_OK ? kind->run(c, v, n ? operand[0] : NULL) : code;
}

const cli_command eval_command = {
    .name = "eval",
    .summary = "how good a model is",
    .about =
        "Runs a model on records whose answers are known and prints how often it was right.  What "
        "is compared follows from the "
        "model's architecture or from --task.  Scores are in per cent.  A record that cannot be "
        "used (not UTF-8, an empty "
        "text, a label the model does not have) is an error.\n\n"
        "classify: accuracy, F1 of each label and its mean over labels (macro), as scikit-learn "
        "has them; --json adds the table "
        "of which label was given for which.  Labels are those of config.json's id2label or their "
        "numbers.\n\n"
        "tag: FILE has CoNLL's columns, the word first and its tag last; entities are counted as "
        "conlleval counts them, in "
        "IOB1 or IOB2.  --predictions writes word, tag and given tag, as conlleval reads them.\n\n"
        "answer: FILE is SQuAD's JSON; an answer that reads like one of those given is exact, and "
        "the F1 of its words counts "
        "beside it, without case, punctuation and articles, as in SQuAD's own script, which reads "
        "what --predictions writes.  "
        "Long contexts are read in windows as \"fovea answer\" does.\n\n"
        "perplexity: how likely a text is, by token and by word (what blanks separate), in bits "
        "per character and byte.  The "
        "file is one text, read through a window as \"fovea score --whole\" does.  A model with an "
        "encoder needs source and "
        "target in each record.  For a model that fills masks each line is a text, every token of "
        "it is masked in turn, and "
        "the result is called pseudo-perplexity.\n\n"
        "summarize: ROUGE-1, ROUGE-2 and ROUGE-L (F-measure, no stemmer), as the Python package "
        "rouge-score has them.\n\n"
        "translate: translates the source and compares the result with the reference, record by "
        "record, or compares a file "
        "that is there already.  BLEU and chrF are those of sacreBLEU, with its signatures: BLEU "
        "with the tokens of mteval-v13a, "
        "which is what papers compare, and on the tokens as they stand, for text that is tokenised "
        "already.",
    .options = options,
    .size = sizeof(eval_values),
    .fields = fv_gen_fields,
    .settings = offsetof(eval_values, settings),
    .operands = "[FILE]",
    .max_operands = 1,
    .examples = examples,
    .run = run,
};
