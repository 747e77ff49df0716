/* vectors.c - fovea vectors: word vectors trained, converted, asked and drawn. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "fovea/author/vectors.h"
#include "fovea/pipeline.h"
#include "json.h"

typedef struct values {
    cli_list near, analogies, words;
    const char *model_file, *output, *questions, *plot;
    int kind, form, projection;
    int64_t width, window, negatives, epochs, least, ngram_least, ngram_most, buckets, seed,
        threads, top;
    double lr, sample;
    bool lowercase, json, quiet;
} values;

static const values defaults = {.width = 100, .negatives = 5, .least = 5, .seed = 1, .top = 10};

static const cli_option options[] = {
    CLI_FILE(values, model_file, 'm', "model", "FILE", "word vectors to ask, draw or convert"),
    CLI_FILE(values, output, 'o', "output", "FILE",
             "write the vectors here: .bin is word2vec's binary form, everything else text (.vec)"),
    CLI_CHOICE(values, form, 0, "form", fv_vectors_forms, "of the files; auto goes by their names"),
    CLI_CHOICE(values, kind, 0, "train", fv_vectors_models, "how texts are learnt from"),
    CLI_INT(values, width, 0, "width", "N", 1, 4096, "numbers of a vector"),
    CLI_INT(values, window, 0, "window", "N", 0, 100, "words to each side; 0: 5, of GloVe 10"),
    CLI_INT(values, negatives, 0, "negatives", "N", 1, 100, "words drawn for each position"),
    CLI_INT(values, epochs, 0, "epochs", "N", 0, 100000, "0: 5, of GloVe 25"),
    CLI_INT(values, least, 0, "least", "N", 1, 1LL << 40, "leave out words that occur less often"),
    CLI_INT(values, ngram_least, 0, "ngram-least", "N", 0, 32,
            "letters of the shortest subwords, as fastText has 3; 0: words are whole"),
    CLI_INT(values, ngram_most, 0, "ngram-most", "N", 0, 32, "of the longest; 0: 6"),
    CLI_INT(values, buckets, 0, "buckets", "N", 0, 1 << 29,
            "rows that subwords share; 0: 2,000,000"),
    CLI_REAL(values, lr, 0, "lr", "X", 0, 10, "highest learning rate; 0: 0.05"),
    CLI_REAL(values, sample, 0, "sample", "X", 0, 1,
             "words above this share are left out at random; 0: 1e-3"),
    CLI_FLAG(values, lowercase, 0, "lowercase", "ASCII letters of the texts"),
    CLI_INT(values, seed, 0, "seed", "N", 0, 1LL << 40, "of first values and of drawing"),
    CLI_INT(values, threads, 't', "threads", "N", 0, 1024, "0: all cores this process may use"),
    CLI_LIST(values, near, 0, "near", "WORD", "the words nearest to this; may be repeated"),
    CLI_LIST(values, analogies, 0, "analogy", "'A B C'",
             "what is to C as B is to A; may be repeated"),
    CLI_FILE(values, questions, 0, "questions", "FILE",
             "analogies, four words a line: how often the fourth is found"),
    CLI_FILE(values, plot, 0, "plot", "FILE.svg", "draw words in the plane"),
    CLI_CHOICE(values, projection, 0, "project", fv_projections, "how they get there"),
    CLI_LIST(values, words, 0, "word", "WORD", "a word to draw; the most frequent unless given"),
    CLI_INT(values, top, 'k', "top", "N", 1, 5000, "words that are printed or drawn"),
    CLI_FLAG(values, json, 0, "json", "one JSON object a line"),
    CLI_FLAG(values, quiet, 'q', "quiet", "no progress on standard error"),
    {0},
};

static const cli_example examples[] = {
    {"fovea vectors -o words.vec wiki.train.txt", "skip-gram, as word2vec trains it"},
    {"fovea vectors -o words.vec --ngram-least 3 --ngram-most 6 wiki.train.txt",
     "with subwords, as fastText"},
    {"fovea vectors --train glove -o words.vec wiki.train.txt", "from counts of neighbours"},
    {"fovea vectors -m words.vec --near river --analogy 'man king woman'", "what is near"},
    {"fovea vectors -m words.vec --plot words.svg --project tsne --top 200", "a picture"},
    {"fovea vectors -m words.vec -o words.bin", "from text to binary"},
    {0},
};

/* ---- training ---- */

static void progress(void *user, double share)
{
    (void)user;
    fprintf(stderr, "\r%3.0f %%", 100 * share);
}

static int train(const cli *c, const values *v, fv_vectors **out, int n, char **files)
{
    fv_err e;
    double speed;
    fv_vectors_opt o = {.model = (fv_vectors_model)v->kind,
                        .width = v->width,
                        .window = v->window,
                        .negatives = v->negatives,
                        .epochs = v->epochs,
                        .least = v->least,
                        .ngram_least = v->ngram_least,
                        .ngram_most = v->ngram_most,
                        .buckets = v->buckets,
                        .lr = v->lr,
                        .sample = v->sample,
                        .seed = (uint64_t)v->seed,
                        .threads = (int)v->threads,
                        .lowercase = v->lowercase,
                        .progress = v->quiet ? NULL : progress};
    if (fv_vectors_train(out, NULL, (const char *const *)files, n, o, &speed, &e))
        return cli_error(c, &e);
    if (!v->quiet)
        fprintf(stderr, "\r%lld words, %.0f words/s\n", (long long)fv_vectors_count(*out), speed);
    return CLI_OK;
}

/* ---- questions ---- */

/* The number of a word; below 0 there is none, and that is said. */
static int64_t number_of(const cli *c, const fv_vectors *w, const char *word, int *code)
{
    int64_t i = fv_vectors_find(w, word);
    if (i < 0) *code = cli_fail(c, "%s: there is no vector of this word", word);
    return i;
}

static void print_near(const values *v, const fv_vectors *w, const char *asked, const fv_near *near,
                       int64_t n)
{
    cli_json j = {0};
    if (v->json) cli_json_put(&j, "{s:s, s:[", "asked", asked, "near");
    for (int64_t i = 0; i < n; i++) {
        const char *word = fv_vectors_word(w, near[i].word);
        if (v->json)
            cli_json_put(&j, "{s:s, s:f}", "word", word, "cosine", (double)near[i].cosine);
        else
            printf("%s\t%s\t%.4f\n", asked, word, (double)near[i].cosine);
    }
    if (v->json) cli_json_put(&j, "]}"), cli_json_end();
}

/* query and near: scratch of the width and of `top`. */
static int ask(const cli *c, const values *v, const fv_vectors *w, float *query, fv_near *near)
{
    int code = CLI_OK;
    for (int i = 0; code == CLI_OK && i < v->near.n; i++) {
        int64_t word = number_of(c, w, v->near.at[i], &code);
        if (word < 0) break;
        int64_t n = fv_vectors_nearest(w, fv_vectors_row(w, word), v->top, &word, 1, near);
        print_near(v, w, v->near.at[i], near, n);
    }
    for (int i = 0; code == CLI_OK && i < v->analogies.n; i++) {
        char a[200], b[200], d[200];
        if (sscanf(v->analogies.at[i], "%199s %199s %199s", a, b, d) != 3)
            return cli_fail(c, "--analogy '%s': three words are needed", v->analogies.at[i]);
        int64_t of[3] = {number_of(c, w, a, &code), -1, -1};
        if (of[0] >= 0) of[1] = number_of(c, w, b, &code);
        if (of[1] >= 0) of[2] = number_of(c, w, d, &code);
        if (of[2] < 0) break;
        fv_vectors_analogy(w, of[0], of[1], of[2], query);
        print_near(v, w, v->analogies.at[i], near,
                   fv_vectors_nearest(w, query, v->top, of, 3, near));
    }
    return code;
}

typedef struct tally {
    int64_t right, asked, unknown;
} tally;

static void try_question(const fv_vectors *w, const char *line, float *query, tally *t)
{
    char word[4][200];
    int64_t of[4];
    fv_near near;
    if (sscanf(line, "%199s %199s %199s %199s", word[0], word[1], word[2], word[3]) != 4) return;
    if (word[0][0] == ':') return; /* the name of a section */
    for (int i = 0; i < 4; i++)
        if ((of[i] = fv_vectors_find(w, word[i])) < 0) {
            t->unknown++;
            return;
        }
    fv_vectors_analogy(w, of[0], of[1], of[2], query);
    t->asked++;
    t->right += fv_vectors_nearest(w, query, 1, of, 3, &near) && near.word == of[3];
}

static int ask_all(const cli *c, const values *v, const fv_vectors *w, float *query)
{
    fv_reader *r;
    fv_err e;
    const fv_line *line;
    int64_t n = 1;
    tally t = {0};
    if (!v->questions) return CLI_OK;
    if (fv_reader_open(&r, NULL, v->questions, (fv_reader_opt){0}, &e)) return cli_error(c, &e);
    int code = CLI_OK;
    while (code == CLI_OK && n) {
        if (fv_reader_next(r, 4096, &line, &n, &e)) code = cli_error(c, &e);
        for (int64_t i = 0; code == CLI_OK && i < n; i++)
            try_question(w, line[i].text.s, query, &t);
    }
    fv_reader_close(r);
    double share = t.asked ? 100 * (double)t.right / (double)t.asked : 0;
    if (code == CLI_OK)
        printf("analogies %.2f: %lld of %lld right, %lld with words that have no vector\n", share,
               (long long)t.right, (long long)t.asked, (long long)t.unknown);
    return code;
}

/* ---- the picture ---- */

static int draw(const cli *c, const values *v, const fv_vectors *w)
{
    fv_err e;
    int code = CLI_OK;
    int64_t n = v->words.n ? v->words.n : v->top;
    if (!v->plot) return CLI_OK;
    if (n > fv_vectors_count(w)) n = fv_vectors_count(w);
    int64_t *of = malloc((size_t)n * sizeof *of);
    double *xy = malloc((size_t)n * 2 * sizeof *xy);
    if (!of || !xy) code = cli_fail(c, "out of memory");
    for (int64_t i = 0; code == CLI_OK && i < n; i++)
        of[i] = v->words.n ? number_of(c, w, v->words.at[i], &code) : i;
    if (code == CLI_OK &&
        (fv_vectors_project(w, of, n, (fv_projection)v->projection, (uint64_t)v->seed, xy, &e) ||
         fv_vectors_plot(w, of, n, xy, v->plot, &e)))
        code = cli_error(c, &e);
    free(of);
    free(xy);
    return code;
}

static int run(const cli *c, const void *vals, int n, char **operand)
{
    const values *v = vals;
    fv_vectors *w = NULL;
    fv_err e;
    int code = CLI_OK;
    bool asks = v->near.n || v->analogies.n || v->questions || v->plot;
    if (!n == !v->model_file)
        return cli_usage(c, "either FILEs to learn from or -m FILE is needed");
    if (!v->output && !asks) return cli_usage(c, "nothing is asked, and -o FILE is not given");
    if (n)
        code = train(c, v, &w, n, operand);
    else if (fv_vectors_open(&w, NULL, v->model_file, (fv_vectors_form)v->form, &e))
        code = cli_error(c, &e);
    if (code == CLI_OK && v->output && fv_vectors_save(w, v->output, (fv_vectors_form)v->form, &e))
        code = cli_error(c, &e);
    float *query = code == CLI_OK ? malloc((size_t)fv_vectors_width(w) * sizeof *query) : NULL;
    fv_near *near = malloc((size_t)v->top * sizeof *near);
    if (code == CLI_OK && (!query || !near)) code = cli_fail(c, "out of memory");
    if (code == CLI_OK) code = ask(c, v, w, query, near);
    if (code == CLI_OK) code = ask_all(c, v, w, query);
    if (code == CLI_OK) code = draw(c, v, w);
    free(query);
    free(near);
    fv_vectors_free(w);
    return code;
}

const cli_command vectors_command = {
    .name = "vectors",
    .summary = "word vectors: train, convert, ask, draw",
    .about =
        "Learns a vector for each word of texts (plain or gzip; words are what blanks separate, a "
        "line is a sentence), by skip-gram or CBOW with negative sampling, of whole words or of "
        "subwords as fastText has them, or by GloVe.  All cores take part, and the bits of the "
        "result do not depend on their number.\n\n"
        "Files are those of word2vec (text and binary), fastText's .vec and GloVe's.  A recipe "
        "takes them as first values of embeddings: vectors = words.vec in [model].",
    .options = options,
    .size = sizeof(values),
    .defaults = &defaults,
    .operands = "[FILE]...",
    .min_operands = 0,
    .max_operands = 1024,
    .examples = examples,
    .run = run,
};
