/* marian.c - the Transformer of 2017 as Marian and Hugging Face's "marian" family have it.
 *
 *     x = sqrt(D) E[ids] + sinusoids;   encoder layers;   decoder layers with cross-attention;
 *     logits = y E' + bias
 *
 * Norms come after each part.  Parameters have the names of model.safetensors.  One table serves
 * both sides and the output unless the configuration says otherwise.
 *
 * Papers: Vaswani et al. 2017 (arXiv:1706.03762), Junczys-Dowmunt et al. 2018
 * (arXiv:1804.00344). The Transformer of 2017 without change, so it is also what a recipe trains
 * to translate from scratch. Where the languages have vocabularies of their own, both sides have
 * tables of their own. */
#include <math.h>
#include <stddef.h>

#include "model/seq2seq.h"

typedef struct config {
    fv__seq2seq_config shared;
    int decoder_vocab_size;
    bool share_encoder_decoder_embeddings;
} config;

static const fv_field fields[] = {
    FV__SEQ2SEQ_FIELDS(58101, 0, 0, false, 58100, 0, 58100),
    FV__SINUSOIDS_FIELD,
    FV_INT(config, decoder_vocab_size, 0, 0, 1 << 24,
           "tokens of the target; 0: as many as the source has"),
    FV_BOOL(config, share_encoder_decoder_embeddings, true, "one table for both sides"),
    {0},
};

static const fv_key_rule rules[] = {
    {"is_encoder_decoder", "true"},
    {"is_decoder", NULL}, /* of a stack, not of the whole */
    {"static_position_embeddings", "true"},
    {"encoder_layerdrop", NULL},
    {"decoder_layerdrop", NULL},
    {"use_cache", NULL},
    {"normalize_embedding", "false"},
    {"normalize_before", "false"}, /* these two are never read by transformers, which has no such */
    {"add_final_layer_norm", "false"}, /* layers: what a file means by them is not known */
    {"add_bias_logits", "false"},
    {"extra_pos_embeddings", NULL},
    {"bad_words_ids", NULL},
    {"forced_eos_token_id", NULL},
    {"bos_token_id", NULL},
    {"classif_dropout", NULL},
    {"classifier_dropout", NULL},
    {"num_beams", NULL},
    {"max_length", NULL},
    {NULL, NULL},
};

static const fv_input inputs[] = {FV__SEQ2SEQ_INPUTS, {0}};

static const fv_family_head heads[] = {
    {"MarianMTModel", .job = FV_HEAD_SEQ2SEQ},
    {0},
};

typedef struct marian {
    fv__seq2seq base;
    config extra;
} marian;

/* Languages with vocabularies of their own have another size on the target side. */
static int target_vocab(const config *k)
{
    return k->decoder_vocab_size ? k->decoder_vocab_size : k->shared.vocab_size;
}

static fv_status check(const void *config_, fv_err *e)
{
    const config *k = config_;
    fv__seq2seq_config of_target = k->shared;
    of_target.vocab_size = target_vocab(k);
    if (k->shared.d_model % 2)
        return fv_fail(e, FV_EFORMAT, "d_model %d is odd: sines and cosines need pairs",
                       k->shared.d_model);
    if (k->share_encoder_decoder_embeddings && target_vocab(k) != k->shared.vocab_size)
        return fv_fail(e, FV_EFORMAT,
                       "one table cannot hold vocab_size %d and decoder_vocab_size %d",
                       k->shared.vocab_size, target_vocab(k));
    if (k->shared.pad_token_id >= k->shared.vocab_size)
        return fv_fail(e, FV_EFORMAT, "pad_token_id %d is outside the vocabulary",
                       k->shared.pad_token_id);
    return fv__seq2seq_check(&of_target, e);
}

/* ---- parameters ---- */

/* One shared table, or one for each side; both are multiplied by sqrt(D) where scale_embedding is
 * true. */
static void declare_tables(marian *m, fv_params *p)
{
    const fv__seq2seq_config *k = &m->extra.shared;
    fv__seq2seq *b = &m->base;
    if (m->extra.share_encoder_decoder_embeddings) {
        fv__seq2seq_shared(b, p);
        return;
    }
    fv_emb_init(p, &b->source, k->vocab_size, k->d_model, k->init_std,
                "model.encoder.embed_tokens");
    fv_emb_init(p, &b->target, target_vocab(&m->extra), k->d_model, k->init_std,
                "model.decoder.embed_tokens");
    b->source.skip = b->target.skip = k->pad_token_id;
    if (k->scale_embedding) b->source.scale = b->target.scale = sqrtf((float)k->d_model);
}

static void declare(void *self, const fv_setup *s)
{
    marian *m = self;
    m->extra = *(const config *)s->config;
    m->base = (fv__seq2seq){.cfg = m->extra.shared,
                            .job = s->head->job,
                            .family = "marian",
                            .embed = fv__seq2seq_embed};
    declare_tables(m, s->params);
    fv__seq2seq_head(&m->base, s->params, true);
    fv__seq2seq_positions(&m->base, s->params, FV_POS_HALVES, 0);
    fv__seq2seq_stacks(&m->base, s->params, false);
}

/* Sinusoids are in old files and computed for new ones; so is a bias of zeros. */
static fv_load_opt load(const void *self)
{
    static const fv_tie shared[] = {
        {"lm_head.weight", "model.shared.weight"},
        {"model.encoder.embed_tokens.weight", "model.shared.weight"},
        {"model.decoder.embed_tokens.weight", "model.shared.weight"},
        {NULL, NULL},
    };
    static const fv_tie apart[] = {{"lm_head.weight", "model.decoder.embed_tokens.weight"},
                                   {NULL, NULL}};
    static const char *const fresh[] = {"final_logits_bias", "model.encoder.embed_positions.weight",
                                        "model.decoder.embed_positions.weight", NULL};
    const config *k = &((const marian *)self)->extra;
    const fv_tie *ties = !k->shared.tie_word_embeddings        ? NULL
                         : k->share_encoder_decoder_embeddings ? shared
                                                               : apart;
    return (fv_load_opt){.ties = ties, .fresh = fresh};
}

/* ---- forward ---- */

/* Labels alone are enough: they are moved by one behind decoder_start_token_id. */
static void forward(fv_ctx *c, const void *self, const fv_items *in, fv_items *out)
{
    const fv__seq2seq *m = self;
    fv_tensor *memory = fv__seq2seq_encode(c, m, in, out);
    fv_tensor *ids = fv__seq2seq_target(c, m, in, NULL);
    fv__seq2seq_put(c, m, in, out, memory, m->embed(c, m, true, ids, NULL));
}

const fv_family fv__family_marian = {
    .type = "marian",
    .heads = heads,
    .config = fields,
    .rules = rules,
    .inputs = inputs,
    .config_size = sizeof(config),
    .size = sizeof(marian),
    .check = check,
    .declare = declare,
    .load = load,
    .ready = fv__seq2seq_ready,
    .pack = fv__seq2seq_pack,
    .forward = forward,
    .begin = fv__seq2seq_begin,
    .vocabulary = fv__seq2seq_vocabulary,
    .context = fv__seq2seq_context,
    .step = fv__seq2seq_step,
};
