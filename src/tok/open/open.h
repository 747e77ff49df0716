/* open.h - what the readers of the older formats share: paths, and tokenizer_config.json. */
#ifndef FV_TOK_OPEN_H
#define FV_TOK_OPEN_H

#include "tok/json/load.h"
#include "unpack.h"

#define FV__MAX_PATH 4096

bool fv__tok_join(char out[FV__MAX_PATH], const char *dir, const char *name); /* false: too long */
bool fv__tok_has_file(const fv_env *env, const char *dir, const char *name);  /* packed or not */
/* of a path; "." if it names none */
void fv__tok_directory(char out[FV__MAX_PATH], const char *path);
bool fv__tok_ends_with(const char *s, const char *end);

/* What tokenizer_config.json says, or the defaults where it says nothing. */
typedef struct fv__config {
    fv__str class; /* without "Fast"; empty: not said */
    bool has_lower, lower, has_accents, accents, cjk;
    bool prefix_space, add_bos, add_eos;
    int64_t extra_ids;
    fv__str unk, cls, sep, pad, mask;
    fv__str language_codes, src_lang; /* M2M-100 */
} fv__config;

fv_status fv__load_config(fv__config *c, fv_tok *t, const char *dir, fv_err *e);
/* The class that transformers takes where tokenizer_config.json names none: config.json's
 * tokenizer_class, or that of its model_type; stays as it is where nothing is said. */
fv_status fv__class_of_model(fv__str *class, fv_tok *t, const char *dir, fv_err *e);
/* An error if the vocabulary lacks a token that the class needs. */
fv_status fv__need(const fv_tok *t, fv__str token, const char *file, fv_err *e);

/* WordPiece: a token a line */
fv_status fv__load_vocab_txt(fv_tok *t, const char *path, fv_err *e);
fv_status fv__load_bpe_files(fv_tok *t, const char *dir, fv_err *e); /* vocab.json and merges.txt */
fv_status fv__load_letters(fv_tok *t, const char *dir, fv_err *e);   /* vocab.json alone */
fv_status fv__load_vocab_json(fv__vocab *out, fv_tok *t, const char *path, fv_err *e);
/* a SentencePiece model and its class */
fv_status fv__load_pieces(fv_tok *t, const char *dir, const char *file, fv_err *e);
/* source.spm, target.spm, vocab.json */
fv_status fv__load_marian(fv_tok *t, const char *dir, fv_err *e);
/* sentencepiece.bpe.model and vocab.json */
fv_status fv__load_m2m_100(fv_tok *t, const char *dir, fv_err *e);

#endif
