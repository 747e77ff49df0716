/* metric.h - metrics: accuracy and F1 of labels, entities as conlleval counts them, answers as
 * SQuAD's evaluation does, BLEU and chrF as sacreBLEU, ROUGE as rouge-score, word error rates.
 *
 * All scores are in per cent.  Texts are UTF-8; malformed bytes count as U+FFFD. */
#ifndef FOVEA_AUTHOR_METRIC_H
#define FOVEA_AUTHOR_METRIC_H

#include "fovea/env.h"

/* ---- precision and recall ---- */

typedef struct fv_match {
    int64_t right; /* predictions that are right */
    int64_t given; /* predictions */
    int64_t gold;  /* those that should have been made */
} fv_match;

FV_API double fv_precision(fv_match m); /* right / given */
FV_API double fv_recall(fv_match m);    /* right / gold */
FV_API double fv_f1(fv_match m);        /* their harmonic mean; each is 0 where it would be 0 / 0 */

/* ---- one label for each text, from a confusion matrix (labels,labels): rows are gold labels,
 * columns predicted ones ---- */

FV_API double fv_accuracy(const int64_t *table, int labels);
FV_API fv_match fv_label_match(const int64_t *table, int labels, int label);
/* The mean over the labels that occur on either side, as scikit-learn takes it. */
FV_API double fv_macro_f1(const int64_t *table, int labels);

/* ---- entities: runs of words with tags such as B-PER and I-PER, right where both ends and the
 * type are ---- */

#define FV_MAX_ENTITY_TYPES 128

typedef struct fv_entities {
    fv_match all;
    int64_t words, right_words; /* right: with the same tag */
    int n; /* types, in order of their names; entities of any beyond the most count in all alone */
    struct {
        char name[64];
        fv_match match;
    } type[FV_MAX_ENTITY_TYPES];
} fv_entities;

/* Adds a sentence of n words with their gold and predicted tags, each in any of IOB1, IOB2, IOE and
 * IOBES.  Begin with {0}. */
FV_API void fv_entities_add(fv_entities *x, const char *const *gold, const char *const *given,
                            int64_t n);

/* ---- answers to questions, as SQuAD's evaluate-v1.1.py scores them ---- */

/* Exact match and F1 of the words, the best over the n right answers.  Case, ASCII punctuation,
 * articles and blanks do not matter.  n == 0: the question has no answer, and an empty text is
 * right. */
FV_API fv_status fv_answer_score(double *exact, double *f1, const fv_env *env, const char *text,
                                 const char *const *answers, int64_t n, fv_err *e);

/* What a text is held against may be several references: they stand in one string with FV_NEXT_TEXT
 * between them. */

/* ---- sets of vectors ---- */

/* The Frechet distance of n vectors x and m vectors y of one width, each set taken for a normal
 * distribution.  Fewer than two vectors on a side are refused. */
FV_API fv_status fv_frechet_score(double *out, const fv_env *env, const float *x, int64_t n,
                                  const float *y, int64_t m, int64_t width, fv_err *e);

/* ---- summaries, as the Python package rouge-score has them without a stemmer ---- */

/* Mean over n texts of the F-measure of common words, pairs of words, and the longest common
 * subsequence of words. */
typedef struct fv_rouge {
    double rouge1, rouge2, rougeL;
} fv_rouge;

/* Of n texts against their references, the best of which counts. */
FV_API fv_status fv_rouge_score(fv_rouge *out, const fv_env *env, const char *const *texts,
                                const char *const *references, int64_t n, fv_err *e);

/* ---- translations against their references, over the whole corpus ---- */

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

/* Of n texts, a corpus. */
FV_API fv_status fv_bleu_score(fv_bleu *out, const fv_env *env, const char *const *texts,
                               const char *const *references, int64_t n, fv_bleu_opt opt,
                               fv_err *e);

typedef struct fv_chrf {
    /* 0..100: chrF2, character 1- to 6-grams, blanks left out; of several references the one that
     * scores best counts */
    double score;
    char signature[96];
} fv_chrf;

/* Likewise. */
FV_API fv_status fv_chrf_score(fv_chrf *out, const fv_env *env, const char *const *texts,
                               const char *const *references, int64_t n, fv_err *e);

/* ---- transcriptions: word and character error rates ---- */

/* The fewest edits that make the text of the reference: what a transcriber got wrong. */
typedef struct fv_edits {
    int64_t right, substituted, deleted, inserted; /* deleted: it was said and is not written */
} fv_edits;

typedef struct fv_edit_opt {
    bool chars; /* of characters, runs of blanks being one; else of words between blanks */
    bool plain; /* lower case, without punctuation (an apostrophe between letters stays) */
} fv_edit_opt;

/* One step of an alignment: '=', 'S', 'D' or 'I', and the words in UTF-8, "" for none. */
typedef void fv_edit_fn(void *user, char edit, const char *said, const char *written);

/* Adds the edits between a text and its reference to *x; begin with {0}.  Of several alignments
 * with as few edits the one that substitutes first counts.  fn: called for each step in order, or
 * NULL. */
FV_API fv_status fv_edits_add(fv_edits *x, const fv_env *env, const char *text,
                              const char *reference, fv_edit_opt opt, fv_edit_fn *fn, void *user,
                              fv_err *e);
/* (substituted + deleted + inserted) / (right + substituted + deleted); may exceed 100. */
FV_API double fv_error_rate(fv_edits x);

/* ---- probabilities of yes or no ---- */

/* P(yes) = sigmoid(scale * logit + shift), Platt's calibration; {1, 0} leaves a logit as it is. */
typedef struct fv_platt {
    double scale, shift;
} fv_platt;

/* The one with the least log-loss on these; yes (n), 1 or 0.  Both kinds must be there. */
FV_API fv_status fv_platt_fit(fv_platt *out, const float *logit, const uint8_t *yes, int64_t n,
                              fv_err *e);
FV_API double fv_platt_probability(fv_platt p, double logit);

typedef struct fv_binary {
    int64_t n, yes;
    double auc;      /* how often a yes has the greater logit than a no; a tie is half */
    double log_loss; /* mean of -ln P(what happened) */
    double mean;     /* of P(yes) */
    double error;    /* expected calibration error, in ten bins of equally many */
} fv_binary;

/* Of n > 0 logits; yes (n), 1 or 0. */
FV_API fv_status fv_binary_judge(fv_binary *out, const fv_env *env, const float *logit,
                                 const uint8_t *yes, int64_t n, fv_platt p, fv_err *e);

/* ---- detected boxes: left, top, right, bottom ---- */

typedef struct fv_detected {
    int64_t image;
    int32_t label;
    float score, box[4];
} fv_detected;

typedef struct fv_object {
    int64_t image;
    int32_t label;
    bool ignored; /* neither missed nor found */
    float box[4];
} fv_object;

/* Intersection over union. */
FV_API double fv_box_iou(const float a[4], const float b[4]);
/* Of one label, as COCO counts it; NaN where there is no object of it. */
FV_API fv_status fv_average_precision(double *ap, const fv_env *env, const fv_detected *found,
                                      int64_t n, const fv_object *objects, int64_t m, int32_t label,
                                      double iou, fv_err *e);

#endif
