/* demo.c - fovea demo: a Transformer learns to translate, here and now, on a corpus that the
 * program makes itself.
 *
 * No file is needed: sentences come from a grammar (author/grammar.h), so the demonstration works
 * offline and its result is known. Combinations of words that are held out are never trained on;
 * to translate them the model must have learnt agreement and order, not sentences by heart.
 *
 * The steps are those of any training, written with the library's own calls: a corpus, a tokenizer
 * trained on it, feeds of encoded pairs, a model from a configuration, fv_train, a directory in
 * Hugging Face's layout, translations. A recipe would be shorter; it would hide what is shown. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "demo.h"
#include "fovea/gen.h"
#include "fovea/author/grammar.h"
#include "fovea/train.h"
#include "fovea/author/config.h"
#include "fovea/author/data.h"

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

/* A model that two cores train in a minute. */
static const char config_format[] = "{\"model_type\": \"marian\", \"architectures\": "
                                    "[\"MarianMTModel\"], \"vocab_size\": %d, \"d_model\": 128, "
                                    "\"encoder_layers\": 2, "
                                    "\"decoder_layers\": 2, \"encoder_attention_heads\": 4, "
                                    "\"decoder_attention_heads\": 4, \"encoder_ffn_dim\": 256, "
                                    "\"decoder_ffn_dim\": 256, \"max_position_embeddings\": 64, "
                                    "\"activation_function\": \"relu\", \"scale_embedding\": true, "
                                    "\"dropout\": 0.0, \"init_std\": 0.0, \"pad_token_id\": %d, "
                                    "\"eos_token_id\": %d, \"decoder_start_token_id\": %d, "
                                    "\"forced_eos_token_id\": %d}";

/* ---- the corpus ---- */

typedef struct corpus {
    fv_grammar_pair *pair; /* distinct; first those to learn from, then the held-out ones */
    const char **en, **fr;
    int64_t n_train, n_test;
} corpus;

/* FNV-1a: sentences are compared by hash alone, since a collision only leaves one sentence out. */
static uint64_t hash(const char *s)
{
    uint64_t h = 1469598103934665603u;
    for (; *s; s++) h = (h ^ (unsigned char)*s) * 1099511628211u;
    return h;
}

/* Draws sentences until there are enough of both kinds; a table of hashes keeps them distinct. */
static bool make_corpus(corpus *k, const values *v)
{
    size_t slots = 1;
    while (slots < (size_t)(v->sentences + v->tests) * 4) slots *= 2;
    uint64_t *seen = calloc(slots, sizeof *seen);
    int64_t n = v->sentences + v->tests;
    *k = (corpus){.pair = malloc((size_t)n * sizeof *k->pair),
                  .en = malloc((size_t)n * sizeof *k->en),
                  .fr = malloc((size_t)n * sizeof *k->fr)};
    bool ok = seen && k->pair && k->en && k->fr;
    for (uint64_t i = 0; ok && k->n_train + k->n_test < n; i++) {
        fv_grammar_pair p;
        fv_grammar_sentence(&p, (uint64_t)v->seed, i);
        bool wanted = p.held_out ? k->n_test < v->tests : k->n_train < v->sentences;
        uint64_t h = hash(p.en) | 1;
        size_t at = h % slots;
        while (seen[at] && seen[at] != h) at = (at + 1) % slots;
        if (!wanted || seen[at]) continue;
        seen[at] = h;
        k->pair[p.held_out ? v->sentences + k->n_test++ : k->n_train++] = p;
    }
    for (int64_t i = 0; ok && i < n; i++) k->en[i] = k->pair[i].en, k->fr[i] = k->pair[i].fr;
    free(seen);
    return ok;
}

/* en and fr point into pair: only the arrays are freed. */
static void free_corpus(corpus *k)
{
    free(k->pair);
    free(k->en);
    free(k->fr);
}

typedef struct reader {
    const corpus *k;
    int64_t at;
} reader;

/* Both languages in turn, so that the vocabulary is shared, as the model's embeddings are. */
static bool next_text(void *self, const char **text, size_t *len)
{
    reader *r = self;
    if (r->at == 2 * r->k->n_train) return false;
    int64_t i = r->at++;
    *text = i % 2 ? r->k->fr[i / 2] : r->k->en[i / 2];
    *len = strlen(*text);
    return true;
}

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
    bool live;
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

/* ---- training ---- */

typedef struct lab {
    const cli *c;
    const values *v;
    fv_device *dev;
    const fv_tok *tok;
    fv_processor *processor;
    fv_model *model;
    fv_pairs *train, *test;
    fv_feed train_feed, test_feed;
    corpus k;
    int32_t pad, eos;
    fv_err e;
} lab;

/* Byte-level BPE: no word is unknown, also not one that the user types into fovea translate later.
 */
static fv_status make_tokenizer(lab *l)
{
    static const char *const specials[] = {"<pad>", "</s>", "<unk>", NULL};
    reader r = {.k = &l->k};
    fv_tok_train_opts o = {.kind = FV_TOK_BYTE_BPE,
                           .vocab = 2400,
                           .min_count = 1,
                           .specials = specials};
    fv_tok *tok;
    fv_status st = fv_tok_train(&tok, NULL, (fv_tok_source){next_text, &r}, &o, &l->e);
    if (!st) st = fv_processor_from_tok(&l->processor, NULL, tok, 64, &l->e);
    if (st) return st;
    l->tok = fv_processor_tok(l->processor);
    l->pad = fv_tok_id(l->tok, "<pad>");
    l->eos = fv_tok_id(l->tok, "</s>");
    return FV_OK;
}

/* Batches are counted in tokens, so that short sentences fill them as well as long ones; the rate
 * falls linearly to 0 at the last update, whatever --updates says. */
static fv_status learn(lab *l, fv_train_state *done)
{
    char config[1024];
    const values *v = l->v;
    fv_pairs_opt ends = {.eos = l->eos};
    show w = {.v = v, .live = isatty(2)};
    snprintf(config, sizeof config, config_format, fv_tok_size(l->tok), l->pad, l->eos, l->pad,
             l->eos);
    fv_status st = fv_pairs_make(&l->train, NULL, l->tok, l->k.en, l->k.fr, l->k.n_train, ends,
                                 NULL, &l->e);
    if (!st)
        st = fv_pairs_make(&l->test, NULL, l->tok, l->k.en + l->k.n_train, l->k.fr + l->k.n_train,
                           l->k.n_test, ends, NULL, &l->e);
    if (!st) st = fv_feed_pairs(&l->train_feed, l->train, l->pad, l->pad, false, &l->e);
    if (!st) st = fv_feed_pairs(&l->test_feed, l->test, l->pad, l->pad, false, &l->e);
    if (!st)
        st = fv_model_new(&l->model, l->dev, config, (fv_model_opt){.train = true},
                          (uint64_t)v->seed, &l->e);
    if (st) return st;

    fv_train_job job = {.model = l->model,
                        .device = l->dev,
                        .train = &l->train_feed,
                        .valid = &l->test_feed,
                        .stop = &interrupted,
                        .progress = progress,
                        .user = &w};
    fv_fields_default(&job.opt, fv_train_fields);
    job.opt.updates = v->updates;
    job.opt.batch_tokens = 1200;
    job.opt.lr = 3e-3f;
    job.opt.schedule = FV_LINEAR;
    job.opt.warmup = v->updates / 10;
    job.opt.smooth = 0.05f;
    job.opt.seed = v->seed;
    job.opt.eval_every = job.opt.save_every = 0;
    struct sigaction act = {.sa_handler = on_interrupt};
    sigaction(SIGINT, &act, NULL);
    st = fv_train(&job, done, &l->e);
    if (w.live && !v->quiet) fprintf(stderr, "\r\033[K");
    return st;
}

/* How to translate with it, for whoever opens the directory. */
static fv_status save_generation(lab *l, const char *path)
{
    char text[300];
    fv_json *j;
    snprintf(text, sizeof text,
             "{\"decoder_start_token_id\": %d, \"pad_token_id\": %d, \"eos_token_id\": %d, "
             "\"forced_eos_token_id\": %d, "
             "\"bad_words_ids\": [[%d]], \"max_length\": 64, \"num_beams\": 4}",
             l->pad, l->pad, l->eos, l->eos, l->pad);
    fv_status st = fv_json_parse(&j, NULL, text, path, &l->e);
    if (!st) st = fv_json_save(j, path, &l->e);
    fv_json_close(j);
    return st;
}

/* The directory is complete for transformers, too: config, weights, tokenizer, generation
 * settings. */
static fv_status save(lab *l)
{
    char dir[1024], path[1100];
    snprintf(dir, sizeof dir, "%s/model", l->v->dir);
    if (mkdir(l->v->dir, 0777) && errno != EEXIST)
        return fv_fail(&l->e, FV_EIO, "%s: cannot make the directory: %s", l->v->dir,
                       strerror(errno));
    fv_status st = fv_model_save(l->model, dir, FV_F32, &l->e);
    if (!st) st = fv_processor_save(l->processor, dir, &l->e);
    snprintf(path, sizeof path, "%s/generation_config.json", dir);
    return st ? st : save_generation(l, path);
}

/* ---- judging ---- */

/* The most likely token each time: word-for-word equality is what is counted, and beams would
 * flatter a model that is not sure. */
static fv_gen_opt greedy(const lab *l)
{
    fv_gen_opt o = {0};
    fv_fields_default(&o, fv_gen_fields);
    o.num_beams = 1;
    o.max_length = 48;
    o.start = o.pad = l->pad;
    o.eos = l->eos;
    o.forced_eos = -1;
    o.banned = &l->pad;
    o.n_banned = 1;
    return o;
}

/* Translates n texts, each result freed by the caller with fv_tok_free_text. */
static fv_status translate(lab *l, const fv_pairs *p, int64_t from, int64_t n, char **out,
                           size_t *len)
{
    enum { AT_ONCE = 64 };
    fv_gen_opt o = greedy(l);
    fv_status st = FV_OK;
    for (int64_t at = 0; !st && at < n; at += AT_ONCE) {
        const int32_t *ids[AT_ONCE];
        int64_t lens[AT_ONCE], here = n - at < AT_ONCE ? n - at : AT_ONCE;
        for (int64_t i = 0; i < here; i++) ids[i] = fv_pairs_source(p, from + at + i, &lens[i]);
        fv_generated g;
        st = fv_generate(&g, l->dev, l->model, ids, lens, here, &o, &l->e);
        for (int64_t i = 0; !st && i < here; i++)
            st = fv_tok_decode(l->tok, &out[at + i], &len[at + i], g.hyp[i].ids, g.hyp[i].n, true,
                               &l->e);
        if (!st) fv_generated_free(&g);
    }
    return st;
}

/* A translation counts where it equals the grammar's word for word: stricter than BLEU, and
 * readable. */
static fv_status judge(lab *l, int64_t *right)
{
    int64_t n = l->k.n_test;
    char **out = calloc((size_t)n, sizeof *out);
    size_t *len = calloc((size_t)n, sizeof *len);
    *right = 0;
    fv_status st = FV_OK;
    if (!out || !len) {
        free(out);
        free(len);
        return fv_fail(&l->e, FV_ENOMEM, "out of memory");
    }
    st = translate(l, l->test, 0, n, out, len);
    if (!st) printf("Sentences it has never seen:\n\n");
    for (int64_t i = 0, shown = 0; !st && i < n; i++) {
        const char *want = l->k.fr[l->k.n_train + i];
        bool same = !strcmp(out[i], want);
        *right += same;
        if (shown < 10 || (!same && shown < 14)) {
            printf("  %-48s %s%s%s%s\n", l->k.en[l->k.n_train + i], out[i],
                   same ? "" : "   (expected: ", same ? "" : want, same ? "" : ")");
            shown++;
        }
    }
    for (int64_t i = 0; i < n; i++)
        if (out[i]) fv_tok_free_text(l->tok, out[i], len[i]);
    free(out);
    free(len);
    return st;
}

/* One sentence of the reader's choice, whether or not the corpus has it: translated, then looked
 * into. */
static fv_status famous(lab *l, const char *en)
{
    const char *nothing = "x";
    fv_pairs *p;
    fv_generated g;
    char *fr = NULL;
    size_t len;
    fv_gen_opt o = greedy(l);
    demo_scene d = {.dev = l->dev,
                    .model = l->model,
                    .tok = l->tok,
                    .dir = l->v->dir,
                    .en = en,
                    .start = l->pad};
    fv_status st = fv_pairs_make(&p, NULL, l->tok, &en, &nothing, 1, (fv_pairs_opt){.eos = l->eos},
                                 NULL, &l->e);
    if (st) return st;
    d.source = fv_pairs_source(p, 0, &d.n_source);
    st = fv_generate(&g, l->dev, l->model, &d.source, &d.n_source, 1, &o, &l->e);
    if (!st) {
        d.target = g.hyp[0].ids;
        d.n_target = g.hyp[0].n;
        st = fv_tok_decode(l->tok, &fr, &len, d.target, d.n_target, true, &l->e);
        if (!st) printf("\n%s\n  %s\n", en, fr);
        d.fr = fr;
        if (!st) st = demo_show(&d, &l->e);
        if (fr) fv_tok_free_text(l->tok, fr, len);
        fv_generated_free(&g);
    }
    fv_pairs_close(p);
    return st;
}

/* Messages about progress go to standard error; what is printed here is the result. */
static fv_status all(lab *l)
{
    fv_train_state done;
    int64_t right = 0;
    if (!make_corpus(&l->k, l->v)) return fv_fail(&l->e, FV_ENOMEM, "out of memory");
    fv_status st = fv_device_open(&l->dev, l->v->device,
                                  (fv_device_opt){.threads = cli_threads(l->v->threads)}, &l->e);
    if (!st) st = make_tokenizer(l);
    if (!st && !l->v->quiet)
        fprintf(stderr,
                "%lld English sentences and their French translations, e.g. \"%s\" - \"%s\"\n",
                (long long)l->k.n_train, l->k.en[0], l->k.fr[0]);
    if (!st) st = learn(l, &done);
    if (!st) st = save(l);
    if (st) return st;
    printf("Trained a Transformer of %lld parameters: %lld updates in %.0f s, %.0f target "
           "words/s.\n\n",
           (long long)fv_params_elements(fv_model_params(l->model), ""), (long long)done.step,
           done.seconds, done.seconds > 0 ? (double)done.tokens / done.seconds : 0);
    st = judge(l, &right);
    if (st) return st;
    printf("\n%lld of %lld unseen sentences are translated word for word: %.1f %%\n",
           (long long)right, (long long)l->k.n_test, 100.0 * (double)right / (double)l->k.n_test);
    printf("The model is in %s/model, in the layout of Hugging Face's MarianMTModel.\n", l->v->dir);
    return famous(l, "I like to eat apples.");
}

static int run(const cli *c, const void *vals, int n, char **operand)
{
    (void)n;
    (void)operand;
    lab l = {.c = c, .v = vals};
    fv_status st = all(&l);
    fv_feed_close(&l.train_feed);
    fv_feed_close(&l.test_feed);
    fv_pairs_close(l.train);
    fv_pairs_close(l.test);
    fv_model_free(l.model);
    fv_processor_close(l.processor);
    fv_device_close(l.dev);
    free_corpus(&l.k);
    return st ? cli_error(c, &l.e) : CLI_OK;
}

const cli_command demo_command = {
    .name = "demo",
    .summary = "train a small translator and see what it has learnt",
    .about = "Makes a corpus of English sentences and their French translations from a small "
             "grammar with real agreement, trains the Transformer of 2017 on it, and lets it "
             "translate sentences with combinations of words it has never seen.  The same seed "
             "gives the same model whatever the number of threads.",
    .options = options,
    .size = sizeof(values),
    .defaults = &defaults,
    .examples = examples,
    .run = run,
};
