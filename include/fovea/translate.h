/* translate.h - lines of text in, lines of text out: tokenizer, model and generation together, from
 * one directory.
 *
 *     fv_translator *t;
 *     fv_translator_open(&t, device, "opus-mt-en-de", (fv_translate_opt){.weights = FV_Q8}, &err);
 *     fv_translate(t, (fv_lines){.text = lines, .len = lens, .n = n}, print, NULL, &err);
 *
 * Any model with an encoder and a decoder will do.  Lines of like length go through it together,
 * which changes the time and nothing else.  An empty line gives an empty line.  A line with more
 * tokens than the model has positions is cut, and its translation says so.  A line that is not
 * UTF-8 is refused, before anything is translated. */
#ifndef FOVEA_TRANSLATE_H
#define FOVEA_TRANSLATE_H

#include "fovea/adapter.h"
#include "fovea/gen.h"
#include "fovea/tok.h"

typedef struct fv_translator fv_translator;

typedef struct fv_translate_opt {
    fv_dtype weights; /* of products: f32, bf16, q8, q4, int8 */
    bool widen;       /* as in fv_model_opt */
    fv_adapter_list adapters;
    /* languages, where the model has several: "de", "de_DE" or "deu_Latn" as its vocabulary writes
     * them; NULL: as the directory says */
    const char *from, *to;
    int64_t batch;  /* lines that go together; 0: 32 */
    int64_t tokens; /* source tokens that go together, padding included; 0: 8192 */
    /* also how much each token of the best translation attended to each of the source */
    bool attention;
} fv_translate_opt;

FV_API fv_status fv_translator_open(fv_translator **out, fv_device *d, const char *dir,
                                    fv_translate_opt opt, fv_err *e);
FV_API void fv_translator_close(fv_translator *t); /* NULL is allowed */

/* How it generates: as the directory says, else with 4 beams, as many tokens as the model has
 * positions.  May be changed. */
FV_API fv_gen_opt *fv_translator_gen(fv_translator *t);

typedef struct fv_lines {
    const char *const *text;
    const size_t *len;
    int64_t n;
    int64_t first;    /* the number of the first line, for messages and random numbers; 0: 1 */
    const char *name; /* of the file, for messages; NULL: none */
} fv_lines;

typedef struct fv_translated {
    const char *text; /* NUL-terminated */
    size_t len;
    const int32_t *ids; /* with the end token, if it was reached */
    int64_t n;
    double score; /* as fv_hyp's */
} fv_translated;

/* One line's translations, best first; valid during the call that receives it. */
typedef struct fv_translation {
    int64_t line;          /* its number */
    const int32_t *source; /* its tokens; none for an empty line */
    int64_t n_source;
    bool cut; /* it had more */
    const fv_translated *best;
    int64_t n_best; /* 1 for an empty line: the empty text */
    /* (best->n, n_source), where asked for: exact weights of the attention to the source, mean of
     * all layers and heads */
    const float *attention;
} fv_translation;

/* Receives the lines in order, each as soon as it and all before it are done.  false: no more are
 * wanted. */
typedef bool fv_translated_fn(void *user, const fv_translation *t);
FV_API fv_status fv_translate(fv_translator *t, fv_lines lines, fv_translated_fn *done, void *user,
                              fv_err *e);

#endif
