/* demo.c - fovea demo: a Transformer learns to translate, here and now, and what it has learnt is
 * shown in words and in pictures.
 *
 * The work is the library's (author/demo.h): the corpus that it makes itself, the training, the
 * sentences it is judged by.  Here it is told what is going on: progress and messages on standard
 * error, results on standard output. */
#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli.h"
#include "fovea/author/demo.h"
#include "fovea/see.h"

typedef struct values {
    const char *dir, *device;
    int64_t updates, seed, threads, sentences, tests;
    bool quiet;
} values;

static const values defaults = {
    .dir = "fovea-demo", .updates = 800, .seed = 1, .sentences = 30000, .tests = 500};

static const cli_option options[] = {
    CLI_DIR(values, dir, 'o', "output", "DIR",
            "where the model and the pictures go; older ones are replaced"),
    CLI_INT(values, updates, 'u', "updates", "N", 1, 1000000, "updates of the parameters"),
    CLI_INT(values, sentences, 0, "sentences", "N", 100, 1000000, "sentences to learn from"),
    CLI_INT(values, tests, 0, "tests", "N", 1, 100000, "held-out sentences to be judged by"),
    CLI_INT(values, seed, 0, "seed", "N", 0, 1e15, "of everything that is drawn"),
    CLI_DEVICE(values, device),
    CLI_INT(values, threads, 't', "threads", "N", 0, 1024, "threads; 0: all cores"),
    CLI_FLAG(values, quiet, 'q', "quiet", "no progress on standard error"),
    {0},
};

static const cli_example examples[] = {
    {"fovea demo", "train for about a minute, translate sentences never seen, keep model and "
                   "pictures in fovea-demo/"},
    {"fovea demo --updates 200 --output /tmp/short", "a quick look, with a worse model"},
    {0},
};

/* ---- progress ---- */

static volatile int interrupted;

/* Ctrl-C ends the training after the update that runs; what was learnt by then is still shown. */
static void on_interrupt(int sig)
{
    (void)sig;
    interrupted = 1;
}

typedef struct show {
    const values *v;
    bool live; /* standard error is a terminal: one line is written over */
    int shown; /* sentences, of those it was judged by */
} show;

static void progress(void *user, const fv_train_state *s, const char *event)
{
    const show *w = user;
    if (w->v->quiet || strcmp(event, "step") || (s->step % 20 && s->step != w->v->updates)) return;
    double left = s->step ? s->seconds / (double)s->step * (double)(w->v->updates - s->step) : 0;
    if (w->live)
        fprintf(stderr,
                "\r\033[Klearning: update %lld of %lld, loss %.3f, %.0f words/s, %.0f s left",
                (long long)s->step, (long long)w->v->updates, s->loss,
                s->seconds > 0 ? (double)s->tokens / s->seconds : 0, left);
    else if (s->step % 200 == 0)
        fprintf(stderr, "learning: update %lld of %lld, loss %.3f\n", (long long)s->step,
                (long long)w->v->updates, s->loss);
}

/* ---- what it has learnt ---- */

/* The first ten, and mistakes beyond them: a reader wants to see what goes wrong. */
static void print_sentence(void *user, const char *en, const char *given, const char *expected)
{
    show *w = user;
    bool same = !strcmp(given, expected);
    if (!w->shown) printf("Sentences it has never seen:\n\n");
    if (w->shown >= 10 && (same || w->shown >= 14)) return;
    printf("  %-48s %s%s%s%s\n", en, given, same ? "" : "   (expected: ", same ? "" : expected,
           same ? "" : ")");
    w->shown++;
}

static fv_status save(fv_see *s, const char *dir, const char *name, fv_see_opt o, fv_err *e)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    return fv_see_save(s, NULL, path, o, e);
}

/* "pommes <- apples": for each token written, the one it looked at most. */
static fv_status print_words(fv_see *s, fv_see_pick p, fv_err *e)
{
    fv_see_shape shape = fv_see_shape_of(s, FV_SEE_CROSS);
    int64_t rows = shape.rows, cols = shape.cols;
    float *w = malloc((size_t)(rows * cols) * sizeof *w);
    if (!w) return fv_fail(e, FV_ENOMEM, "out of memory");
    fv_status st = fv_see_weights(s, p, 0, rows, w, e);
    if (!st)
        printf("\nWhere it looked while it wrote that (cross-attention, layer %d, head %d):\n\n ",
               (int)p.layer, (int)p.head);
    for (int64_t i = 0; !st && i < rows - 1; i++) { /* the last is the end token */
        int64_t best = 0;
        for (int64_t j = 1; j < cols; j++)
            if (w[i * cols + j] > w[i * cols + best]) best = j;
        printf(" %s\u2190%s", fv_see_row(s, FV_SEE_CROSS, i), fv_see_col(s, FV_SEE_CROSS, best));
    }
    if (!st) printf("\n");
    free(w);
    return st;
}

/* What was written and how to open it: a path that can be pasted into a browser. */
static void print_dispatch(const char *dir, bool pictures)
{
    char whole[PATH_MAX];
    if (!realpath(dir, whole)) snprintf(whole, sizeof whole, "%s", dir);
    printf("\nIts attention, to look at:\n\n");
    if (pictures) {
        printf("  %s/alignment.svg (and .png)  which word came from which\n", dir);
        printf("  %s/heads.svg                 every layer and head\n", dir);
    } else {
        printf("  (no pictures: this build is made without cairo)\n");
    }
    printf("  %s/attention.html            a page to explore; open it in a browser:\n", dir);
    printf("    xdg-open %s/attention.html   or   file://%s/attention.html\n", dir, whole);
    printf("\nOther sentences:  fovea see -m %s/model --source 'We want to buy three red apples.' "
           "-o look.html\n",
           dir);
}

/* Pictures of how a translation came about, and the page; which word looked at which, in words. */
static fv_status look(const values *v, fv_device *dev, const fv_demo *d, const char *en,
                      const fv_demo_translation *t, fv_err *e)
{
    char text[400], note[160] = "";
    double score;
    fv_see *s;
    fv_see_pick best = {0}, every = {FV_SEE_CROSS, FV_SEE_ALL, FV_SEE_ALL, false, false};
    fv_see_in in = {.tok = fv_demo_tok(d),
                    .source = t->source,
                    .n_source = t->n_source,
                    .target = t->target,
                    .n_target = t->n_target,
                    .start = t->start};
    fv_status st = fv_see_run(&s, dev, fv_demo_model(d), in, e);
    if (st) return st;
    st = fv_see_alignment(s, &best, &score, e);
    snprintf(text, sizeof text, "%s \u2192 %s", en, t->text);
    if (!st)
        snprintf(note, sizeof note,
                 "Cross-attention, layer %d, head %d: the head that aligns best (score %.2f).",
                 (int)best.layer, (int)best.head, score);
    fv_see_opt align = {.pick = best, .view = FV_VIEW_ALIGNMENT, .text = text, .note = note};
    fv_see_opt grid = {.pick = every, .view = FV_VIEW_GRID, .text = text};
    fv_see_opt page = {.pick = every, .start = &best, .every_kind = true, .text = text};
    if (!st) st = print_words(s, best, e);
    if (!st) st = save(s, v->dir, "attention.html", page, e);
    bool pictures = false;
    if (!st) {
        st = save(s, v->dir, "alignment.svg", align, e);
        pictures = !st;
        if (st == FV_EMISSING) st = FV_OK; /* a build without cairo */
    }
    if (!st && pictures) st = save(s, v->dir, "alignment.png", align, e);
    if (!st && pictures) st = save(s, v->dir, "heads.svg", grid, e);
    if (!st) print_dispatch(v->dir, pictures);
    fv_see_free(s);
    return st;
}

/* ---- the command ---- */

/* Trains, with progress on standard error, and keeps the model. */
static fv_status learn(const values *v, fv_demo *d, show *w, fv_train_state *done, fv_err *e)
{
    char dir[1024];
    struct sigaction act = {.sa_handler = on_interrupt};
    sigaction(SIGINT, &act, NULL);
    fv_demo_run run = {v->updates, &interrupted, progress, w};
    fv_status st = fv_demo_train(d, run, done, e);
    if (w->live && !v->quiet) fprintf(stderr, "\r\033[K");
    if (!st && mkdir(v->dir, 0777) && errno != EEXIST)
        st = fv_fail(e, FV_EIO, "%s: cannot make the directory: %s", v->dir, strerror(errno));
    snprintf(dir, sizeof dir, "%s/model", v->dir);
    return st ? st : fv_demo_save(d, dir, e);
}

/* One sentence of the reader's choice, whether or not the corpus has it: translated, then looked
 * into. */
static fv_status famous(const values *v, fv_device *dev, fv_demo *d, const char *en, fv_err *e)
{
    fv_demo_translation t;
    fv_status st = fv_demo_translate(d, en, &t, e);
    if (st) return st;
    printf("\n%s\n  %s\n", en, t.text);
    st = look(v, dev, d, en, &t, e);
    fv_demo_free_translation(d, &t);
    return st;
}

/* Messages about progress go to standard error; what is printed here is the result. */
static fv_status all(const values *v, fv_device *dev, fv_demo *d, fv_err *e)
{
    const fv_grammar_corpus *k = fv_demo_corpus(d);
    show w = {.v = v, .live = isatty(2)};
    fv_train_state done;
    int64_t right = 0;
    if (!v->quiet)
        fprintf(stderr,
                "%lld English sentences and their French translations, e.g. \"%s\" - \"%s\"\n",
                (long long)k->n_train, k->en[0], k->fr[0]);
    fv_status st = learn(v, d, &w, &done, e);
    if (st) return st;
    printf("Trained a Transformer of %lld parameters: %lld updates in %.0f s, %.0f target "
           "words/s.\n\n",
           (long long)fv_params_elements(fv_model_params(fv_demo_model(d)), ""),
           (long long)done.step, done.seconds,
           done.seconds > 0 ? (double)done.tokens / done.seconds : 0);
    st = fv_demo_judge(d, print_sentence, &w, &right, e);
    if (st) return st;
    printf("\n%lld of %lld unseen sentences are translated word for word: %.1f %%\n",
           (long long)right, (long long)k->n_test, 100.0 * (double)right / (double)k->n_test);
    printf("The model is in %s/model, in the layout of Hugging Face's MarianMTModel.\n", v->dir);
    return famous(v, dev, d, "I like to eat apples.", e);
}

static int run(const cli *c, const void *vals, int n, char **operand)
{
    (void)n, (void)operand;
    const values *v = vals;
    fv_demo_opt o = {v->sentences, v->tests, (uint64_t)v->seed};
    fv_demo *d = NULL;
    fv_device *dev;
    fv_err e;
    int code = cli_open_device(c, &dev, v->device, v->threads);
    if (code == CLI_OK && (fv_demo_new(&d, dev, o, &e) || all(v, dev, d, &e)))
        code = cli_error(c, &e);
    fv_demo_free(d);
    fv_device_close(dev);
    return code;
}

const cli_command demo_command = {
    .name = "demo",
    .summary = "train a small translator and see what it has learnt",
    .about = "Makes a corpus of English sentences and their French translations from a small "
             "grammar with real agreement, trains the Transformer of 2017 on it, and lets it "
             "translate sentences with combinations of words it has never seen.  The same seed "
             "gives the same model whatever the number of threads.",
    CLI_OWN(values),
    .defaults = &defaults,
};
