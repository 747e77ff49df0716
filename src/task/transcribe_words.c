/* transcribe_words.c - words with times, of models that generate: tokens from cross-attention
 * (gen/align.c), put together to words.
 *
 * Which heads align stands in generation_config.json (alignment_heads); where it does not, all
 * heads of the later half of the decoder's layers are taken, as openai's program does.  A word is
 * the tokens from one that begins with a blank space up to the next such; punctuation stays with
 * the word it stands at.  Chinese, Japanese, Thai, Lao, Burmese and Cantonese have no such spaces:
 * there each token that completes a character is one. */
#include "task/transcribe.h"

#include <stdio.h>

#include "base/base.h"

/* ---- which heads ---- */

static bool integer_at(const fv_json *j, const char *key, int32_t most, int32_t *out)
{
    double x;
    if (!j || !fv_json_number(j, key, &x) || !(x >= 0 && x <= (double)most)) return false;
    *out = (int32_t)x;
    return true;
}

/* [[2, 2], [3, 0], ..] */
static fv_status named_heads(fv__aligning *a, const fv_json *generation, fv_err *e)
{
    int n = fv_json_count(generation, "alignment_heads");
    for (int i = 0; i < n; i++) {
        char at[64];
        bool ok = a->n < FV__MOST_HEADS;
        for (int k = 0; ok && k < 2; k++) {
            snprintf(at, sizeof at, "alignment_heads.%d.%d", i, k);
            ok = integer_at(generation, at, 4096, &a->heads[2 * a->n + k]);
        }
        if (!ok)
            return fv_fail(e, FV_EFORMAT,
                           "generation_config.json: alignment_heads: expected up to %d pairs "
                           "[layer, head]",
                           (int)FV__MOST_HEADS);
        a->n++;
    }
    return FV_OK;
}

/* The key of the decoder's depth differs between families. */
static int32_t decoder_layers(const fv_json *config)
{
    static const char *const keys[] = {"decoder_layers", "decoder_num_hidden_layers",
                                       "num_hidden_layers"};
    int32_t n = 0;
    for (int i = 0; i < 3 && !n; i++) integer_at(config, keys[i], 4096, &n);
    return n;
}

fv_status fv__aligning_read(fv__aligning *a, const fv_json *generation, const fv_json *config,
                            fv_err *e)
{
    int32_t width = 0;
    *a = (fv__aligning){0};
    integer_at(config, "median_filter_width", 63, &width);
    a->width = width;
    if (generation && fv_json_has(generation, "alignment_heads"))
        return named_heads(a, generation, e);
    int32_t layers = decoder_layers(config);
    for (int32_t i = layers / 2; i < layers && a->n < FV__MOST_HEADS; i++, a->n++) {
        a->heads[2 * a->n] = i;
        a->heads[2 * a->n + 1] = -1;
    }
    return FV_OK;
}

/* ---- words ---- */

fv_status fv__words_add(fv__transcript *to, const fv_tok *tok, const int32_t *ids, int64_t n,
                        int32_t first, const double *begins, bool spaced, fv_err *e)
{
    fv_buf word = {.env = to->text.env};
    fv_tok_stream *stream = NULL;
    double from = 0, until = 0;
    fv_status st = fv_tok_stream_new(&stream, tok, true, e);
    for (int64_t i = 0; !st && i <= n; i++) {
        const char *text = " ";
        size_t len = 1;
        if (i < n && ids[i] >= first) continue; /* a time */
        if (i < n) st = fv_tok_stream_push(stream, ids[i], &text, &len, e);
        if (st || !len) continue; /* a special token, or part of a character */
        bool starts = *text == ' ' || !spaced;
        if (starts && word.len) {
            st = fv__transcript_word(to, from, until, word.data, word.len, e);
            word.len = 0;
        }
        if (*text == ' ') text++, len--;
        if (!len) continue;
        if (!word.len) from = begins[i];
        until = i < n ? begins[i + 1] : until;
        fv__buf_add(&word, text, len);
        if (word.failed) st = fv_fail(e, FV_ENOMEM, "out of memory");
    }
    fv_tok_stream_free(stream);
    fv__buf_free(&word);
    return st;
}
