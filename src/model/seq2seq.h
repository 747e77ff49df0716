/* seq2seq.h - what families with an encoder and a decoder share: the two blocks, the stacks of
 * them, and of BART and its kin the keys of config.json, the names, forward and the steps of
 * generation.
 *
 * A family's own file says which blocks it has (norms before or behind each part), which norms
 * stand around the stacks, how tokens and positions are embedded, and where the decoder begins. */
#ifndef FV_MODEL_SEQ2SEQ_H
#define FV_MODEL_SEQ2SEQ_H

#include "model/part.h"

/* ---- blocks ---- */

typedef struct fv__encoder_block {
    fv_mha attn;
    fv_norm attn_norm, mlp_norm;
    fv_mlp mlp;
    float dropout;
} fv__encoder_block;

typedef struct fv__decoder_block {
    fv_mha self, cross;
    fv_norm self_norm, cross_norm, mlp_norm;
    fv_mlp mlp;
    float dropout;
} fv__decoder_block;

/* Each is an fv_layer_fn on x (B,T,D).  Post-norm: norm(x + f(x)) for each part f; pre-norm:
 * x + f(norm x). */
fv_tensor *fv__encoder_post_norm(fv_ctx *c, const void *block, fv_tensor *x, fv_mha_arg self,
                                 fv_mha_arg none);
fv_tensor *fv__encoder_pre_norm(fv_ctx *c, const void *block, fv_tensor *x, fv_mha_arg self,
                                fv_mha_arg none);
fv_tensor *fv__decoder_post_norm(fv_ctx *c, const void *block, fv_tensor *x, fv_mha_arg self,
                                 fv_mha_arg cross);
fv_tensor *fv__decoder_pre_norm(fv_ctx *c, const void *block, fv_tensor *x, fv_mha_arg self,
                                fv_mha_arg cross);

/* ---- stacks ---- */

typedef struct fv__stacks {
    fv_layer_fn *encoder_fn, *decoder_fn; /* which blocks they are */
    fv__encoder_block *encoder;
    fv__decoder_block *decoder; /* NULL: an encoder alone */
    int n_encoder, n_decoder;
    fv_norm encoder_norm, decoder_norm; /* behind each; no gain: there is none */
} fv__stacks;

/* x (B,T,D) -> (B,T,D): all layers and the norm behind them, shown as `shown`. */
fv_tensor *fv__encode(fv_ctx *c, const fv__stacks *s, fv_tensor *x, fv_mha_arg self,
                      const char *shown);
/* self becomes causal; cross.memory: what the encoder gave. */
fv_tensor *fv__decode(fv_ctx *c, const fv__stacks *s, fv_tensor *x, fv_mha_arg self,
                      fv_mha_arg cross);
void fv__stacks_pack(fv_params *p, fv__stacks *s, fv_dtype dtype);

/* Generation: keeps the encoder's mask (or NULL) and, for each layer, its keys and values; then the
 * next tokens x (rows,T,D) of a session -> (rows,D), what the last of them became, or its scores
 * (rows,V) by w (V,D) and b (V) or NULL. */
void fv__source_begin(fv_ctx *c, const fv__stacks *s, fv_session *session, fv_tensor *memory,
                      fv_tensor *mask);
fv_tensor *fv__target_step(fv_ctx *c, const fv__stacks *s, fv_session *session, fv_tensor *x,
                           fv_mha_arg self);
fv_tensor *fv__target_scores(fv_ctx *c, const fv__stacks *s, fv_session *session, fv_tensor *x,
                             fv_mha_arg self, fv_tensor *w, fv_tensor *b);

/* What a head of two stacks makes of the decoder's states x (B,T,D).  A classifier reads the last
 * end of sequence of each row of input_ids; a row that has none is an error wherever ids can be
 * read without waiting for a device in training. */
fv_tensor *fv__at_end(fv_ctx *c, fv_tensor *x, fv_tensor *ids, int32_t eos);
/* tanh(dense x), with dropout before and behind, then the label's scores. */
fv_tensor *fv__end_scores(fv_ctx *c, fv_tensor *x, const fv_lin *dense, const fv_lin *label,
                          float dropout);

/* ---- BART and its kin ---- */

typedef struct fv__seq2seq_config {
    int vocab_size, d_model, max_position_embeddings;
    int encoder_layers, encoder_attention_heads, encoder_ffn_dim;
    int decoder_layers, decoder_attention_heads, decoder_ffn_dim;
    int activation_function;
    float dropout, attention_dropout, activation_dropout, classifier_dropout, init_std;
    bool scale_embedding, tie_word_embeddings;
    int pad_token_id, eos_token_id, decoder_start_token_id, num_labels, problem_type;
} fv__seq2seq_config;

/* The sizes of an encoder and a decoder, in a config struct of any family that names them as BART
 * does; arguments: the most layers of the decoder, then what is meant where a key is left out. */
#define FV__STACK_FIELDS(type, most, in_encoder, in_decoder, n_head, inner)                        \
    FV_INT(type, encoder_layers, 1, in_encoder, 256, "layers of the encoder"),                     \
        FV_INT(type, encoder_attention_heads, 1, n_head, 1024, "its attention heads"),             \
        FV_INT(type, encoder_ffn_dim, 1, inner, 1 << 18, "width of its feed-forward parts"),       \
        FV_INT(type, decoder_layers, 1, in_decoder, most, "layers of the decoder"),                \
        FV_INT(type, decoder_attention_heads, 1, n_head, 1024, "its attention heads"),             \
        FV_INT(type, decoder_ffn_dim, 1, inner, 1 << 18, "width of its feed-forward parts")

/* The keys that all of them have but max_position_embeddings; arguments: what is meant where one is
 * left out. */
#define FV__SEQ2SEQ_FIELDS(vocab, act, weights_dropout, scaled, pad, eos, start)                   \
    FV_INT(fv__seq2seq_config, vocab_size, 1, vocab, 1 << 24, "tokens"),                           \
        FV_INT(fv__seq2seq_config, d_model, 1, 1024, 1 << 16, "model width"),                      \
        FV__STACK_FIELDS(fv__seq2seq_config, 256, 12, 12, 16, 4096),                               \
        FV_CHOICE(fv__seq2seq_config, activation_function, act, fv_act_words,                      \
                  "of the feed-forward part"),                                                     \
        FV_FLOAT(fv__seq2seq_config, dropout, 0, 0.1, 0.99,                                        \
                 "on what each part of a layer adds, and on the embeddings"),                      \
        FV_FLOAT(fv__seq2seq_config, attention_dropout, 0, weights_dropout, 0.99,                  \
                 "on the attention weights"),                                                      \
        FV_FLOAT(fv__seq2seq_config, activation_dropout, 0, 0, 0.99,                               \
                 "inside the feed-forward part"),                                                  \
        FV_FLOAT(fv__seq2seq_config, init_std, 0, 0.02, 10,                                        \
                 "standard deviation of first values; 0: Xavier"),                                 \
        FV_BOOL(fv__seq2seq_config, scale_embedding, scaled,                                       \
                "multiply embeddings by the square root of the width"),                            \
        FV_BOOL(fv__seq2seq_config, tie_word_embeddings, true,                                     \
                "the table is the output weight too"),                                             \
        FV_INT(fv__seq2seq_config, pad_token_id, 0, pad, 1 << 24, "padding"),                      \
        FV_INT(fv__seq2seq_config, eos_token_id, 0, eos, 1 << 24, "end of a sequence"),            \
        FV_INT(fv__seq2seq_config, decoder_start_token_id, 0, start, 1 << 24,                      \
               "what the decoder begins with")

#define FV__LEARNED_POSITIONS_FIELD                                                                \
    FV_INT(fv__seq2seq_config, max_position_embeddings, 1, 1024, 1 << 20, "longest sequence")
#define FV__SINUSOIDS_FIELD                                                                        \
    FV_INT(fv__seq2seq_config, max_position_embeddings, 1, 1024, 1 << 14,                          \
           "longest sequence: so many sinusoids are computed")

#define FV__SEQ2SEQ_LABEL_FIELDS(labels)                                                           \
    FV_FLOAT(fv__seq2seq_config, classifier_dropout, 0, 0, 0.99, "in the classifier"),             \
        FV_INT(fv__seq2seq_config, num_labels, 1, labels, 1 << 20, "labels"),                      \
        FV_CHOICE(fv__seq2seq_config, problem_type, 0, fv_problem_words,                           \
                  "what the labels are; not given: as they look"),                                 \
        FV_FLOAT_KEY("classif_dropout", fv__seq2seq_config, classifier_dropout, 0, 0, 0.99,        \
                     "classifier_dropout, as older files have it")

/* Rules for keys that all of them have and that change nothing. */
#define FV__SEQ2SEQ_RULES                                                                          \
    {"is_encoder_decoder", "true"}, {"is_decoder", NULL}, {"encoder_layerdrop", NULL},             \
    {                                                                                              \
        "decoder_layerdrop", NULL                                                                  \
    }
/* Heads of BART for spans take their ends too. */
#define FV__SPAN_INPUTS                                                                            \
    {"start_positions", FV_I32, false}, { "end_positions", FV_I32, false }

#define FV__SEQ2SEQ_INPUTS                                                                         \
    {"input_ids", FV_I32, true}, {"attention_mask", FV_U8, false},                                 \
        {"decoder_input_ids", FV_I32, false}, {"decoder_attention_mask", FV_U8, false},            \
    {                                                                                              \
        "labels", FV_I32, false                                                                    \
    }

typedef struct fv__seq2seq fv__seq2seq;
typedef fv_tensor *fv__seq2seq_embed_fn(fv_ctx *c, const fv__seq2seq *m, bool decoder,
                                        fv_tensor *ids, fv_session *s);

struct fv__seq2seq {
    fv__seq2seq_config cfg;
    fv_head_job job;
    const char *family;    /* for messages */
    fv_emb source, target; /* one table in most */
    fv_pos encoder_pos, decoder_pos;
    fv_norm encoder_emb_norm, decoder_emb_norm; /* of the embeddings; no gain: there is none */
    fv__stacks stacks;
    fv_tensor *out;      /* (V,D) */
    fv_tensor *bias;     /* (1,V), or NULL */
    fv_lin dense, label; /* of a classifier; label: also of spans */
    /* ids (B,T), or the next of a session -> (B,T,D), with dropout: the family's own, or
     * fv__seq2seq_embed */
    fv__seq2seq_embed_fn *embed;
};

fv_status fv__seq2seq_check(const fv__seq2seq_config *k, fv_err *e);

/* These declare, below "model." or, in a bare model, nothing: */

/* the configuration, and who embeds: first of all; */
void fv__seq2seq_init(fv__seq2seq *m, const fv_setup *s, const char *family,
                      fv__seq2seq_embed_fn *embed);
/* the table `shared` of both sides; */
void fv__seq2seq_shared(fv__seq2seq *m, fv_params *p);
/* embed_positions of both, where row `offset` is the first position; */
void fv__seq2seq_positions(fv__seq2seq *m, fv_params *p, fv_pos_kind kind, int offset);
/* norms of the embeddings, layernorm_embedding; */
void fv__seq2seq_emb_norms(fv__seq2seq *m, fv_params *p);
/* the layers of both stacks, as post- or pre-norm blocks, the latter with a norm behind each
 * stack; */
void fv__seq2seq_stacks(fv__seq2seq *m, fv_params *p, bool pre_norm);
/* the output weight, final_logits_bias where with_bias, the classifier or the scores of spans: what
 * the head has. */
void fv__seq2seq_head(fv__seq2seq *m, fv_params *p, bool with_bias);
fv_load_opt fv__seq2seq_load(const void *self);
/* Fills sinusoids, which no file need have. */
fv_status fv__seq2seq_ready(void *self, fv_params *p, fv_err *e);
void fv__seq2seq_pack(void *self, fv_params *p, fv_dtype dtype);

/* E[ids] + P[positions], their norm where there is one, dropout. */
fv_tensor *fv__seq2seq_embed(fv_ctx *c, const fv__seq2seq *m, bool decoder, fv_tensor *ids,
                             fv_session *s);
/* Raises, and returns false, where ids have more tokens than max_position_embeddings. */
bool fv__seq2seq_fits(fv_ctx *c, const fv__seq2seq *m, const fv_tensor *ids);

/* The encoder on input_ids; puts encoder_last_hidden_state. */
fv_tensor *fv__seq2seq_encode(fv_ctx *c, const fv__seq2seq *m, const fv_items *in, fv_items *out);
/* decoder_input_ids, else the labels behind decoder_start_token_id; else, where otherwise is
 * given, that likewise; else an error. */
fv_tensor *fv__seq2seq_target(fv_ctx *c, const fv__seq2seq *m, const fv_items *in,
                              fv_tensor *otherwise);
/* The decoder on x (B,T,D) and what the head makes of it. */
void fv__seq2seq_put(fv_ctx *c, const fv__seq2seq *m, const fv_items *in, fv_items *out,
                     fv_tensor *memory, fv_tensor *x);

void fv__seq2seq_begin(fv_ctx *c, const void *self, fv_session *s, const fv_items *in);
fv_tensor *fv__seq2seq_step(fv_ctx *c, const void *self, fv_session *s, fv_tensor *ids);
int64_t fv__seq2seq_vocabulary(const void *self);
int64_t fv__seq2seq_context(const void *self);

/* What a table of a family of this kind holds besides its type, heads, fields, rules and inputs. */
#define FV__SEQ2SEQ_PARTS(T)                                                                       \
    .heads = heads, .config = fields, .rules = rules, .inputs = inputs,                            \
    .config_size = sizeof(config), .size = sizeof(T), .check = check, .declare = declare,          \
    .load = fv__seq2seq_load, .pack = fv__seq2seq_pack, .forward = forward,                        \
    .begin = fv__seq2seq_begin, .vocabulary = fv__seq2seq_vocabulary,                              \
    .context = fv__seq2seq_context, .step = fv__seq2seq_step

#endif
