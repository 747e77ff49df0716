/* masking.c - hiding tokens of a row.
 *
 * Of the tokens that are chosen 80 % become the mask, 10 % any token, and 10 % stay as they are, as
 * BERT was pre-trained.  One token of a row is always chosen, so that no row is without a label. */
#include "data/masking.h"

#include "data/token_stream.h"
#include "fovea/author/tok.h"

/* BERT's rule (Devlin et al. 2019): of the tokens chosen 80 % become the mask, 10 % a random token,
 * 10 % stay, and all of them are predicted. One position is chosen in any case, so that a short row
 * has a loss; draws depend on row and position alone, not on the batch. */
int64_t fv__mask_row(int32_t *ids, int32_t *labels, int64_t n, const fv_feed_opt *t, float share,
                     int64_t row, fv_data_rng how)
{
    int64_t hidden = 0, forced = fv__rng_below(how, 1, row, 0, n);
    int32_t vocab = fv_tok_size(t->tok);
    for (int64_t i = 0; i < n; i++) {
        labels[i] = -100;
        if (fv_tok_special(t->tok, ids[i])) continue;
        if (fv__rng_uniform(how, 0, row, i) >= (double)share && i != forced) continue;
        labels[i] = ids[i];
        hidden++;
        uint32_t w = fv__rng_word(how, 0, row, i, 2) % 10;
        if (w < 8)
            ids[i] = t->mask;
        else if (w == 8)
            ids[i] = (int32_t)(fv__rng_word(how, 0, row, i, 3) % (uint32_t)vocab);
    }
    return hidden;
}

/* Word dropout, in training only: inputs are hidden and nothing is predicted for them. */
void fv__batch_drop(const fv_batch_part *tokens, const fv_feed_opt *t, float share,
                    const int32_t *rows, fv_data_rng how)
{
    int32_t *ids = tokens->data, with = t->mask >= 0 ? t->mask : fv_tok_unknown(t->tok);
    int64_t n = tokens->shape.d[0], T = tokens->shape.d[1];
    if (how.epoch < 0 || !(share > 0) || with < 0) return;
    for (int64_t i = 0; i < n * T; i++)
        if (fv__rng_uniform(how, 10, rows[i / T], i % T) < (double)share &&
            !fv_tok_special(t->tok, ids[i]))
            ids[i] = with;
}
