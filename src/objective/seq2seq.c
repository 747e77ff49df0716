/* seq2seq.c - the objective of encoder-decoders: a target for each source text.
 *
 * The decoder's input is the target shifted right behind decoder_start_token_id (teacher forcing),
 * the labels are the target itself.  BLEU of generated targets is measured through `pairs`. */
#include "data/records.h"
#include "fovea/author/objective.h"

/* The end token, or -1 where the tokenizer puts it behind every text itself. */
static fv_status missing_end(const fv_feed_opt *t, int32_t *eos, fv_err *e)
{
    fv_encoding *enc;
    fv_status st = fv_encoding_new(&enc, t->tok, e);
    if (!st) st = fv_tok_encode(enc, "a", 1, (fv_tok_opts){.specials = true}, e);
    *eos = !st && enc->n && enc->ids[enc->n - 1] == t->eos ? -1 : t->eos;
    fv_encoding_free(enc);
    return st;
}

static fv_status open_feed(fv_feed *out, const fv_feed_opt *t, const fv_records *from,
                           fv_data_report *report, fv_err *e)
{
    fv_pairs *p = NULL;
    fv_pairs_opt how = {.from = *from, .keep_texts = t->evaluation};
    *out = (fv_feed){0};
    fv_status st = missing_end(t, &how.eos, e);
    if (!st) st = fv_pairs_open(&p, t->env, t->tok, how, report, e);
    if (!st && (st = fv_feed_pairs(out, p, t->pad, t->start, true, e))) fv_pairs_close(p);
    return st;
}

static const char *const loss_inputs[] = {"decoder_input_ids", "labels", NULL};
static const char *const specials[] = {"<pad>", "</s>", "<unk>", NULL};
static const char *const specials_bytes[] = {"<pad>", "</s>", NULL}; /* no byte is unknown */

const fv_objective fv__objective_seq2seq = {
    .name = "seq2seq",
    .help = "a target for each source text, as in translation",
    .processor = "tokenizer",
    .specials = specials,
    .specials_bytes = specials_bytes,
    .after = "</s>",
    .texts = fv_texts_both,
    .head = FV_HEAD_SEQ2SEQ,
    .loss_inputs = loss_inputs,
    .generates = true,
    .open = open_feed,
    .pairs = fv_feed_pairs_of,
};
