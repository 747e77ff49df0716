/* bert.h - what BERT and its kin share: the keys of config.json, the layers, the masked-word head,
 * the pooler. */
#ifndef FV_MODEL_BERT_H
#define FV_MODEL_BERT_H

#include "model/part.h"
#include "ops/embed.h"

typedef struct fv__bert_config {
    int vocab_size, hidden_size, num_hidden_layers, num_attention_heads, intermediate_size;
    int max_position_embeddings, type_vocab_size, pad_token_id, num_labels;
    int hidden_act, problem_type;
    float hidden_dropout_prob, attention_probs_dropout_prob, classifier_dropout;
    float initializer_range, layer_norm_eps;
    bool tie_word_embeddings;
} fv__bert_config;

/* The keys that all of them have but vocab_size, pad_token_id and max_position_embeddings; what is
 * meant where one is left out differs from family to family. */
#define FV__ENCODER_FIELDS(width, layers, n_head, inner, act, dropout, eps)                        \
    FV_INT(fv__bert_config, hidden_size, 1, width, 1 << 16, "model width"),                        \
        FV_INT(fv__bert_config, num_hidden_layers, 1, layers, 256, "layers"),                      \
        FV_INT(fv__bert_config, num_attention_heads, 1, n_head, 1024, "attention heads"),          \
        FV_INT(fv__bert_config, intermediate_size, 1, inner, 1 << 18,                              \
               "width of the feed-forward part"),                                                  \
        FV_CHOICE(fv__bert_config, hidden_act, act, fv_act_words,                                  \
                  "activation of the feed-forward part and of the masked-word head"),              \
        FV_FLOAT(fv__bert_config, hidden_dropout_prob, 0, dropout, 0.99,                           \
                 "on what each part of a layer adds, and on the embeddings"),                      \
        FV_FLOAT(fv__bert_config, attention_probs_dropout_prob, 0, dropout, 0.99,                  \
                 "on the attention weights"),                                                      \
        FV_FLOAT(fv__bert_config, initializer_range, 0, 0.02, 10,                                  \
                 "standard deviation of first values; 0: Xavier"),                                 \
        FV_FLOAT(fv__bert_config, layer_norm_eps, 1e-20, eps, 1,                                   \
                 "under the square root of each norm"),                                            \
        FV_CHOICE(fv__bert_config, problem_type, 0, fv_problem_words,                              \
                  "what the labels of a sequence are; not given: as they look"),                   \
        FV_INT(fv__bert_config, num_labels, 1, 2, 1 << 20, "labels"),                              \
        FV_BOOL(fv__bert_config, tie_word_embeddings, true,                                        \
                "the input table scores the words of the masked-word head")

#define FV__TYPES_FIELD                                                                            \
    FV_INT(fv__bert_config, type_vocab_size, 1, 2, 1 << 16,                                        \
           "kinds of token: first and second sentence")
#define FV__CLASSIFIER_DROPOUT_FIELD                                                               \
    FV_FLOAT(fv__bert_config, classifier_dropout, 0, -1, 0.99,                                     \
             "before the classifier; not given: hidden_dropout_prob")

#define FV__BERT_FIELDS FV__TYPES_FIELD, FV__CLASSIFIER_DROPOUT_FIELD

/* What the heads of an encoder of texts take... */
#define FV__TEXT_INPUTS                                                                            \
    {"input_ids", FV_I32, true}, {"attention_mask", FV_U8, false},                                 \
        {"position_ids", FV_I32, false},                                                           \
    {                                                                                              \
        "labels", FV_I32, false                                                                    \
    }
/* ...and where one of them finds spans; families with kinds of token add token_type_ids. */
#define FV__ENCODER_INPUTS                                                                         \
    FV__TEXT_INPUTS, {"start_positions", FV_I32, false}, { "end_positions", FV_I32, false }

/* That the heads divide the width and the padding is a token. */
fv_status fv__bert_check(const fv__bert_config *k, fv_err *e);

/* Tables of tokens, kinds of token and positions, and the norm of their sum. */
typedef struct fv__bert_emb {
    fv_emb words, types;
    fv_pos positions;
    fv_norm norm;
} fv__bert_emb;

/* Declares embeddings.* of this width below `at`, which is empty or ends in a dot. */
void fv__bert_emb_init(fv_params *p, fv__bert_emb *l, const fv__bert_config *k, int64_t width,
                       const char *at);
/* input_ids, token_type_ids and position_ids of `in` -> (B,T,width), with dropout; family: for the
 * message where there are too many tokens. */
fv_tensor *fv__bert_embed(fv_ctx *c, const fv__bert_emb *l, const fv__bert_config *k,
                          const fv_items *in, const char *family);

/* One layer: attention and feed-forward part, each followed by the norm of its sum. */
typedef struct fv__bert_block {
    fv_mha attn;
    fv_norm attn_norm, mlp_norm;
    fv_mlp mlp;
    float attn_dropout, mlp_dropout;
} fv__bert_block;

/* Declares the layers encoder.layer.N below `at`, which is empty or ends in a dot. */
fv__bert_block *fv__bert_blocks(fv_params *p, const fv__bert_config *k, const char *at);
/* The feed-forward part of one, intermediate.dense and output.*, below its path. */
void fv__bert_mlp_init(fv_params *p, fv__bert_block *b, const fv__bert_config *k, const char *at);
/* An fv_layer_fn: one of them on x (B,T,D). */
fv_tensor *fv__bert_block_fwd(fv_ctx *c, const void *block, fv_tensor *x, fv_mha_arg arg,
                              fv_mha_arg none);
/* All n of them, under attention_mask (B,T), (B,T,T) or NULL: (B,T,D). */
fv_tensor *fv__bert_encode(fv_ctx *c, const fv__bert_block *b, int n, fv_tensor *x,
                           fv_tensor *mask);
void fv__bert_pack(fv_params *p, fv__bert_block *b, int n, fv_dtype dtype);

/* Before the classifier of this head; spans have none. */
float fv__bert_dropout(const fv__bert_config *k, fv_head_job job);

/* For `load` of a masked-word head named lm_head, with a classifier and qa_outputs beside it:
 * what a head leaves unread of a file with others. */
extern const char *const fv__roberta_unread[], *const fv__roberta_unread_words[];

/* For `ready`: an encoder taken from under another head has no pooler in its file, and nothing
 * comes out for it then. */
fv_status fv__bert_pooler_ready(fv_params *p, fv_lin *pooler, fv_err *e);

/* The masked-word head: norm(act(dense x)), then a score for each word. */
typedef struct fv__word_head {
    fv_lin dense;
    fv_norm norm;
    fv_act act;
    fv_tensor *scores, *bias; /* (V,D), the input table where they are tied; (V) */
} fv__word_head;

/* Of words (V,E) on hidden states of k->hidden_size, with the names dense.*, norm.*, scores.bias
 * and, where it is not tied, scores.decoder.*. */
void fv__word_head_init(fv_params *p, fv__word_head *l, const fv__bert_config *k, fv_tensor *words,
                        const char *dense, const char *norm, const char *scores);
/* The same where the scores have one path for both: scores.weight, where not tied, and
 * scores.bias. */
void fv__word_head_plain(fv_params *p, fv__word_head *l, const fv__bert_config *k, fv_tensor *words,
                         const char *dense, const char *norm, const char *scores);
/* (B,T,D) -> (B,T,V) */
fv_tensor *fv__word_head_fwd(fv_ctx *c, const fv__word_head *l, fv_tensor *x);
/* Lays the scores out apart from the table they may share, whose rows are still looked up; nothing
 * where there is no head. */
void fv__word_head_pack(fv_params *p, fv__word_head *l, fv_dtype dtype);

/* A classifier of two layers, classifier.dense and classifier.out_proj. */
void fv__two_layers_init(fv_params *p, fv_lin *dense, fv_lin *out, const fv__bert_config *k);

/* ---- what heads make of an encoder's states ---- */

/* (B,T,D) -> (B,D): the mean over the tokens that mask (B,T) leaves; mask may be NULL. */
fv_tensor *fv__mean_tokens(fv_ctx *c, fv_tensor *x, fv_tensor *mask);

/* One of these heads. */
typedef struct fv__encoder_head {
    fv_head_job job;
    const fv_lin *classifier;
    const fv__word_head *masked;
    float dropout; /* before the classifier */
    int problem;   /* an fv_problem */
} fv__encoder_head;

/* Puts what these heads have in common: the bare model, masked words, sequences, tokens, spans,
 * multiple choice.  x (B,T,D); pooled (B,D) or NULL: what a classifier of sequences reads, and
 * pooler_output. */
void fv__put_encoded(fv_ctx *c, const fv_items *in, fv_items *out, fv__encoder_head e, fv_tensor *x,
                     fv_tensor *pooled);

/* For multiple choice: the inputs (B,N,T) as (B*N,T); else as they are. */
fv_items fv__flat_choices(fv_ctx *c, const fv_items *in, fv_head_job job);

/* Masked words and a relation of two segments: prediction_logits, the relation's under `name` and,
 * with labels and next (B), the sum of both losses. */
void fv__put_pretraining(fv_ctx *c, const fv_items *in, fv_items *out, fv_tensor *words,
                         fv_tensor *relation, const char *name, fv_tensor *next);

#endif
