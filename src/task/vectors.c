/* vectors.c - the task of word vectors: trained on texts, converted, asked and drawn.
 *
 * A record is the path of a text to learn from; or there is none, and the setting "from" names a
 * file of vectors.  All texts are needed before anything is learnt, so run only notes the path, as
 * words.c does, and finish does the rest.  The work is in src/vectors behind author/vectors.h.
 *
 *     plain   asked <tab> word <tab> cosine         one line a word, nearest first
 *     --json  {"asked", "near": [{"word", "cosine"}]} */
#include "fovea/author/vectors.h"

#include <stdio.h>

#include "task_pipeline.h"

/* near, analogy and word hold the last one given; fv__setting_at finds all of them. */
typedef struct vectors_options {
    char from[FV_PATH], output[FV_PATH], questions[FV_PATH], plot[FV_PATH];
    char near[256], analogy[768], word[256];
    int form, train, project;
    int64_t width, window, negatives, epochs, least, ngram_least, ngram_most, buckets, seed,
        threads, top;
    double lr, sample;
    bool lowercase, json;
} vectors_options;

static const fv_field options[] = {
    FV_TEXT(vectors_options, from, "",
            "FILE: word vectors to ask, draw or convert, instead of texts"),
    FV_TEXT(vectors_options, output, "",
            "FILE: write the vectors here: .bin is word2vec's binary form, everything else text"),
    FV_CHOICE(vectors_options, form, FV_VECTORS_AUTO, fv_vectors_forms,
              "of the files; auto goes by their names"),
    FV_CHOICE(vectors_options, train, FV_SKIPGRAM, fv_vectors_models, "how texts are learnt from"),
    FV_INT(vectors_options, width, 1, 100, 4096, "numbers of a vector"),
    FV_INT(vectors_options, window, 0, 0, 100, "words to each side; 0: 5, of GloVe 10"),
    FV_INT(vectors_options, negatives, 1, 5, 100, "words drawn for each position"),
    FV_INT(vectors_options, epochs, 0, 0, 100000, "0: 5, of GloVe 25"),
    FV_INT(vectors_options, least, 1, 5, 0x1p40, "leave out words that occur less often"),
    FV_INT(vectors_options, ngram_least, 0, 0, 32,
           "letters of the shortest subwords, as fastText has 3; 0: words are whole"),
    FV_INT(vectors_options, ngram_most, 0, 0, 32, "letters of the longest; 0: 6"),
    FV_INT(vectors_options, buckets, 0, 0, 1 << 29, "rows that subwords share; 0: 2,000,000"),
    FV_FLOAT(vectors_options, lr, 0, 0, 10, "highest learning rate; 0: 0.05"),
    FV_FLOAT(vectors_options, sample, 0, 0, 1,
             "words above this share are left out at random; 0: 1e-3"),
    FV_BOOL(vectors_options, lowercase, false, "ASCII letters of the texts"),
    FV_INT(vectors_options, seed, 0, 1, 1 << 30, "of first values and of drawing"),
    FV_INT(vectors_options, threads, 0, 0, 1024, "0: all cores this process may use"),
    FV_TEXT(vectors_options, near, "", "WORD: the words nearest to this; may be repeated"),
    FV_TEXT(vectors_options, analogy, "", "'A B C': what is to C as B is to A; may be repeated"),
    FV_TEXT(vectors_options, questions, "",
            "FILE: analogies, four words a line: how often the fourth is found"),
    FV_TEXT(vectors_options, plot, "", "FILE: draw words in the plane, as SVG"),
    FV_CHOICE(vectors_options, project, FV_PCA, fv_projections, "how they get there"),
    FV_TEXT(vectors_options, word, "",
            "WORD: to draw; may be repeated; the most frequent unless given"),
    FV_INT(vectors_options, top, 1, 10, 5000, "words that are printed or drawn"),
    FV_BOOL(vectors_options, json, false, "one JSON object a line"),
    {0}};

typedef struct work {
    fv_vectors *v;
    fv_buf paths;  /* const char *: of the records */
    fv_buf names;  /* their letters, each with a NUL behind it */
    float *query;  /* (width) */
    fv_near *near; /* (top) */
    size_t query_bytes, near_bytes;
} work;

/* ---- questions ---- */

static fv_status find(const fv_vectors *v, const char *word, int64_t *out, fv_err *e)
{
    *out = fv_vectors_find(v, word);
    return *out < 0 ? fv_fail(e, FV_EARG, "\"%.60s\": there is no vector of this word", word)
                    : FV_OK;
}

static fv_status put_near(fv_pipeline *p, const char *asked, int64_t n, fv_err *e)
{
    const vectors_options *o = p->options;
    const work *w = p->self;
    fv_buf *b = &p->out;
    if (o->json) {
        fv__json_begin(b, '{');
        fv__json_text_at(b, "asked", asked, strlen(asked));
        fv__json_key(b, "near");
        fv__json_begin(b, '[');
    }
    for (int64_t i = 0; i < n; i++) {
        const char *word = fv_vectors_word(w->v, w->near[i].word);
        double cosine = (double)w->near[i].cosine;
        if (!o->json) {
            fv__buf_fmt(b, "%s\t%s\t%.4f\n", asked, word, cosine);
            continue;
        }
        fv__json_begin(b, '{');
        fv__json_text_at(b, "word", word, strlen(word));
        fv__json_number_at(b, "cosine", cosine);
        fv__json_end(b, '}');
    }
    if (o->json) fv__buf_str(b, "]}\n");
    return b->failed ? fv_fail(e, FV_ENOMEM, "out of memory") : FV_OK;
}

static fv_status ask_near(fv_pipeline *p, const char *word, fv_err *e)
{
    const vectors_options *o = p->options;
    const work *w = p->self;
    int64_t i;
    fv_status st = find(w->v, word, &i, e);
    if (st) return st;
    return put_near(p, word,
                    fv_vectors_nearest(w->v, fv_vectors_row(w->v, i), o->top, &i, 1, w->near), e);
}

static fv_status ask_analogy(fv_pipeline *p, const char *words, fv_err *e)
{
    const vectors_options *o = p->options;
    const work *w = p->self;
    char word[3][256];
    int64_t of[3];
    fv_status st = FV_OK;
    if (sscanf(words, "%255s %255s %255s", word[0], word[1], word[2]) != 3)
        return fv_fail(e, FV_EUSAGE, "analogy: \"%.60s\": three words are needed", words);
    for (int i = 0; !st && i < 3; i++) st = find(w->v, word[i], &of[i], e);
    if (st) return st;
    fv_vectors_analogy(w->v, of[0], of[1], of[2], w->query);
    return put_near(p, words, fv_vectors_nearest(w->v, w->query, o->top, of, 3, w->near), e);
}

typedef struct tally {
    int64_t right, asked, unknown;
} tally;

/* Lines that begin with a colon name sections, as in word2vec's questions-words.txt. */
static void try_question(const work *w, const char *line, tally *t)
{
    char word[4][256];
    int64_t of[4];
    fv_near near;
    if (sscanf(line, "%255s %255s %255s %255s", word[0], word[1], word[2], word[3]) != 4 ||
        word[0][0] == ':')
        return;
    for (int i = 0; i < 4; i++)
        if ((of[i] = fv_vectors_find(w->v, word[i])) < 0) {
            t->unknown++;
            return;
        }
    fv_vectors_analogy(w->v, of[0], of[1], of[2], w->query);
    t->asked++;
    t->right += fv_vectors_nearest(w->v, w->query, 1, of, 3, &near) && near.word == of[3];
}

static fv_status ask_all(fv_pipeline *p, const char *path, fv_err *e)
{
    tally t = {0};
    fv_textfile *file;
    fv_status st = fv_textfile_open(&file, &p->env, path, e);
    if (st) return st;
    for (int64_t i = 0; i < fv_textfile_count(file); i++) {
        char line[1100];
        size_t n;
        const char *s = fv_textfile_line(file, i, &n);
        snprintf(line, sizeof line, "%.*s", (int)(n < 1024 ? n : 1024), s);
        try_question(p->self, line, &t);
    }
    fv_textfile_close(file);
    fv__buf_fmt(&p->out, "analogies %.2f: %lld of %lld right, %lld with words without a vector\n",
                t.asked ? 100 * (double)t.right / (double)t.asked : 0, (long long)t.right,
                (long long)t.asked, (long long)t.unknown);
    return FV_OK;
}

/* ---- the picture ---- */

static fv_status draw(fv_pipeline *p, fv_err *e)
{
    const vectors_options *o = p->options;
    const work *w = p->self;
    int64_t n = 0;
    while (fv__setting_at(p, "word", (int)n)) n++;
    bool named = n > 0;
    if (!named) n = o->top < fv_vectors_count(w->v) ? o->top : fv_vectors_count(w->v);
    size_t bytes = (size_t)n * sizeof(int64_t), xy_bytes = (size_t)n * 2 * sizeof(double);
    int64_t *of = fv__alloc(&p->env, bytes);
    double *xy = fv__alloc(&p->env, xy_bytes);
    fv_status st = of && xy ? FV_OK : fv_fail(e, FV_ENOMEM, "out of memory");
    for (int64_t i = 0; !st && i < n; i++) {
        of[i] = i;
        if (named) st = find(w->v, fv__setting_at(p, "word", (int)i), &of[i], e);
    }
    if (!st)
        st = fv_vectors_project(w->v, of, n, (fv_projection)o->project, (uint64_t)o->seed, xy, e);
    if (!st) st = fv_vectors_plot(w->v, of, n, xy, o->plot, e);
    fv__free(&p->env, of, bytes);
    fv__free(&p->env, xy, xy_bytes);
    return st;
}

/* ---- the task ---- */

static fv_status check(fv_pipeline *p, fv_err *e)
{
    const vectors_options *o = p->options;
    bool asks = o->near[0] || o->analogy[0] || o->questions[0] || o->plot[0];
    return asks || o->output[0]
               ? FV_OK
               : fv_fail(e, FV_EUSAGE, "nothing is asked, and output is not given");
}

static fv_status open_task(fv_pipeline *p, fv_err *e)
{
    fv_status st = fv__pipeline_self(p, sizeof(work), e);
    work *w = p->self;
    if (!st) w->paths.env = w->names.env = &p->env;
    return st;
}

static void close_task(fv_pipeline *p)
{
    work *w = p->self;
    if (!w) return;
    fv_vectors_free(w->v);
    fv__buf_free(&w->paths);
    fv__buf_free(&w->names);
    fv__free(&p->env, w->query, w->query_bytes);
    fv__free(&p->env, w->near, w->near_bytes);
}

static fv_status note_path(fv_pipeline *p, const char *path, fv_err *e)
{
    work *w = p->self;
    fv__buf_add(&w->names, path, strlen(path) + 1);
    return w->names.failed ? fv_fail(e, FV_ENOMEM, "out of memory") : fv__task_emit(p, e);
}

static fv_status run(fv_pipeline *p, const fv_text *in, int64_t n, fv_err *e)
{
    return fv__task_each_path(p, in, n, note_path, e);
}

static fv_status learn(fv_pipeline *p, fv_err *e)
{
    const vectors_options *o = p->options;
    work *w = p->self;
    fv_vectors_opt how = {.model = (fv_vectors_model)o->train,
                          .width = o->width,
                          .window = o->window,
                          .negatives = o->negatives,
                          .epochs = o->epochs,
                          .least = o->least,
                          .ngram_least = o->ngram_least,
                          .ngram_most = o->ngram_most,
                          .buckets = o->buckets,
                          .lr = o->lr,
                          .sample = o->sample,
                          .seed = (uint64_t)o->seed,
                          .threads = (int)o->threads,
                          .lowercase = o->lowercase};
    /* the letters no longer move */
    for (size_t at = 0; at < w->names.len; at += strlen(w->names.data + at) + 1) {
        const char *path = w->names.data + at;
        fv__buf_add(&w->paths, &path, sizeof path);
    }
    if (w->paths.failed) return fv_fail(e, FV_ENOMEM, "out of memory");
    return fv_vectors_train(&w->v, &p->env, (const char *const *)(void *)w->paths.data,
                            (int)(w->paths.len / sizeof(char *)), how, NULL, e);
}

static fv_status finish(fv_pipeline *p, fv_err *e)
{
    const vectors_options *o = p->options;
    work *w = p->self;
    const char *asked;
    fv_status st = o->from[0]
                       ? fv_vectors_open(&w->v, &p->env, o->from, (fv_vectors_form)o->form, e)
                       : learn(p, e);
    if (!st && o->output[0]) st = fv_vectors_save(w->v, o->output, (fv_vectors_form)o->form, e);
    if (st) return st;
    w->query_bytes = (size_t)fv_vectors_width(w->v) * sizeof *w->query;
    w->near_bytes = (size_t)o->top * sizeof *w->near;
    w->query = fv__alloc(&p->env, w->query_bytes);
    w->near = fv__alloc(&p->env, w->near_bytes);
    if (!w->query || !w->near) return fv_fail(e, FV_ENOMEM, "out of memory");
    for (int i = 0; !st && o->near[0] && (asked = fv__setting_at(p, "near", i)); i++)
        st = ask_near(p, asked, e);
    for (int i = 0; !st && o->analogy[0] && (asked = fv__setting_at(p, "analogy", i)); i++)
        st = ask_analogy(p, asked, e);
    if (!st && o->questions[0]) st = ask_all(p, o->questions, e);
    if (!st && o->plot[0]) st = draw(p, e);
    if (!st) st = fv__task_emit_part(p, p->out.data ? p->out.data : "", p->out.len, e);
    p->out.len = 0;
    return st;
}

static const fv_task_example examples[] = {
    {"fovea vectors --output words.vec wiki.train.txt", "skip-gram, as word2vec trains it"},
    {"fovea vectors --output words.vec --ngram-least 3 --ngram-most 6 wiki.train.txt",
     "with subwords, as fastText"},
    {"fovea vectors --train glove --output words.vec wiki.train.txt", "from counts of neighbours"},
    {"fovea vectors --from words.vec --near river --analogy 'man king woman'", "what is near"},
    {"fovea vectors --from words.vec --plot words.svg --project tsne --top 200", "a picture"},
    {"fovea vectors --from words.vec --output words.bin", "from text to binary"},
    {0}};

const fv_task_kind fv__vectors_task = {
    .name = "vectors",
    .summary = "train, convert, ask and draw word vectors",
    .about =
        "Learns a vector for each word of texts (plain or gzip; words are what blanks separate, a "
        "line is a sentence), by skip-gram or CBOW with negative sampling, of whole words or of "
        "subwords as fastText has them, or by GloVe.  All cores take part, and the bits of the "
        "result do not depend on their number.\n\n"
        "Files are those of word2vec (text and binary), fastText's .vec and GloVe's.  A recipe "
        "takes "
        "them as first values of embeddings: vectors = words.vec in [model].",
    .examples = examples,
    .options = options,
    .size = sizeof(vectors_options),
    .no_model = true,
    .files = true,
    .instead = "from",
    .check = check,
    .open = open_task,
    .run = run,
    .finish = finish,
    .close = close_task,
};
