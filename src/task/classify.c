/* classify.c - scores of labels for each text or image.
 *
 * A line, an image or a sound goes in, a score for each label comes out. Three ways lead there: a
 * classification head with labels of its own; a model that was never trained on the labels given
 * by --labels (classify_labels.c, classify_images.c); and the sum of either over many records,
 * which is an evaluation (eval_classify.c). What differs is only how scores are made; sorting,
 * thresholds and both outputs are here.
 *
 * Output is one line for each record in the order of the input (.aligned), so that "paste" can
 * join it to its source. Scores are float probabilities, except for regression, and equal ones
 * keep the order of id2label. */
#include <ctype.h>
#include <math.h>
#include <stdlib.h>

#include "task_pipeline.h"

/* PLAIN: logits as they are; ONE: softmax over the labels; MANY: a sigmoid for each. */
typedef struct scoring {
    enum { PLAIN, ONE, MANY } how;
    float *out;
} scoring;

/* problem_type of config.json; transformers sets it when a classifier is trained. */
static const char *problem(const fv_task *t)
{
    const char *p = fv_json_text(fv_dir_config(t->dir), "problem_type");
    return p ? p : "";
}

bool fv_task_many(const fv_task *t) { return !strcmp(problem(t), "multi_label_classification"); }

/* Called once for each record with its row of logits, in the order of the records. */
static fv_status score_row(void *user, int64_t i, const fv_seq *s, const float *const out[2],
                           int64_t width, fv_err *e)
{
    const scoring *c = user;
    float *y = c->out + i * width;
    (void)s, (void)e;
    memcpy(y, out[0], (size_t)width * sizeof *y);
    if (c->how == ONE) fv__softmax_row(y, width);
    for (int64_t j = 0; c->how == MANY && j < width; j++)
        y[j] = (float)(1 / (1 + exp(-(double)y[j])));
    return FV_OK;
}

/* One head, four kinds of input: what the model takes decides what a record is. */
static fv_status score_all(fv_task *t, const fv_text *texts, int64_t n, scoring c, fv_err *e)
{
    fv_seq *seqs;
    fv_wanted w = {.names = {"logits"}, .per_token = 1, .fn = score_row, .user = &c};
    fv__task_begin(t);
    if (fv__task_sees(t)) return fv__task_run_images(t, texts, n, &w, e);
    if (fv__task_hears(t)) return fv__task_run_sound(t, texts, n, &w, e);
    if (fv__task_reads_series(t)) return fv__task_run_series(t, texts, n, &w, e);
    fv_status st = fv__task_encode_all(t, &seqs, texts, n, e);
    return st ? st : fv__task_run(t, seqs, n, &w, e);
}

/* As transformers chooses: a regression's value as it is, the sigmoid for one label or many that go
 * together. */
static scoring scoring_of(const fv_task *t, float *scores)
{
    scoring c = {.how = ONE, .out = scores};
    if (!strcmp(problem(t), "regression"))
        c.how = PLAIN;
    else if (fv_task_many(t) || t->labels == 1)
        c.how = MANY;
    return c;
}

fv_status fv_task_classify(fv_task *t, const fv_text *texts, int64_t n, float *scores, fv_err *e)
{
    return score_all(t, texts, n, scoring_of(t, scores), e);
}

fv_status fv__task_classify_set(fv_task *t, const fv_images *set, int64_t from, int64_t n,
                                float *scores, fv_err *e)
{
    scoring c = scoring_of(t, scores);
    fv_wanted w = {.names = {"logits"}, .per_token = 1, .fn = score_row, .user = &c};
    fv__task_begin(t);
    return fv__task_run_set(t, set, from, n, &w, e);
}

fv_status fv__task_logits(fv_task *t, const fv_text *texts, int64_t n, float *logits, fv_err *e)
{
    return score_all(t, texts, n, (scoring){.how = PLAIN, .out = logits}, e);
}

/* ---- the task ---- */

/* Zeroed and filled from the table below; texts have fixed capacities so that the table can set
 * them. */
typedef struct classify_options {
    int64_t top;
    double threshold;
    bool truncate;
    char labels[8192], hypothesis[1024], prompt[4096], examples[FV_PATH];
    bool many;
} classify_options;

static const fv_field options[] = {
    FV_INT(classify_options, top, 0, 1, 1 << 20,
           "labels to print for each text, likeliest first; 0: all"),
    FV_FLOAT(classify_options, threshold, 0, 0.5, 1,
             "where several labels may hold at once: print those of at least this probability"),
    FV_BOOL(classify_options, truncate, false, "cut texts that are longer than the model sees"),
    FV_TEXT(classify_options, labels, "",
            "A,B,C: labels of your own, for an inference model (by entailment) or a language model "
            "(by likelihood)"),
    FV_TEXT(classify_options, hypothesis, "This example is {}.",
            "with --labels: what entailment is asked of, {} being a label"),
    FV_TEXT(classify_options, prompt,
            "Text: {}\\nLabel:", "with --labels: what a language model reads, {} being the text"),
    FV_TEXT(classify_options, examples, "",
            "FILE: with --labels, solved examples for the prompt, text and label a line with a "
            "tab between them"),
    FV_BOOL(classify_options, many, false,
            "with --labels and an inference model: several may hold at once"),
    {0}};

/* Labels and how to score them. */
typedef struct labelling {
    const char **label;
    int n;
    bool many;               /* they do not exclude each other */
    char *own;               /* --labels, cut at its commas */
    fv_zero_shot *zero;      /* with --labels; else the model has been trained on them */
    fv_photo_labels *photos; /* the same of images */
} labelling;

/* ---- labels of one's own ---- */

/* Cuts "a, b,c" at its commas; returns how many, or -1 where one is empty. */
static int cut_labels(char *s, const char **out)
{
    int n = 0;
    for (char *rest; s; s = rest) {
        rest = strchr(s, ',');
        if (rest) *rest++ = 0;
        while (isspace((unsigned char)*s)) s++;
        for (size_t len = strlen(s); len && isspace((unsigned char)s[len - 1]);) s[--len] = 0;
        if (!*s) return -1;
        out[n++] = s;
    }
    return n;
}

/* A label that is there twice would share its probability with itself. */
static fv_status check_labels(const classify_options *o, labelling *l, fv_err *e)
{
    l->n = cut_labels(l->own, l->label);
    if (l->n < 0) return fv_fail(e, FV_EUSAGE, "labels: an empty label in \"%.200s\"", o->labels);
    for (int i = 0; i < l->n; i++)
        for (int k = 0; k < i; k++)
            if (!strcmp(l->label[i], l->label[k]))
                return fv_fail(e, FV_EUSAGE, "labels: \"%s\" is there twice", l->label[i]);
    if (!strstr(o->hypothesis, "{}"))
        return fv_fail(e, FV_EUSAGE, "hypothesis: no {} for the label in \"%.200s\"",
                       o->hypothesis);
    if (!strstr(o->prompt, "{}"))
        return fv_fail(e, FV_EUSAGE, "prompt: no {} for the text in \"%.200s\"", o->prompt);
    return FV_OK;
}

/* Before the model is opened: opening takes seconds, and a wrong setting should not cost them. */
static fv_status check(fv_pipeline *p, fv_err *e)
{
    /* Silently ignoring them would hide that nothing was classified by one's own labels. */
    static const char *const needs_labels[] = {"hypothesis", "prompt", "examples", "many"};
    const classify_options *o = p->options;
    fv_status st = fv__pipeline_self(p, sizeof(labelling), e);
    labelling *l = p->self;
    for (size_t i = 0; !o->labels[0] && i < sizeof needs_labels / sizeof *needs_labels; i++)
        if (fv__setting(p->opt.settings, p->opt.n_settings, needs_labels[i]))
            return fv_fail(e, FV_EUSAGE, "%s: needs --labels", needs_labels[i]);
    if (st || !o->labels[0]) return st;
    l->own = fv__strdup(&p->env, o->labels);
    /* Not more labels than bytes of the list. */
    l->label = fv__alloc(&p->env, sizeof o->labels * sizeof *l->label);
    if (!l->own || !l->label) return fv_fail(e, FV_ENOMEM, "out of memory");
    return check_labels(o, l, e);
}

/* Three kinds of model: one with labels of its own, one that compares images with texts (CLIP), and
 * one that judges or writes (zero-shot). */
static fv_status open_task(fv_pipeline *p, fv_err *e)
{
    const classify_options *o = p->options;
    labelling *l = p->self;
    /* CLIP and its kin compare images with texts, so a label becomes the text of a photo. */
    if (o->labels[0] && fv__head_job(p->opt.model, NULL, 0) == FV_HEAD_CONTRASTIVE) {
        /* The default for texts reads oddly for images; one that was given stays. */
        bool given = fv__setting(p->opt.settings, p->opt.n_settings, "hypothesis") != NULL;
        fv_status st = fv__photo_labels_open(&l->photos, p,
                                             given ? o->hypothesis : "This is a photo of {}.",
                                             l->label, l->n, e);
        l->many = !st && fv__photo_labels_apart(l->photos);
        return st;
    }
    if (o->labels[0]) {
        l->many = o->many;
        fv_zero_shot_opt how = {.hypothesis = o->hypothesis,
                                .prompt = o->prompt,
                                .examples = o->examples,
                                .many = o->many,
                                .labels = l->label,
                                .n = l->n};
        return fv__zero_shot_open(&l->zero, p, how, e);
    }
    fv_status st = fv__open_encoder(p, FV_JOB_CLASSIFY, e);
    if (st) return st;
    /* The labels are the head's own: config.json's id2label. */
    l->n = p->task->labels;
    l->many = fv_task_many(p->task);
    return FV_OK;
}

fv_zero_shot *fv__classify_zero_shot(const fv_pipeline *p)
{
    return ((const labelling *)p->self)->zero;
}

static void close_task(fv_pipeline *p)
{
    const classify_options *o = p->options;
    labelling *l = p->self;
    if (!l) return;
    fv__zero_shot_close(l->zero);
    fv__photo_labels_close(l->photos);
    if (l->own) fv__free(&p->env, l->own, strlen(o->labels) + 1);
    fv__free(&p->env, l->label, sizeof o->labels * sizeof *l->label);
}

/* ---- results ---- */

typedef struct scored {
    int label;
    float score;
} scored;

/* Equal scores keep the order of the labels: output must not depend on the sort. */
static int by_score(const void *a, const void *b)
{
    const scored *x = a, *y = b;
    return x->score != y->score ? (x->score < y->score) - (x->score > y->score)
                                : x->label - y->label;
}

/* Names that were given come before the model's own. */
static const char *name_of(const fv_pipeline *p, int label)
{
    const labelling *l = p->self;
    return l->label ? l->label[label] : p->task->label[label];
}

/* What a record is; t may be NULL. */
static const char *kind_of(const fv_task *t)
{
    if (t && fv__task_hears(t)) return "sound";
    if (t && fv__task_reads_series(t)) return "series";
    return t && fv__task_sees(t) ? "image" : "text";
}

/* All labels, so that whoever reads it can choose another threshold. */
static void put_json(fv_pipeline *p, const fv_text *x, const scored *s, int n)
{
    fv_buf *b = &p->out;
    fv__json_begin(b, '{');
    fv__json_text_at(b, kind_of(p->task), x->s, x->n);
    fv__json_key(b, "labels");
    fv__json_begin(b, '[');
    for (int i = 0; i < n; i++) {
        const char *name = name_of(p, s[i].label);
        fv__json_begin(b, '{');
        fv__json_text_at(b, "label", name, strlen(name));
        fv__json_number_at(b, "score", (double)s[i].score);
        fv__json_end(b, '}');
    }
    fv__json_end(b, ']');
    if (x->pair) fv__json_text_at(b, "pair", x->pair, x->pair_n);
    fv__json_end(b, '}');
}

/* Labels that exclude each other: the first --top of them. Several at once: those over the
 * threshold, perhaps none. */
static void put_plain(fv_pipeline *p, const scored *s, int n)
{
    const classify_options *o = p->options;
    bool many = ((const labelling *)p->self)->many;
    int64_t top = o->top && o->top < n ? o->top : n, printed = 0;
    for (int i = 0; i < (many ? n : top); i++) {
        if (many && (double)s[i].score < o->threshold) continue;
        fv__buf_fmt(&p->out, "%s%s %.6f", printed++ ? "\t" : "", name_of(p, s[i].label),
                    (double)s[i].score);
    }
}

/* Which of the three ways this pipeline was opened for. */
static fv_status score_texts(fv_pipeline *p, const fv_text *in, int64_t n, float *scores, fv_err *e)
{
    const labelling *l = p->self;
    if (l->zero) return fv__zero_shot_run(l->zero, in, n, scores, e);
    if (l->photos) return fv__photo_labels_run(l->photos, in, n, scores, e);
    p->task->strict = !((const classify_options *)p->options)->truncate;
    return fv_task_classify(p->task, in, n, scores, e);
}

/* Scores are probabilities: a softmax over labels that exclude each other, a sigmoid each where
 * they do not. */
static fv_status run(fv_pipeline *p, const fv_text *in, int64_t n, fv_err *e)
{
    const labelling *l = p->self;
    /* One row for each record, all of a batch: 256 records of some labels are small. */
    size_t bytes = (size_t)n * (size_t)l->n * sizeof(float),
           order_bytes = (size_t)l->n * sizeof(scored);
    float *scores = fv__alloc(&p->env, bytes);
    scored *s = fv__alloc(&p->env, order_bytes);
    fv_status st = scores && s ? FV_OK : fv_fail(e, FV_ENOMEM, "out of memory");
    if (!st) st = score_texts(p, in, n, scores, e);
    for (int64_t i = 0; i < n && !st; i++) {
        for (int k = 0; k < l->n; k++) s[k] = (scored){k, scores[i * l->n + k]};
        qsort(s, (size_t)l->n, sizeof *s, by_score);
        if (p->opt.json)
            put_json(p, &in[i], s, l->n);
        else
            put_plain(p, s, l->n);
        fv__buf_str(&p->out, "\n");
        st = fv__task_emit(p, e);
    }
    fv__free(&p->env, scores, bytes);
    fv__free(&p->env, s, order_bytes);
    return st;
}

static const fv_task_example examples[] = {
    {"echo 'what a film' | fovea classify -m distilbert-sst2",
     "the likeliest label and its probability"},
    {"fovea classify -m roberta-mnli --top 0 pairs.tsv",
     "two texts a line with a tab between them; all labels"},
    {"fovea classify -m toxicity --json < comments.txt", "for scripts"},
    {"fovea classify -m bart-large-mnli --labels sport,politics,science news.txt",
     "labels nobody trained it on"},
    {"fovea classify -m vit-base-patch16-224 --top 5 photos/ cat.jpg",
     "images: files, and all of a folder"},
    {"fovea classify -m clip-vit-base-patch32 --labels 'a cat,a dog' photos/",
     "images by labels nobody trained it on"},
    {"fovea classify -m kwt1 yes.wav no.wav", "the word that is said in each clip"},
    {"fovea classify -m runs/fsdd-series/model series.txt", "a time series on each line"},
    {"fovea classify -m gpt2 --labels positive,negative --examples solved.tsv reviews.txt",
     "by likelihood, after a few examples"},
    {0}};

const fv_task_kind fv__classify_task = {
    .name = "classify",
    .summary = "label texts, images, sounds or time series",
    .about =
        "Reads lines and prints the label of each with its probability.  To a model of images "
        "a line is the path of a PNG or JPEG file, to a model of sound that of a WAV, FLAC, OGG "
        "or MP3 file; files and folders of them may also be named "
        "on the command line; to a model of time series it is the numbers of one, with commas or "
        "blanks between them and \":\" between channels.  A line with a tab in "
        "it is a pair of texts.  Labels are config.json's id2label.  Probabilities exclude "
        "each other (softmax) unless problem_type says that several labels may hold at once; "
        "a regression's value is printed as it is.  A text longer than the model sees is "
        "refused, or cut with --truncate.\n\n"
        "With --labels the model need not know them.  One trained for inference (MNLI) is "
        "asked whether \"This example is LABEL.\" follows from the text, as transformers' "
        "zero-shot pipeline does; a language model is asked how likely it is to write LABEL "
        "behind a prompt, which --examples begins with some that are solved; one that fills "
        "masks is asked for each token of LABEL there; one that sees and reads (CLIP, SigLIP) "
        "how well \"This is a photo of LABEL.\" fits an image.",
    .examples = examples,
    .options = options,
    .size = sizeof(classify_options),
    .pairs = true,
    .images = true,
    .aligned = true,
    .batch = 256,
    .check = check,
    .open = open_task,
    .run = run,
    .close = close_task,
    .eval = &fv__eval_classify};
