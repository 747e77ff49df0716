/* tok.h - what a tokenizer is made of.
 *
 *     text -> added tokens cut out -> normalise -> split -> model -> post-process -> ids
 *                                                              ids -> tokens -> decode -> text
 *
 * Each arrow is one file.  Every stage is a list of steps, as in a tokenizer.json; a step is a kind
 * and its settings, and a switch runs it.  (Objects with virtual functions lost: twelve kinds with
 * two fields each read better side by side.)  The steps and tables below are built while opening
 * and are const from then on. */
#ifndef FV_TOK_H
#define FV_TOK_H

#include "fovea/tok.h"
#include "base/pool.h"
#include "text.h"
#include "vocab.h"

typedef struct fv__work fv__work; /* what one call writes to; see work.h */

/* ---- patterns ---- */

typedef struct fv__pattern {
    fv__str text; /* as in the file */
    bool regex;
    void *code;  /* pcre2_code, for a regex: its items call back, where the time is watched */
    void *quick; /* the same without callbacks, or NULL */
} fv__pattern;

/* Compiles p->text when it is a regex; `why` gets a sentence on failure. */
bool fv__pattern_compile(fv__pattern *p, const fv_env *env, char *why, size_t why_size,
                         bool *no_memory);
void fv__pattern_free(fv__pattern *p);
/* The next match in s[at, n): 1 found, 0 none, -1 failed (memory or the step limit).  Matches may
 * be empty. */
int fv__pattern_find(const fv__pattern *p, fv__work *w, const char *s, size_t n, size_t at,
                     size_t *from, size_t *to);

/* ---- normalise ---- */

typedef struct fv__charsmap {
    const uint32_t *units; /* Darts double array */
    size_t n_units;
    const char *text; /* replacements, each NUL-terminated */
    size_t n_text;
    fv__str blob; /* all of it, for saving */
} fv__charsmap;

bool fv__charsmap_init(fv__charsmap *m, fv__str blob);
/* The rule for the shortest or longest prefix of s[0,n); false if none.  *len: bytes it covers. */
bool fv__charsmap_find(const fv__charsmap *m, const char *s, size_t n, bool longest, size_t *len,
                       fv__str *out);

/* Types of tokenizer.json's "normalizer"; save.c indexes its names by these numbers.
 * FV__SPM_NORM alone has no name there. */
typedef enum fv__norm_kind {
    FV__NFC,
    FV__NFD,
    FV__NFKC,
    FV__NFKD,
    FV__LOWERCASE,
    FV__STRIP_ACCENTS,
    FV__NMT,
    FV__BERT_NORM,
    FV__STRIP,
    FV__REPLACE,
    FV__PREPEND,
    FV__PRECOMPILED,
    FV__BYTE_NORM,
    FV__SPM_NORM
} fv__norm_kind;

typedef struct fv__norm {
    fv__norm_kind kind;
    /* Bert; accents_set: strip_accents is not null */
    bool clean, cjk, lowercase, accents_set, accents;
    bool left, right;    /* Strip */
    fv__pattern pattern; /* Replace */
    fv__str content;     /* Replace, Prepend */
    fv__charsmap map;    /* Precompiled, Spm */
    /* Spm: dummy prefix, remove extra spaces, space as U+2581, dummy at the end */
    bool prefix, squeeze, escape, suffix;
    const fv__trie *symbols; /* Spm: user-defined symbols, which pass unchanged; or NULL */
} fv__norm;

/* One step.  out is started by the callee. */
bool fv__normalise(const fv__norm *step, fv__work *w, const fv__text *in, fv__text *out);
/* A Unicode normal form of in, appended to out. */
void fv__unicode_form(fv__text *out, const fv__text *in, bool compose, bool compat);

/* ---- split ---- */

/* Types of "pre_tokenizer"; save.c indexes its names by these numbers. */
typedef enum fv__split_kind {
    FV__BERT_SPLIT,
    FV__WHITESPACE,
    FV__WHITESPACE_SPLIT,
    FV__PUNCTUATION,
    FV__DIGITS,
    FV__DELIMITER,
    FV__SPLIT,
    FV__METASPACE,
    FV__BYTE_LEVEL,
    FV__FIXED_LENGTH,
    FV__SCRIPTS /* by a pattern of json/scripts.c, whose matches are the pieces */
} fv__split_kind;

/* What becomes of a match: dropped, a piece of its own, or joined to the piece before or behind
 * it; split.c has an example. */
typedef enum fv__behaviour {
    FV__REMOVED,
    FV__ISOLATED,
    FV__MERGED_PREVIOUS,
    FV__MERGED_NEXT,
    FV__CONTIGUOUS
} fv__behaviour;

/* Metaspace: where the replacement is put in front; FIRST means before the text's first word
 * only. */
typedef enum fv__scheme { FV__FIRST, FV__NEVER, FV__ALWAYS } fv__scheme;

typedef struct fv__split {
    fv__split_kind kind;
    fv__behaviour behaviour;
    fv__pattern pattern;
    fv__str replacement; /* Metaspace, CharDelimiterSplit */
    fv__scheme scheme;
    bool invert, individual, split; /* Split, Digits, Metaspace */
    /* ByteLevel; in_model: the BPE takes bytes, nothing is mapped */
    bool prefix_space, use_regex, trim, in_model;
    int64_t length;
} fv__split;

/* [a, b) in bytes of the text at hand (fv__work.text); 32 bits, since MAX_TEXT is below 2^29. */
typedef struct fv__piece {
    uint32_t a, b;
} fv__piece;

bool fv__split_text(const fv__split *step, fv__work *w);

/* ---- model ---- */

/* 16 bytes, four to a cache line: a failed look-up mostly costs one line. */
typedef struct fv__merge {
    uint32_t a, b;
    int32_t rank, id; /* id -1: a free slot */
} fv__merge;

typedef enum fv__model_kind {
    FV__MODEL_BPE,
    FV__MODEL_WORDPIECE,
    FV__MODEL_UNIGRAM,
    FV__MODEL_WORDLEVEL,
    FV__MODEL_CHAR
} fv__model_kind;

typedef struct fv__model {
    fv__model_kind kind;
    fv__vocab vocab;
    int32_t unk; /* -1: none */
    fv__str unk_token;
    bool has_unk_token;
    bool byte_fallback, fuse_unk;
    int32_t byte_ids[256]; /* of <0x00> ... <0xFF>, or -1 */
    /* BPE */
    fv__merge *merges; /* open addressing */
    uint32_t merge_mask;
    int merge_shift; /* of fv__merge_slot */
    uint64_t merge_key;
    int32_t (*pairs)[2]; /* by rank, for saving */
    int32_t n_pairs;
    int32_t made;           /* by the merge that was read last */
    fv__str prefix, suffix; /* of continuing and of last symbols; never NULL */
    bool ignore_merges;
    bool takes_bytes; /* words come as bytes, not as GPT-2's characters for them */
    /* takes_bytes: id of a byte; +1 when it is not first, +2 when it is last */
    int32_t symbols[4][256];
    int32_t *ascii;   /* 128 ids of one-character tokens, or -1 */
    uint64_t *joints; /* which symbols may meet in a merge: a Bloom filter over pairs; NULL: any */
    /* SentencePiece's user-defined symbols, which are never merged; or NULL */
    const fv__trie *frozen;
    /* WordPiece, Unigram */
    fv__trie trie;
    uint32_t continuing; /* node of the prefix */
    bool has_continuing;
    int64_t max_chars;
    double *scores;
    double unk_score;
    bool single; /* scores add up in float, as SentencePiece does it */
} fv__model;

/* What the loaders fill in first (vocab, merges as pairs, flags); finish derives the tables. */
bool fv__bpe_finish(fv__model *m, fv__pool *p);
bool fv__wordpiece_finish(fv__model *m, fv__pool *p);
/* types: of a SentencePiece file's pieces, where not all take part; or NULL. */
bool fv__unigram_finish(fv__model *m, fv__pool *p, const uint8_t *types);
void fv__byte_ids(fv__model *m);
#define FV__JOINT_BITS 16
static inline uint32_t fv__joint(uint32_t a, uint32_t b)
{
    return (a * 0x9E3779B1u ^ b * 0x85EBCA6Bu) * 0xC2B2AE35u >> (32 - FV__JOINT_BITS);
}
/* Where the search for a pair begins: the high bits of a product with a random odd key, so that no
 * file can choose pairs that meet. */
static inline uint32_t fv__merge_slot(const fv__model *m, int32_t a, int32_t b)
{
    uint64_t pair = (uint64_t)(uint32_t)a << 32 | (uint32_t)b;
    return (uint32_t)(pair * m->merge_key >> m->merge_shift);
}
bool fv__merge_table(fv__model *m, fv__pool *p, int32_t n);
void fv__merge_put(fv__model *m, int32_t a, int32_t b, int32_t rank, int32_t id);

/* Tokens of piece [a, b) of the current text, sent to fv__emit; false on failure (w->err is
 * filled). */
bool fv__bpe(const fv__model *m, fv__work *w, uint32_t a, uint32_t b);
bool fv__wordpiece(const fv__model *m, fv__work *w, uint32_t a, uint32_t b);
bool fv__unigram(const fv__model *m, fv__work *w, uint32_t a, uint32_t b);
bool fv__wordlevel(const fv__model *m, fv__work *w, uint32_t a, uint32_t b);
bool fv__charmodel(const fv__model *m, fv__work *w, uint32_t a, uint32_t b);

/* ---- added tokens ---- */

typedef struct fv__added {
    fv__str content;
    int32_t id;
    bool single_word, lstrip, rstrip, normalized, special;
} fv__added;

/* Two tries, since some are looked for before normalising and some after it; first_* are the
 * bytes any of them can start with. */
typedef struct fv__added_set {
    fv__added *all;
    int32_t n, fresh; /* fresh: those the model does not know */
    fv__vocab names;  /* content to index */
    int32_t *by_id;   /* indices sorted by id */
    /* of contents (values are indices); normal ones hold the normalised content */
    fv__trie raw, normal;
    bool first_raw[256], first_normal[256];
} fv__added_set;

/* ---- post-process ---- */

typedef struct fv__template_item {
    int sequence; /* 0 A, 1 B, -1 a special token */
    int32_t type;
    int32_t special; /* index into specials */
} fv__template_item;

typedef struct fv__template_special {
    fv__str name;
    int32_t n;
    int32_t *ids;
    fv__str *tokens;
} fv__template_special;

typedef enum fv__post_kind {
    FV__POST_NONE,
    FV__POST_TEMPLATE,
    FV__POST_BERT,
    FV__POST_ROBERTA
} fv__post_kind;

typedef struct fv__post {
    fv__post_kind kind;
    fv__template_item *single, *pair;
    int n_single, n_pair;
    fv__template_special *specials;
    int n_specials;
    bool trim, trim_prefix_space; /* Roberta, ByteLevel: cut spaces off offsets */
    bool byte_level;              /* a ByteLevel step was there */
    bool byte_trim, byte_prefix_space, byte_use_regex, byte_first;
} fv__post;

/* A special that is one token. */
bool fv__post_special(fv_tok *t, fv__template_special *s, fv__str name, int32_t id);
/* Both templates from a shorthand: A and B are the texts, digits the specials, each followed by its
 * type: "00A010" is [CLS] A [SEP], all of type 0, where specials[0] is [CLS] and specials[1]
 * [SEP]. */
bool fv__post_layout(fv_tok *t, const char *single, const char *pair);

/* ---- decode ---- */

typedef enum fv__dec_kind {
    FV__DEC_BYTE_LEVEL,
    FV__DEC_WORDPIECE,
    FV__DEC_METASPACE,
    FV__DEC_BPE,
    FV__DEC_BYTE_FALLBACK,
    FV__DEC_FUSE,
    FV__DEC_STRIP,
    FV__DEC_REPLACE,
    FV__DEC_CTC
} fv__dec_kind;

typedef struct fv__dec {
    fv__dec_kind kind;
    fv__str text, word; /* prefix, suffix, content, replacement, pad token; word: CTC's delimiter */
    fv__pattern pattern;
    bool cleanup;
    fv__scheme scheme;
    bool split, prefix_space, trim, use_regex; /* kept for saving */
    int64_t start, stop;
} fv__dec;

/* ---- SentencePiece files, as they are ---- */

/* The numbers of sentencepiece_model.proto. */
typedef enum fv__spm_type {
    FV__SPM_NORMAL = 1,
    FV__SPM_UNKNOWN,
    FV__SPM_CONTROL,
    FV__SPM_USER,
    FV__SPM_UNUSED,
    FV__SPM_BYTE
} fv__spm_type;

typedef struct fv__spm {
    uint8_t *types;       /* of each piece */
    bool prefix, squeeze; /* when decoding: a space in front was added, extra ones were removed */
    fv__str unk_surface;
    fv__trie symbols; /* user-defined; empty if there are none */
} fv__spm;

/* ---- limits ---- */

typedef struct fv__truncation {
    bool set, left;
    int64_t max_length, stride;
    int strategy; /* 0 longest first, 1 only first, 2 only second */
} fv__truncation;

typedef struct fv__padding {
    bool set, left, fixed;
    int64_t length, multiple, id, type;
    bool has_multiple;
    fv__str token;
} fv__padding;

/* ---- the whole ---- */

/* Const once it is open: any number of threads may encode with it, each with an fv_encoding of
 * its own. */
struct fv_tok {
    fv_env env_copy; /* the caller's may be gone */
    const fv_env *env;
    fv__pool pool;
    fv__norm *norm;
    int n_norm;
    fv__split *split;
    int n_split;
    fv__model model;
    fv__added_set added;
    fv__post post;
    fv__dec *dec;
    int n_dec;
    bool has_dec;
    fv__truncation truncation;
    fv__padding padding;
    fv__spm *spm;      /* set when the model came from a SentencePiece file */
    fv_tok *target;    /* Marian: the target language's pieces */
    fv__vocab *pieces; /* Marian, M2M-100: vocab.json, which numbers the pieces */
    int32_t pieces_unk;
    bool strip_decoded;
};

fv_tok *fv__tok_new(const fv_env *env, fv_err *e);
/* Builds the tables that depend on several sections; the last step of every loader. */
fv_status fv__tok_finish(fv_tok *t, const char *file, fv_err *e);
fv_status fv__added_finish(fv_tok *t, const char *file, fv_err *e);
/* The next added token in s[0, n).  *at is where to look on, moved past the match; done is the end
 * of the last one taken, to which a stripping token may reach back.  NULL: no more, or beyond the
 * limits of w. */
const fv__added *fv__added_find(const fv_tok *t, fv__work *w, bool normal, const char *s, size_t n,
                                size_t *at, size_t done, size_t *a, size_t *b);
const fv__added *fv__added_by_id(const fv_tok *t, int32_t id);
/* Numbers an added token as the reference does: its id in the model, else the next one after the
 * vocabulary's count. */
int32_t fv__added_number(fv_tok *t, fv__str content);

/* A token's text with its length (it may hold NULs); s is NULL where the id is free. */
fv__str fv__token_str(const fv_tok *t, int32_t id);

/* "model" may be missing where t has one already. */
fv_status fv__json_load(fv_tok *t, const char *data, size_t n, const char *file, fv_err *e);
fv_status fv__spm_load(fv_tok *t, const char *data, size_t n, const char *file, fv_err *e);

/* Bytes of a token of a Unigram, WordPiece or SentencePiece model.  From every position of a text
 * these look for tokens up to their longest, so its length times the text's is what encoding may
 * cost; published ones end below 200. */
#define FV__LONGEST_TOKEN 1024

#endif
