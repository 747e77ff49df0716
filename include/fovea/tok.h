/* tok.h - tokenizers: text to ids and back, as Hugging Face tokenizers and SentencePiece define
 * them.
 *
 *     fv_tok *t;  fv_encoding *enc;
 *     fv_tok_open(&t, NULL, "bert-base-uncased", &err);          a directory or one file
 *     fv_encoding_new(&enc, t, &err);                            one per thread, used again
 *     fv_tok_encode(enc, text, strlen(text), (fv_tok_opts){.specials = true}, &err);
 *     enc->n, enc->ids[i], enc->spans[i]
 *
 * An fv_tok never changes once it is open: any number of threads may use one, without locks.  All
 * that a call writes to (results, buffers, caches) belongs to the fv_encoding, which one thread
 * uses at a time.
 *
 * Text is UTF-8.  Malformed bytes are read as U+FFFD, one for each maximal ill-formed part, as
 * Python's errors="replace" does; byte offsets still refer to the bytes given, char offsets to the
 * replaced text. */
#ifndef FOVEA_TOK_H
#define FOVEA_TOK_H

#include "fovea/env.h"

typedef struct fv_tok fv_tok;

/* ---- opening and saving ---- */

/* Opens path: a file (tokenizer.json, vocab.txt, vocab.json beside merges.txt, SentencePiece .model
 * / .spm) or a directory that holds one of these, or source.spm + target.spm + vocab.json (Marian).
 * A file that asks for something that is not implemented is refused, with its name and the field.
 * On failure *out is NULL. */
FV_API fv_status fv_tok_open(fv_tok **out, const fv_env *env, const char *path, fv_err *e);

/* Writes a tokenizer.json which Hugging Face tokenizers opens with the same results. */
FV_API fv_status fv_tok_save(const fv_tok *t, const char *path, fv_err *e);

FV_API void fv_tok_close(fv_tok *t); /* NULL is allowed; its encodings and streams go first */

/* ---- the vocabulary ---- */

/* One more than the greatest id. */
FV_API int32_t fv_tok_size(const fv_tok *t);
/* The id of a token (added tokens included), or -1. */
FV_API int32_t fv_tok_id(const fv_tok *t, const char *token);
/* The token of an id, NUL-terminated, owned by t; NULL if there is none. */
FV_API const char *fv_tok_token(const fv_tok *t, int32_t id);

/* ---- encoding ---- */

typedef struct fv_span {
    /* the token's part of its text, [from, to); 0,0 for tokens that stand for no text */
    int64_t from, to;
} fv_span;

typedef enum fv_offsets { FV_OFFSETS_NONE = 0, FV_OFFSETS_BYTES, FV_OFFSETS_CHARS } fv_offsets;

typedef struct fv_tok_opts {
    bool specials;      /* what the post-processor adds: [CLS], </s>, ... */
    fv_offsets offsets; /* what spans count; NONE is fastest and leaves spans NULL */
    const char *pair;   /* a second text, or NULL */
    size_t pair_len;
    /* at most so many tokens, specials included; 0: no limit.  The direction and strategy are the
     * file's */
    int64_t max_len;
    bool as_target; /* Marian only: use the target language's pieces */
} fv_tok_opts;

/* Results of the last call, valid until the next one.  token_types is 0 for the first text and 1
 * for the second, unless the post-processor says otherwise; special is 1 for what it added. */
typedef struct fv_encoding {
    int64_t n;
    int32_t *ids;
    int32_t *token_types;
    uint8_t *special;
    fv_span *spans;
    int32_t
        /* beside spans: which word of its text, as the tokenizer splits it, a token is part of; -1
         * for special ones */
        *words;
} fv_encoding;

FV_API fv_status fv_encoding_new(fv_encoding **out, const fv_tok *t, fv_err *e);
FV_API void fv_encoding_free(fv_encoding *enc); /* NULL is allowed */

/* text may hold NUL bytes.  On failure enc->n is 0. */
FV_API fv_status fv_tok_encode(fv_encoding *enc, const char *text, size_t len, fv_tok_opts o,
                               fv_err *e);

/* ---- decoding ---- */

/* Text for n ids; *out is NUL-terminated and freed with fv_tok_free_text.  Ids outside the
 * vocabulary are an error. */
FV_API fv_status fv_tok_decode(const fv_tok *t, char **out, size_t *out_len, const int32_t *ids,
                               int64_t n, bool skip_specials, fv_err *e);
FV_API void fv_tok_free_text(const fv_tok *t, char *text, size_t len);

/* Decoding as ids arrive.  Each push gives the text that is now certain: never half a character.
 * The pieces joined are what fv_tok_decode gives for all ids; finish gives what was held back. */
typedef struct fv_tok_stream fv_tok_stream;
FV_API fv_status fv_tok_stream_new(fv_tok_stream **out, const fv_tok *t, bool skip_specials,
                                   fv_err *e);
FV_API void fv_tok_stream_free(fv_tok_stream *s);
/* *text is NUL-terminated, owned by s, valid until the next call. */
FV_API fv_status fv_tok_stream_push(fv_tok_stream *s, int32_t id, const char **text, size_t *len,
                                    fv_err *e);
FV_API fv_status fv_tok_stream_finish(fv_tok_stream *s, const char **text, size_t *len, fv_err *e);

/* ---- training ---- */

typedef enum fv_tok_kind {
    FV_TOK_BYTE_BPE = 0,
    FV_TOK_BPE,
    FV_TOK_WORDPIECE,
    FV_TOK_UNIGRAM,
    FV_TOK_WORD /* whole words and punctuation marks; all others are one unknown token */
} fv_tok_kind;

/* How byte-level BPE cuts a text into words before it looks for pairs. */
typedef enum fv_tok_split {
    FV_TOK_SPLIT_GPT2 = 0,
    FV_TOK_SPLIT_QWEN2 /* NFC first, digits one by one: what transformers takes for any qwen2 */
} fv_tok_split;

typedef struct fv_tok_train_opts {
    fv_tok_kind kind;
    fv_tok_split split; /* of FV_TOK_BYTE_BPE */
    int32_t vocab;      /* tokens wanted, specials included; 0: 8000 */
    int64_t min_count;  /* a pair (BPE, WordPiece), piece or word must be seen so often; 0: 2 */
    int32_t alphabet;   /* keep only so many different characters, the most frequent; 0: all */
    /* ends with NULL; they get the first ids.  NULL: what the kind needs for unknown text */
    const char *const *specials;
    /* specials that encoding puts around a text; NULL: none, for WordPiece [CLS] and [SEP] */
    const char *before, *after;
    bool lowercase;
    bool nfkc; /* normalise text by NFKC first; WordPiece normalises as BERT does instead */
    /* Called now and then with a stage's name and its progress in [0, 1]; may be NULL. */
    void (*progress)(void *self, const char *stage, double done);
    void *progress_self;
} fv_tok_train_opts;

/* Texts for training: sets *text, *len and returns true, or false at the end.  Valid until the next
 * call. */
typedef struct fv_tok_source {
    bool (*next)(void *self, const char **text, size_t *len);
    void *self;
} fv_tok_source;

/* The result depends on the texts and options alone: not on their order's hashing, threads or
 * time. */
FV_API fv_status fv_tok_train(fv_tok **out, const fv_env *env, fv_tok_source texts,
                              const fv_tok_train_opts *o, fv_err *e);
/* The same on the lines of plain text files. */
FV_API fv_status fv_tok_train_files(fv_tok **out, const fv_env *env, const char *const *paths,
                                    int n_paths, const fv_tok_train_opts *o, fv_err *e);

#endif
