/* metric.h - how good an output is: BLEU and chrF as sacreBLEU defines them.
 *
 * Both compare n texts with one reference each, over the whole corpus.  Texts are UTF-8; malformed bytes count as
 * U+FFFD. */
#ifndef FOVEA_METRIC_H
#define FOVEA_METRIC_H

#include "fovea/env.h"

typedef enum fv_bleu_tokens {
    FV_BLEU_13A = 0, /* as mteval-v13a: punctuation apart, for plain text */
    FV_BLEU_NONE     /* words are what blanks separate: for text that is tokenised already */
} fv_bleu_tokens;

typedef struct fv_bleu_opt {
    fv_bleu_tokens tokens;
    bool lowercase; /* by Unicode's simple mapping */
} fv_bleu_opt;

typedef struct fv_bleu {
    double score;        /* 0..100 */
    double precision[4]; /* of 1- to 4-grams, in per cent, smoothed as "exp" where none matched */
    double brevity;      /* penalty, 0..1 */
    int64_t match[4], total[4];
    int64_t length, reference_length; /* in tokens */
    char signature[96];               /* what sacreBLEU would print for the same settings */
} fv_bleu;

FV_API fv_status fv_bleu_score(fv_bleu *out, const fv_env *env, const char *const *texts, const char *const *references,
                               int64_t n, fv_bleu_opt opt, fv_err *e);

typedef struct fv_chrf {
    double score; /* 0..100: chrF2, character 1- to 6-grams, blanks left out */
    char signature[96];
} fv_chrf;

FV_API fv_status fv_chrf_score(fv_chrf *out, const fv_env *env, const char *const *texts, const char *const *references,
                               int64_t n, fv_err *e);

#endif
