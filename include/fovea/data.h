/* data.h - text for training: read, checked, encoded once, and cut into batches.
 *
 * What a line must be is stated here and nowhere guessed.  A pair is left out, counted and its first few places kept for
 * the report when a side is empty, is not UTF-8, or has more tokens than allowed.  Files whose line counts differ, and
 * lines of a table without the wanted fields, are errors. */
#ifndef FOVEA_DATA_H
#define FOVEA_DATA_H

#include "fovea/model.h"
#include "fovea/tok.h"

/* ---- text files: plain or gzip, a line each ---- */

typedef struct fv_text fv_text;
FV_API fv_status fv_text_open(fv_text **out, const fv_env *env, const char *path, fv_err *e);
FV_API void fv_text_close(fv_text *t); /* NULL is allowed */
FV_API int64_t fv_text_count(const fv_text *t);
/* Line i, without its end (LF or CR LF); not NUL-terminated. */
FV_API const char *fv_text_line(const fv_text *t, int64_t i, size_t *len);

/* ---- pairs of sentences ---- */

typedef struct fv_pairs fv_pairs;

typedef struct fv_pairs_opt {
    const char *source, *target; /* two files, line by line; target NULL: source is a table */
    /* of a table: "a<TAB>b" a line, or JSONL where both names are given */
    const char *source_field, *target_field;
    int64_t max_len; /* tokens of a side, the end included; 0: 512 */
    int32_t eos;     /* put after every side; -1: what the tokenizer adds is all */
    int64_t most;    /* at most so many pairs are read; 0: all */
} fv_pairs_opt;

typedef struct fv_pairs_report {
    int64_t lines, kept, empty, malformed, too_long;
    char first[3][160]; /* "train.en:17: not UTF-8 at byte 5"; unused ones are empty */
    int64_t source_tokens, target_tokens;
} fv_pairs_report;

FV_API fv_status fv_pairs_open(fv_pairs **out, const fv_env *env, const fv_tok *tok, fv_pairs_opt opt, fv_pairs_report *report,
                               fv_err *e);
/* The same from memory: n texts of each side. */
FV_API fv_status fv_pairs_make(fv_pairs **out, const fv_env *env, const fv_tok *tok, const char *const *source,
                               const char *const *target, int64_t n, fv_pairs_opt opt, fv_pairs_report *report, fv_err *e);
FV_API void fv_pairs_close(fv_pairs *p);
FV_API int64_t fv_pairs_count(const fv_pairs *p);
FV_API const int32_t *fv_pairs_source(const fv_pairs *p, int64_t i, int64_t *n);
FV_API const int32_t *fv_pairs_target(const fv_pairs *p, int64_t i, int64_t *n);

/* ---- batches: pairs of like length together, at most `tokens` padded tokens a side ---- */

typedef struct fv_plan fv_plan;

/* All batches of one epoch.  The same (pairs, tokens, seed, epoch) gives the same plan on every machine; epoch -1 keeps
 * the order of lengths, for evaluation. */
FV_API fv_status fv_plan_make(fv_plan **out, const fv_env *env, const fv_pairs *p, int64_t tokens, uint64_t seed, int64_t epoch,
                              fv_err *e);
FV_API void fv_plan_free(fv_plan *p);
FV_API int64_t fv_plan_count(const fv_plan *p);
FV_API const int32_t *fv_plan_batch(const fv_plan *p, int64_t i, int64_t *n); /* numbers of its pairs */

/* Items of a batch of pairs: input_ids, attention_mask, decoder_input_ids (start, then the target), labels (the target,
 * -100 behind it), n_labels.  The tensors live in the context. */
FV_API fv_items fv_pairs_items(fv_ctx *c, const fv_pairs *p, const int32_t *rows, int64_t n, int32_t pad, int32_t start);

#endif
