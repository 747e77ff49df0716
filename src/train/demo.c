/* demo.c - the demonstration's work: a Transformer learns to translate a corpus that the library
 * makes itself.
 *
 * No file is needed: sentences come from a grammar (author/grammar.h), so the demonstration works
 * offline and its result is known. Combinations of words that are held out are never trained on;
 * to translate them the model must have learnt agreement and order, not sentences by heart.
 *
 * The steps are those of any training, written with the library's own calls: a corpus, a tokenizer
 * trained on it, feeds of encoded pairs, a model from a configuration, fv_train, a directory in
 * Hugging Face's layout, translations. A recipe would be shorter; it would hide what is shown. */
#include "fovea/author/demo.h"

#include <stdio.h>

#include "base/base.h"
#include "fovea/author/tensor.h"
#include "fovea/author/config.h"
#include "fovea/author/data.h"
#include "fovea/gen.h"

struct fv_demo {
    fv_env env;
    fv_device *dev;
    uint64_t seed;
    fv_grammar_corpus corpus;
    fv_processor *processor;
    const fv_tok *tok; /* the processor's */
    int32_t pad, eos;
    fv_model *model;
    fv_pairs *train, *test;
    fv_feed train_feed, test_feed;
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

/* ---- corpus and tokenizer ---- */

typedef struct reader {
    const fv_grammar_corpus *k;
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

/* Byte-level BPE: no word is unknown, also not one that the user types into fovea translate later.
 */
static fv_status make_tokenizer(fv_demo *d, fv_err *e)
{
    static const char *const specials[] = {"<pad>", "</s>", "<unk>", NULL};
    reader r = {.k = &d->corpus};
    fv_tok_train_opts o = {.kind = FV_TOK_BYTE_BPE,
                           .vocab = 2400,
                           .min_count = 1,
                           .specials = specials};
    fv_tok *tok;
    fv_status st = fv_tok_train(&tok, &d->env, (fv_tok_source){next_text, &r}, &o, e);
    if (!st) st = fv_processor_from_tok(&d->processor, &d->env, tok, 64, e);
    if (st) return st;
    d->tok = fv_processor_tok(d->processor);
    d->pad = fv_tok_id(d->tok, "<pad>");
    d->eos = fv_tok_id(d->tok, "</s>");
    return FV_OK;
}

fv_status fv_demo_new(fv_demo **out, fv_device *dev, fv_demo_opt opt, fv_err *e)
{
    const fv_env *env = fv_device_env(dev);
    fv_demo *d = *out = fv__alloc(env, sizeof *d);
    if (!d) return fv_fail(e, FV_ENOMEM, "out of memory");
    d->env = *env;
    d->dev = dev;
    d->seed = opt.seed;
    fv_status st = fv_grammar_corpus_new(&d->corpus, env, opt.seed, opt.sentences, opt.tests, e);
    if (!st) st = make_tokenizer(d, e);
    if (!st) return FV_OK;
    fv_demo_free(d);
    *out = NULL;
    return st;
}

void fv_demo_free(fv_demo *d)
{
    if (!d) return;
    fv_env env = d->env;
    fv_feed_close(&d->train_feed);
    fv_feed_close(&d->test_feed);
    fv_pairs_close(d->train);
    fv_pairs_close(d->test);
    fv_model_free(d->model);
    fv_processor_close(d->processor);
    fv_grammar_corpus_free(&d->corpus);
    fv__free(&env, d, sizeof *d);
}

const fv_grammar_corpus *fv_demo_corpus(const fv_demo *d) { return &d->corpus; }
const fv_tok *fv_demo_tok(const fv_demo *d) { return d->tok; }
const fv_model *fv_demo_model(const fv_demo *d) { return d->model; }

/* ---- training ---- */

static fv_status make_feeds(fv_demo *d, fv_err *e)
{
    const fv_grammar_corpus *k = &d->corpus;
    fv_pairs_opt ends = {.eos = d->eos};
    fv_status st = fv_pairs_make(&d->train, &d->env, d->tok, k->en, k->fr, k->n_train, ends, NULL,
                                 e);
    if (!st)
        st = fv_pairs_make(&d->test, &d->env, d->tok, k->en + k->n_train, k->fr + k->n_train,
                           k->n_test, ends, NULL, e);
    if (!st) st = fv_feed_pairs(&d->train_feed, d->train, d->pad, d->pad, false, e);
    if (!st) st = fv_feed_pairs(&d->test_feed, d->test, d->pad, d->pad, false, e);
    return st;
}

/* Batches are counted in tokens, so that short sentences fill them as well as long ones; the rate
 * falls linearly to 0 at the last update, whatever their number. */
fv_status fv_demo_train(fv_demo *d, fv_demo_run run, fv_train_state *out, fv_err *e)
{
    char config[1024];
    if (d->model) return fv_fail(e, FV_ESTATE, "the demonstration trains one model");
    snprintf(config, sizeof config, config_format, fv_tok_size(d->tok), d->pad, d->eos, d->pad,
             d->eos);
    fv_status st = make_feeds(d, e);
    if (!st)
        st = fv_model_new(&d->model, d->dev, config, (fv_model_opt){.train = true}, d->seed, e);
    if (st) return st;
    fv_train_job job = {.model = d->model,
                        .device = d->dev,
                        .train = &d->train_feed,
                        .valid = &d->test_feed,
                        .stop = run.stop,
                        .progress = run.progress,
                        .user = run.user};
    fv_fields_default(&job.opt, fv_train_fields);
    job.opt.updates = run.updates;
    job.opt.batch_tokens = 1200;
    job.opt.lr = 3e-3f;
    job.opt.schedule = FV_LINEAR;
    job.opt.warmup = run.updates / 10;
    job.opt.smooth = 0.05f;
    job.opt.seed = (int64_t)d->seed;
    job.opt.eval_every = job.opt.save_every = 0;
    return fv_train(&job, out, e);
}

/* How to translate with it, for whoever opens the directory. */
static fv_status save_generation(const fv_demo *d, const char *path, fv_err *e)
{
    char text[300];
    fv_json *j;
    snprintf(text, sizeof text,
             "{\"decoder_start_token_id\": %d, \"pad_token_id\": %d, \"eos_token_id\": %d, "
             "\"forced_eos_token_id\": %d, "
             "\"bad_words_ids\": [[%d]], \"max_length\": 64, \"num_beams\": 4}",
             d->pad, d->pad, d->eos, d->eos, d->pad);
    fv_status st = fv_json_parse(&j, &d->env, text, path, e);
    if (!st) st = fv_json_save(j, path, e);
    fv_json_close(j);
    return st;
}

fv_status fv_demo_save(const fv_demo *d, const char *dir, fv_err *e)
{
    char path[FV_PATH];
    fv_status st = fv_model_save(d->model, dir, FV_F32, e);
    if (!st) st = fv_processor_save(d->processor, dir, e);
    snprintf(path, sizeof path, "%s/generation_config.json", dir);
    return st ? st : save_generation(d, path, e);
}

/* ---- judging ---- */

/* The most likely token each time: word-for-word equality is what is counted, and beams would
 * flatter a model that is not sure. */
static fv_gen_opt greedy(const fv_demo *d)
{
    fv_gen_opt o = {0};
    fv_fields_default(&o, fv_gen_fields);
    o.num_beams = 1;
    o.max_length = 48;
    o.start = o.pad = d->pad;
    o.eos = d->eos;
    o.forced_eos = -1;
    o.banned = &d->pad;
    o.n_banned = 1;
    return o;
}

typedef struct text {
    char *s; /* freed by fv_tok_free_text */
    size_t len;
} text;

static fv_status translate_tests(fv_demo *d, text *out, fv_err *e)
{
    enum { AT_ONCE = 64 };
    fv_gen_opt o = greedy(d);
    int64_t n = d->corpus.n_test;
    fv_status st = FV_OK;
    for (int64_t at = 0; !st && at < n; at += AT_ONCE) {
        const int32_t *ids[AT_ONCE];
        int64_t lens[AT_ONCE], here = n - at < AT_ONCE ? n - at : AT_ONCE;
        for (int64_t i = 0; i < here; i++) ids[i] = fv_pairs_source(d->test, at + i, &lens[i]);
        fv_generated g;
        st = fv_generate(&g, d->dev, d->model, ids, lens, here, &o, e);
        if (st) return st;
        for (int64_t i = 0; !st && i < here; i++)
            st = fv_tok_decode(d->tok, &out[at + i].s, &out[at + i].len, g.hyp[i].ids, g.hyp[i].n,
                               true, e);
        fv_generated_free(&g);
    }
    return st;
}

/* A translation counts where it equals the grammar's word for word: stricter than BLEU, and
 * readable. */
fv_status fv_demo_judge(fv_demo *d, fv_demo_fn *each, void *user, int64_t *right, fv_err *e)
{
    const fv_grammar_corpus *k = &d->corpus;
    size_t bytes = (size_t)k->n_test * sizeof(text);
    text *out = fv__alloc(&d->env, bytes);
    *right = 0;
    if (!out) return fv_fail(e, FV_ENOMEM, "out of memory");
    fv_status st = translate_tests(d, out, e);
    for (int64_t i = 0; i < k->n_test; i++) {
        const char *expected = k->fr[k->n_train + i];
        if (!st) *right += !strcmp(out[i].s, expected);
        if (!st) each(user, k->en[k->n_train + i], out[i].s, expected);
        if (out[i].s) fv_tok_free_text(d->tok, out[i].s, out[i].len);
    }
    fv__free(&d->env, out, bytes);
    return st;
}

/* ---- one sentence ---- */

fv_status fv_demo_translate(fv_demo *d, const char *en, fv_demo_translation *out, fv_err *e)
{
    static const char *const no_target = "x"; /* pairs have two sides */
    fv_gen_opt o = greedy(d);
    fv_pairs *p = NULL;
    fv_generated *g = fv__alloc(&d->env, sizeof *g);
    *out = (fv_demo_translation){.generated = g, .start = d->pad};
    fv_status st = g ? FV_OK : fv_fail(e, FV_ENOMEM, "out of memory");
    if (!st)
        st = fv_pairs_make(&p, &d->env, d->tok, &en, &no_target, 1, (fv_pairs_opt){.eos = d->eos},
                           NULL, e);
    out->pairs = p;
    if (!st) {
        out->source = fv_pairs_source(p, 0, &out->n_source);
        st = fv_generate(g, d->dev, d->model, &out->source, &out->n_source, 1, &o, e);
    }
    if (!st) {
        out->target = g->hyp[0].ids;
        out->n_target = g->hyp[0].n;
        st = fv_tok_decode(d->tok, &out->text, &out->text_len, out->target, out->n_target, true, e);
    }
    if (st) fv_demo_free_translation(d, out);
    return st;
}

void fv_demo_free_translation(const fv_demo *d, fv_demo_translation *t)
{
    if (t->text) fv_tok_free_text(d->tok, t->text, t->text_len);
    if (t->generated) fv_generated_free(t->generated);
    fv__free(&d->env, t->generated, sizeof(fv_generated));
    fv_pairs_close(t->pairs);
    *t = (fv_demo_translation){0};
}
