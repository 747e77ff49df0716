/* corpus.c - see corpus.h. */
#include "corpus.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "fovea/author/grammar.h"
#include "device.h"
#include "files.h"

corpus_data corpus;

static fv_grammar_pair pair[CORPUS_PAIRS];
static const char *en[CORPUS_PAIRS], *fr[CORPUS_PAIRS];

static bool next_text(void *self, const char **text, size_t *len)
{
    int *i = self;
    if (*i == 2 * CORPUS_PAIRS) return false;
    *text = *i % 2 ? fr[*i / 2] : en[*i / 2];
    *len = strlen(*text);
    ++*i;
    return true;
}

int corpus_open(void **state)
{
    static const char *const specials[] = {"<pad>", "</s>", "<unk>", NULL};
    corpus_data *c = &corpus;
    fv_err e;
    int at = 0;
    for (int i = 0; i < CORPUS_PAIRS; i++) {
        fv_grammar_sentence(&pair[i], 5, (uint64_t)i);
        en[i] = pair[i].en, fr[i] = pair[i].fr;
    }
    fv_tok_train_opts o = {.kind = FV_TOK_BPE, .vocab = 400, .min_count = 1, .specials = specials};
    check(fv_tok_train(&c->tok, NULL, (fv_tok_source){next_text, &at}, &o, &e), &e);
    c->pad = fv_tok_id(c->tok, "<pad>");
    c->eos = fv_tok_id(c->tok, "</s>");
    check(fv_pairs_make(&c->pairs, NULL, c->tok, en, fr, CORPUS_PAIRS,
                        (fv_pairs_opt){.eos = c->eos}, NULL, &e),
          &e);
    check(fv_processor_from_tok(&c->processor, NULL, c->tok, 0, &e), &e);
    check(fv_feed_pairs(&c->feed, c->pairs, c->pad, c->pad, true, &e), &e);
    return scratch_open(state);
}

int corpus_close(void **state)
{
    fv_feed_close(&corpus.feed);
    fv_processor_close(corpus.processor);
    return scratch_close(state);
}

fv_device *corpus_device(int threads)
{
    fv_device *d;
    fv_err e;
    check(fv_device_open(&d, test_device(), (fv_device_opt){.threads = threads}, &e), &e);
    return d;
}

fv_model *corpus_model(fv_device *d, double dropout, fv_dtype t)
{
    char config[700];
    fv_model *m;
    fv_err e;
    snprintf(
        config, sizeof config,
        "{\"model_type\": \"marian\", \"vocab_size\": %d, \"d_model\": 48, \"encoder_layers\": 1, "
        "\"decoder_layers\": 1, "
        "\"encoder_attention_heads\": 4, \"decoder_attention_heads\": 4, \"encoder_ffn_dim\": 96, "
        "\"decoder_ffn_dim\": 96, "
        "\"max_position_embeddings\": 64, \"activation_function\": \"relu\", \"scale_embedding\": "
        "true, \"dropout\": %g, "
        "\"attention_dropout\": %g, \"init_std\": 0.0, \"pad_token_id\": %d, \"eos_token_id\": %d, "
        "\"decoder_start_token_id\": %d}",
        fv_tok_size(corpus.tok), dropout, dropout, corpus.pad, corpus.eos, corpus.pad);
    check(fv_model_new(&m, d, config, (fv_model_opt){.train = true, .dtype = t}, 3, &e), &e);
    return m;
}

fv_train_job corpus_job(fv_device *d, fv_model *m, int64_t updates)
{
    fv_train_job j = {.model = m,
                      .device = d,
                      .train = &corpus.feed,
                      .processor = corpus.processor};
    fv_fields_default(&j.opt, fv_train_fields);
    j.opt.updates = updates;
    j.opt.batch_tokens = 300;
    j.opt.lr = 5e-3f;
    j.opt.warmup = 20;
    j.opt.schedule = FV_CONSTANT;
    j.opt.smooth = 0;
    return j;
}
